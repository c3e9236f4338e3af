"""IGPO: gains of the gold answer's probability, outcome on the last turn."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.papers.igpo import igpo

P = torch.tensor([[0.10, 0.30, 0.25], [0.10, 0.12, 0.40]])
TURN = torch.arange(3).expand(2, 3)
ROWS, ONE = torch.zeros(2).long(), torch.ones(2).bool()


def of(reward, p, turn=TURN, **settings):
    return igpo(
        torch.tensor(reward),
        p.log(),
        turn,
        torch.zeros(len(p)).long(),
        torch.ones(len(p)).bool(),
        turn >= 0,
        **settings,
    )


@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        (1.0, [[0.218469, -0.351607, 0.707106], [-0.218469, 0.384183, -0.707106]]),
        (0.9, [[0.189990, -0.422318, 0.707106], [-0.193248, 0.454894, -0.707106]]),
        (0.0, [[0.570076, -1.058713, 0.707106], [-0.602652, 1.091289, -0.707106]]),
    ],
)
def test_the_sheet_s_example(discount, expected):
    torch.testing.assert_close(of([1.0, 0.0], P, discount=discount), torch.tensor(expected), atol=5e-6, rtol=0)


def test_gains_may_be_of_log_probabilities():
    made = of([0.0, 0.0], P, gain="log_probability", discount=0.0)
    gains = P.log().diff(dim=1)
    expected = (gains - gains.mean()) / (gains.std() + 1e-6)
    torch.testing.assert_close(made[:, :2], expected, atol=1e-5, rtol=0)
    assert (made[:, 2] == 0).all()


def test_a_short_row_is_paid_on_its_own_last_turn():
    turn = torch.tensor([[0, 1, 2], [0, 1, -1]])
    made = of([1.0, 0.0], P.masked_fill(torch.tensor([[0, 0, 0], [0, 0, 1]]).bool(), torch.nan), turn, discount=0.0)
    gains = torch.tensor([0.20, -0.05, 0.02])
    standard = (gains - gains.mean()) / (gains.std() + 1e-6)
    expected = torch.tensor([[standard[0], standard[1], 0.7071058], [standard[2], -0.7071058, 0.0]])
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


def test_without_a_gold_answer_the_outcome_remains():
    made = of([1.0, 0.0], torch.full((2, 3), torch.nan))
    torch.testing.assert_close(made, torch.tensor([[0.707106] * 3, [-0.707106] * 3]), atol=1e-5, rtol=0)


@given(st.integers(0, 20), st.floats(0, 1))
def test_a_turn_that_says_nothing_new_earns_the_group_s_mean_gain(seed, discount):
    """Equal gains everywhere are no signal, and a shift of all gains changes nothing."""
    draw = torch.Generator().manual_seed(seed)
    p = 0.2 + 0.2 * torch.rand(4, 3, generator=draw)
    reward = torch.randint(0, 2, (4,), generator=draw).float().tolist()
    turn = torch.arange(3).expand(4, 3)
    shifted = p + 0.05 * torch.arange(3)
    torch.testing.assert_close(
        of(reward, p, turn, discount=discount), of(reward, shifted, turn, discount=discount), atol=1e-3, rtol=1e-3
    )
    still = of(reward, torch.full((4, 3), 0.3), turn, discount=1.0)
    torch.testing.assert_close(still, still[:, :1].expand(4, 3))


def test_unscored_rows_pay_nothing_and_change_nothing():
    batch = toys.rough(1)
    made = run_method("advantage", "igpo", batch)
    assert (made[~batch.mask] == 0).all()
    batch.answer_logp = torch.where(batch.scored[:, None], batch.answer_logp, -9.0)
    torch.testing.assert_close(made, run_method("advantage", "igpo", batch))
