"""Advantages of episodes of several rows: each counts once in its group, on one process and on several."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from meeting import on_ranks

from pipelines.contract.catalogue import bind
from pipelines.laws import example_columns
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm
from pipelines.rlvr.episodes import Episodes, last_rows
from pipelines.rlvr.own_rows import ALONE, Rows

ROLLOUT = {"kind": "multi_turn", "compact": {"at_tokens": 40, "max_tokens": 4}}


def step(groups, episodes, rewards):
    """Columns of rows of two tokens, all scored."""
    group = torch.tensor(groups)
    mask = torch.tensor([[False, True, True]]).expand(len(group), 3)
    columns = example_columns.columns(mask, group, torch.tensor(rewards, dtype=torch.float32), mask.long() - 1)
    return columns | {"episode": torch.tensor(episodes), "reward": torch.tensor(rewards, dtype=torch.float32)}


def of_each(columns, rows=ALONE, **settings):
    """Advantage of each row's first trained token, as the loop has it."""
    update = algorithm.Update.of(
        Rlvr(**{"rollout": ROLLOUT, "advantage": {"kind": "grpo", "scale": "none"}} | settings)
    )
    return algorithm.assign_credit(update, columns, rows=rows)["advantage"][:, 1].tolist()


def test_an_episode_counts_once_in_its_group_s_mean():
    """Three rows of a success beside a failure: the mean is 1/2, as SUPO has it, where rows would give 3/4."""
    columns = step([0, 0, 0, 0], [0, 0, 0, -1], [1, 1, 1, 0])
    assert of_each(columns) == [0.5, 0.5, 0.5, -0.5]
    assert of_each(columns | {"episode": torch.full((4,), -1)}) == [0.25, 0.25, 0.25, -0.75]
    assert of_each(columns, rollout="single_turn") == [0.25, 0.25, 0.25, -0.75]
    assert of_each(columns, advantage="opo")[3] == -0.75, "it reads tokens, so it gets all rows"


def test_an_episode_that_is_unscored_gets_nothing():
    columns = step([0, 0, 0, 0, 0], [0, 0, 1, 1, 2], [1, 1, 0, 0, 0])
    scored = torch.tensor([True, False, False, False, True])
    columns |= {"scored": scored, "mask": columns["mask"] & scored[:, None]}
    assert of_each(columns) == [0.5, 0, 0, 0, -0.5]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), st.booleans()), min_size=1, max_size=12))
def test_rows_of_an_episode_have_the_advantage_of_a_group_of_episodes(drawn):
    """Against a loop; the reward of an episode is that of its last row."""
    groups, episodes, rewards = zip(*drawn, strict=True)
    paid = {}
    for place, (group, episode, reward) in enumerate(drawn):
        paid[group, episode if episode >= 0 else -1 - place] = float(reward)
    wanted = []
    for place, (group, episode, _) in enumerate(drawn):
        own = [reward for (other, _), reward in paid.items() if other == group]
        wanted.append(paid[group, episode if episode >= 0 else -1 - place] - sum(own) / len(own))
    columns = {
        "group": torch.tensor(groups),
        "episode": torch.tensor(episodes),
        "scored": torch.ones(len(drawn)).bool(),
    }
    columns["reward"] = torch.tensor(rewards).float()
    part = bind("rlvr.advantage", {"kind": "grpo", "scale": "none"})
    assert Episodes(ALONE).call(part, columns).tolist() == pytest.approx(wanted)
    last, index = last_rows(*(columns[name] for name in ("group", "episode", "scored")))
    assert last.tolist() == sorted(last.tolist()) and len(last) == len(paid)
    assert last[index][last].equal(last), "a last row stands for itself"


def test_processes_with_rows_of_their_own_have_the_advantages_of_one():
    columns = step([0, 0, 0, 1, 1, 1, 2, 2], [0, 0, -1, 1, 0, 0, -1, -1], [1, 1, 0, 1, 0, 0, 1, 0])
    for advantage in ({"kind": "grpo", "scale": "none"}, {"kind": "grpo", "scale": "batch"}):
        whole = torch.tensor(of_each(columns, advantage=advantage))

        def credit(world, advantage=advantage, whole=whole):
            mine = columns["group"] % world.size == world.rank
            return of_each(algorithm.take(columns, mine), Rows(world), advantage=advantage), whole[mine].tolist()

        assert all(own == of_one for own, of_one in on_ranks(3, credit))
