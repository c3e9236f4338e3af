"""MiniLLM's returns, where they reduce to something known."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind

MASK = torch.tensor([[False, True, False, True, True], [False, True, True, False, False]])
OLD = -torch.rand(2, 5, generator=torch.Generator().manual_seed(1)) * MASK
TEACHER = -torch.rand(2, 5, generator=torch.Generator().manual_seed(2)) * MASK


def advantage(teacher=TEACHER, **settings):
    part = bind("rlvr.advantage", {"kind": "minillm", **settings})
    return part({"logp_old": OLD, "logp_teacher": teacher, "mask": MASK})


def test_without_looking_ahead_it_is_the_log_ratio_of_each_token():
    made = advantage(discount=0.0, scaling=1.0, length_norm=False)
    torch.testing.assert_close(made, (TEACHER - OLD) * MASK)


def test_undiscounted_without_length_it_is_the_rest_of_the_row_s_log_ratio_and_tokens_of_others_do_not_count():
    made = advantage(discount=1.0, scaling=0.5, length_norm=False)
    rest = ((TEACHER - OLD) * MASK).flip(1).cumsum(1).flip(1) * 2
    torch.testing.assert_close(made, rest * MASK)


def test_a_policy_like_its_teacher_has_nothing_to_learn_and_the_bound_holds():
    assert not advantage(OLD).any()
    assert advantage(OLD + 1000.0 * MASK, bound=3.0, discount=1.0).max() <= 3.0 + 1e-6
