"""The bandit with two arms: RAGEN's numbers, luck that belongs to an episode, settings that cannot be."""

from __future__ import annotations

import math

import pytest
import scripted
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import copy_of, problem, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.papers.ragen import bandit

NAMES = {"low": ["Phoenix", "Trader", "Heron"], "high": ["Dragon", "Librarian"]}


def played(arm, *, pulls=1, rollouts=400, seed=0):
    """Rewards of episodes of one problem whose policy always pulls one arm."""
    [row, *_] = bandit.problems(1, 0, pulls=pulls)
    request = scripted.request("q", rollouts, **row["info"])
    context = scripted.context(lambda prefix, number: arm, max_tokens=12, seed=seed)
    rows = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": pulls}).fn.run([request], context)
    assert all(r.correct == (arm == "Dragon") for r in rows)
    return [tuple(r.turn_reward) for r in rows]


def test_the_low_arm_always_pays_the_same_and_the_high_one_more_on_average():
    assert set(played("Phoenix")) == {(0.1,)}
    high = [reward for (reward,) in played("Dragon")]
    assert set(high) == {0.0, 1.0} and 0.19 < sum(high) / len(high) < 0.31


def test_episodes_of_a_group_have_their_own_luck_and_a_repeated_step_has_the_same():
    first = played("Dragon", pulls=6, rollouts=30)
    assert len(set(first)) > 10, "pulls and episodes differ"
    assert first == played("Dragon", pulls=6, rollouts=30) != played("Dragon", pulls=6, rollouts=30, seed=1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**62), st.lists(st.sampled_from(["Phoenix", "dragon ", "x"]), max_size=6), st.integers(1, 6))
def test_a_copy_has_the_luck_of_its_episode(number, before, pulls):
    world = started("bandit", next(bandit.problems(1, 0, pulls=pulls)))
    world.reseed(number)
    for arm in before:
        world.step(arm)
    other = copy_of("bandit", world)
    assert [world.step("Dragon") for _ in range(pulls)] == [other.step("Dragon") for _ in range(pulls)]


def test_pulls_are_counted_and_nonsense_is_none():
    world = started("bandit", next(bandit.problems(1, 0, pulls=3)))
    nonsense = world.step("both")
    assert nonsense.info["invalid"] and nonsense.reward == 0 and not nonsense.done
    steps = [world.step(arm) for arm in ("dragon", "PHOENIX\n", "Dragon")]
    assert [s.done for s in steps] == [False, False, True] and [s.info["success"] for s in steps] == [
        False,
        False,
        True,
    ]
    assert steps[1].observation.startswith("Phoenix: 0.1 points. Pull ") and len({s.state for s in steps}) == 3
    over = world.step("Dragon")
    assert over.done and over.info == {"success": True, "invalid": True} and over.reward == 0
    tied = started("bandit", next(bandit.problems(1, 0, pulls=2)))
    assert [tied.step(arm).info["success"] for arm in ("Dragon", "Phoenix")] == [False, False]


def test_every_pair_comes_once_in_each_order():
    rows = list(bandit.problems(100, 5, **NAMES))
    asked = {row["prompt"][0]["content"] for row in rows}
    assert len(rows) == len(asked) == 2 * 3 * 2 and {row["answer"] for row in rows} == set(NAMES["high"])
    assert [r["info"]["seed"] for r in rows] == [r["info"]["seed"] for r in bandit.problems(100, 5, **NAMES)]
    assert [r["prompt"] for r in rows] != [r["prompt"] for r in bandit.problems(100, 6, **NAMES)]
    assert len(list(bandit.problems(3, 5, **NAMES))) == 3


def test_an_expert_with_errors_teaches_the_form_of_an_answer():
    rows = list(bandit.problems(400, 2, **NAMES, pulls=20, demonstrations=True, errors=0.5))
    low = sum(row["info"]["solution"] in NAMES["low"] for row in rows) / len(rows)
    assert len(rows) == 240 and 0.4 < low < 0.6
    for row in rows:
        started("bandit", row)
        assert [m["content"] for m in row["prompt"] if m["role"] == "assistant"] == row["info"]["walked"]
    assert all(r["info"]["solution"] == r["answer"] for r in bandit.problems(9, 2, **NAMES, demonstrations=True))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"chance": 0.05}, "high arm pays 0.05 on average and the low one 0.1.*Raise `chance`"),
        ({"high": ["phoenix"]}, "'phoenix' is a low and a high arm"),
        ({"low": []}, "low: "),
        ({"low": ["two words"]}, "low: "),
        ({"pays": [0.1]}, "pays: "),
        ({"pays": [0.1, float("inf")]}, "pays: "),
        ({"pulls": True}, "pulls: .*valid integer"),
        ({"arms": 3}, "arms: .*nexpected keyword"),
    ],
)
def test_settings_that_cannot_be_are_refused(config, words):
    with pytest.raises(RecipeError, match=words):
        next(environments.problems("bandit", 1, 0, config))


def test_names_are_read_without_regard_to_capitals():
    info = next(bandit.problems(1, 0))["info"]
    world = bandit.World()
    world.reset(
        problem({"prompt": [], "answer": "Dragon", "verifier": "exact", "info": {**info, "walked": ["phoenix"]}})
    )
    assert world.done and world.pulled == 1 and world.high_pulls == 0


@pytest.mark.parametrize("pulls", range(1, 8))
def test_divided_by_its_deviation_a_group_of_eight_prefers_the_sure_arm(pulls):
    """Mean advantage of a pull of the high arm over all that such pulls may pay: positive to Dr. GRPO, negative to GRPO."""
    expected = {}
    for scale in ("std", "none"):
        estimate = bind("rlvr.advantage", {"kind": "grpo", "scale": scale})
        expected[scale] = 0.0
        for paid in range(pulls + 1):
            reward = torch.tensor([1.0] * paid + [0.0] * (pulls - paid) + [0.1] * (8 - pulls))
            columns = {"reward": reward, "group": torch.zeros(8, dtype=torch.int64), "scored": torch.ones(8) > 0}
            advantage = estimate(columns)
            chance = math.comb(pulls, paid) * 0.25**paid * 0.75 ** (pulls - paid)
            expected[scale] += chance * float(advantage[:pulls].mean())
    assert expected["none"] == pytest.approx((0.25 - 0.1) * (8 - pulls) / 8, abs=1e-6)
    assert expected["std"] < 0
