"""Muon for the matrices of the hidden layers, AdamW for everything else, over weights that may be sharded.

Keller Jordan, https://kellerjordan.github.io/posts/muon/; the factor on the learning rate is that of "Muon is Scalable for LLM Training"
(2502.16982, equation 4), which makes an update as large as one of AdamW, so that one learning rate serves both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from pipelines.engine.adamw import first_row, local

COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
"""Of the quintic Newton-Schulz iteration, as its author published them."""
SMALLEST = 1e-7
"""Norm below which a matrix is not scaled up."""


def orthogonalised(matrix: Tensor) -> Tensor:
    """Nearly U V^T of a matrix U S V^T: its singular values become about 1. float32 [M, N] → bfloat16 [M, N].

    >>> singular = torch.linalg.svdvals(orthogonalised(torch.randn(24, 8)).float())
    >>> bool((singular > 0.5).all() and (singular < 1.5).all())
    True
    """
    a, b, c = COEFFICIENTS
    wide = matrix.bfloat16()
    wide = wide.T if len(matrix) > matrix.shape[1] else wide
    wide = wide / wide.norm().clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if len(matrix) > matrix.shape[1] else wide


def hidden(model: torch.nn.Module, matrices: Iterable[Tensor]) -> list[Tensor]:
    """Those of a model's matrices that are inside it: no embeddings, no output head, no vectors that are written as a matrix."""
    ends = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    ends |= {id(head.weight)} if head is not None else set()
    return [matrix for matrix in matrices if matrix.ndim == 2 and min(matrix.shape) > 1 and id(matrix) not in ends]


class Muon(torch.optim.Optimizer):
    """Both optimizers as one, with one state and one learning rate.

    Each process keeps its shard of the momentum. A sharded matrix is gathered for the iteration, which every process then computes alike:
    any number of processes has the same weights, and one whole matrix at a time is held.

    Args:
        matrices: what Muon steps, float32 [M, N] each.
        others: groups of parameters that AdamW steps.
        lr, weight_decay: of both.
        momentum: of Muon, with Nesterov's look ahead.
        betas, eps: of AdamW.
    """

    def __init__(
        self, matrices: Iterable[Tensor], others: Iterable[dict[str, Any]], *, lr: float, momentum: float, weight_decay: float,
        betas: tuple[float, float], eps: float,
    ) -> None:  # fmt: skip
        groups = [{"params": list(matrices), "momentum": momentum}, *others]
        groups = [{**group, "params": list(group["params"])} for group in groups]
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps, "momentum": None}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if group["momentum"] is None:
                    self._adamw(weight, group)
                else:
                    self._muon(weight, group)

    def _muon(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer = state["momentum_buffer"]
        buffer.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(buffer, group["momentum"])
        update = orthogonalised(ahead.full_tensor() if isinstance(ahead, DTensor) else ahead)
        own, first = local(weight), first_row(weight)
        rate = group["lr"] * 0.2 * math.sqrt(max(weight.shape))
        own.mul_(1 - group["lr"] * group["weight_decay"])
        own.add_(update[first : first + len(own)], alpha=-rate)

    def _adamw(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        assert weight.grad is not None
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        own, gradient, mean, square = map(local, (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]))
        adamw(
            [own], [gradient], [mean], [square], [], [state["step"]], foreach=False, fused=False, amsgrad=False,
            beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
            maximize=False,
        )  # fmt: skip
