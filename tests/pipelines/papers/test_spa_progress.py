"""The progress model of SPA-RL: where it reads, what it is fitted to, and a run of an agent."""

from __future__ import annotations

import copy

import pytest
import torch
from provider_toys import provider_context, rows

from pipelines.contract.catalogue import bind


def progress(tmp_path, **settings):
    part = bind("rlvr.providers", {"kind": "progress", **settings}).fn
    part.setup(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"))
    return part


def moved(part):
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in part.network.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return part


def episodes():
    """Six rows of two turns, of which the fourth has one and the fifth was cut off; the third is nobody's."""
    tokens, columns = rows()
    turn = torch.where(columns["mask"], (torch.arange(9) > 4).long(), -1)
    turn[3] = torch.where(columns["mask"][3], 1, -1)
    return tokens, columns | {"turn": turn, "turn_reward": torch.zeros(6, 3)}


def ends(columns):
    """(row, turn, last place) of every turn."""
    found = {}
    for row, place in columns["mask"].nonzero().tolist():
        found[row, int(columns["turn"][row, place])] = place
    return [(row, turn, place) for (row, turn), place in found.items()]


def value(network, tokens, row, place):
    """The network's output at a token, from a pass over the row up to it."""
    hidden = network.body(input_ids=tokens[row : row + 1, : place + 1]).last_hidden_state[0, -1]
    return network.head(hidden)[0]


def test_it_reads_the_state_at_the_last_token_of_each_turn(tmp_path):
    part = moved(progress(tmp_path, update_first=False))
    tokens, columns = episodes()
    part.fill(tokens, columns)
    wanted = torch.zeros(6, 3)
    for row, turn, place in ends(columns):
        wanted[row, turn] = value(part.network, tokens, row, place).detach()
    torch.testing.assert_close(columns["turn_progress"], wanted, atol=1e-5, rtol=1e-4)
    assert (wanted != 0).sum() == 8 and not columns["turn_progress"][2].any()


def test_its_step_is_the_gradient_of_the_squared_error_of_the_sums(tmp_path):
    """The outcome is the score before shaping; the row that was cut off teaches nothing."""
    part = moved(progress(tmp_path, update_first=False))
    tokens, columns = episodes()
    columns["reward"] = columns["reward"] + 7  # shaped
    slow = copy.deepcopy(part.network)
    sums = {}
    for row, _, place in ends(columns):
        if row != 4:
            sums[row] = sums.get(row, 0) + value(slow, tokens, row, place)
    loss = sum((total - columns["raw_reward"][row]).square() for row, total in sums.items()) / len(sums)
    loss.backward()
    gradients = []
    part.optimizer.step = lambda: gradients.append([p.grad.clone() for p in part.network.parameters()])
    metrics = part.update(tokens, columns)
    assert metrics["progress/loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert metrics["progress/outcome_mean"] == pytest.approx(
        sum(float(s.detach()) for s in sums.values()) / len(sums), rel=1e-4
    )
    for fast, weight in zip(gradients[0], slow.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-5, rtol=1e-3)


def test_contributions_come_to_add_up_to_the_outcome(tmp_path):
    part = progress(tmp_path, learning_rate=0.01, epochs=40)
    tokens, columns = episodes()
    part.fill(tokens, columns)
    known = torch.tensor([0, 1, 3, 5])
    total = columns["turn_progress"].sum(1)
    torch.testing.assert_close(total[known], columns["raw_reward"][known], atol=0.15, rtol=0)
    assert part.update(tokens, columns)["progress/loss"] < 0.05, "it has learned before it told"


def test_a_step_without_known_outcomes_teaches_nothing(tmp_path):
    part = progress(tmp_path)
    tokens, columns = episodes()
    columns["truncated"] = columns["truncated"] | True
    before = copy.deepcopy(part.network.state_dict())
    part.fill(tokens, columns)
    assert part.update(tokens, columns) == {} and not columns["turn_progress"].any()
    assert all(torch.equal(weight, before[name]) for name, weight in part.network.state_dict().items())
