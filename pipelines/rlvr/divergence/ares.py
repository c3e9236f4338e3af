"""The KL to the reference, weighed by how hard the problem is for the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import accuracy_band, row_mean

ERROR_CLIP = 0.2
DEAD_ZONE = 0.02
LOWEST, HIGHEST = math.log(1e-4), math.log(1e2)


@method(
    paper="2510.08457",
    title="ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (KL weights)",
    checked="official code (read; weights move once a step, by the KL of the policy that sampled)",
    legal_in=("loss",),
    reads=("problem", "correct", "scored", "on_policy", "replayed", "mask", "logp_old", "logp_ref"),
)
class ares(Method):
    """beta (exp(d) - d - 1), d = logp_ref - logp (clamped to ±20), beta of the problem's difficulty: easy, medium or hard.

    A problem is easy from 2/3 correct rows of the step on, medium from 1/3 on. After the rollouts of each step, with KL the mean over a
    difficulty's on-policy rows, smoothed by `decay`, and e = KL / target - 1: where |e| >= 0.02, log beta moves by `rate` times the
    smoothed e, at most 0.2, so a difficulty that drifts too far is penalised more. beta starts at 1 and stays between 1e-4 and 100. The
    released code measures KL on every micro-batch and moves beta each 100 of them. Problems that have replayed rows alone have beta 1.
    """

    def __init__(
        self,
        *,
        target: Annotated[float, Field(gt=0)] = 0.01,
        rate: Annotated[float, Field(ge=0, le=10)] = 0.05,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.97,
    ) -> None:
        self.target, self.rate, self.decay = target, rate, decay
        self.log_betas = [0.0, 0.0, 0.0]
        self.kl: list[float | None] = [None, None, None]
        self.errors = [0.0, 0.0, 0.0]
        self.bands: dict[int, int] = {}
        """The column `problem` → the difficulty of the step's own problems."""

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Note the problems' difficulties, and move the weights by the KL of its on-policy rows."""
        scored = columns["scored"] & ~columns["replayed"]
        band = accuracy_band(columns["correct"], columns["problem"], scored)
        pairs = zip(columns["problem"][scored].tolist(), band[scored].tolist(), strict=True)
        self.bands = dict(pairs)
        measured = scored & columns["on_policy"]
        mask = columns["mask"] & measured[:, None]
        d = (columns["logp_ref"] - columns["logp_old"]).masked_fill(~mask, 0.0).clamp(-20, 20)
        of_row = row_mean(torch.expm1(d) - d, mask)
        for number in range(3):
            rows = (band == number) & measured
            if rows.any():
                self._move(number, float(of_row[rows].double().mean()))

    def _move(self, band: int, kl: float) -> None:
        known = self.kl[band]
        smoothed = kl if known is None else self.decay * known + (1 - self.decay) * kl
        self.kl[band] = smoothed
        error = smoothed / self.target - 1
        if abs(error) < DEAD_ZONE:
            return
        self.errors[band] = self.decay * self.errors[band] + (1 - self.decay) * error
        step = self.rate * min(ERROR_CLIP, max(-ERROR_CLIP, self.errors[band]))
        self.log_betas[band] = min(HIGHEST, max(LOWEST, self.log_betas[band] + step))

    def __call__(self, logp: PerToken, logp_ref: PerToken, problem: PerRow) -> PerToken:
        """The divergence of each token.

        >>> kl = ares()(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]), torch.tensor([7])); kl.tolist()
        [[0.1065, 0.7183]]
        """
        betas = {number: math.exp(self.log_betas[band]) for number, band in self.bands.items()}
        beta = torch.tensor([betas.get(number, 1.0) for number in problem.tolist()], device=logp.device)
        d = (logp_ref - logp).clamp(-20, 20)
        return beta[:, None] * (torch.expm1(d) - d)

    def state_dict(self) -> dict[str, Any]:
        """Weights, smoothed KL and errors, and the difficulties of the step's problems."""
        bands = {str(number): band for number, band in self.bands.items()}
        return {"log_betas": self.log_betas, "kl": self.kl, "errors": self.errors, "bands": bands}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.log_betas, self.kl = list(state["log_betas"]), list(state["kl"])
        self.errors, self.bands = list(state["errors"]), {int(k): band for k, band in state["bands"].items()}
