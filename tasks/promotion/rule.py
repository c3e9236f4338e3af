"""The rule of a promotion, from the options of a command line."""

from __future__ import annotations

import math
from typing import Any


def rule_of(primary: str | None, guards: list[str] | None, margin: float, alpha: float, looks: int) -> dict[str, Any]:
    """The options as a rule; margins in points of 100.

    Raises:
        UserError: a value that is no margin, share or count.
    """
    from pipelines.base.errors import UserError

    stated: dict[str, float] = {}
    for text in guards or []:
        task, _, points = text.rpartition("=")
        try:
            stated[task] = float(points) / 100
        except ValueError:
            task = ""
        if not task:
            raise UserError(f"--guard {text}", "write TASK=POINTS, such as gsm8k_test=2.")
    for option, share in (("--margin", margin / 100), *((f"--guard {t}", m) for t, m in stated.items())):
        if not (math.isfinite(share) and 0 < share < 1):
            raise UserError(
                option, "points between 0 and 100; no benchmark can be shown not to have lost anything at all."
            )
    if not 0 < alpha < 0.5:
        raise UserError("--alpha", "a share between 0 and 0.5, such as 0.05.")
    if looks < 1:
        raise UserError("--looks", "1 or more.")
    return {
        "primary": primary, "guards": stated if guards else None, "margin": margin / 100, "alpha": alpha, "looks": looks,
    }  # fmt: skip
