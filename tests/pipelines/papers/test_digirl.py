"""Classifiers of success: where they read, what they are fitted to, what they come to, and what they remember."""

from __future__ import annotations

import copy

import pytest
import torch
from provider_toys import provider_context
from torch.nn.functional import binary_cross_entropy

from pipelines.contract.catalogue import bind


def digirl(tmp_path, **settings):
    part = bind("rlvr.providers", {"kind": "digirl", **settings}).fn
    part.setup(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"))
    return part


def episodes(tokens, turns):
    """A step's columns of rows of 2 tokens of prompt, then turns of 2 tokens with a token of the environment between them."""
    tokens = torch.tensor(tokens)
    turn, paid = torch.full(tokens.shape, -1), torch.zeros(len(turns), max(map(len, turns)))
    for row, own in enumerate(turns):
        paid[row, : len(own)] = torch.tensor(own)
        for s in range(len(own)):
            turn[row, 2 + 3 * s : 4 + 3 * s] = s
    mask = turn >= 0
    return tokens, {
        "token": tokens, "turn": turn, "mask": mask, "scored": torch.ones(len(turns)).bool(), "reward": paid.sum(1), "turn_reward": paid,
        "token_penalty": torch.zeros(turn.shape), "truncated": torch.zeros(len(turns)).bool(), "step": 0,
    }  # fmt: skip


WON, LOST = [5, 6, 7, 8, 9, 11, 12], [5, 6, 10, 8, 9, 13, 12]
STEP = ([WON, LOST], [[0.0, 1.0], [0.0, 0.0]])


def test_a_turn_is_read_before_it_and_the_problem_before_the_first(tmp_path):
    part = digirl(tmp_path)
    tokens, columns = episodes(*STEP)
    part.fill(tokens, columns)
    value, problem = columns["turn_value"], columns["instruction_value"]
    assert value.shape == (2, 2) and ((value > 0) & (value < 1)).all() and ((problem > 0) & (problem < 1)).all()
    assert value[0, 0] == value[1, 0] and problem[0] == problem[1] and value[0, 1] != value[1, 1]
    for place, moved in (
        (1, [True, True, True]),
        (3, [False, True, False]),
        (4, [False, True, False]),
        (5, [False] * 3),
    ):
        others = tokens.clone()
        others[0, place] = 3 + (others[0, place] - 2) % 17
        again = dict(columns)
        part.fill(others, again)
        differ = [
            (again["turn_value"][0] - value[0]).abs() > 1e-6,
            (again["instruction_value"][:1] - problem[:1]).abs() > 1e-6,
        ]
        assert torch.cat(differ).tolist() == moved, place


def test_losses_against_a_loop(tmp_path):
    """What is still to be paid above 0 is success: a turn after the last payment fails, one before it succeeds."""
    part = digirl(tmp_path)
    tokens, columns = episodes([WON, LOST, WON], [[1.0, 0.0], [0.0, 0.0], [0.0, 0.5]])
    part.fill(tokens, columns)
    with torch.no_grad():
        logits = part.passes.per_token(lambda layout, ids: part.network(layout), tokens, columns["mask"], values=3)
    likely = logits.sigmoid()[:, [2, 5]]
    label = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    step = sum(binary_cross_entropy(likely[..., i], label) for i in (0, 1))
    problem = binary_cross_entropy(likely[:, 0, 2], label[:, 0])
    names = {"token": "token", "turn": "turn", "mask": "mask", "paid": "turn_reward"}
    made = part._fit({name: columns[column] for name, column in names.items()})
    assert made == [pytest.approx(step.item(), rel=1e-4), pytest.approx(problem.item(), rel=1e-4)]
    torch.testing.assert_close(columns["turn_value"], likely[..., :2].amin(-1))


@pytest.mark.slow
def test_they_come_to_the_rates_of_success(tmp_path):
    """The first state wins half of the time; the second is won or lost by what was done in the first."""
    part = digirl(tmp_path, learning_rate=0.003, epochs=30, batch=8)
    tokens, columns = episodes(*STEP)
    for step in range(3):
        columns["step"] = step
        part.fill(tokens, columns)
        metrics = part.update(tokens, columns)
    part.fill(tokens, columns)
    assert columns["instruction_value"].tolist() == pytest.approx([0.5, 0.5], abs=0.2)
    assert columns["turn_value"][:, 0].tolist() == pytest.approx([0.5, 0.5], abs=0.2)
    assert columns["turn_value"][0, 1] > 0.8 and columns["turn_value"][1, 1] < 0.2
    assert metrics["digirl/episodes"] == 6 and metrics["digirl/step_loss"] < 1.2
    made = bind("rlvr.advantage", "digirl")(columns)
    assert made[:, 2].tolist() == [1.0, 0.0], "the first turn is imitated where it won"


def test_what_is_stored_comes_back_and_episodes_without_an_outcome_are_not(tmp_path):
    part = digirl(tmp_path, epochs=1, batch=2, capacity=3)
    for step in range(2):
        tokens, columns = episodes(*STEP)
        columns["step"], columns["truncated"][1] = step, step == 0
        part.fill(tokens, columns)
        part.update(tokens, columns)
    assert [episode["paid"].sum().item() for episode in part.store] == [1.0, 1.0, 0.0], "the cut one has no outcome"
    replayed = episodes([WON, LOST, LOST], [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    part.update(*replayed)
    assert [episode["paid"].sum().item() for episode in part.store] == [0.0, 1.0, 0.0], (
        "the third comes after the step's own two"
    )
    other = digirl(tmp_path, epochs=1, batch=2, capacity=3)
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    for each in (part, other):
        each.fill(tokens, columns)
        each.update(tokens, columns)
    for one, same in zip(part.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(one, same)
