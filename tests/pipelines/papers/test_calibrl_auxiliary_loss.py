"""CalibRL's guided term: which way it pushes, how hard, and where it does nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from pipelines.papers.calibrl import calibrl_auxiliary_loss as calibrl

LOGPS = st.integers(-40, 0).map(lambda n: n / 8)
NO = torch.tensor([[False]])


def push(logp, demonstration, advantage=1.0, correct=True, forced=NO, **settings):
    """By how much a small step against the gradient raises the token."""
    free = torch.tensor([[logp]], requires_grad=True)
    value = calibrl(
        free,
        torch.tensor([[demonstration]]),
        torch.tensor([[advantage]]),
        torch.tensor([float(correct)]),
        forced,
        **settings,
    )
    value.sum().backward()
    return -float(free.grad), float(value.detach())


def test_the_sheet_s_example_as_it_enters_the_loss():
    """0.1 times the token mean."""
    logp, demo, no = torch.tensor([[-0.5, -2.5]]), torch.full((1, 2), -1.0), torch.zeros(1, 2).bool()
    for advantage, correct, expected in ((0.5, 1.0, 0.03125), (-0.5, 0.0, -0.00625)):
        made = calibrl(logp, demo, torch.full((1, 2), advantage), torch.tensor([correct]), no)
        assert 0.1 * made.mean().item() == pytest.approx(expected)


@given(LOGPS, LOGPS, st.sampled_from([0.25, -0.5, 1.0]), st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_beyond_the_demonstration_the_push_is_weaker_and_never_turns(logp, demonstration, advantage, correct, slope):
    assume(logp != demonstration)
    pushed, value = push(logp, demonstration, advantage, correct, slope=slope)
    beyond = (logp > demonstration) == correct
    assert pushed == pytest.approx((1 if correct else -1) * abs(advantage) * (slope if beyond else 1))
    assert value == pytest.approx(abs(advantage) * abs(logp - demonstration) * (-slope if beyond else 1))


@pytest.mark.parametrize(
    ("demonstration", "advantage", "forced"),
    [(float("nan"), 1.0, False), (-2.0, 0.0, False), (-2.0, 1.0, True)],
    ids=["no counterpart", "nothing rare", "a hint"],
)
def test_where_it_does_nothing(demonstration, advantage, forced):
    assert push(-1.0, demonstration, advantage, forced=torch.tensor([[forced]])) == (0.0, 0.0)
