"""ViRL's reward: crops that show what a question needs are paid once, others cost; the answer may be gated by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import conversation

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers.virl.crops import kinds_of

UID = "a" * 32
REGIONS = [[0, 0, 4, 4], [4, 0, 8, 4]]


def crop(*box, outcome="ok"):
    return {"name": "crop", "arguments": {"box": list(box)}, "outcome": outcome, "text": ""}


def scored(*turns, rationales=REGIONS, answer=1.0, **settings):
    problem = Problem(
        uid=UID, prompt=[{"role": "user", "content": "q"}], answer="x", verifier="exact", source="s", licence="l",
        info={"rationales": rationales},
    )  # fmt: skip
    talk = [text for _ in turns for text in ("go", "x")] + ["white"]
    row = conversation(UID, *talk, turn_calls=[*map(list, turns), []], outcome=answer)
    row.turn_components = [*({} for _ in turns), {"answer": answer}]
    bind("rlvr.reward", {"kind": "virl", **settings}).fn.score([row], {UID: problem})
    return row


def test_a_crop_is_paid_once_and_what_shows_nothing_costs():
    row = scored(
        [crop(0, 0, 4, 4)], [crop(0, 0, 4, 4)], [crop(4, 4, 8, 8)], [crop(9, 9, 9, 9, outcome="failed")],
        weight=0.5, redundant=0.2, erroneous=0.3,
    )  # fmt: skip
    assert row.turn_reward == pytest.approx([0.5, -0.2, -0.3, -0.3, 1.0])
    assert row.score == pytest.approx(0.7)
    assert [row.components[f"crops/{kind}"] for kind in ("correct", "redundant", "erroneous")] == [1, 1, 2]


def test_a_crop_is_paid_its_overlap_from_the_threshold_on():
    half = [crop(0, 0, 4, 3)]
    assert scored(half, weight=1.0).turn_reward[0] == pytest.approx(0.75)
    assert scored(half, weight=1.0, threshold=0.8, erroneous=0.4).turn_reward[0] == pytest.approx(-0.4)


def test_gated_answers_count_where_everything_needed_was_shown():
    both = [crop(0, 0, 4, 4), crop(4, 0, 8, 4)]
    assert scored(both, gate=True, weight=0.0).turn_reward == pytest.approx([0.0, 1.0])
    assert scored(both[:1], gate=True, weight=0.0).turn_reward == pytest.approx([0.0, 0.0])
    assert scored(both[:1], weight=0.0).turn_reward == pytest.approx([0.0, 1.0])


def test_a_problem_without_rationales_keeps_its_rewards():
    row = scored([crop(0, 0, 4, 4)], rationales=[])
    assert row.turn_reward == [0.0, 1.0] and "turn.virl" not in row.components


BOXES = st.lists(st.integers(0, 3), min_size=4, max_size=4).map(
    lambda b: (b[0], b[1], b[0] + b[2] + 1, b[1] + b[3] + 1)
)


@given(st.lists(BOXES, max_size=8), st.lists(BOXES, min_size=1, max_size=4), st.sampled_from([0.3, 0.5, 1.0]))
def test_no_region_is_paid_twice_and_the_order_of_regions_is_nothing(boxes, wanted, threshold):
    kinds = kinds_of([crop(*box) for box in boxes], wanted, threshold)
    correct = [share for kind, share in kinds if kind == "correct"]
    assert len(correct) <= len(wanted) and all(threshold <= share <= 1 for share in correct)
    assert all(share < threshold for kind, share in kinds if kind == "erroneous")
    if len(set(wanted)) == 1:
        assert [kind for kind, _ in kinds] == [
            kind for kind, _ in kinds_of([crop(*b) for b in boxes], wanted[::-1], threshold)
        ]
