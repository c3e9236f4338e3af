"""Gated turn rewards, by hand and in the loop."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.contract.catalogue import bind
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm


@pytest.mark.parametrize(
    ("turns", "states", "beyond", "shaped"),
    [
        ([0.25, 1.0, 0.0], [0, 1], 0.0, [0.125, 1.0, 0.0]),  # the last turn is the second
        ([0.25, 0.0, 0.0], [0, 1], 0.0, [0.0, 0.0, 0.0]),  # an outcome of 0 is not above 0
        ([0.25, 0.0, 0.0], [0, 1], 0.5, [0.125, 0.5, 0.0]),  # what it earned beyond its turns belongs to the outcome
        ([0.5, 0.0, 0.0], [0], 0.0, [0.5, 0.0, 0.0]),  # one turn: nothing earlier
        ([0.0, 0.0, 0.0], [], 0.75, [0.0, 0.0, 0.0]),  # none
    ],
)
def test_earlier_turns_count_where_the_outcome_is_good(turns, states, beyond, shaped):
    """Each turn keeps or loses its own reward: nothing is paid back at the end."""
    base = toys.batch(rows=2, width=4, groups=1)
    turn = torch.tensor([[-1, *states, *[-1] * (3 - len(states))]] * 2)
    mask = torch.tensor([[False, True, True, False]] * 2) if not states else turn >= 0
    rewards = torch.tensor([turns] * 2)
    columns = toys.columns_of(base) | {
        "turn": turn, "mask": mask, "turn_reward": rewards, "reward": rewards.sum(1) + beyond, "scored": torch.ones(2).bool(),
        "token_reward": torch.zeros(2, 4), "teacher_forced": mask & False,
    }  # fmt: skip
    made = algorithm.assign_credit(algorithm.Update.of(Rlvr(shaping=["g_ra"])), columns)
    assert made["turn_reward"][0].tolist() == pytest.approx(shaped)
    assert made["reward"].tolist() == pytest.approx([sum(shaped) if states else beyond] * 2)


def test_a_row_without_turns_keeps_what_it_has_though_others_have_turns():
    columns = {"turn_reward": torch.tensor([[0.5, 0.5], [0.0, 0.0]]), "turn": torch.tensor([[0, 1], [-1, -1]])}
    made = bind("rlvr.shaping", "g_ra")(columns | {"mask": torch.ones(2, 2).bool()})
    assert made.tolist() == [[0.25, 0.5], [0.0, 0.0]]
