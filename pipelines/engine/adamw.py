"""AdamW for weights in float32, and for weights stored in bfloat16, whose updates are rounded stochastically.

bfloat16 keeps 8 bits of a number. An update of less than 1/512 of a weight, which most are at the learning rates of fine-tuning, is
lost where the sum is rounded to nearest. Rounded up or down with the probability that makes the expected value exact, it
arrives on average (Zamirai et al., "Revisiting BFloat16 Training", 2010.06192, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from pipelines.contract.streams import seed_of

CHUNKS = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Weights in float32 at a time: on a CPU what its caches hold, on a GPU enough to hide the launch of kernels."""


def make(
    params: Iterable[Any], *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> torch.optim.Optimizer:  # fmt: skip
    """torch's fused AdamW, or `RoundingAdamW` where a weight is bfloat16.

    Args:
        params: parameters or parameter groups, as for torch's optimizers.
    """
    groups = list(params)
    groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
    groups = [{**group, "params": list(group["params"])} for group in groups]
    rounds = any(p.dtype == torch.bfloat16 for group in groups for p in group["params"])
    if rounds:
        return RoundingAdamW(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


def round_stochastically(values: Tensor, generator: torch.Generator, drawn: int | None = None, skip: int = 0) -> Tensor:
    """float32 [N] → the bfloat16 neighbour above or below, each with the probability that keeps the expected value; in place.

    The 16 bits that bfloat16 lacks are the distance to the neighbour nearer to zero, in 1/65536 of the gap: a uniform 16-bit
    number carries into the upper half with just that probability. What is bfloat16 already stays as it is, and so does NaN.

    Args:
        drawn: numbers that the generator is asked for, since a GPU's depend on how many there are; default: one for each value.
        skip: numbers that belong to values before the first.

    Returns:
        `values`, all of them numbers that bfloat16 holds.

    >>> x = torch.full((4000,), 1.0 + 2.0**-9)
    >>> rounded = round_stochastically(x.clone(), torch.Generator().manual_seed(0))
    >>> rounded.unique().tolist(), abs(float(rounded.mean() - x.mean())) < 2e-4
    ([1.0, 1.0078125], True)
    """
    words = torch.empty(-(-(drawn or len(values)) // 4), dtype=torch.int64, device=values.device)
    words.random_(-(2**63), None, generator=generator)  # all 64 bits: four numbers for the price of one
    noise = words.view(torch.int16)[skip : skip + len(values)].to(torch.int32).bitwise_and_(0xFFFF)
    # One NaN for all: one with all bits set, as a GPU's, would carry and be 0, and one with few of the upper bits would be infinite.
    values.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=-math.inf)
    values.view(torch.int32).add_(noise).bitwise_and_(-0x10000)
    return values


class RoundingAdamW(torch.optim.Optimizer):
    """AdamW (torch's fused step) with float32 moments over weights of which some are bfloat16.

    Weights and gradients take 2 bytes each instead of 4, and no copy in float32 is kept. The noise of rounding is a function of
    the step and the number's place in the weights alone: a resumed run has the same weights to the bit, and weights that are sharded
    over several processes are rounded like those of one.

    Args:
        params: parameters or parameter groups.
        lr, betas, eps, weight_decay: as in `torch.optim.AdamW`.
    """

    def __init__(self, params: Any, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        number = 0
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group, number)
                number += 1

    def _update(self, weight: Tensor, group: dict[str, Any], number: int) -> None:
        """One step of a weight.

        Args:
            number: of the weight among all.
        """
        state = self.state[weight]
        if not state:
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, dtype=torch.float32).contiguous()
        assert weight.grad is not None
        own, gradients, *moment_vectors = map(local, (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]))
        vectors = [own.reshape(-1), gradients.reshape(-1), *(moment.view(-1) for moment in moment_vectors)]
        done = state["step"].to(weight.device)
        noise = torch.Generator(weight.device)
        chunk, place, passed = CHUNKS[weight.device.type], _start(weight), int(state["step"])
        cuts = list(range(chunk - place % chunk, len(vectors[0]), chunk))  # chunks are those of the whole weight
        for parts in zip(*(t.tensor_split(cuts) for t in vectors), strict=True):
            stored, gradient, *moments = parts
            value, step = stored.float(), done.clone()
            adamw(
                [value], [gradient.float()], [moments[0]], [moments[1]], [], [step], fused=True, foreach=False,
                amsgrad=False, beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"],
                weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
            )  # fmt: skip
            if stored.dtype == torch.bfloat16:
                noise.manual_seed(seed_of("rounding", passed, number, place // chunk))
                drawn = min(chunk, weight.numel() - place // chunk * chunk)
                round_stochastically(value, noise, drawn, skip=place % chunk)
            stored.copy_(value)
            place += len(stored)
        if not own.is_contiguous():  # its vector is a copy
            own.copy_(vectors[0].view_as(own))
        state["step"] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The output of `state_dict` back. torch would give the moments the dtype of the weights."""
        super().load_state_dict(state_dict)
        weights = [p for group in self.param_groups for p in group["params"]]
        for number, entry in state_dict["state"].items():
            for name in ("exp_avg", "exp_avg_sq"):
                self.state[weights[number]][name] = entry[name].to(weights[number].device, torch.float32, copy=True)


def _start(weight: Tensor) -> int:
    """Numbers of the weight that lie before this process's part."""
    return first_row(weight) * (weight.numel() // weight.shape[0]) if isinstance(weight, DTensor) else 0


def first_row(weight: Tensor) -> int:
    """The first row of a tensor that this process has; shards are rows, as FSDP2 splits them, and 0 stands for a whole tensor."""
    if not isinstance(weight, DTensor):
        return 0
    [placement], rows = weight.placements, weight.shape[0]
    if not placement.is_shard(0):
        return 0
    return min(-(-rows // weight.device_mesh.size()) * weight.device_mesh.get_local_rank(), rows)


def local(tensor: Tensor) -> Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
