"""A velocity field over hidden states: what flow matching learns of where a model's states are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FREQUENCIES = 128


class VelocityField(torch.nn.Module):
    """v(x, t, context, depth): a residual MLP whose layers are shifted, scaled and gated by what it is told.

    The output layer and all gates start at zero, so the first velocities are 0.

    Args:
        width: of hidden states, and of its own layers.
        blocks: residual blocks.
    """

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.read = torch.nn.Linear(width, width)
        self.context = torch.nn.Linear(width, width)
        self.time, self.depth = _mlp(2 * FREQUENCIES, width), _mlp(2 * FREQUENCIES, width)
        self.blocks = torch.nn.ModuleList(_mlp(width, width) for _ in range(blocks))
        self.modulations = torch.nn.ModuleList(torch.nn.Linear(width, 3 * width) for _ in range(blocks))
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width, eps=1e-6) for _ in range(blocks + 1))
        self.last, self.write = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, width)
        for layer in self.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(layer.weight)
                torch.nn.init.zeros_(layer.bias)
        for layer in (*self.modulations, self.last, self.write):
            torch.nn.init.zeros_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, time: Tensor, context: Tensor, depth: Tensor) -> Tensor:
        """Velocities, float32 [N, width].

        Args:
            x: [N, width], places between noise and a state.
            time: [N], from 0 (noise) to 1 (the state).
            context: [N, width].
            depth: [N], share of the model's blocks that the state comes from.
        """
        told = torch.nn.functional.silu(self.context(context) + self.time(_waves(time)) + self.depth(_waves(depth)))
        x = self.read(x)
        for block, modulation, norm in zip(self.blocks, self.modulations, self.norms, strict=False):
            shift, scale, gate = modulation(told).chunk(3, -1)
            x = x + gate * block(norm(x) * (1 + scale) + shift)
        shift, scale = self.last(told).chunk(2, -1)
        return self.write(self.norms[-1](x) * (1 + scale) + shift)


def _mlp(inputs: int, width: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(inputs, width), torch.nn.SiLU(), torch.nn.Linear(width, width))


def _waves(value: Tensor) -> Tensor:
    """Cosines and sines of a number [N], [N, 2 * FREQUENCIES]."""
    rates = torch.exp(-math.log(10_000) * torch.arange(FREQUENCIES, device=value.device) / FREQUENCIES)
    angles = value[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], 1)


def deviation(
    field: VelocityField, states: Tensor, before: Tensor, noise: Tensor, time: Tensor, depths: Tensor
) -> Tensor:
    """Mean squared error of the velocity from noise to each state, float [N, D] with gradient.

        x = time h + (1 - time) noise,    mean over the width of (v(x, time, before, depth) - (h - noise))^2

    Args:
        states: [N, D, width], h of N tokens at D depths.
        before: [N, D, width], the same of the token before: the context.
        noise: [N, D, width], standard normal.
        time: [N].
        depths: [D].
    """
    width = states.shape[-1]
    share = time[:, None, None]
    positions = share * states + (1 - share) * noise
    count = len(depths)
    velocity = field(
        positions.reshape(-1, width),
        time.repeat_interleave(count),
        before.reshape(-1, width),
        depths.repeat(len(states)),
    )
    return (velocity.view_as(states) - (states - noise)).square().mean(-1)
