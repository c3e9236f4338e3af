"""The network: a causal language model of transformers, and the gates that mix what it reads of its own thoughts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine import models
from pipelines.engine.distribution import warp
from pipelines.engine.masks import keeps_keys_alone
from pipelines.latent.settings import GateSettings

SHARPNESS = 8.0
"""c of the official code's `ThinkingResidualLambda`."""
STD = 0.02
"""Of fresh matrices: the `initializer_range` of the official code's models."""
FILE = "latent_gates.safetensors"
"""Beside the model's own files."""


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


class Hybrid(nn.Module):
    """A network with gates, or without: then it reads tokens alone.

    Args:
        network: a causal language model of transformers, on its device.
        gates: None for the model that reads tokens alone.
        dtype: that it computes in, "float32" or "bfloat16"; gates and mixtures are float32.

    Raises:
        ModelError: it keeps more than keys and values of what it has read, or its embeddings are no plain table.
    """

    def __init__(self, network: Any, gates: Gates | None, dtype: str = "float32") -> None:
        super().__init__()
        self.network, self.gates, self.dtype = network, gates, dtype
        if not keeps_keys_alone(network):
            raise ModelError("model", "it keeps a recurrent state", "Use a family with attention alone.")
        if type(network.get_input_embeddings()) is not nn.Embedding:
            kind = type(network.get_input_embeddings()).__name__
            raise ModelError(
                "model", f"its embeddings are a {kind}, of which no mixture is known", "Use another family."
            )

    @property
    def width(self) -> int:
        """Of embeddings."""
        return int(self.network.get_input_embeddings().embedding_dim)

    def mixture(self, logits: Tensor, sampling: Sampling) -> Tensor:
        """sum_v p_v E_v / |p|_2 of the distribution that a token is drawn from, float32 [B, width].

        The probabilities are divided by their length, so that a flat distribution does not vanish: independent rows of one size
        add up to one row's size.

        Args:
            logits: [B, V].
        """
        p = warp(logits, sampling).softmax(-1)
        return p @ self.network.get_input_embeddings().weight.float() / p.norm(dim=-1, keepdim=True)

    def read(self, tokens: Tensor, latent: Tensor, mixtures: Tensor) -> tuple[Tensor, Tensor]:
        """What the network reads, float32 [B, L, width], and the mean share of the token's embedding in each place, float32 [B, L].

        Args:
            tokens: int64 [B, L].
            latent: bool [B, L], places that are mixed.
            mixtures: float32 [B, L, width]; read there alone.
        """
        embedded = self.network.get_input_embeddings()(tokens).float()
        share = torch.ones_like(latent, dtype=torch.float32)
        if self.gates is None or not bool(latent.any()):
            return embedded, share
        mixed, a = self.gates(embedded[latent], mixtures[latent])
        return embedded.index_put((latent,), mixed), share.index_put((latent,), a.mean(-1).detach())

    def logits(self, embedded: Tensor, attended: Tensor, cache: Any = None) -> Tensor:
        """float32 [B, L, V], of what follows each place.

        Args:
            embedded: float32 [B, L, width].
            attended: bool [B, before + L], False at padding; `before` places are in the cache.
            cache: of keys and values; None reads everything at once.
        """
        places = (attended.long().cumsum(1) - 1).clamp(min=0)[:, -embedded.shape[1] :]
        with models.autocast(self.dtype, embedded.device):
            return self.network(
                inputs_embeds=embedded.to(self.network.get_input_embeddings().weight.dtype),
                attention_mask=attended.long(),
                position_ids=places,
                past_key_values=cache,
                use_cache=cache is not None,
            ).logits.float()


def gates_of(folder: Path | None, width: int, settings: GateSettings, draw: torch.Generator) -> Gates:
    """The gates that stand beside a model, or fresh ones.

    Args:
        folder: of the model.
        width, settings, draw: as in `Gates`.
    """
    gates = Gates(width, settings, draw)
    if folder is not None and (folder / FILE).exists():
        gates.load_state_dict(load_file(folder / FILE))
    return gates


def save_gates(gates: Gates, folder: Path) -> None:
    """Write the gates beside their model."""
    save_file({name: value.detach().cpu().contiguous() for name, value in gates.state_dict().items()}, folder / FILE)
