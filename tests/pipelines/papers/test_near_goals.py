"""Rewards that an encoder gives episodes: contrasting goals turn by turn, one demonstration at the end; a run of each."""

from __future__ import annotations

import pytest
import toys
from method_toys import answer
from scripted import conversation

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.verifiers._encoder import TINY, encoder

UID = "a" * 32
PROBLEM = Problem(
    uid=UID, prompt=[{"role": "user", "content": "a road"}], answer="4", verifier="number", source="s", licence="l",
    info={"shown": "a road\n\nthe road is clear"},
)  # fmt: skip
CLEAR, CRASH = "the road is clear", "two cars have collided !!"


def scored(rows, kind, **settings):
    part = bind("rlvr.reward", {"kind": kind, "encoder": TINY, **settings}).fn
    part.score(rows, {UID: PROBLEM})
    return rows


def drive(*states, **more):
    talk = [text for _ in states for text in ("go", "x")][:-1]
    return conversation(UID, *talk, turn_observation=list(states), **more)


def contrasted(*rows, **settings):
    return scored(
        list(rows), "contrasting_goals", wanted=CLEAR, unwanted=CRASH, **{"low": -0.5, "high": 0.5, **settings}
    )


def cosine(text, other):
    one, two = encoder(TINY).embed([text, other])
    return float(one @ two)


def test_turns_are_paid_for_the_states_that_they_lead_to():
    (row,) = contrasted(drive(CLEAR, "the road is there", CRASH, outcome=5.0))
    values = [cosine(state, CLEAR) - cosine(state, CRASH) for state in (CLEAR, "the road is there", CRASH)]
    assert row.turn_reward == pytest.approx([value + 0.5 for value in values], abs=1e-5)
    assert row.turn_reward[0] > row.turn_reward[1] > row.turn_reward[2]
    assert row.score == pytest.approx(sum(row.turn_reward)) and row.components["outcome"] == 5.0


@pytest.mark.parametrize(
    "kind,settings",
    [
        ("contrasting_goals", {"wanted": CLEAR, "unwanted": CRASH, "low": -0.5, "high": 0.5}),
        ("roboclip", {"reference": "shown"}),
    ],
)
def test_turns_are_paid_by_a_term_too(kind, settings):
    (alone,) = scored([drive(CLEAR, CRASH)], kind, **settings)
    row = drive(CLEAR, CRASH, earlier=1.0, outcome=3.0)
    row.score = 4.0
    term = {"kind": kind, "encoder": TINY, "weight": 2.0, **settings}
    bind("rlvr.reward", {"kind": "composite", "terms": ["verifier", term]}).fn.score([row], {UID: PROBLEM})
    expected = [paid + 2 * own for paid, own in zip([1.0, 3.0], alone.turn_reward, strict=True)]
    assert row.turn_reward == pytest.approx(expected) and row.score == pytest.approx(sum(expected))


def test_the_released_bounds_pay_in_full_what_is_as_near_to_both():
    row, other = contrasted(drive(CLEAR), drive(CRASH), low=-0.03, high=0.0)
    assert row.score == 1.0 and other.score == pytest.approx((cosine(CLEAR, CRASH) - 1 + 0.03) / 0.03, abs=1e-4)
    assert contrasted(drive(CRASH), low=-0.01, high=0.0)[0].score == 0.0
    (weighed,) = contrasted(drive("the road is there"), alpha=0.25, beta=0.75, low=-1.0, high=1.0)
    near = 0.25 * cosine("the road is there", CLEAR) - 0.75 * cosine("the road is there", CRASH)
    assert weighed.score == pytest.approx((near + 1) / 2, abs=1e-5)


def test_an_answer_without_turns_is_a_state():
    rows = [answer(UID, 0, text) for text in (f"<think>{CRASH}</think>{CLEAR}", CRASH, "", "x")]
    rows[-1].stop = Stop.ERROR
    contrasted(*rows)
    assert rows[0].score > 0.5 > rows[1].score > rows[2].score == 0.0 and rows[3].score is None
    assert rows[0].correct is False, "the verdict stays the verifier's"


def test_goals_that_cannot_be_read_are_named():
    with pytest.raises(RecipeError, match=r"rlvr\.reward\.low: 0\.5 is not below high"):
        contrasted(low=0.5)
    with pytest.raises(DataError, match="wanted or unwanted is longer than"):
        scored([drive("x")], "contrasting_goals", wanted="x" * 5000, unwanted=CRASH)


@pytest.mark.parametrize("settings", [{"demonstration": "a road\n\nthe road is clear"}, {"reference": "shown"}])
def test_an_episode_is_paid_its_likeness_to_the_demonstration_at_its_end(settings):
    same, other, short = scored([drive("", CLEAR), drive(CLEAR, CRASH), drive(CLEAR)], "roboclip", **settings)
    assert same.turn_reward == pytest.approx([0.0, 1.0], abs=1e-5) and short.turn_reward == pytest.approx(
        [1.0], abs=1e-5
    )
    assert other.turn_reward[0] == 0.0 < other.turn_reward[1] < 0.99
    assert other.score == pytest.approx(
        cosine(f"a road\n\n{CLEAR}\n\n{CRASH}", "a road\n\nthe road is clear"), abs=1e-5
    )
    (alone,) = scored([answer(UID, 0, "<think>no</think>a road\n\nthe road is clear")], "roboclip", **settings)
    assert alone.score == pytest.approx(1.0, abs=1e-5)


def test_one_demonstration_is_named():
    for settings in ({}, {"demonstration": "x", "reference": "shown"}):
        with pytest.raises(RecipeError, match="roboclip compares with one text"):
            scored([], "roboclip", **settings)
    with pytest.raises(DataError, match=r"has no text in info\.absent"):
        scored([drive("x")], "roboclip", reference="absent")
    with pytest.raises(DataError, match="is longer than"):
        scored([drive("x")], "roboclip", demonstration="x" * 5000)


REWARDS = (
    ("contrasting_goals, wanted: '..A', unwanted: 'AOO', low: -1.0, high: 1.0", "contrast"),
    ("roboclip, demonstration: 'A.G\n\n.AG\n\n..A'", "demonstrated"),
)


@pytest.mark.parametrize(("reward", "name"), REWARDS)
def test_a_run(tmp_path, lake, reward, name):
    folder = tmp_path / "encoder"
    encoder(TINY).model.save_pretrained(folder)
    encoder(TINY).tokenizer.save_pretrained(folder)
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.steps=1", "rlvr.advantage=gigpo",
        f'rlvr.reward=[{{kind: {reward}, encoder: "{folder}"}}]'.replace("\n", "\\n").replace("'", '"'),
    )  # fmt: skip
    made.run()
    (values,) = [history for _, history in toys.history(tmp_path / "work")]
    paid = values[f"reward_component/{name}.turn.{name}"]
    assert 0 < paid <= 3 and values["reward/mean"] == pytest.approx(paid)
