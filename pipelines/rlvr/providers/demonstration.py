"""How likely the policy finds the demonstration of a row's group, beside the row's own tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider
from pipelines.rlvr.ops import demonstrations


@method(
    paper="2602.20197",
    title="Controllable Exploration in Hybrid-Policy RLVR for Multi-Modal Reasoning: the expert's log-probabilities",
    checked="official code (read; which rows and positions are left out is ours)",
    makes=("logp_demonstration",),
)
class demonstration(Provider):
    """The n-th trained token of a rollout gets the log-probability of the n-th token of its group's demonstration.

    A demonstration is a row whose every trained token is teacher-forced; of several the first counts. Its log-probabilities are the
    trainer's own, before the step's first update, so this costs no forward pass. None for tokens beyond the demonstration's end, for
    demonstrations themselves and for groups without one.
    """

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_demonstration` [B, T]."""
        mask, group = columns["mask"], columns["group"]
        demonstrated = demonstrations(mask, columns["teacher_forced"])
        values = torch.full(mask.shape, torch.nan)
        for row in demonstrated.nonzero().flatten().flip(0).tolist():  # the first of a group is written last
            logp = columns["logp_old"][row][mask[row]]
            for mate in ((group == group[row]) & ~demonstrated).nonzero().flatten().tolist():
                places = mask[mate].nonzero().flatten()[: len(logp)]
                values[mate] = torch.nan
                values[mate, places] = logp[: len(places)].float()
        columns["logp_demonstration"] = values
