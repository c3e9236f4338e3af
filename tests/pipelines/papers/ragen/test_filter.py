"""StarPO-S: the groups whose rewards vary most."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.ragen.filter import starpo_s

GROUPS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8)


@given(GROUPS, st.floats(0.05, 1))
def test_the_kept_vary_at_least_as_much_as_those_left_out(groups, share):
    reward = torch.tensor([float(r) for group in groups for r in group])
    number = torch.tensor([i for i, group in enumerate(groups) for _ in group]) * 7
    kept = starpo_s(reward, number, torch.ones(len(reward)).bool(), share=share)
    deviation = [torch.tensor(group).float().std().item() if len(group) > 1 else 0.0 for group in groups]
    flags = [bool(kept[number == 7 * i].all()) for i in range(len(groups))]
    assert flags == [bool(kept[number == 7 * i].any()) for i in range(len(groups))], "whole groups"
    varied = sum(d > 1e-6 for d in deviation)
    assert sum(flags) == min(varied, max(1, int(share * len(groups))))
    inside = [d for d, flag in zip(deviation, flags, strict=True) if flag]
    outside = [d for d, flag in zip(deviation, flags, strict=True) if not flag]
    assert not inside or (min(inside) > 1e-6 and min(inside) >= max(outside, default=0.0) - 1e-6)


def test_unscored_rows_do_not_vary():
    reward = torch.tensor([1.0, 0.0, 1.0, 0.0])
    scored = torch.tensor([True, False, True, True])
    assert starpo_s(reward, torch.tensor([0, 0, 1, 1]), scored, share=1.0).tolist() == [False, False, True, True]
