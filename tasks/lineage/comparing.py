"""A comparison of the checkpoints that names mean: what `whetstone compare` shows and the Python API returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evaluation import comparison
from pipelines.base.errors import UserError
from tasks.lineage import subjects


def compare(
    names: Sequence[str],
    *,
    confidence: float = 0.95,
    option: str = "--confidence",
    weights: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """The body of `evaluation.comparison.compare` for the checkpoints that the names mean; the first is what the others are tested against.

    Args:
        names: as `tasks.lineage.subjects.find` takes them.
        confidence: level of the intervals and tests.
        option: what the caller calls it, for the message.
        weights: compare the models in parameter space too, under `weights`.
        progress: called with what is being done.

    Raises:
        UserError: the level is none, or the names mean too few checkpoints; and as `find` and `weights` do.
    """
    if not 0.5 <= confidence < 1:
        raise UserError(option, "a share from 0.5 to below 1, such as 0.95.")
    chosen = subjects.find([*names], progress)
    experiments = any(name.startswith("experiment:") for name in names)
    if len(chosen) < 2 and not experiments:
        raise UserError("compare needs two different runs or models, or an experiment", fix="See `whetstone runs`.")
    arms = comparison.arms_of(chosen, separate=not experiments)
    body = comparison.compare(arms, confidence=confidence, progress=progress)
    return body | ({"weights": comparison.weights(arms, progress)} if weights else {})
