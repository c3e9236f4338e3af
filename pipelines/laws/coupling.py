"""What a method couples: it is computed on whole steps, group by group, and row by row, and these are compared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, load, load_plugins, settings_model
from pipelines.contract.columns import COLUMNS, Column, Phase
from pipelines.laws import example_columns

WIDTHS = ("row", "group", "batch")
"""What a card's `couples` can be, each wider than the one before."""
SIZES: dict[str, Any] = {"rows": 11, "width": 9, "groups": 3}
"""Of the steps that methods are tried on: groups of different sizes."""
SEEDS = 3


def fits(needed: str, declared: str) -> bool:
    """Whether what a method needs is no more than what it declares."""
    return WIDTHS.index(needed) <= WIDTHS.index(declared)


def needed(bound: Bound) -> str:
    """What a method couples with its settings, as far as some steps show it; one that remembers something, a batch."""
    if bound.sees_all:
        return "batch"
    tried = list(steps())
    if all(_adds_up(bound, columns, torch.arange(len(columns["group"]))) for columns in tried):
        return "row"
    return "group" if all(_adds_up(bound, columns, columns["group"]) for columns in tried) else "batch"


def steps() -> Iterator[dict[str, Any]]:
    """Random steps; in every other one a group has no difference in reward, a row has no score, and others are demonstrations."""
    load_plugins()
    for number in range(2 * SEEDS):
        yield example_columns.copied(_step(number, tuple(COLUMNS.items())))


@lru_cache(maxsize=2 * SEEDS)
def _step(number: int, _table: tuple[tuple[str, Column], ...]) -> dict[str, Any]:
    seed = number // 2
    columns = example_columns.random_step(**SIZES, seed=seed)
    mask, group, reward = columns["mask"], columns["group"], columns["reward"]
    known, forced = torch.ones(len(group), dtype=torch.bool), torch.zeros_like(mask)
    if number % 2:
        reward = torch.where(group == seed % 3, 1.0, reward)
        known = torch.arange(len(group)) != 4
        forced = (torch.arange(len(group)) % 4 == seed)[:, None] & mask & known[:, None]
    step: dict[str, Any] = {}
    for phase in (Phase.LOSS, Phase.ADVANTAGE):
        step |= example_columns.columns(mask, group, reward, columns["turn"], seed=seed, phase=phase)
    return step | {"scored": known, "in_loss": known, "mask": mask & known[:, None], "teacher_forced": forced}


def _adds_up(bound: Bound, columns: dict[str, Any], parts: Tensor) -> bool:
    """Whether each part of the rows, alone, gets what it gets in the whole; `parts` numbers them, int64 [B]."""
    columns = {name: columns.get(name) for name in {*bound.needs, *bound.takes}}
    of_step = _results(bound(columns))
    for part in parts.unique():
        own = parts == part
        alone = _results(bound({k: v[own] if isinstance(v, Tensor) else v for k, v in columns.items()}))
        if not all(
            torch.allclose(a[own].double(), b.double(), equal_nan=True) for a, b in zip(of_step, alone, strict=True)
        ):
            return False
    return True


def _results(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def choices(bound: Bound) -> Iterator[Bound]:
    """The method, and with each other choice of a setting that has few."""
    yield bound
    for name, field in settings_model(load(bound.slot, bound.name)).model_fields.items():
        options = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        for option in (True, False) if field.annotation is bool else options:
            try:
                yield bind(bound.slot, {"kind": bound.name, **bound.settings, name: option})
            except RecipeError:
                continue  # a choice that needs another one
