"""The trainer's side of the policy: log-probabilities of given tokens, with gradient, logits only where needed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from pipelines.engine import distribution
from pipelines.engine.layout import Layout, Prefix
from pipelines.engine.models import autocast
from pipelines.recipe.settings import Sampling

Entropy = Literal["no", "value", "gradient"]
Where = Literal["last", "mlp"]
CHUNK_FLOATS = 1 << 27
"""Most logits held at a time (512 MiB in float32); more are computed twice, in chunks."""


@dataclass
class Scored:
    """Per position of a [B, T] batch; 0 where not asked for."""

    logp: Tensor
    """float32 [B, T]."""
    entropy: Tensor | None = None
    """float32 [B, T], where asked for."""


class Policy:
    """Log-probabilities under the distribution the sampler draws from.

    Args:
        model: a causal LM, or a peft wrapper of one.
        sampling: temperature and truncation are applied here as in the sampler.
        dtype: "float32" or "bfloat16" (autocast; log-softmax is always float32).
    """

    def __init__(self, model: Any, sampling: Sampling, *, dtype: str = "float32") -> None:
        self.model, self.sampling, self.dtype = model, sampling, dtype
        self.causal = causal_lm(model)
        self.decoder = getattr(self.causal, self.causal.base_model_prefix)
        self.head = self.causal.get_output_embeddings()
        self.config = self.causal.config.get_text_config()
        self.device = next(model.parameters()).device
        window = getattr(self.config, "sliding_window", None) and set(
            getattr(self.config, "layer_types", None) or [""]
        ) != {"full_attention"}
        self.top_p_mass: float | None = None
        """Where set, entropies come with a second number: over the most probable tokens that hold this much together."""
        self.takes_masks = self.config._attn_implementation == "sdpa" and not window
        """Whether packed and shared layouts are possible: they need attention masks of our own."""
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        self.takes_prefixes = self.takes_masks and kinds == {"full_attention"}
        """Whether rows can be laid out behind common beginnings: every layer must keep keys and values."""
        self._check_head()
        self.scorer = Scorer(self)
        """The module every pass goes through, and that is sharded over several processes."""

    @property
    def layers(self) -> list[torch.nn.Module]:
        """The blocks of the decoder."""
        return list(getattr(self.decoder, "layers", None) or self.decoder.h)

    def logp(self, tokens: Tensor, mask: Tensor, *, entropy: Entropy = "no") -> Scored:
        """Score the tokens under a mask, row by row: the slow way that layouts are tested against.

        Args:
            tokens: int64 [B, T], padded on the right (padding is never attended to by what precedes it).
            mask: bool [B, T], the tokens to score; column 0 must be False.
            entropy: also return the entropy of the distribution each masked token was drawn from, with or
                without gradient.
        """
        scored = mask[:, 1:].nonzero()
        width = tokens.shape[1]
        layout = Layout(
            ids=tokens,
            positions=torch.arange(width, device=tokens.device).expand_as(tokens),
            attention=None,
            source=scored[:, 0] * width + scored[:, 1],
            target=scored[:, 0] * width + scored[:, 1] + 1,
            used=tokens.numel(),
        )
        values, spreads = self.score(layout, tokens.flatten()[layout.target], entropy=entropy)
        zero = torch.zeros(tokens.numel(), device=tokens.device)
        logp = zero.scatter(0, layout.target, values).view(tokens.shape)
        return Scored(logp, None if spreads is None else zero.scatter(0, layout.target, spreads).view(tokens.shape))

    def score(self, layout: Layout, chosen: Tensor, *, entropy: Entropy = "no") -> tuple[Tensor, Tensor | None]:
        """Log-probability (and entropy) of the layout's scored tokens, float32 [M], in the layout's order.

        With `top_p_mass`, entropies are float32 [M, 2].

        Args:
            layout: on any device.
            chosen: int64 [M], the scored tokens.
        """
        return self.scorer(layout, chosen, entropy)

    def hidden(self, layout: Layout, where: Where) -> Tensor:
        """What the policy holds before each scored token, float32 [M, hidden], without gradient.

        Args:
            where: "last" for the last hidden state, "mlp" for what enters the last block's MLP.
        """
        with torch.no_grad():
            return self.scorer(layout, None, where)

    def seen_hidden(self, layout: Layout, where: Where) -> Tensor:
        """`hidden`, for the module that wraps it."""
        found: list[Tensor] = []
        note = self.layers[-1].mlp.register_forward_pre_hook(lambda module, inputs: found.append(inputs[0]))  # type: ignore[operator, union-attr]
        with autocast(self.dtype, self.device):
            last = hidden_states(self.decoder, layout, self.device)
        note.remove()
        return (last if where == "last" else found[0].flatten(0, 1)[layout.source.to(self.device)]).float()

    def scored(self, layout: Layout, chosen: Tensor, entropy: Entropy) -> tuple[Tensor, Tensor | None]:
        """`score`, for the module that wraps it."""
        chosen = chosen.to(self.device)
        with autocast(self.dtype, self.device):
            flat = hidden_states(self.decoder, layout, self.device)
            size = max(64, CHUNK_FLOATS // self.config.vocab_size)
            several = len(flat) > size
            none = flat.new_zeros(0).float()
            values, spreads = [none], [none if self.top_p_mass is None or entropy == "no" else none.view(0, 2)]
            for start in range(0, len(flat), size):
                part = (flat[start : start + size], chosen[start : start + size], entropy)
                if several and torch.is_grad_enabled():
                    value, spread = checkpoint(self._score, *part, use_reentrant=False)
                else:
                    value, spread = self._score(*part)
                values.append(value)
                spreads.append(spread)
        return torch.cat(values), torch.cat(spreads) if entropy != "no" else None

    def _score(self, hidden: Tensor, tokens: Tensor, entropy: str) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        if entropy != "gradient" and self.top_p_mass is None and distribution.plain(self.sampling):
            return distribution.said(logits, tokens, self.sampling)
        value = distribution.log_prob(logits, tokens, self.sampling)
        if entropy == "no":
            return value, value.detach()
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "gradient"):
            spread = distribution.entropy(logits, self.sampling)
            if self.top_p_mass is None:
                return value, spread
            return value, torch.stack([spread, distribution.top_entropy(logits, self.sampling, self.top_p_mass)], -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits from last hidden states, with the scalings that model families put behind the head."""
        logits = self.head(hidden)
        if getattr(self.config, "logit_scale", None):
            logits = logits * self.config.logit_scale
        if getattr(self.config, "logits_scaling", None):
            logits = logits / self.config.logits_scaling
        cap = getattr(self.config, "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.no_grad()
    def _check_head(self) -> None:
        """The model's own logits must come out of hidden states and head; a family that adds more is refused."""
        probe = torch.arange(1, 5, device=self.device)[None] % self.config.vocab_size
        was_training = self.model.training
        self.model.eval()
        hidden = self.decoder(input_ids=probe, use_cache=False).last_hidden_state
        ours, theirs = self.logits(hidden).float(), self.causal(input_ids=probe, use_cache=False).logits.float()
        self.model.train(was_training)
        if not torch.allclose(ours, theirs, atol=1e-3, rtol=1e-3):
            name = type(self.causal).__name__
            raise ValueError(
                f"{name} computes its logits in a way this engine does not know; please report the model family"
            )

    def reference(self) -> Any:
        """A context in which the policy is the one it started from; only for adapters, whose base is frozen."""
        if hasattr(self.model, "disable_adapter"):
            return self.model.disable_adapter()
        return contextlib.nullcontext()


def hidden_states(decoder: Any, layout: Layout, device: torch.device) -> Tensor:
    """The decoder's last hidden state before each of the layout's scored tokens, [M, hidden]."""
    cache = None if layout.prefix is None else _read(decoder, layout.prefix, device)
    hidden = decoder(
        input_ids=layout.ids.to(device),
        attention_mask=None if layout.attention is None else layout.attention.to(device),
        position_ids=layout.positions.to(device),
        past_key_values=cache,
        use_cache=cache is not None,
    ).last_hidden_state
    return hidden.flatten(0, 1)[layout.source.to(device)]


def _read(decoder: Any, prefix: Prefix, device: torch.device) -> DynamicCache:
    """Keys and values of every laid-out row's beginning, with their gradient."""
    cache = DynamicCache()
    places = torch.arange(prefix.ids.shape[1], device=device).expand(prefix.ids.shape)
    decoder(input_ids=prefix.ids.to(device), position_ids=places, past_key_values=cache, use_cache=True)
    rows = prefix.row.to(device)
    layers: Any = cache.layers
    for layer in layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]
    return cache


def causal_lm(model: Any) -> Any:
    """The causal LM inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class Scorer(torch.nn.Module):
    """A policy's pass as the forward of one module that owns all its weights: sharding hooks need one door."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.causal
        self._policy = [policy]  # in a list: not a sub-module

    def forward(self, layout: Layout, chosen: Tensor | None, wanted: Any) -> Any:
        """See `Policy.score`, and `Policy.hidden` where no tokens are given."""
        if chosen is None:
            return self._policy[0].seen_hidden(layout, wanted)
        return self._policy[0].scored(layout, chosen, wanted)


def without_dropout(model: torch.nn.Module) -> None:
    """Switch dropout off for good: what is sampled and what is trained must be one function."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
