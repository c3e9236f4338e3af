"""What torch compiles on a GPU: functions over large tensors, and the blocks of a decoder. Elsewhere all of it runs as it is.

Norms, rotary embeddings, activations, residuals and softmaxes are bound by memory: run one by one, each reads and writes a whole tensor,
and under autocast casts do so between them. Compiled, neighbours are one kernel. Where compiling fails (no C compiler, a Triton that does
not know the GPU) everything runs as it is, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
VARIANTS = 64
"""Variants of a compiled function that are kept: with gradient and without, training and decoding, one row and several."""
FIXED_SHAPES = "fixed_shapes"
"""Attribute of a class of caches with which blocks are compiled, because its keys have the same shapes in every step."""
_failed: list[str] = []
_off = threading.local()
_block_classes: dict[type, type] = {}


def compiles(tensor: torch.Tensor) -> bool:
    """Whether what is computed from this tensor is compiled."""
    return tensor.is_cuda and torch.cuda.is_available() and not _failed and not getattr(_off, "depth", 0)


@contextlib.contextmanager
def as_it_is() -> Iterator[None]:
    """A context in which this thread compiles nothing, for a pass that runs once."""
    _off.depth = getattr(_off, "depth", 0) + 1
    try:
        yield
    finally:
        _off.depth -= 1


def fused(function: F) -> F:
    """The function, compiled where its first argument is a tensor on a GPU."""
    compiled = _Compiled(function)

    @functools.wraps(function)
    def call(first: torch.Tensor, *others: Any) -> Any:
        return compiled(first, *others) if compiles(first) else function(first, *others)

    return call  # type: ignore[return-value]


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


def _block_class(plain: type) -> type:
    """The class of a block with a compiled `forward`."""
    if plain in _block_classes.values():
        return plain
    if plain not in _block_classes:
        from transformers import Cache  # the catalogue imports this module, and transformers takes seconds

        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, VARIANTS)
        method: Any = plain.forward  # type: ignore[attr-defined]
        compiled = _Compiled(method, dynamic=True)

        def forward(self: Any, hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
            caches = [value for value in (*others, *named.values()) if isinstance(value, Cache)]
            if not compiles(hidden_states) or not all(getattr(cache, FIXED_SHAPES, False) for cache in caches):
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
