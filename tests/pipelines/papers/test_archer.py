"""Critics of whole turns: where they read, what they are fitted to, what they come to, and what they remember."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from provider_toys import provider_context

from pipelines.contract.catalogue import bind
from pipelines.papers.archer import stacked


def archer(tmp_path, **settings):
    part = bind("rlvr.providers", {"kind": "archer", **settings}).fn
    part.setup(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"))
    return part


def episodes(rewards, turns, tokens=None, seed=0):
    """A step's columns: rows of 2 tokens of prompt, then turns of 2 tokens with a token of the environment between them."""
    count = max(map(len, turns))
    width = 2 + 3 * count
    turn = torch.full((len(turns), width), -1)
    for row, own in enumerate(turns):
        for s in range(len(own)):
            turn[row, 2 + 3 * s : 4 + 3 * s] = s
    paid = torch.zeros(len(turns), count)
    for row, own in enumerate(turns):
        paid[row, : len(own)] = torch.tensor(own)
    if tokens is None:
        tokens = torch.randint(3, 20, turn.shape, generator=torch.Generator().manual_seed(seed))
    reward = torch.tensor(rewards)
    mask = turn >= 0
    return tokens, {
        "token": tokens, "turn": turn, "mask": mask, "scored": torch.ones(len(turns)).bool(), "reward": reward, "turn_reward": paid,
        "token_penalty": torch.zeros(turn.shape), "truncated": torch.zeros(len(turns)).bool(), "step": 0,
    }  # fmt: skip


def stored(columns):
    return {"token": columns["token"], "turn": columns["turn"], "mask": columns["mask"], "paid": columns["turn_reward"]}


def test_v_reads_the_state_and_q_the_turn_too(tmp_path):
    part = archer(tmp_path)
    tokens, columns = episodes([1.0, 0.0], [[0.0, 1.0], [0.0]])
    part.fill(tokens, columns)
    q, v = columns["turn_action_value"], columns["turn_value"]
    assert q.shape == v.shape == (2, 2) and q[1, 1] == v[1, 1] == 0 and (q[:, 0] != v[:, 0]).all()
    for place, moved_q, moved_v in (
        (1, [0, 1], [0, 1]),
        (3, [0, 1], [1]),
        (4, [1], [1]),
        (5, [1], []),
        (6, [1], []),
        (7, [], []),
    ):
        others = tokens.clone()
        others[0, place] = 3 + (others[0, place] - 2) % 17
        again = dict(columns)
        part.fill(others, again)
        assert (again["turn_action_value"][0] - q[0]).abs().gt(1e-6).nonzero().flatten().tolist() == moved_q, place
        assert (again["turn_value"][0] - v[0]).abs().gt(1e-6).nonzero().flatten().tolist() == moved_v, place
        torch.testing.assert_close(again["turn_value"][1], v[1])


def test_losses_and_targets_against_a_loop(tmp_path):
    """Q on the first episodes, V on the others; each estimate is fitted to the target of its own number."""
    part = archer(tmp_path, batch=2, discount=0.5, tau=0.25)
    with torch.no_grad():
        for weight in part.target.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    _, columns = episodes([0.0] * 4, [[0.25, 1.0], [0.5], [0.0, 0.0], [1.0]])
    batch = stored(columns)
    (q, v), (far_q, far_v) = part._estimates(part.network, batch), part._estimates(part.target, batch)
    wanted_q = {(0, 0): 0.25 + 0.5 * far_v[0, 1], (0, 1): torch.tensor(1.0), (1, 0): torch.tensor(0.5)}
    q_loss = sum(((q[place] - goal) ** 2).sum() for place, goal in wanted_q.items()) / 3
    v_loss = sum(((v[place] - far_q[place]) ** 2).sum() for place in ((2, 0), (2, 1), (3, 0))) / 3
    before, target = (copy.deepcopy(list(net.parameters())) for net in (part.network, part.target))
    assert part._fit(batch) == [pytest.approx(q_loss.item(), rel=1e-4), pytest.approx(v_loss.item(), rel=1e-4)]
    assert not torch.equal(before[0], next(iter(part.network.parameters())))
    for old, new, present in zip(target, part.target.parameters(), part.network.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * present)


def test_targets_follow_a_body_stored_in_bfloat16(tmp_path):
    """A twentieth of the way to a neighbour is lost where a target is bfloat16 itself, however often it is gone."""
    context = replace(provider_context(tmp_path), model=SimpleNamespace(dtype="bfloat16"))
    context.policy.model.to(torch.bfloat16)
    part = bind("rlvr.providers", {"kind": "archer", "batch": 2, "tau": 0.05, "learning_rate": 1e-30}).fn
    part.setup(context)
    place, present = next(iter(part.target.parameters())), next(iter(part.network.parameters()))
    with torch.no_grad():
        start = present.detach().float().clone()
        present.mul_(1 + 2.0**-7)
    gap = present.detach().float() - start
    batch = stored(episodes([0.0] * 4, [[0.25, 1.0], [0.5], [0.0, 0.0], [1.0]])[1])
    for _ in range(3):
        part._fit(batch)
    assert present.dtype == torch.bfloat16 and gap.abs().max() > 0
    torch.testing.assert_close(place.detach() - start, (1 - 0.95**3) * gap)


@pytest.mark.slow
def test_they_come_to_the_reward_and_its_mean(tmp_path):
    """One state, two turns that are taken equally often: A = r - V, so half the difference of the rewards."""
    part = archer(tmp_path, learning_rate=0.003, epochs=20, batch=16, tau=0.3)
    prompt, good, bad = [5, 6], [7, 8, 9], [10, 11, 9]
    tokens = torch.tensor([[*prompt, *good], [*prompt, *bad]] * 2)
    tokens, columns = episodes([1.0, 0.0] * 2, [[1.0], [0.0]] * 2, tokens)
    for step in range(4):
        columns["step"] = step
        part.fill(tokens, columns)
        part.update(tokens, columns)
    part.fill(tokens, columns)
    advantage = bind("rlvr.advantage", "archer")(columns)
    assert advantage[0, 2:4].tolist() == pytest.approx([0.5, 0.5], abs=0.15)
    assert advantage[1, 2:4].tolist() == pytest.approx([-0.5, -0.5], abs=0.15)
    assert not advantage[~columns["mask"]].any()


def test_the_oldest_episodes_are_forgotten_and_what_is_left_comes_back(tmp_path):
    part = archer(tmp_path, epochs=1, batch=2, capacity=3)
    for step, turns in enumerate(([[1.0], [0.0]], [[0.0, 1.0], [0.5]])):
        tokens, columns = episodes([sum(own) for own in turns], turns, seed=step)
        columns["truncated"][1] = step == 0
        columns["step"] = step
        part.fill(tokens, columns)
        metrics = part.update(tokens, columns)
    assert metrics["archer/episodes"] == 3, "the one that was cut off has no outcome"
    assert [episode["paid"].tolist() for episode in part.store] == [[1.0], [0.0, 1.0], [0.5, 0.0]]
    assert [len(episode["token"]) for episode in part.store] == [4, 7, 4], "up to the last trained token"
    tokens, columns = episodes([1.0], [[1.0]], seed=9)
    part.fill(tokens, columns)
    part.update(tokens, columns)
    assert [episode["paid"].tolist() for episode in part.store] == [[0.0, 1.0], [0.5, 0.0], [1.0]]
    other = archer(tmp_path, epochs=1, batch=2, capacity=3)
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    for each in (part, other):
        columns["step"] = 5
        each.fill(tokens, columns)
        each.update(tokens, columns)
    assert torch.equal(stacked(part.store)["token"], stacked(other.store)["token"])
    for one, same in zip(part.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(one, same)


def test_rows_that_a_replay_appends_to_the_step_s_own_are_no_news(tmp_path):
    part = archer(tmp_path, epochs=1, batch=2)
    tokens, columns = episodes([1.0, 0.5], [[1.0], [0.5]])
    part.fill(tokens[:1], {name: value[:1] if torch.is_tensor(value) else value for name, value in columns.items()})
    assert (
        part.update(tokens, columns | {"turn_value": torch.zeros(2, 1), "turn_action_value": torch.zeros(2, 1)})[
            "archer/episodes"
        ]
        == 1
    )
    assert part.store[0]["paid"].tolist() == [1.0]


def test_a_step_without_an_outcome_changes_nothing(tmp_path):
    part = archer(tmp_path, epochs=2)
    tokens, columns = episodes([1.0], [[1.0]])
    columns["truncated"][:] = True
    before = copy.deepcopy(list(part.network.parameters()))
    part.fill(tokens, columns)
    metrics = part.update(tokens, columns)
    assert metrics["archer/q_loss"] == 0 and metrics["archer/episodes"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, part.network.parameters(), strict=True))
