"""Fused bonuses: the fusions and the released scale by hand and by loop, and the run of an agent."""

from __future__ import annotations

import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

RUN, EPISODE = {"kind": "novelty", "scope": "global"}, {"kind": "novelty", "scope": "episodic"}
EPISODES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=2, max_size=5)


def hire(**settings):
    return toys.bound("rlvr.shaping", **{"kind": "hire", "terms": [RUN, EPISODE], "weight": 1.0, **settings})


def columns_of(episodes, step=0, **more):
    width = max(map(len, episodes))
    states = torch.tensor([e + [-1] * (width - len(e)) for e in episodes])
    turn = torch.where(states >= 0, torch.arange(width), -1)
    return {
        "turn_reward": torch.zeros(states.shape), "turn_state": states, "turn": turn, "mask": turn >= 0,
        "scored": torch.ones(len(states)).bool(), "step": step, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        ("sum", [3.0, 2 * 2**-0.5, 3.0, 0.0]),
        ("product", [2.0, 0.0, 2.0, 0.0]),
        ("cycle", [2.0, 0.0, 2.0, 0.0]),
        ("max", [2.0, 2 * 2**-0.5, 2.0, 0.0]),
    ],
)
def test_the_fusions_by_hand(fusion, expected):
    """States 7, 8, 7, 9: the run's bonus of the state led to is 1, 1/sqrt 2, 1, the episode's 1, 0, 1; the run's weighs 2."""
    part = hire(fusion=fusion, normalise="none", terms=[RUN | {"weight": 2.0}, EPISODE])
    assert part(columns_of([[7, 8, 7, 9]]))[0].tolist() == pytest.approx(expected)


def test_the_bonus_decays_by_steps_and_is_added_to_what_turns_earn():
    columns = columns_of([[1, 2, 3]], step=3, turn_reward=torch.full((1, 3), 0.25))
    paid = hire(fusion="max", normalise="none", weight=0.5, decay=0.1)(columns)
    assert paid[0].tolist() == pytest.approx([0.25 + 0.5 * 0.9**3, 0.25 + 0.5 * 0.9**3, 0.25])


@given(st.lists(EPISODES, min_size=2, max_size=3))
def test_each_bonus_is_over_its_running_deviation_as_in_the_released_code(steps):
    """rllte's `scale`: moments merged by Chan's formula from 1e-4 values with variance 1, this step's before the division."""
    part, plain = (
        hire(fusion="sum", least=1e-6),
        [toys.bound("rlvr.shaping", **term, weight=1.0) for term in (RUN, EPISODE)],
    )
    moments = [(1e-4, 0.0, 1.0)] * 2
    for episodes in steps:
        columns = columns_of(episodes)
        expected = torch.zeros(columns["turn_state"].shape, dtype=torch.float64)
        for i, term in enumerate(plain):
            bonus = term(columns).double()
            values = bonus[columns["turn_state"] >= 0].tolist()
            count, mean, variance = moments[i]
            difference, total = statistics.mean(values) - mean, count + len(values)
            batch = statistics.variance(values) if len(values) > 1 else 0.0
            square = variance * count + batch * len(values) + difference**2 * count * len(values) / total
            moments[i] = (total, mean + difference * len(values) / total, square / total)
            expected += bonus / (square / total) ** 0.5
        torch.testing.assert_close(part(columns).double(), expected, rtol=1e-4, atol=1e-4)


def test_bonuses_that_hardly_differ_are_not_blown_up():
    columns = columns_of([[1, 2], [3, 4]])
    columns["mask"] &= columns["turn"] == 0  # both turns that count are worth 1
    assert hire(fusion="max", least=0.5)(columns)[:, 0].tolist() == [2.0, 2.0]
    assert hire(fusion="max", normalise="range")(columns).tolist() == [[0.0, 0.0]] * 2


def test_the_range_of_a_step_is_from_0_to_1():
    paid = hire(fusion="max", normalise="range", terms=[RUN, RUN])(columns_of([[7, 8, 7, 7]]))[0]
    assert paid.tolist() == pytest.approx([1.0, 2**-0.5, 3**-0.5, 0.0])


def test_a_bonus_of_rows_counts_for_each_of_the_row_s_turns():
    """One row alone in its group has 1 / ridge = 10; the unscored one nothing."""
    more = {
        "reward": torch.ones(2), "correct": torch.ones(2), "group": torch.arange(2), "hidden_stats": torch.ones(2, 3),
    }  # fmt: skip
    columns = columns_of([[1, 2, 3], [4, 5]], **more)
    columns["scored"][1] = False
    columns["mask"][1] = False
    part = hire(terms=[RUN, {"kind": "elliptical", "ridge": 0.1}], fusion="product", normalise="none")
    torch.testing.assert_close(part(columns), torch.tensor([[10.0, 10.0, 0.0], [0.0, 0.0, 0.0]]))
    assert "hidden_stats" in part.needs and "hidden_stats" in part.fn.column_options()


@given(EPISODES, st.sampled_from(["sum", "product", "cycle", "max"]), st.randoms(use_true_random=False))
def test_the_order_of_a_step_s_episodes_changes_nothing(episodes, fusion, random):
    order = list(range(len(episodes)))
    random.shuffle(order)
    one, two = hire(fusion=fusion), hire(fusion=fusion)
    for step in range(3):
        first, second = one(columns_of(episodes, step)), two(columns_of([episodes[i] for i in order], step))
        torch.testing.assert_close(first[order], second)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("[novelty, par]", r"rlvr\.shaping\.terms\.1: par is no bonus for exploration"),
        ("[novelty, {kind: hire, terms: [novelty, elliptical]}]", r"terms\.1: hire is no bonus"),
        ("[novelty, {kind: novelty, scope: all}]", r"rlvr\.shaping\.terms\.1\.scope"),
        ("[novelty, {kind: novelty, weight: -1}]", r"rlvr\.shaping\.terms\.1\.weight"),
        ("[novelty, {scope: global}]", r"rlvr\.shaping\.terms\.1: say which method with `kind`"),
        ("[novelty]", r"rlvr\.shaping\.terms"),
    ],
)
def test_terms_that_are_no_bonuses_are_refused(tmp_path, terms, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.lake(tmp_path), [f"rlvr.shaping=[{{kind: hire, terms: {terms}}}]"]))


def test_what_the_terms_read_must_be_there(tmp_path):
    with pytest.raises(RecipeError, match=r"hire needs turn_reward.*multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.shaping=[{kind: hire, terms: [novelty, elliptical]}]"]))


@pytest.mark.parametrize("preset", ["hire", "e3b"])
def test_an_agent_is_paid(tmp_path, lake, preset):
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), f"presets=[{preset}]", "rlvr.rollout.max_turns=3", "rlvr.steps=1"
    )  # fmt: skip
    made.run()
    ((_, values),) = toys.history(tmp_path / "work")
    assert values["reward/shaped_mean"] > values["reward/mean"] + 0.01
