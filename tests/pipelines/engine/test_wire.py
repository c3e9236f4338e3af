"""What processes send each other arrives bit for bit, and small."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipelines.engine import wire

KINDS = ("bool", "int64", "float32", "float64")
COLUMNS = st.one_of(
    *(arrays.arrays(kind, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)) for kind in KINDS),
    arrays.arrays("float32", (3, 4), elements=st.sampled_from([0.0, 1.0, -0.0])),
)


@given(COLUMNS)
def test_a_column_arrives_as_it_was(array):
    sent = torch.from_numpy(array.copy())
    arrived = wire.loads(wire.dumps({"a": [sent]}))["a"][0]
    assert arrived.dtype == sent.dtype and arrived.shape == sent.shape
    assert arrived.numpy().tobytes() == sent.numpy().tobytes()
    arrived += arrived.clone()  # it can be written to


def test_columns_travel_in_few_bytes():
    mask, token = torch.ones(64, 100).bool(), torch.randint(0, 30_000, (64, 100))
    assert len(wire.dumps(mask)) < 1_000 and len(wire.dumps(mask.float())) < 1_000
    assert len(wire.dumps(token)) < 13_200
    assert len(wire.dumps(torch.randn(64, 100))) < 26_000
