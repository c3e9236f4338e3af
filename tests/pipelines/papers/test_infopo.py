"""InfoPO: gains of feedback, with a gate that outcomes shut."""

from __future__ import annotations

import math

import pytest
import torch
from method_toys import run_method
from toys import rough

from pipelines.papers.infopo import infopo

TURN, MASK = torch.tensor([[0, 1]] * 4), torch.ones(4, 2).bool()
GAIN = torch.tensor([[3.0], [1.0], [1.0], [1.0]])
GAIN = torch.cat([GAIN, torch.full((4, 1), torch.nan)], 1)
GROUP, ROW = torch.zeros(4).long(), torch.ones(4).bool()


def of(advantage, reward, gain=GAIN, step=0, **settings):
    return infopo(advantage, torch.tensor(reward), gain, TURN, GROUP, ROW, MASK, step, **settings)


@pytest.mark.parametrize("reward", [[0.1, 0.0, 0.1, 0.0], [1.0, 0.0, 1.0, 0.0]])
def test_the_gate_is_shut_where_outcomes_differ(reward):
    base = torch.tensor([0.7, -0.7, 0.7, -0.7])[:, None].expand(4, 2)
    made = of(base, reward)
    gate = 1 / (1 + math.exp(torch.tensor(reward).std().item() / 0.05))
    expected = base[:, 0] + 0.1 * gate * torch.tensor([1.5, -0.5, -0.5, -0.5])
    torch.testing.assert_close(made[:, 0], expected, atol=1e-5, rtol=0)
    assert torch.equal(made[:, 1], base[:, 1]), "no feedback follows the last turn"


def test_the_sheet_s_numbers_at_a_deviation_of_one_twentieth():
    sigma = 0.05 * torch.tensor([1.0, -1.0, 1.0, -1.0]) * math.sqrt(3) / 2
    base = torch.tensor([0.7, -0.7, 0.7, -0.7])[:, None].expand(4, 2)
    expected = torch.tensor([0.740341, -0.713447, 0.686553, -0.713447])
    torch.testing.assert_close(of(base, sigma.tolist())[:, 0], expected, atol=1e-5, rtol=0)


def test_larger_advantages_do_not_scale_the_gain():
    base = torch.tensor([3.0, -3.0, 3.0, -3.0])[:, None].expand(4, 2)
    added = of(base, [0.0] * 4) - base
    torch.testing.assert_close(added[:, 0], torch.tensor([0.075, -0.025, -0.025, -0.025]), atol=1e-6, rtol=0)


def test_a_turn_s_tokens_share_its_gain():
    turn = torch.tensor([[0, 0, 1], [0, -1, 1]])
    gain = torch.tensor([[2.0, torch.nan], [2.0, torch.nan]])
    made = infopo(
        torch.zeros(2, 3),
        torch.zeros(2),
        gain,
        turn,
        torch.zeros(2).long(),
        torch.ones(2).bool(),
        turn >= 0,
        0,
        beta=1.0,
    )
    shares = torch.tensor([1.0, 1.0, 2.0])
    expected = 0.5 * (shares - shares.mean()) / shares.std()
    torch.testing.assert_close(torch.cat([made[0, :2], made[1, :1]]), expected, atol=1e-5, rtol=0)
    assert made[1, 1] == 0 and (made[:, 2] == 0).all()


def test_it_fades_with_the_steps_and_equal_gains_add_nothing():
    zero = torch.zeros(4, 2)
    ratio = of(zero, [0.0] * 4, step=3, decay=0.5)[0, 0] / of(zero, [0.0] * 4)[0, 0]
    assert ratio.item() == pytest.approx(math.exp(-1.5))
    assert torch.equal(of(zero, [0.0] * 4, gain=GAIN * 0), zero)
    assert torch.equal(of(zero, [0.0] * 4, beta=0.0), zero)


@pytest.mark.parametrize("seed", range(4))
def test_against_a_loop(seed):
    """Holes between a turn's tokens, unscored rows, rows alone in their group, turns without a gain."""
    batch = rough(seed)
    batch.feedback_gain = batch.feedback_gain.clone()
    batch.feedback_gain[::5, 0] = torch.nan
    advantage = 2 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed)) * batch.mask
    made = run_method("credit", {"kind": "infopo", "beta": 0.7, "decay": 0.2}, batch, advantage=advantage)
    rows, width = batch.mask.shape
    share = torch.full((rows, width), torch.nan).double()
    for row in range(rows):
        for at in range(width):
            turn = int(batch.turn[row, at])
            gain = batch.feedback_gain[row, turn]
            if batch.mask[row, at] and gain.isfinite():
                share[row, at] = gain / sum(
                    bool(m) and int(t) == turn for m, t in zip(batch.mask[row], batch.turn[row], strict=True)
                )
    info = torch.zeros(rows, width).double()
    for group in set(batch.group.tolist()):
        inside = ~share.isnan() & (batch.group == group)[:, None]
        if inside.sum() > 1:
            info[inside] = (share[inside] - share[inside].mean()) / (share[inside].std() + 1e-6)
    for row in range(rows):
        scores = batch.reward[(batch.group == batch.group[row]) & batch.scored].double()
        sigma = float(scores.std()) if len(scores) > 1 else 0.0
        gate = 1 / (1 + math.exp(sigma / 0.05))
        expected = advantage[row] + 0.7 * math.exp(-0.2 * batch.step) * gate * info[row]
        torch.testing.assert_close(made[row].double(), expected, atol=1e-5, rtol=1e-5)
