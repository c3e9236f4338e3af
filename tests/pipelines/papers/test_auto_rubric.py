"""Verdicts on pairs as advantages, through a real HTTP judge."""

from __future__ import annotations

import judge_server
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.rlvr.ops import clipped, ratio

UID = "a" * 32
PROBLEM = Problem(
    uid=UID, prompt=[{"role": "user", "content": "2 + 2?"}], answer="4", verifier="number", source="s", licence="l"
)


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))


def by_length(body):
    """Prefers the longer answer; the first one where there is a "!" in it, whichever that is."""
    first, second = judge_server.pair(body)
    if "!" in first + second:
        return "First: 9\nSecond: 2"
    return f"First: {min(9, 1 + len(first))}\nSecond: {min(9, 1 + len(second))}"


def scored(texts, judge=None, **settings):
    spec = {"kind": "auto_rubric", **settings}
    if judge is not None:
        spec |= {"judge": {"model": judge.rule.__name__, "url": judge.url}}
    rows = [text if not isinstance(text, str) else answer(UID, 0, text) for text in texts]
    bind("rlvr.reward", spec).fn.score(rows, {UID: PROBLEM})
    return [row.score for row in rows], rows


def test_the_sheet_s_example():
    with judge_server.running(by_length) as judge:
        scores, rows = scored(["longer", "no"], judge, win=1.0, lose=0.5)
        flipped, _ = scored(["x!", "yy"], judge)
        tied, _ = scored(["aa", "bb"], judge)
    assert scores == [1.0, -0.5] and flipped == [None, None] == tied
    assert rows[0].components["rubric_undecided"] == 0
    import torch

    rho, A = torch.tensor([1.4, 1.4]), torch.tensor(scores)
    loss = clipped(ratio(rho.log(), torch.zeros(2)), A, 0.2, 0.2)
    assert (-loss).tolist() == pytest.approx([1.2, -0.7])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("ab!", max_size=4), min_size=2, max_size=6))
def test_swapping_swaps_and_equal_weights_sum_to_zero(server, texts):
    texts = texts[: len(texts) // 2 * 2]
    scores, _ = scored(texts, server)
    swapped, _ = scored([t for i in range(0, len(texts), 2) for t in (texts[i + 1], texts[i])], server)
    assert swapped == [s for i in range(0, len(texts), 2) for s in (scores[i + 1], scores[i])]
    assert sum(s or 0 for s in scores) == 0


@pytest.fixture(scope="module")
def server():
    with judge_server.running(by_length) as judge:
        yield judge


def test_the_criteria_reach_the_judge():
    with judge_server.running(by_length) as judge:
        scored(["a", "bb"], judge, criteria=["It is long."])
        assert (
            all("- It is long." in body["messages"][0]["content"] for body in judge.bodies) and len(judge.bodies) == 2
        )


def test_without_a_judge_the_verifier_s_scores_are_compared():
    scores, rows = scored(["4", "5", "4", "4", "4"])
    assert scores == [1.0, -1.0, None, None, None], "a tie, and a row without a partner"
    assert [row.correct for row in rows] == [True, False, True, True, True]
    broken = answer(UID, 0, "4")
    broken.stop = Stop.ERROR
    assert scored([broken, "4", "5"])[0] == [None, 1.0, -1.0]


def test_what_the_judge_lacks_is_named():
    with pytest.raises(RecipeError, match=r"rlvr\.reward\.judge\.url"):
        bind("rlvr.reward", {"kind": "auto_rubric", "judge": {"model": "m", "url": "localhost"}})
