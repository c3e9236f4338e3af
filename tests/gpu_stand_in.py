"""Tensors that say they are on a GPU and hold their values on the CPU, for machines without one.

In `as_gpu` what is made on, or moved to, `GPU` is such a tensor. Computing with it and a CPU tensor together is an error, as on a
GPU, and so is drawing with a generator of another device. In `captured` an operation that a CUDA graph could not hold is one too:
the host waits for a value, or copies. What it cannot show is everything else about CUDA: kernels, streams, memory, speed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
EITHER = ("copy_", "_to_copy")
INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations whose indices may be on the CPU."""
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "equal",
    "repeat_interleave",
)
"""Operations after which the host knows a value."""
MOVE, GENERATOR, TENSOR, MODULE_TO = torch.Tensor.to, torch.Generator, torch.tensor, torch.nn.Module.to
_captured = [False]
_places: dict[int, str] = {}
"""Generators, by what they have in C++: operations get another object in Python."""


class OnGpu(torch.Tensor):
    """A tensor of the stand-in."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            device="cpu",
        )  # fmt: skip
        made.values = values
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> OnGpu:
        if id(self) not in memo:
            copied = OnGpu(self.values.detach().clone())
            if getattr(self, "_is_param", False):
                copied._is_param = True
            memo[id(self)] = copied.requires_grad_(self.requires_grad)
        return memo[id(self)]

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to("cpu")

    def tolist(self) -> Any:
        _allow("tolist", False)
        return self.values.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a tensor of the GPU as an array")

    __array__ = numpy


def _allow(name: str, allowed: bool) -> None:
    if _captured[0] and not allowed:
        raise RuntimeError(f"{name}: a captured step waits for the host")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation, after a check of where its tensors are."""
    name, leaves = func.overloadpacket.__name__, tree_leaves((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnGpu)]
    there = [leaf for leaf in leaves if isinstance(leaf, OnGpu)]
    target = bool(there)
    if name == "copy_" or name in INDEXED:
        target = isinstance(args[0], OnGpu)
        _allow(name, target and not here and not (name in INDEXED and any(x.dtype == torch.bool for x in there[1:])))
    elif kwargs.get("device") is not None and not name.startswith("new_") and not name.endswith("_like"):
        target = torch.device(kwargs["device"]).type == "cuda"
    if name in INDEXED and there and not target:
        raise RuntimeError(f"{name}: a tensor of the CPU with indices or values of the GPU")
    if name not in (*EITHER, *INDEXED) and there and any(leaf.dim() > 0 for leaf in here):
        raise RuntimeError(f"{name}: tensors of the CPU and of the GPU")
    for leaf in leaves:
        if isinstance(leaf, GENERATOR) and (_places.get(leaf._cdata, "cpu") == "cuda") != target:
            raise RuntimeError(f"{name}: a generator of another device")
    _allow(name, not (there and name in WAITS))
    if "device" in kwargs and target:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain = tree_map(lambda leaf: leaf.values if isinstance(leaf, OnGpu) else leaf, (args, kwargs))
    result = func(*plain[0], **plain[1])
    if name.endswith("_") and not name.endswith("__") and isinstance(args[0], torch.Tensor):  # not __rshift__
        return args[0]
    if isinstance(kwargs.get("out"), torch.Tensor):
        return kwargs["out"]
    return tree_map(lambda leaf: OnGpu(leaf) if isinstance(leaf, torch.Tensor) else leaf, result) if target else result


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Moved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        _allow("a copy", False)
        return tensor.values.detach().clone() if isinstance(tensor, OnGpu) else OnGpu(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.values if isinstance(gradient, OnGpu) else OnGpu(gradient)


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`, which the stand-in's tensors would take for a move from the CPU to the CPU."""
    copies = kwargs.pop("copy", False)
    if args and isinstance(args[0], torch.Tensor):
        device, dtype = args[0].device, args[0].dtype
    else:
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and device.type not in ("cpu", "cuda"):
        return MOVE(self, *args, **kwargs)
    moved: torch.Tensor = self
    if device is not None and (device.type == "cuda") != isinstance(self, OnGpu):
        moved = _Moved.apply(self)
    elif copies:
        moved = self.clone()
    return moved if dtype is None or dtype == moved.dtype else MOVE(moved, dtype)


OnGpu.to = _to  # type: ignore[method-assign, assignment]


class _Generator(GENERATOR):
    def __new__(cls, device: Any = "cpu") -> Any:
        made: Any = GENERATOR.__new__(cls, device="cpu")
        made.place = _places[made._cdata] = torch.device(device).type
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    device = property(lambda self: torch.device(self.place))


def _tensor(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    made = TENSOR(*args, **kwargs)
    return made if device is None else made.to(device)


def _module_to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """`Module.to`, which otherwise would give tied weights a tensor each."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return MODULE_TO(self, *args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@contextlib.contextmanager
def as_gpu(monkeypatch: Any) -> Iterator[None]:
    """A context in which `GPU` can be used."""
    with monkeypatch.context() as patch, _Mode():
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.Tensor, "to", _to)
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch, "tensor", _tensor)
        patch.setattr(torch.nn.Module, "to", _module_to)
        yield
    _places.clear()


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """A context in which operations do what a CUDA graph can hold, or are refused."""
    _captured[0] = True
    try:
        yield
    finally:
        _captured[0] = False
