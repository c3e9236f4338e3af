"""DCPO: both ends of a group's order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.dcpo import dcpo
from pipelines.rlvr.advantage.grpo import grpo

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 2), st.booleans()), min_size=1, max_size=16
)


def test_the_sheet_s_rows_and_their_advantages():
    r, n = torch.tensor([1.0, 1, 1, 1, 0, 0, 0, 0]), torch.tensor([100.0, 120, 500, 900, 200, 220, 800, 950])
    group = torch.zeros(8).long()
    kept = dcpo(r, n, group, r >= 0)
    made = grpo(r, group, kept)
    torch.testing.assert_close(made[kept], torch.tensor([0.866024, 0.866024, -0.866024, -0.866024]), atol=5e-6, rtol=0)


@given(ROWS)
def test_against_sorting_each_group(rows):
    reward, length, group, scored = (torch.tensor(x) for x in zip(*rows, strict=True))
    kept = dcpo(reward.float(), length.float(), group, scored).tolist()
    for number in set(group.tolist()):
        members = [i for i, row in enumerate(rows) if row[2] == number and row[3]]
        order = sorted(members, key=lambda i: (-rows[i][0], rows[i][1], i))
        side = max(1, len(order) // 4)
        varied = len({rows[i][0] for i in members}) > 1
        expected = {*order[:side], *order[len(order) - side :]} if varied else set()
        assert {i for i in range(len(rows)) if kept[i] and rows[i][2] == number} == expected


def test_a_quarter_is_rounded_down():
    reward, length = torch.tensor([6.0, 5, 4, 3, 2, 1]), torch.ones(6)
    assert dcpo(reward, length, torch.zeros(6).long(), reward > 0).tolist() == [True, False, False, False, False, True]
