"""The trainer's side of the policy: log-probabilities of sampled or teacher-forced tokens, with gradient; logits only where needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import distribution, models
from pipelines.engine.guided import Guided
from pipelines.engine.layout import Layout, Prefix
from pipelines.engine.masks import MaskForm, keeps_state
from pipelines.engine.models import autocast

if TYPE_CHECKING:  # the catalogue imports this module, and transformers takes seconds
    from transformers import DynamicCache

Entropy = Literal["no", "value", "gradient", "collision"]
Where = Literal["last", "mlp"] | tuple[int, ...]
GPU_COSTS = {"tree_cost": 1.9, "prefix_cost": 3.9}
"""Of a token beside one in padded rows (`best_layouts`), measured on an H100: masks keep attention from its fastest kernels, and
passes after a prefix are not compiled."""
CHUNK_FLOATS = 1 << 27
"""Most logits in memory at a time (512 MiB in float32); beyond that, chunks are recomputed in the backward pass."""


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
        model: a causal LM, or a peft wrapper of one; where its weights have no values yet, `check_head` is for later.
        sampling: temperature and truncation are applied here as in the sampler.
        dtype: "float32" or "bfloat16" (autocast; log-softmax is always float32).

    Raises:
        ModelError: its logits are computed in a way that the engine does not know.
    """

    def __init__(self, model: Any, sampling: Sampling, *, dtype: str = "float32") -> None:
        if isinstance(model, Guided):
            raise ModelError("guidance", "two models have no single head, so their passes cannot be the trainer's")
        self.model, self.sampling, self.dtype = model, sampling, dtype
        self.causal = causal_lm(model)
        self.decoder = getattr(self.causal, self.causal.base_model_prefix)
        if hasattr(self.causal, "eyes"):
            self.decoder = self.causal.get_decoder()
        self.head = self.causal.get_output_embeddings()
        self.config = self.causal.config.get_text_config()
        device = next(model.parameters()).device
        unread = device.type == "meta"
        self.device = models.device() if unread else device
        self.top_p_mass: float | None = None
        """Where set, entropies have a second component: over the most probable tokens with this probability mass."""
        self.rounded = False
        """Whether passes read matrices in `dtype` though they are stored in float32 (`parallel.Weights`)."""
        self.mask_form = MaskForm.of(self.config)
        self.takes_masks = self.mask_form is not None
        """Whether packed and shared layouts are possible: they need attention masks of our own."""
        self.takes_prefixes = self.takes_masks and not getattr(self.config, "num_kv_shared_layers", 0)
        """Whether rows can be laid out as suffixes of shared prefixes: every layer must keep keys and values."""
        if keeps_state(self.config):
            from pipelines.engine.recurrent import say_what_falls_back

            say_what_falls_back(self.config.model_type)
        if not unread:
            self.check_head()
        self.scorer = Scorer(self)
        """The module every pass goes through, and that is sharded over several processes."""

    def sharing(self, settings: Any, ranks: int = 1) -> dict[str, Any]:
        """What `best_layouts` may lay out for training passes with a stage's `share_prefixes` and `gradient_checkpointing`.

        After a shared prefix each block runs twice, which blocks that are recomputed or sharded do not allow.
        """
        return {
            "allow_trees": self.takes_masks and getattr(settings, "share_prefixes", True),
            "allow_prefixes": self.takes_prefixes and ranks == 1 and not settings.gradient_checkpointing,
            **(GPU_COSTS if self.device.type == "cuda" else {}),
        }

    @property
    def keeps_reference(self) -> bool:
        """Whether `reference` is the model that the run started from: the base of adapters."""
        return hasattr(self.model, "disable_adapter")

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
        log_probs, entropies = self.score(layout, tokens.flatten()[layout.target], entropy=entropy)
        zero = torch.zeros(tokens.numel(), device=tokens.device)
        logp = zero.scatter(0, layout.target, log_probs).view(tokens.shape)
        return Scored(logp, None if entropies is None else zero.scatter(0, layout.target, entropies).view(tokens.shape))

    def score(
        self, layout: Layout, chosen: Tensor, *, entropy: Entropy = "no", named: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability (and entropy) of the layout's scored tokens, float32 [M], in the layout's order.

        With `top_p_mass`, entropies are float32 [M, 2]. With `collision` the log-probability that two draws agree stands in their place.
        With `named`, they are float32 [M, 1 + K] (or [M, 2 + K]): the log-probabilities of those tokens, of the whole vocabulary at the
        sampling temperature, follow, with gradient.

        Args:
            layout: on any device.
            chosen: int64 [M], the scored tokens.
            named: int64 [M, K], tokens of interest in the place of each scored one; only where entropies are asked for.
        """
        return self.scorer(layout, chosen, entropy, named)

    def hidden(self, layout: Layout, where: Where) -> Tensor:
        """Hidden states before each scored token, float32 [M, hidden], without gradient; [M, blocks, hidden] after several blocks.

        Args:
            where: "last" for the last hidden state, "mlp" for what enters the last block's MLP, or the indices of blocks whose output
                is wanted.
        """
        with torch.no_grad():
            return self.scorer(layout, None, where)

    def hidden_pass(self, layout: Layout, where: Where) -> Tensor:
        """`hidden`, called by `Scorer`."""
        heard: dict[Any, Tensor] = {}  # of the last pass: a shared prefix has one of its own in front of it
        with autocast(self.dtype, self.device), contextlib.ExitStack() as hooks:
            if where == "mlp":
                mlp = getattr(self.layers[-1], "mlp", None)
                if mlp is None:
                    raise ModelError("model", f"the blocks of {type(self.causal).__name__} have no MLP of that name.")
                hook = mlp.register_forward_pre_hook(lambda module, inputs: heard.update(mlp=inputs[0]))
                hooks.callback(hook.remove)
            elif where != "last":
                for index in set(where):
                    hooks.callback(self.layers[index].register_forward_hook(partial(_hear, heard, index)).remove)
            last = hidden_states(self.decoder, layout, self.device, self.mask_form)
        if where == "last":
            return last.float()
        source = layout.source.to(self.device)
        if where == "mlp":
            return heard["mlp"].flatten(0, 1)[source].float()
        return torch.stack([heard[index].flatten(0, 1)[source] for index in where], 1).float()

    def score_pass(
        self, layout: Layout, chosen: Tensor, entropy: Entropy, named: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """`score`, called by `Scorer`."""
        with autocast(self.dtype, self.device):
            hidden = hidden_states(self.decoder, layout, self.device, self.mask_form)
        return self.score_hidden(hidden, chosen, entropy, named)

    def score_hidden(
        self, hidden: Tensor, chosen: Tensor, entropy: Entropy = "no", named: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """`score` from the last hidden states [M, hidden] before the chosen tokens."""
        chosen = chosen.to(self.device)
        with autocast(self.dtype, self.device):
            size = max(64, CHUNK_FLOATS // self.config.vocab_size)
            several = len(hidden) > size
            empty = hidden.new_zeros(0).float()
            width = 1 + (self.top_p_mass is not None) + (0 if named is None else named.shape[1])
            log_prob_parts, entropy_parts = [empty], [empty if width == 1 or entropy == "no" else empty.view(0, width)]
            for start in range(0, len(hidden), size):
                of_part = None if named is None else named[start : start + size].to(self.device)
                part = (hidden[start : start + size], chosen[start : start + size], entropy, of_part)
                if several and torch.is_grad_enabled():
                    log_probs, entropies = checkpoint(self._score, *part, use_reentrant=False)
                else:
                    log_probs, entropies = self._score(*part)
                log_prob_parts.append(log_probs)
                entropy_parts.append(entropies)
        return torch.cat(log_prob_parts), torch.cat(entropy_parts) if entropy != "no" else None

    def _score(
        self, hidden: Tensor, tokens: Tensor, entropy: str, named: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        if named is None:
            return self._of_logits(logits, tokens, entropy)
        of_all = distribution.warp(logits, Sampling(temperature=self.sampling.temperature)).log_softmax(-1)
        of_named = of_all.gather(-1, named)
        log_probs, spread = self._of_logits(logits, tokens, entropy)
        return log_probs, torch.cat([spread.view(len(spread), -1), of_named], -1)

    def _of_logits(self, logits: Tensor, tokens: Tensor, entropy: str) -> tuple[Tensor, Tensor]:
        if entropy == "collision":
            log_probs = distribution.log_prob(logits, tokens, self.sampling)
            return log_probs, distribution.log_collision(logits.detach(), self.sampling)
        if entropy != "gradient" and self.top_p_mass is None and distribution.plain(self.sampling):
            return distribution.log_prob_and_entropy(logits, tokens, self.sampling)
        log_probs = distribution.log_prob(logits, tokens, self.sampling)
        if entropy == "no":
            return log_probs, log_probs.detach()
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "gradient"):
            entropies = distribution.entropy(logits, self.sampling)
            if self.top_p_mass is None:
                return log_probs, entropies
            return log_probs, torch.stack(
                [entropies, distribution.top_entropy(logits, self.sampling, self.top_p_mass)], -1
            )

    @torch.no_grad()
    def of_logits(self, layout: Layout, chosen: Tensor, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What a function makes of the logits before each scored token, float32 [M, K], without gradient; not of sharded weights.

        Args:
            layout: on any device.
            chosen: int64 [M], the scored tokens.
            function: logits float32 [m, V] and tokens int64 [m] → [m, K]; called on parts.
        """
        chosen = chosen.to(self.device)
        with autocast(self.dtype, self.device):
            hidden = hidden_states(self.decoder, layout, self.device, self.mask_form)
            size = max(64, CHUNK_FLOATS // self.config.vocab_size)
            parts = [
                function(self.logits(hidden[start : start + size]).float(), chosen[start : start + size]).float()
                for start in range(0, len(hidden), size)
            ]
        return torch.cat(parts)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits from last hidden states, with the scalings that model families apply after the head."""
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
    def check_head(self) -> None:
        """The model's own logits must come out of hidden states and head; a family that adds more is refused.

        Raises:
            ModelError: they do not.
        """
        tokens = torch.arange(1, 5, device=self.device)[None] % self.config.vocab_size
        was_training = self.model.training
        self.model.eval()
        flash = "flash" in str(self.config._attn_implementation)  # it takes no float32
        with autocast(self.dtype if flash or self.rounded else "float32", self.device):
            hidden = self.decoder(input_ids=tokens, use_cache=False).last_hidden_state
            computed, expected = self.logits(hidden), self.causal(input_ids=tokens, use_cache=False).logits
        self.model.train(was_training)
        if not torch.allclose(computed.float(), expected.float(), atol=1e-3, rtol=1e-3):
            name = type(self.causal).__name__
            raise ModelError(
                "model",
                f"{name} computes its logits in a way this engine does not know",
                "Use another model, and please report its family.",
            )

    def reference(self) -> Any:
        """A context in which the policy is the one it started from; only for adapters, whose base is frozen."""
        if self.keeps_reference:
            return self.model.disable_adapter()
        return contextlib.nullcontext()


def hidden_states(decoder: Any, layout: Layout, device: torch.device, form: MaskForm | None) -> Tensor:
    """The decoder's last hidden state before each of the layout's scored tokens, [M, hidden].

    Args:
        form: of the decoder's masks; None where it takes only layouts without one.
    """
    if layout.attention is not None and form is None:
        raise RuntimeError("a layout with a mask of its own for a model that takes none")
    cache = None if layout.prefix is None else _prefix_cache(decoder, layout.prefix, device)
    hidden = decoder(
        input_ids=layout.ids.to(device),
        attention_mask=None if form is None else form.build(layout, device),
        position_ids=layout.positions.to(device),
        past_key_values=cache,
        use_cache=cache is not None,
    ).last_hidden_state
    return hidden.flatten(0, 1)[layout.source.to(device)]


def _prefix_cache(decoder: Any, prefix: Prefix, device: torch.device) -> DynamicCache:
    """Keys and values of every row's shared prefix, with their gradient."""
    from transformers import DynamicCache

    cache = DynamicCache()
    positions = torch.arange(prefix.ids.shape[1], device=device).expand(prefix.ids.shape)
    decoder(input_ids=prefix.ids.to(device), position_ids=positions, past_key_values=cache, use_cache=True)
    rows = prefix.row.to(device)
    layers: Any = cache.layers
    for layer in layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]
    return cache


def _hear(heard: dict[Any, Tensor], index: int, module: Any, inputs: Any, output: Any) -> None:
    """A hook that notes what a block gives out."""
    heard[index] = output[0] if isinstance(output, tuple) else output


def causal_lm(model: Any) -> Any:
    """The causal LM inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class Scorer(torch.nn.Module):
    """A policy's pass as the forward of one module that owns all its weights: FSDP2 hooks need a single entry point."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.causal
        self._policy = [policy]  # in a list: not a sub-module

    def forward(self, layout: Layout, chosen: Tensor | None, output: Any, named: Tensor | None = None) -> Any:
        """See `Policy.score`, and `Policy.hidden` where no tokens are given."""
        if chosen is None:
            return self._policy[0].hidden_pass(layout, output)
        return self._policy[0].score_pass(layout, chosen, output, named)

    def check_head(self) -> None:
        """See `Policy.check_head`."""
        self._policy[0].check_head()


def without_dropout(model: torch.nn.Module) -> None:
    """Switch dropout off for good: what is sampled and what is trained must be one function."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def frozen_policy(path: str, settings: Model, sampling: Sampling) -> Policy:
    """The model of a folder or hub name, for log-probabilities alone: no gradients, no dropout, on the device.

    Args:
        settings: the recipe's model section for this path.

    Raises:
        ModelError: it cannot be loaded.
    """
    model = models.load_model(path, settings)
    without_dropout(model)
    model.requires_grad_(False).to(models.device())  # type: ignore[arg-type]
    return Policy(model.eval(), sampling, dtype=settings.dtype)
