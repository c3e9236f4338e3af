"""Percentiles inside buckets of lengths, over a running window."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.onerec import duration_percentile

STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
    min_size=1, max_size=4,
)  # fmt: skip


@given(STEPS, st.floats(0.1, 1), st.integers(1, 5))
def test_against_a_loop(steps, top, window):
    method = duration_percentile(top=top, window=window)
    past: dict[int, list[float]] = {}
    for rows in steps:
        reward, correct, length, scored = (torch.tensor(x) for x in zip(*rows, strict=True))
        made = method(reward.float(), correct.float(), length.float(), scored).tolist()
        for value, (r, c, n, _) in zip(made, rows, strict=True):
            others = past.get(n.bit_length(), [])
            share = sum(o < r for o in others) + sum(o == r for o in others) / 2
            assert value == (-1.0 if not c else float(share > (1 - top) * len(others)))
        for r, _, n, s in rows:
            if s:
                past[n.bit_length()] = [*past.get(n.bit_length(), []), float(r)][-window:]


def test_buckets_of_another_base():
    method = duration_percentile(base=10.0)
    one = torch.ones(1)
    for n in (1.0, 9.0, 10.0, 99.0):
        method(one, one, torch.tensor([n]), one.bool())
    assert sorted(method.rewards) == ["0", "1"] and len(method.rewards["0"]) == 2
