"""What torch compiles on a GPU: functions over logits, and the blocks of a decoder. It is imported where there is a GPU alone.

Norms, rotary embeddings, activations, residuals and softmaxes are bound by memory: run one by one, each reads and writes a whole tensor,
and under autocast casts do so between them. Compiled, neighbours are one kernel. Where compiling fails (no C compiler, a Triton that does
not know the GPU) everything runs as it is, and a warning says so once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import Cache

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
BLOCK = 256
"""Tokens of the vocabulary whose probabilities are summed together."""
VARIANTS = 64
"""Variants of a compiled function that are kept: with gradient and without, training and decoding, one row and several."""
FIXED_SHAPES = "fixed_shapes"
"""Attribute of a class of caches with which blocks are compiled, because its keys have the same shapes in every step."""
SMALL_PASS = 16
"""A pass of fewer tokens without a cache runs as it is, such as the one that checks a policy's head once."""
_failed: list[str] = []
_block_classes: dict[type, type] = {}


def compiles(tensor: Tensor) -> bool:
    """Whether what is computed from this tensor is compiled."""
    return tensor.is_cuda and torch.cuda.is_available() and not _failed


class _Compiled:
    """A function that is compiled when it is first called, since torch's compiler takes seconds to import.

    Args:
        dynamic: whether sizes are variables from the first call on; None: those that were seen to change.
    """

    def __init__(self, function: Callable[..., Any], dynamic: bool | None = None) -> None:
        self.function, self.dynamic = function, dynamic
        self.compiled: Any = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self.compiled is None:
            self.compiled = torch.compile(self.function, dynamic=self.dynamic)
        try:
            return self.compiled(*inputs, **named)
        except torch._dynamo.exc.TorchDynamoException as error:
            _failed.append(f"{type(error).__name__}: {error}".splitlines()[0])
            log.warning("torch.compile failed, so the GPU is used less well: %s", _failed[0])
            return self.function(*inputs, **named)


def fused(function: F) -> F:
    """The function, compiled where its first argument is a tensor on a GPU."""
    compiled = _Compiled(function)

    @functools.wraps(function)
    def call(first: Tensor, *others: Any) -> Any:
        return compiled(first, *others) if compiles(first) else function(first, *others)

    return call  # type: ignore[return-value]


@fused
def scores(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies and log-normalisers, float32 [N] each; no tensor as large as the logits is written."""
    warped = logits.float() / temperature
    top = warped.amax(-1, keepdim=True)
    shifted = warped - top
    probability = shifted.exp()
    mass = probability.sum(-1)
    log_mass = mass.log()
    log_probs = (logits.gather(-1, tokens[:, None]).float() / temperature - top).squeeze(-1) - log_mass
    return log_probs, log_mass - (probability * shifted).sum(-1) / mass, top.squeeze(-1) + log_mass


@fused
def write_gradient(logits: Tensor, tokens: Tensor, log_normaliser: Tensor, scale: Tensor, temperature: float) -> None:
    """Write the gradient of the log-probabilities over the logits."""
    probability = (logits.float() / temperature - log_normaliser[:, None]).exp()
    chosen = torch.arange(logits.shape[-1], device=logits.device) == tokens[:, None]
    logits.copy_((chosen.float() - probability) * scale[:, None])


@fused
def pick_by_blocks(logits: Tensor, temperature: float, point: Tensor) -> tuple[Tensor, Tensor]:
    """`distribution.pick` at a temperature: first the block of the vocabulary, by the sums of all blocks, then the token in it.

    A GPU reads the logits twice, and writes nothing as large; running sums of the whole vocabulary would be written and read, and
    are added up in another order each time.
    """
    warped = logits.float() / temperature
    top, best = warped.max(-1, keepdim=True)
    padded = torch.nn.functional.pad(warped - top, (0, -warped.shape[-1] % BLOCK), value=float("-inf"))
    blocks = padded.exp().unflatten(-1, (-1, BLOCK))  # [B, V / BLOCK, BLOCK]
    upper = blocks.sum(-1).cumsum(-1)
    total = upper[:, -1:]
    target = point * total
    block = torch.searchsorted(upper, target, right=True).clamp(max=upper.shape[-1] - 1)  # [B, 1]
    before = torch.where(block > 0, upper.gather(-1, (block - 1).clamp(min=0)), 0.0)
    place = block * BLOCK + torch.arange(BLOCK, device=logits.device)  # [B, BLOCK]
    inside = padded.gather(-1, place).exp().cumsum(-1) + before
    place_inside = torch.searchsorted(inside, target, right=True).clamp(max=BLOCK - 1)
    token = (block * BLOCK + place_inside).clamp(max=warped.shape[-1] - 1)
    token = torch.where((warped.gather(-1, token) - top).exp() > 0, token, best)  # as in `distribution.pick`
    return token.squeeze(-1), (warped.gather(-1, token) - top - total.log()).squeeze(-1)


def compile_blocks(network: torch.nn.Module) -> None:
    """Let every block of a causal LM run compiled, in training, in scoring and in the steps of `FixedDecoder`.

    The blocks get a class of their own: weights keep their names, copies of the model are compiled too, and blocks that are alike
    share their kernels. Passes with another cache, whose length is another in each, run as before.

    Args:
        network: from transformers, its blocks in `layers` or `h` of its base model; without them it stays as it is.
    """
    decoder = getattr(network, str(network.base_model_prefix), None)
    for block in getattr(decoder, "layers", None) or getattr(decoder, "h", None) or ():
        block.__class__ = _block_class(type(block))


def _block_class(plain: type) -> type:
    """The class of a block with a compiled `forward`."""
    if plain in _block_classes.values():
        return plain
    if plain not in _block_classes:
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, VARIANTS)
        method: Any = plain.forward  # type: ignore[attr-defined]
        compiled = _Compiled(method, dynamic=True)

        def forward(self: Any, hidden_states: Tensor, *others: Any, **named: Any) -> Any:
            caches = [value for value in (*others, *named.values()) if isinstance(value, Cache)]
            pays = hidden_states.shape[:-1].numel() >= SMALL_PASS
            if caches:
                pays = all(getattr(cache, FIXED_SHAPES, False) for cache in caches)
            if not pays or not compiles(hidden_states):
                return method(self, hidden_states, *others, **named)
            for kind in map(type, caches):
                _leave_out(kind)
            # with a cache a block reads its own number, which is no reason to compile it again
            with config.patch(allow_unspec_int_on_nn_module=bool(caches)):
                return compiled(self, hidden_states, *others, **named)

        _block_classes[plain] = type(plain.__name__, (plain,), {"forward": forward, "__module__": plain.__module__})
    return _block_classes[plain]


@functools.cache
def _leave_out(caches: Any) -> None:
    """Keep the writing of keys and values out of what is compiled: the compiler would copy whole buffers."""
    caches.update = torch.compiler.disable(caches.update)
