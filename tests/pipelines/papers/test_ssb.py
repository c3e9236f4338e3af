"""The selective sample buffer, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def step(number, advantages, lengths=None):
    """A row of two tokens for each advantage; `lengths` says how many of them train."""
    rows = len(advantages)
    mask = torch.arange(2) < torch.tensor(lengths or [2] * rows)[:, None]
    return {
        "advantage": torch.tensor(advantages)[:, None] * mask, "mask": mask, "in_loss": torch.ones(rows).bool(),
        "group": torch.arange(rows), "logp_old": torch.full((rows, 2), -1.0 - number) * mask, "step": number,
        "on_policy": torch.ones(rows).bool(),
        "replayed": torch.zeros(rows).bool(),
    }  # fmt: skip


def run(buffer, columns):
    return buffer.updates(columns, torch.Generator().manual_seed(0))[0].columns


def ssb(**settings):
    return bind("rlvr.replay", {"kind": "ssb", **settings}).fn


def test_strength_is_the_mean_absolute_advantage_of_the_trained_tokens():
    buffer = ssb()
    columns = step(0, [0.5, -2.0, 1.0], [2, 1, 2])
    columns["advantage"][2, 1] = -2.0
    run(buffer, columns)
    assert [row["strength"] for row in buffer.rows] == [0.5, 2.0, 1.5]


def test_a_row_at_the_tolerance_teaches_nothing_and_one_without_tokens_neither():
    buffer = ssb(tolerance=0.5)
    run(buffer, step(0, [0.5, 0.75, 3.0], [2, 2, 0]))
    assert [row["strength"] for row in buffer.rows] == [0.75]


@pytest.mark.parametrize(("age", "known"), [(1, 1), (2, 1), (3, 0)])
def test_rows_are_forgotten_when_older_than_max_age(age, known):
    buffer = ssb(max_age=2)
    run(buffer, step(0, [1.0]))
    own = run(buffer, step(age, [0.0]))
    assert len(own["group"]) == 1 + known
    assert own["in_loss"].tolist() == [not known, True][: 1 + known]
    if known:
        assert own["logp_old"][1].tolist() == [-1.0, -1.0] and own["replayed"].tolist() == [False, True]


def test_a_single_zero_advantage_row_is_replaced_and_the_first_ones_first():
    buffer = ssb()
    run(buffer, step(0, [1.0, 2.0]))
    own = run(buffer, step(1, [0.0]))
    assert own["in_loss"].tolist() == [False, True]
    own = run(buffer, step(2, [0.0, 1.0, 0.0, 0.0]))
    assert own["in_loss"].tolist() == [False, True, False, True, True, True]
