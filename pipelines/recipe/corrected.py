"""Rows that older weights drew: what `rlvr.staleness` and `rlvr.window` need of the other fields. A rule names no method."""

from __future__ import annotations

from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.columns import Phase, phase_of
from pipelines.contract.method import Rollout
from pipelines.recipe.settings import Rlvr

SAMPLING_HOOKS = ("sampling", "on_rollouts")
"""Hooks that are called while a step is sampled."""
LEARNING_HOOKS = ("on_batch",)
"""Hooks that are called when it has been."""


def samples(part: Bound) -> bool:
    """Whether the loop calls a part while it samples, so that its state belongs to the batches."""
    return phase_of(part.slot) <= Phase.FILTER or _uses(part, SAMPLING_HOOKS)


def learns(part: Bound) -> bool:
    """Whether the loop calls a part when a batch has been sampled, so that its state belongs to the updates."""
    return phase_of(part.slot) > Phase.FILTER or _uses(part, LEARNING_HOOKS)


def _uses(part: Bound, hooks: tuple[str, ...]) -> bool:
    return any(part.fn.uses(hook) for hook in hooks)


def check_staleness(rlvr: Rlvr, bound: dict[str, Any], methods: list[Bound]) -> None:
    """Rollouts that are behind the weights they train need a server, a correction, and methods that can be ahead.

    Raises:
        RecipeError: the reason and the fix.
    """
    if rlvr.staleness == 0:
        return
    field, value = "rlvr.staleness", str(rlvr.staleness)
    if rlvr.processes > 1:
        raise RecipeError(field, f"{value}: one process samples ahead", "Set processes: 1, or staleness: 0.")
    if rlvr.sampler is None:
        raise RecipeError(
            field,
            f"{value} decodes while the trainer trains, and without `sampler` both take turns on one device with one set of weights",
            "Add sampler: {serve: true} or the url of a server, or set staleness: 0.",
        )
    both = [part for part in methods if samples(part) and learns(part)]
    if both:
        raise RecipeError(
            field,
            f"{value} samples a step before the updates of the step before it are made, and {both[0].slot}: {both[0].name} takes what it "
            "learns from those updates into the sampling",
            "Set staleness: 0, or choose another method.",
        )
    _check_correction(field, value, "set staleness: 0", rlvr, bound)


def check_window(rlvr: Rlvr, bound: dict[str, Any], methods: list[Bound]) -> None:
    """Rows that go on in later steps need a rollout that can resume them, and a correction where they wait for their end.

    Raises:
        RecipeError: the reason and the fix.
    """
    if rlvr.window is None:
        return
    field, value, rollout = "rlvr.window", f"{rlvr.window:g}", bound["rollout"]
    if (rlvr.window_tokens or 0) >= rlvr.sampling.max_tokens:
        raise RecipeError(
            field,
            f"{value} is not below sampling.max_tokens ({rlvr.sampling.max_tokens}), so no row would be cut",
            "Lower it, or leave window out.",
        )
    if type(rollout.fn).resume is Rollout.resume:
        raise RecipeError(
            field,
            f"{value} cuts rows and goes on with them in the next step, which rollout: {rollout.name} cannot do",
            "Use rollout: single_turn, or leave window out.",
        )
    if rlvr.processes > 1:
        raise RecipeError(
            field, f"{value}: rows that go on are kept by one process", "Set processes: 1, or leave window out."
        )
    changing = [part.name for part in methods if _uses(part, ("sampling",))]
    if changing or rlvr.sampling.adaptive is not None:
        name = changing[0] if changing else "rlvr.sampling.adaptive"
        raise RecipeError(
            field, f"{value}: {name} changes the temperature from step to step, and a row's windows need the same one."
        )
    if not bound["advantage"].bootstraps:
        _check_correction(field, value, "leave window out", rlvr, bound)


def _check_correction(field: str, value: str, otherwise: str, rlvr: Rlvr, bound: dict[str, Any]) -> None:
    objective = bound["objective"]
    if rlvr.old_logp == "sampler" and not objective.card.ratio_level:
        raise RecipeError(
            field,
            f"{value} trains on tokens that older weights drew, and objective: {objective.name} has no importance ratio that corrects "
            "for it",
            f"Use an objective with a ratio, such as objective: clip, or {otherwise}.",
        )
    if rlvr.old_logp == "trainer" and not any(credit.ratio_level for credit in bound["credit"]):
        raise RecipeError(
            field,
            f"{value} trains on tokens that older weights drew, and with old_logp: trainer the ratio starts from the present ones: "
            "nothing corrects for it",
            "Add credit: [{kind: truncated_is}], or set old_logp: sampler.",
        )
