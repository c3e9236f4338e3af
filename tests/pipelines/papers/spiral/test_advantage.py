"""SPIRAL: the released loop game by game, several games a step, and rows that do not count."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.papers.spiral.advantage import spiral

ROWS = st.lists(
    st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 1.0]), st.integers(0, 1), st.integers(0, 1), st.booleans()), max_size=9
)


def columns(rows):
    paid, task, player, scored = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
    made = {"reward": torch.tensor(paid), "task": torch.tensor(task).long(), "player": torch.tensor(player).long()}
    return made | {"scored": torch.tensor(scored).bool(), "replayed": torch.zeros(len(rows)).bool()}


def called(method, batch):
    return method(*(batch[name] for name in ("reward", "task", "player", "scored"))).tolist()


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, max_size=4), st.sampled_from([0.95, 0.5]))
def test_it_is_the_released_loop_over_steps(steps, decay):
    method, averages = spiral(decay=decay), {}
    for rows in steps:
        for row in rows:
            paid, task, player, scored = row
            batch, value = columns([row]), averages.get((task, player), 0.0)
            expected = [paid - value if scored else 0.0]
            if scored:
                averages[task, player] = decay * value + (1 - decay) * paid
            assert called(method, batch) == pytest.approx(expected, abs=1e-6)
            method.on_batch(batch)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=4), st.sampled_from([0.95, 0.5]))
def test_games_of_a_step_count_alike(steps, decay):
    method, averages = spiral(decay=decay), {}
    for rows in steps:
        batch = columns(rows)
        expected = [(paid - averages.get((task, player), 0.0)) * scored for paid, task, player, scored in rows]
        assert called(method, batch) == pytest.approx(expected, abs=1e-6)
        for role in {(task, player) for _, task, player, scored in rows if scored}:
            own = [paid for paid, *about, scored in rows if tuple(about) == role and scored]
            before, weight = averages.get(role, 0.0), decay ** len(own)
            averages[role] = weight * before + (1 - weight) * sum(own) / len(own)
        method.on_batch(batch)  # asking changed nothing
        resumed = spiral(decay=decay)
        resumed.load_state_dict(json.loads(json.dumps(method.state_dict())))
        method = resumed


def test_replayed_rows_are_no_news():
    method, batch = spiral(decay=0.5), columns([(1.0, 0, 0, True), (1.0, 0, 0, True)])
    batch["replayed"] = torch.tensor([False, True])
    method.on_batch(batch)
    assert called(method, columns([(1.0, 0, 0, True)])) == [0.5]
