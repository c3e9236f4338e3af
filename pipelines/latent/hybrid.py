"""HRPO (2505.18454): a token is drawn, and read together with the mixture of all tokens through learned gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import warp
from pipelines.latent.gate_files import FILE, misfit
from pipelines.latent.policy import Drawn, LatentPolicy, draw_tokens
from pipelines.latent.settings import GateSettings
from pipelines.rlvr.ops import row_mean

SHARPNESS = 8.0
"""c of the official code's `ThinkingResidualLambda`."""
STD = 0.02
"""Of fresh matrices: the `initializer_range` of the official code's models."""


class Gates(nn.Module):
    """HRPO's gates (2505.18454; `thinking_residual` of the official code, after the recurrent gate of Griffin).

        r = sigmoid(W_r e + b_r),  i = sigmoid(W_i e + b_i),  a = exp(-c softplus(-Lambda) r)
        input = a e + sqrt(1 - a^2 + 1e-8) (i h)

    e is the embedding of the token that was drawn, h the mixture of all embeddings. Lambda starts where exp(-c softplus(-Lambda)) is
    uniform between r_min and r_max: an open gate (r = 1) keeps that much of the token, a half open one its root.

    Args:
        width: of embeddings.
        settings: where Lambda starts.
        draw: a generator on the CPU, of the fresh values.
    """

    def __init__(self, width: int, settings: GateSettings, draw: torch.Generator) -> None:
        super().__init__()
        self.settings = settings
        self.recurrence, self.admission = nn.Linear(width, width), nn.Linear(width, width)
        with torch.no_grad():
            for linear in (self.recurrence, self.admission):
                linear.weight.copy_(torch.randn(width, width, generator=draw) * STD)
                linear.bias.zero_()
        radius = settings.r_min + (settings.r_max - settings.r_min) * torch.rand(width, generator=draw)
        self.decay = nn.Parameter(-torch.log(radius ** (-1 / SHARPNESS) - 1))
        """Lambda, float32 [width]."""

    def forward(self, embedding: Tensor, mixture: Tensor) -> tuple[Tensor, Tensor]:
        """What the network reads, and the share a of the token's embedding in it; float32 [..., width] each.

        Args:
            embedding, mixture: float32 [..., width].
        """
        r, i = self.recurrence(embedding).sigmoid(), self.admission(embedding).sigmoid()
        a = torch.exp(-SHARPNESS * F.softplus(-self.decay) * r)
        return a * embedding + torch.sqrt(1 - a.square() + 1e-8) * (i * mixture), a


class Hybrid(LatentPolicy):
    """A network with gates, or without: then it reads tokens alone.

    What is stored of a place is its mixture h, so that gradient flows through the gates and not from one place to the place before.

    Args:
        network, dtype: as in `LatentPolicy`.
        gates: None for the model that reads tokens alone.
    """

    def __init__(self, network: Any, gates: Gates | None, dtype: str = "float32") -> None:
        super().__init__(network, dtype)
        self.gates, self.thinks = gates, gates is not None

    @property
    def notes(self) -> int:
        """The width of a mixture."""
        return self.width

    def draw(
        self, logits: Tensor, thinking: Tensor, sampling: Sampling, stream: Tensor, place: int, *, greedy: bool
    ) -> Drawn:
        """A token by `sampling`, and the mixture of that distribution, which `greedy` leaves as it is."""
        token, logp = draw_tokens(logits, sampling, stream, place, greedy=greedy)
        mixture = torch.zeros(len(logits), self.width, device=logits.device)
        if bool(thinking.any()):
            mixture[thinking] = self.mixture(logits[thinking], sampling)
        return Drawn(token, logp, mixture)

    def mixture(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """sum_v p_v E_v / |p|_2 of the distribution that a token is drawn from, float32 [B, width].

        The probabilities are divided by their length, so that a flat distribution does not vanish: independent rows of one size
        add up to one row's size.

        Args:
            logits: [B, V].
        """
        p = warp(logits, sampling).softmax(-1)
        return p @ self.network.get_input_embeddings().weight.float() / p.norm(dim=-1, keepdim=True)

    def read(self, tokens: Tensor, latent: Tensor, notes: Tensor) -> tuple[Tensor, Tensor]:
        """The gated mixtures at latent places, and the mean of a there."""
        embedded = self.network.get_input_embeddings()(tokens).float()
        share = torch.ones_like(latent, dtype=torch.float32)
        if self.gates is None or not bool(latent.any()):
            return embedded, share
        mixed, a = self.gates(embedded[latent], notes[latent])
        return embedded.index_put((latent,), mixed), share.index_put((latent,), a.mean(-1).detach())

    def rest(self, share: Tensor) -> Tensor:
        """sqrt(1 - a^2), what the mixture is multiplied by."""
        return (1 - share.square()).clamp(min=0).sqrt()

    def reduced(self, losses: Tensor, kept: Tensor, every: Tensor) -> Tensor:
        """Averaged over the places of an answer and then over answers, as the official code has it."""
        return row_mean(losses, kept).sum() / every.any(1).sum().clamp(min=1)

    def reference(self, network: Any) -> Hybrid:
        """It reads tokens alone."""
        return Hybrid(network, None, self.dtype)

    def own_rates(self) -> list[tuple[list[nn.Parameter], float]]:
        """Those of the matrices and of Lambda, as the official code has them."""
        if self.gates is None:
            return []
        gates, settings = self.gates, self.gates.settings
        matrices = [*gates.recurrence.parameters(), *gates.admission.parameters()]
        return [(matrices, settings.learning_rate), ([gates.decay], settings.decay_learning_rate)]

    def save(self, folder: Path) -> None:
        """Write the gates."""
        if self.gates is not None:
            save_gates(self.gates, folder)


def gates_of(folder: Path | None, width: int, settings: GateSettings, draw: torch.Generator) -> Gates:
    """The gates that stand beside a model, or fresh ones.

    Args:
        folder: of the model.
        width, settings, draw: as in `Gates`.

    Raises:
        ModelError: the gates are of another size, or the file does not hold them.
    """
    gates = Gates(width, settings, draw)
    if folder is None or not (folder / FILE).exists():
        return gates
    try:
        gates.load_state_dict(load_file(folder / FILE))
    except (RuntimeError, SafetensorError) as error:
        raise misfit(folder / FILE, width, str(error)) from None
    return gates


def save_gates(gates: Gates, folder: Path) -> None:
    """Write the gates beside their model."""
    save_file({name: value.detach().cpu().contiguous() for name, value in gates.state_dict().items()}, folder / FILE)
