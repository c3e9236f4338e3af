"""ProGRPO: confident answers earn less."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.progrpo import progrpo


def of(lowest, prompt, correct, advantage=None, **settings):
    rows = len(lowest)
    answers = torch.tensor([[value, 0.0, 0.0, 0.0, 0.0] for value in lowest])
    prompts = torch.full((rows, 5), torch.nan)
    prompts[:, 1] = prompt
    base = torch.zeros(rows, 5) if advantage is None else advantage
    one = torch.ones(rows).bool()
    return progrpo(
        base, prompts, answers, torch.tensor(correct), torch.zeros(rows).long(), one, torch.ones(rows, 5).bool(), **settings
    )  # fmt: skip


@given(st.lists(st.floats(-5, 0), min_size=2, max_size=6), st.floats(-5, 0), st.floats(0.01, 2))
def test_the_surer_the_answer_the_less_it_earns(lowest, prompt, alpha):
    made = of(lowest, prompt, [1.0] * len(lowest), alpha=alpha)[:, 0]
    order = torch.tensor(lowest).argsort()
    assert (made[order].diff() <= 1e-6).all()
    expected = alpha * (torch.tensor(prompt).exp() - torch.tensor(lowest).exp())
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)


def test_groups_without_a_correct_row_are_left_alone():
    assert (of([-1.0, -2.0], -1.5, [0.0, 0.0]) == 0).all()
    assert (of([-1.0, -2.0], -1.5, [1.0, 1.0], skip_homogeneous_correct=True) == 0).all()
    mixed = of([-1.0, -2.0], -1.5, [1.0, 0.0], skip_homogeneous_correct=True)
    assert torch.equal(mixed, of([-1.0, -2.0], -1.5, [1.0, 0.0])) and (mixed != 0).all()


def test_the_share_is_rounded_up_and_is_one_token_at_least():
    answers = torch.tensor([[-4.0, -2.0, -1.0, -1.0, 0.0, 0.0], [-3.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]]).bool()
    prompt = torch.full((2, 6), torch.nan)
    prompt[:, 0] = 0.0
    made = progrpo(
        torch.zeros(2, 6), prompt, answers, torch.ones(2), torch.zeros(2).long(), torch.ones(2).bool(), mask, alpha=1.0
    )
    expected = 1 - torch.tensor([-3.0, -3.0]).exp()
    torch.testing.assert_close(made[:, 0], expected)
    assert (made[~mask] == 0).all()


def test_a_row_without_a_prompt_to_score_or_a_score_is_left_alone():
    prompts = torch.tensor([[torch.nan] * 3, [-1.0, torch.nan, torch.nan], [-1.0, torch.nan, torch.nan]])
    scored = torch.tensor([True, True, False])
    made = progrpo(
        torch.zeros(3, 3), prompts, -torch.ones(3, 3) * 2, torch.ones(3), torch.zeros(3).long(), scored,
        torch.ones(3, 3).bool() & scored[:, None],
    )  # fmt: skip
    assert (made[0] == 0).all() and (made[2] == 0).all()
    assert made[1, 0].item() == pytest.approx(0.3 * (torch.tensor(-1.0).exp() - torch.tensor(-2.0).exp()).item())
