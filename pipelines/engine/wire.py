"""What processes send each other, pickled: columns travel in as few bytes as hold their values, and arrive as they were."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

BITS = "bits"
"""How 0 and 1 are stored."""
SMALLER_INTEGERS = (np.int8, np.int16, np.int32)
"""Tried in this order for the values of an int64."""
COLUMN_TYPES = {torch.bool, torch.int64, torch.float32}
"""Types of columns; tensors of other types, or on other devices, are pickled as usual."""


def dumps(value: Any) -> bytes:
    """The value, pickled.

    >>> mask = torch.ones(800).bool()
    >>> len(dumps(mask.float())) < 400, bool(loads(dumps(mask.float())).eq(1).all())
    (True, True)
    """
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def loads(pickled: bytes) -> Any:
    """The value that `dumps` was given."""
    return pickle.loads(pickled)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """How a tensor of a column is stored; everything else as usual."""
        plain = type(value) is Tensor and value.device.type == "cpu" and not value.requires_grad
        return (_restored, _stored(value)) if plain and value.dtype in COLUMN_TYPES else NotImplemented


def _stored(value: Tensor) -> tuple[tuple[int, ...], str, str, bytes]:
    """Shape, type, how its values are stored, and these."""
    array = value.detach().contiguous().numpy()
    kind = array.dtype.name
    if _is_truth(array):
        return array.shape, kind, BITS, np.packbits(array.astype(bool)).tobytes()
    if kind == "int64" and array.size:
        low, high = array.min(), array.max()
        array = array.astype(
            next((t for t in SMALLER_INTEGERS if np.iinfo(t).min <= low and high <= np.iinfo(t).max), np.int64)
        )
    return array.shape, kind, array.dtype.name, array.tobytes()


def _is_truth(array: np.ndarray) -> bool:
    """Whether it holds nothing but 0 and 1, with no zero below 0."""
    if array.dtype != np.float32:
        return array.dtype == bool
    return bool(((array == 0) | (array == 1)).all() and not np.signbit(array).any())


def _restored(shape: tuple[int, ...], kind: str, stored: str, values: bytes) -> Tensor:
    count = int(np.prod(shape, dtype=np.int64))
    if stored == BITS:
        array = np.unpackbits(np.frombuffer(values, np.uint8), count=count)
    else:
        array = np.frombuffer(values, stored)
    return torch.from_numpy(array.astype(kind).reshape(shape))
