"""Novelty bonuses: the numbers of the sheet, the released code's loop, and the run of an agent."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr import algorithm
from pipelines.rlvr.own_rows import ALONE

KINDS = ("global", "episodic", "product")
EPISODES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=7), min_size=1, max_size=6)


def novelty(kind, weight=1.0):
    return bind("rlvr.shaping", {"kind": "novelty", "scope": kind, "weight": weight})


def columns_of(episodes, paid=0.0):
    width = max(map(len, episodes))
    states = torch.tensor([e + [-1] * (width - len(e)) for e in episodes])
    return {
        "turn_reward": torch.full(states.shape, paid) * (states >= 0),
        "turn_state": states,
        "scored": torch.ones(len(states)).bool(),
    }


def test_a_state_that_is_met_once_a_step_is_worth_one_over_the_root_of_its_visits():
    part = novelty("global")
    worth = [part(columns_of([[0, 7]]))[0, 0].item() for _ in range(5)]
    assert [round(worth[n - 1], 6) for n in (1, 2, 5)] == [1.0, 0.707107, 0.447214]


@given(EPISODES, st.sampled_from(KINDS))
def test_episode_after_episode_it_is_the_released_loop(episodes, kind):
    """Counts go up with each visit and the episode's start over; `episode_state_count` and `global_state_count` are 1 / sqrt(N)."""
    part, run = novelty(kind), Counter()
    for states in episodes:
        own, expected = Counter(), []
        for state in states:
            own[state] += 1
            run[state] += 1
            episodic, everywhere = float(own[state] ** -0.5 == 1), run[state] ** -0.5
            expected.append({"episodic": episodic, "global": everywhere, "product": episodic * everywhere}[kind])
        torch.testing.assert_close(part(columns_of([states]))[0], torch.tensor([*expected[1:], 0.0]))


@given(EPISODES, st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_the_order_of_a_step_s_episodes_changes_nothing(episodes, kind, random):
    order = list(range(len(episodes)))
    random.shuffle(order)
    one, two = novelty(kind, 0.3), novelty(kind, 0.3)
    for _ in range(3):
        first, second = one(columns_of(episodes, 0.5)), two(columns_of([episodes[i] for i in order], 0.5))
        torch.testing.assert_close(first[order], second)
    assert one.fn.state_dict() == two.fn.state_dict()
    assert sum(one.fn.visits.values()) == 3 * sum(map(len, episodes))
    assert ((first - 0.5)[columns_of(episodes)["turn_state"] >= 0] <= 0.3 + 1e-6).all()


def test_rows_without_a_score_neither_pay_nor_count():
    part, columns = novelty("product"), columns_of([[1, 2, 3], [1, 4, 5]], paid=0.25)
    columns["scored"][1] = False
    assert part(columns)[1].tolist() == [0.25] * 3
    assert dict(part.fn.visits) == {"1": 1, "2": 1, "3": 1}


def test_the_row_s_reward_follows_its_turns():
    """Rewards of turns and of the row grow by the same, for whatever advantage compares them; unscored rows keep theirs."""
    columns = columns_of([[1, 2, 3], [1, 1, -1]], paid=0.5) | {"reward": torch.tensor([1.75, 1.0])}
    columns["scored"] = torch.tensor([True, False])
    after = columns | algorithm._shaped(novelty("episodic", 0.1), columns, ALONE)
    torch.testing.assert_close(after["turn_reward"], torch.tensor([[0.6, 0.6, 0.5], [0.5, 0.5, 0.0]]))
    torch.testing.assert_close(after["reward"], torch.tensor([1.95, 1.0]))


ADVANTAGES = [
    ("gigpo", True), ("{kind: grpo, scale: none}", True), ("trloo", True), ("archer", True), ("w_reinforce", False),
]  # fmt: skip


@pytest.mark.parametrize(("advantage", "reads"), ADVANTAGES)
def test_an_advantage_must_read_what_is_paid(tmp_path, advantage, reads):
    critics = ["rlvr.providers=[archer]"] if advantage == "archer" else []
    recipe = read_recipe(toys.lake(tmp_path), ["rlvr.shaping=[novelty]", f"rlvr.advantage={advantage}", *critics])
    if reads:
        check(recipe)
        return
    with pytest.raises(RecipeError, match="novelty changes the reward, which nothing here reads"):
        check(recipe)


def test_single_answers_have_no_states(tmp_path):
    with pytest.raises(RecipeError, match=r"novelty needs turn_reward, turn_state.*multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.shaping=[novelty]"]))


def test_a_run_counts_what_its_rows_visit_and_a_restart_forgets_nothing(tmp_path, lake):
    results = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            return toys.trainer(
                folder, lake, toys.lake(folder), "presets=[novelty]", "rlvr.rollout={kind: multi_turn, max_turns: 3}"
            )

        if name == "stopped":
            made = toys.run_stopped(build)
        else:
            made = build()
            made.run()
        part = next(part for part in made.update.bound() if part.name == "novelty").fn
        results.append(
            (
                json.dumps(part.state_dict(), sort_keys=True),
                [p.detach().clone() for p in made.learner.model.parameters()],
            )
        )
    (visits, one), (visits_again, two) = results
    assert visits == visits_again and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert 3 * 16 <= sum(json.loads(visits)["visits"].values()) <= 3 * 16 * 3
    values = [b["values"] for b in toys.spool(tmp_path / "straight" / "work") if b["kind"] == "metrics"]
    assert (
        all(v["reward/shaped_mean"] >= v["reward/mean"] for v in values)
        and values[0]["reward/shaped_mean"] > values[0]["reward/mean"]
    )
