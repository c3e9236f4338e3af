"""What is masked, unscored or absent changes nothing, for every method that is called with columns."""

from __future__ import annotations

import functools

import pytest
import torch
import toys
from method_toys import spec
from toys import columns_of

from pipelines.contract.catalogue import bind, load, names, needs
from pipelines.contract.columns import COLUMNS, Phase
from pipelines.contract.method import BASES
from pipelines.laws import example_columns as examples
from pipelines.recipe.slots import SLOTS

CALLED = [(slot, name) for slot in SLOTS for name in names(f"rlvr.{slot}") if f"rlvr.{slot}" not in BASES]
ZERO_OUTSIDE = ("advantage", "credit", "objective", "loss_aggregation")
"""Slots whose token values are 0 where nothing is trained."""
OF_THE_LOSS = ("objective", "divergence", "auxiliary_loss", "loss_aggregation")
"""Slots that see what is in the loss alone, where a method does not ask for `scored`; the others see what is scored."""
KEPT = ("max_tokens", "weight", "loss_share", "token_penalty", "logp_prompt")
"""Columns that are known outside the trained tokens too: the limit, what is 0 there, and what is of the prompt."""


@functools.cache
def drawn(seed):
    """Every column of a rough step."""
    batch = toys.rough(seed)
    full = examples.columns(batch.mask, batch.group, batch.reward, batch.turn, seed=seed, phase=Phase.LOSS)
    return full | columns_of(batch) | {"weight": full["weight"] * batch.in_loss[:, None]}


def columns(seed):
    """A copy of them: a method may write into its own."""
    return examples.copied(drawn(seed))


def call(slot, name, given):
    """Each tensor that the method returns, after its hooks."""
    bound = bind(f"rlvr.{slot}", spec(slot, name))
    bound.fn.setup(toys.setup_context(sorted(set(given["problem"].tolist()))))
    for _ in range(2):
        bound.fn.on_batch(given)
    result = bound(given)
    return result if isinstance(result, tuple) else (result,)


def noisy(given, place, seed):
    """The columns with other values where `place` ([B] or [B, T]) is true; ids, masks and counts stay as they are."""
    draw = torch.Generator().manual_seed(99 + seed)
    out = dict(given)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and name not in KEPT:
            where = place.view(-1, *[1] * (value.ndim - 1)) if place.ndim == 1 else place
            if where.ndim == value.ndim and (place.ndim == 1 or value.shape == place.shape):
                out[name] = torch.where(where, torch.rand(value.shape, generator=draw) * 3 - 2, value)
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("slot", "name"), CALLED)
def test_only_scored_rows_and_trained_tokens_count(slot, name, seed):
    """Neither the other columns of unscored rows, nor those of untrained tokens, nor unscored rows being there at all."""
    given = columns(seed)
    of_loss = slot in OF_THE_LOSS and "scored" not in needs(load(f"rlvr.{slot}", name))
    scored = given["in_loss" if of_loss else "scored"]
    mask = given["mask"] & scored[:, None]
    results = call(slot, name, given)
    for result in results:
        if slot in ZERO_OUTSIDE:
            assert torch.isfinite(result).all()
            assert not result[~(scored if result.ndim == 1 else given["mask"])].any()
    for result, other in zip(results, call(slot, name, noisy(given, ~scored, seed)), strict=True):
        torch.testing.assert_close(result[scored], other[scored])
    for result, other in zip(results, call(slot, name, noisy(given, ~mask, seed)), strict=True):
        where = mask if result.shape == mask.shape else slice(None)
        torch.testing.assert_close(result[where], other[where])
    alone = {k: v[scored] if isinstance(v, torch.Tensor) and COLUMNS[k].shape else v for k, v in given.items()}
    for result, other in zip(results, call(slot, name, alone), strict=True):
        torch.testing.assert_close(result[scored], other)
