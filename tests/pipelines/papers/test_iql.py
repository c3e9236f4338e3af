"""Implicit Q-learning over turns: against tabular values, where it reads, which ends are known, and what it remembers."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from provider_toys import provider_context

from pipelines.contract.catalogue import bind
from pipelines.papers.common.step_values import backups
from pipelines.papers.common.turn_critics import stacked


def critics(tmp_path, kind="iql", **settings):
    part = bind("rlvr.providers", {"kind": kind, **settings}).fn
    part.setup(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"))
    return part


def episodes(turns, tokens=None, over=None, seed=0):
    """A step's columns: rows of 2 tokens of prompt, then turns of 2 tokens with a token of the environment between them."""
    count = max(map(len, turns))
    turn, paid = torch.full((len(turns), 2 + 3 * count), -1), torch.zeros(len(turns), count)
    for row, own in enumerate(turns):
        paid[row, : len(own)] = torch.tensor(own)
        for s in range(len(own)):
            turn[row, 2 + 3 * s : 4 + 3 * s] = s
    if tokens is None:
        tokens = torch.randint(3, 20, turn.shape, generator=torch.Generator().manual_seed(seed))
    over = torch.ones(len(turns)).bool() if over is None else torch.tensor(over)
    return tokens, {
        "token": tokens, "turn": turn, "mask": turn >= 0, "scored": torch.ones(len(turns)).bool(), "reward": paid.sum(1),
        "turn_reward": paid, "token_penalty": torch.zeros(turn.shape), "truncated": torch.zeros(len(turns)).bool(),
        "environment_ended": over, "step": 0,
    }  # fmt: skip


def stored(columns):
    return {
        "token": columns["token"], "turn": columns["turn"], "mask": columns["mask"], "paid": columns["turn_reward"],
        "over": columns["environment_ended"][:, None],
    }  # fmt: skip


def looped(paid, values, over, discount, n_steps):
    """The backups of one episode, turn by turn in plain Python; None where nobody knows what followed."""
    out = []
    for t in range(len(paid)):
        total, k = 0.0, 0
        while k < n_steps and t + k < len(paid) - (not over):
            total += discount**k * paid[t + k]
            k += 1
        if k == 0:
            out.append(None)
            continue
        out.append(total + (discount**k * values[t + k] if t + k < len(paid) else 0.0))
    return out


SOME = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=6)


@given(st.lists(st.tuples(SOME, st.booleans()), min_size=1, max_size=4), st.floats(0, 1), st.integers(1, 8))
def test_backups_against_a_loop(played, discount, n_steps):
    steps = [(index, *step, over) for index, (turns, over) in enumerate(played) for step in turns]
    row, paid, value, over = (torch.tensor(each) for each in zip(*steps, strict=True))
    total, known = backups(paid.double(), value.double(), row, over, discount, n_steps)
    wanted = [
        goal for turns, over in played for goal in looped(*map(list, zip(*turns, strict=True)), over, discount, n_steps)
    ]
    assert known.tolist() == [goal is not None for goal in wanted]
    assert total.tolist() == pytest.approx([goal or 0.0 for goal in wanted], abs=1e-5)


def test_v_reads_the_state_and_q_the_turn_too(tmp_path):
    """With the whole history everything before counts; with two tokens of it, only these."""
    for state_tokens, moves in (
        (None, {1: ([0, 1], [0, 1]), 3: ([0, 1], [1]), 4: ([1], [1]), 6: ([1], []), 7: ([], [])}),
        (2, {0: ([0], [0]), 1: ([0], [0]), 2: ([0], []), 3: ([0, 1], [1]), 4: ([1], [1]), 6: ([1], []), 7: ([], [])}),
    ):
        part = critics(tmp_path, state_tokens=state_tokens)
        tokens, columns = episodes([[0.0, 1.0], [0.0]])
        part.fill(tokens, columns)
        q, v = columns["turn_action_value"], columns["turn_value"]
        assert q.shape == v.shape == (2, 2) and q[1, 1] == v[1, 1] == 0 and (q[:, 0] != v[:, 0]).all()
        for place, (moved_q, moved_v) in moves.items():
            others = tokens.clone()
            others[0, place] = 3 + (others[0, place] - 2) % 17
            again = dict(columns)
            part.fill(others, again)
            assert (again["turn_action_value"][0] - q[0]).abs().gt(1e-6).nonzero().flatten().tolist() == moved_q, place
            assert (again["turn_value"][0] - v[0]).abs().gt(1e-6).nonzero().flatten().tolist() == moved_v, place
            torch.testing.assert_close(again["turn_value"][1], v[1])


def test_the_same_state_after_another_history_has_the_same_value(tmp_path):
    part = critics(tmp_path, state_tokens=3)
    tokens, columns = episodes([[0.0, 1.0], [0.0, 1.0]])
    tokens[1, 2:] = tokens[0, 2:]
    part.fill(tokens, columns)
    torch.testing.assert_close(columns["turn_value"][1, 1], columns["turn_value"][0, 1])
    assert columns["turn_value"][1, 0] != columns["turn_value"][0, 0]


@pytest.mark.parametrize("state_tokens", [None, 2])
@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ({"kind": "iql", "expectile": 0.8}, lambda d: (0.8 if d > 0 else 0.2) * d**2),
        ({"kind": "f_dvl", "alpha": 0.6}, lambda d: 0.6 * (d + d**2 / 4 if d > 0 else 0 * d) - 0.4 * d),
        ({"kind": "f_dvl", "alpha": 0.6, "divergence": "total_variation"}, lambda d: 0.6 * d.clamp(min=0) - 0.4 * d),
        ({"kind": "f_dvl", "divergence": "reverse_kl", "softness": 0.5}, lambda d: (2 * d).exp() - 2 * d),
    ],
)
def test_losses_and_the_target_against_a_loop(tmp_path, kind, loss, state_tokens):
    part = critics(tmp_path, **kind, discount=0.5, tau=0.25, state_tokens=state_tokens)
    with torch.no_grad():
        for weight in part.target.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    tokens, columns = episodes([[0.25, 1.0], [0.5], [0.0, 0.0], [1.0]], over=[True, True, False, False])
    part.fill(tokens, columns)
    v, far_q = columns["turn_value"], columns["turn_action_value"]
    near = copy.copy(part)
    near.target = part.network
    q = {}
    for head in (0, 1):  # the estimates one by one
        columns_of_head = dict(columns)
        near._estimates = lambda network, reading, head=head: type(part)._estimates(part, network, reading)[
            :, [head, head, 2]
        ]
        near.fill(tokens, columns_of_head)
        q[head] = columns_of_head["turn_action_value"]
    goals = {(0, 0): 0.25 + 0.5 * v[0, 1], (0, 1): 1.0, (1, 0): 0.5, (2, 0): 0.5 * v[2, 1]}
    q_loss = sum((q[head][place] - goal) ** 2 for place, goal in goals.items() for head in (0, 1)) / 4
    v_loss = sum(loss(far_q[place] - v[place]) for place in goals) / 4
    before, target = (copy.deepcopy(list(net.parameters())) for net in (part.network, part.target))
    assert part._fit(stored(columns)) == [
        pytest.approx(float(q_loss), rel=1e-4),
        pytest.approx(float(v_loss), rel=1e-4),
    ]
    assert not torch.equal(before[0], next(iter(part.network.parameters())))
    for old, new, present in zip(target, part.target.parameters(), part.network.parameters(), strict=True):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * present)


def test_reverse_kl_goes_on_along_its_tangent():
    loss = bind("rlvr.providers", {"kind": "f_dvl", "divergence": "reverse_kl"}).fn.value_loss
    d = torch.tensor([4.999, 5.001, 50.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(d).sum(), d)
    assert slope.tolist() == pytest.approx([147.2648, 147.4132, 147.4132], rel=1e-5)


def tabular(played, expectile, discount, sweeps=400):
    """V of each state by value iteration over (state, action, reward, next state or None): V is the expectile of its actions' Q."""
    value = {step[0]: 0.0 for step in played}
    for _ in range(sweeps):
        seen = {}
        for state, _, reward, after in played:
            seen.setdefault(state, []).append(reward + (discount * value[after] if after is not None else 0.0))
        for state, q in seen.items():
            low, high = min(q), max(q)
            for _ in range(60):
                v = (low + high) / 2
                slope = sum((expectile if each > v else 1 - expectile) * (each - v) for each in q)
                low, high = (v, high) if slope > 0 else (low, v)
            value[state] = v
    return value


START, FORK, GOOD, BAD = 5, 6, 7, 8
CHAIN = [[START, GOOD, FORK, BAD], [FORK, GOOD], [START, BAD]]
"""States and actions in turn: the first episode loses at the fork, the second begins there and wins, the third loses at once."""


def chain():
    """They as columns: the state is the token in front of a turn; the third token of each is the turn's second."""
    tokens, columns = episodes([[0.0, 0.0], [1.0], [0.25]])
    for row, way in enumerate(CHAIN):
        for s in range(len(way) // 2):
            tokens[row, 1 + 3 * s : 4 + 3 * s] = torch.tensor([way[2 * s], way[2 * s + 1], 9])
        tokens[row, 0] = 10 + row
    return tokens, columns


@pytest.mark.slow
@pytest.mark.parametrize("expectile", [0.5, 0.95])
def test_they_come_to_tabular_values_and_stitch(tmp_path, expectile):
    """No episode goes from the start to the reward of 1; a mean of returns prefers the turn that is paid 0.25."""
    part = critics(
        tmp_path, expectile=expectile, discount=0.9, learning_rate=0.003, epochs=40, batch=12, tau=0.2, state_tokens=1
    )
    tokens, columns = chain()
    for step in range(10):
        columns["step"] = step
        part.fill(tokens, columns)
        part.update(tokens, columns)
        part.store = part.store[:3]
    part.fill(tokens, columns)
    steps = [(START, GOOD, 0.0, FORK), (FORK, BAD, 0.0, None), (FORK, GOOD, 1.0, None), (START, BAD, 0.25, None)]
    exact = tabular(steps, expectile, 0.9)
    v, q = columns["turn_value"], columns["turn_action_value"]
    assert v[0].tolist() == pytest.approx([exact[START], exact[FORK]], abs=0.06)
    assert v[1, 0] == pytest.approx(exact[FORK], abs=0.06)
    assert q[0].tolist() == pytest.approx([0.9 * exact[FORK], 0.0], abs=0.08)
    assert q[1:, 0].tolist() == pytest.approx([1.0, 0.25], abs=0.08)
    weight = bind("rlvr.advantage", {"kind": "iql", "inverse_temperature": 4.0})(columns)
    assert weight[0, 2] > 1.2 * weight[2, 2], "the way to the fork is better than what is paid at once"
    assert weight[1, 2] > 4 * weight[0, 5] and not weight[~columns["mask"]].any()
    if expectile == 0.95:
        assert exact[FORK] > 0.94 and exact[START] > 0.75


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0.5, 0.98))
def test_the_expectile_lies_between_the_mean_and_the_best(rewards, expectile):
    """Where the value's loss is least: the mean at 1/2, and the nearer to the best the larger the expectile."""
    part = bind("rlvr.providers", {"kind": "iql", "expectile": expectile}).fn
    r = torch.tensor(rewards, dtype=torch.float64)
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    best = float(grid[part.value_loss(r[None] - grid[:, None]).mean(1).argmin()])
    assert float(r.mean()) - 1e-3 <= best <= float(r.max()) + 1e-3
    exact = tabular([(0, i, reward, None) for i, reward in enumerate(rewards)], expectile, 1.0, sweeps=1)[0]
    assert best == pytest.approx(exact, abs=2e-3)


def test_what_is_stored_comes_back_and_who_ended_is_told(tmp_path):
    """A limit of turns is no end, but with `turn_limit_ends`; what was cut at the token limit never is one."""
    for ends, wanted in ((False, [True, False, False]), (True, [True, True, False])):
        part = critics(tmp_path, epochs=1, batch=2, capacity=4, turn_limit_ends=ends)
        tokens, columns = episodes([[0.0, 1.0], [0.5], [0.0]], over=[True, False, False])
        columns["truncated"][2] = True
        part.fill(tokens, columns)
        metrics = part.update(tokens, columns)
        assert [bool(episode["over"]) for episode in part.store] == wanted and metrics["step_values/episodes"] == 3
    part.fill(tokens, columns)
    part.update(tokens, columns)
    assert [episode["paid"].sum().item() for episode in part.store] == [0.0, 1.0, 0.5, 0.0], "the oldest are gone"
    other = critics(tmp_path, epochs=1, batch=2, capacity=4, turn_limit_ends=True)
    other.load_state_dict(copy.deepcopy(part.state_dict()))
    for each in (part, other):
        columns["step"] = 5
        each.fill(tokens, columns)
        each.update(tokens, columns)
    assert torch.equal(stacked(part.store)["token"], stacked(other.store)["token"])
    for network in ("network", "target"):
        pairs = zip(getattr(part, network).parameters(), getattr(other, network).parameters(), strict=True)
        assert all(torch.equal(one, same) for one, same in pairs)


def test_a_step_whose_ends_nobody_knows_changes_nothing(tmp_path):
    part = critics(tmp_path, epochs=2)
    tokens, columns = episodes([[1.0], [0.5]], over=[False, False])
    before = copy.deepcopy(list(part.network.parameters()))
    part.fill(tokens, columns)
    assert part.update(tokens, columns)["step_values/q_loss"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, part.network.parameters(), strict=True))
