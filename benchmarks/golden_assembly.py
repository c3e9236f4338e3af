"""What a whole preset makes of the rows of a golden case: from rewards to the derivative of the loss by every log-probability.

Every other golden file holds one part to its source. Parts that are right alone can be wired wrongly: these go through what the trainer
goes through, in its order (`pipelines.rlvr.algorithm`).
"""

from __future__ import annotations

from typing import Any

import torch

from pipelines.recipe.read import read_preset
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import Update, assign_credit, cached_gradients, filtered, weigh


def outputs(ours: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """`advantage` [B, T], `loss`, and `gradient` [B, T], its derivative by `logp`.

    Args:
        ours: `preset`, and with `rlvr` fields of the section that replace those of the preset.
        columns: the case's, with `logp` and, where the preset reads it, `entropy`.
    """
    update = Update.of(Rlvr(**(read_preset(ours["preset"]) | ours.get("rlvr", {}))))
    columns = weigh(update, assign_credit(update, filtered(update, columns)))
    logp = columns["logp"]
    values = torch.stack([logp, columns.get("entropy", torch.zeros_like(logp))], -1)
    loss, gradient = cached_gradients(update, columns, values)
    return {"advantage": columns["advantage"], "loss": loss, "gradient": gradient[..., 0]}
