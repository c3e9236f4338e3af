"""ReBel: episodes by their outcome, turns by the belief that they state."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.rlvr.advantage.rebel import belief_weight


def columns(seed, beliefs=True):
    batch = toys.rough(seed)
    given = columns_of(batch)
    draw = torch.Generator().manual_seed(seed)
    real = given["turn_state"] >= 0
    belief = torch.randint(0, 4, real.shape, generator=draw) / 4 * real * beliefs
    last = (real.sum(1) - 1).clamp(min=0)
    reward = torch.zeros_like(belief).scatter(1, last[:, None], batch.correct[:, None]) + belief
    return given | {"turn_belief": belief, "turn_reward": reward, "step": 3, "total_steps": 10}


@pytest.mark.parametrize("seed", range(4))
def test_without_beliefs_it_is_gigpo_by_episodes(seed):
    given = columns(seed, beliefs=False)
    for scale in ("none", "std"):
        shared = {"step_weight": 0.5, "discount": 0.9, "scale": scale}
        ours = bind("rlvr.advantage", {"kind": "rebel", "decay": "linear", **shared})(given)
        theirs = bind("rlvr.advantage", {"kind": "gigpo", "unit": "episode", **shared})(given)
        torch.testing.assert_close(ours, theirs)
    assert ours.abs().max() > 0


@pytest.mark.parametrize("decay", ["none", "linear", "cosine", "exponential"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(seed, decay):
    given = columns(seed)
    ours = bind("rlvr.advantage", {"kind": "rebel", "step_weight": 0.7, "discount": 0.8, "decay": decay})(given)
    weight = {"none": 1, "linear": 0.7, "cosine": (1 + math.cos(0.3 * math.pi)) / 2, "exponential": math.exp(-0.9)}[
        decay
    ]
    turns = {}
    outcomes = {}
    for row in given["scored"].nonzero().squeeze(1).tolist():
        count = int((given["turn_state"][row] >= 0).sum())
        reward, belief = given["turn_reward"][row].tolist(), given["turn_belief"][row].tolist()
        outcomes[row] = sum(reward[:count]) - sum(belief[:count])
        for s in range(count):
            of_belief = sum(0.8 ** (k - s) * belief[k] for k in range(s, count))
            turns[row, s] = (0.8 ** (count - 1 - s) * outcomes[row], of_belief)

    def mean(values):
        return sum(values) / len(values)

    for (row, s), (env, believed) in turns.items():
        group, key = int(given["group"][row]), int(given["turn_state"][row, s])
        mates = [
            turns[r, k] for r, k in turns if int(given["group"][r]) == group and int(given["turn_state"][r, k]) == key
        ]
        task = outcomes[row] - mean([value for r, value in outcomes.items() if int(given["group"][r]) == group])
        step = env - mean([m[0] for m in mates]) + weight * (believed - mean([m[1] for m in mates]))
        at = (given["turn"][row] == s) & given["mask"][row]
        assert ours[row][at].tolist() == pytest.approx([task + 0.7 * step] * int(at.sum()), abs=1e-5)


def test_equal_beliefs_and_equal_returns_say_nothing():
    b = torch.full((2, 2), 0.3)
    key, turn = torch.zeros(2, 2).long(), torch.tensor([[0, 1], [0, 1]])
    given = {"turn_reward": b + torch.tensor([[0.0, 1.0]]), "turn_belief": b, "turn_state": key, "turn": turn}
    rows = {
        "group": torch.zeros(2).long(),
        "scored": torch.ones(2).bool(),
        "mask": turn >= 0,
        "step": 0,
        "total_steps": 9,
    }
    same = bind("rlvr.advantage", {"kind": "rebel", "discount": 0.0})(given | {"turn_reward": b} | rows)
    assert same.abs().max() < 1e-6
    apart = bind("rlvr.advantage", {"kind": "rebel", "discount": 1.0})(given | rows)
    assert apart[0].tolist() == pytest.approx([0.075, -0.075]), "a turn's own return differs from that of the next"


def test_the_sheet_s_decay_and_its_ends():
    assert [belief_weight(name, 0.5) for name in ("cosine", "linear", "exponential")] == pytest.approx(
        [0.5, 0.5, 0.223130], abs=1e-6
    )
    assert [belief_weight(name, 0.0) for name in ("none", "cosine", "linear", "exponential")] == [1.0] * 4
    assert belief_weight("cosine", 1.0) == belief_weight("linear", 1.0) == pytest.approx(0.0)
