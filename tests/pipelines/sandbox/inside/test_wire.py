"""What crosses the wall: every plain value and nothing else; comparison never decodes."""

from __future__ import annotations

import math
import time
from collections import Counter, namedtuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.sandbox.compare import canonical, equal
from pipelines.sandbox.inside import wire

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(hashables, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_value_survives(value):
    data = wire.encode(value)
    assert canonical(wire.encode(wire.decode(data))) == canonical(data)
    assert wire.frame(data)
    assert equal(data, data)


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_different_values_differ(one, other):
    data, others = wire.encode(one), wire.encode(other)
    if repr(one) == repr(other):
        assert canonical(data) == canonical(others)
    elif type(one) is not type(other) and not all(isinstance(v, int | float) for v in (one, other)):
        assert not equal(data, others)


@pytest.mark.parametrize(
    "expected, value, same",
    [
        (2, 2.0, True),
        (1000000007, 1000000008.0, False),
        (1000000007, 1000000007.0000001, False),
        (10**18 + 1, 1e18, False),
        (-3, -3.0000000001, False),
        ([1000000007], [1000000008.0], False),
        ({"a": 1000000007}, {"a": 1000000008.0}, False),
        (1000000007.0, 1000000007, True),
        (1000000007.5, 1000000007.6, True),
        (0.0, 1e-16, True),
        (1e-15, 3e-15, False),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (0.1 + 0.2, 0.3, True),
        (10**30, 10**30 + 1, False),
        (math.nan, math.nan, True),
        (1, math.nan, False),
        (math.inf, 10**400, False),
        ([1, 2], [1, 2], True),
        ([1, 2], (1, 2), False),
        ((1, 2), [1, 2], False),
        ({1, 2}, {2, 1}, True),
        ({1, 2}, frozenset({1, 2}), False),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({1: 2}, {"1": 2}, False),
        ({1: 2}, {True: 2}, False),
        ("1", 1, False),
        (b"x", "x", False),
        (None, False, False),
        ([], {}, False),
    ],
)
def test_equality(expected, value, same):
    assert equal(wire.encode(expected), wire.encode(value)) is same


def test_a_tuple_may_stand_for_a_list_only_where_json_could_not_say_so():
    assert equal([1, [2]], wire.encode((1, (2,))), tuples=True)
    assert not equal(wire.encode((1,)), [1], tuples=True)


@pytest.mark.parametrize("value", [lambda: 0, object(), [object()], {1: print}, iter([]), type, range(3)])
def test_objects_do_not_cross(value):
    with pytest.raises(wire.Uncrossable):
        wire.encode(value)


def test_subclasses_become_plain():
    point = namedtuple("point", "x y")
    assert wire.encode(Counter("aa")) == {"d": [["a", 2]]}
    assert wire.encode(point(1, 2)) == {"t": [1, 2]}
    deep: list = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(wire.Uncrossable, match="deeply"):
        wire.encode(deep)


GARBAGE = [
    {"f": "x"}, {"f": 1}, {"i": []}, {"i": "z"}, {"t": 3}, {"s": 3}, {"d": [[1]]}, {"d": 3}, {"d": [[1, 2], [1, 3]]},
    {"q": []}, {"t": [], "s": []}, {}, {"f": "0x1p99999"}, {"c": "x"}, {"b": 7}, 1e999, [[{"f": None}]],
]  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE, ids=repr)
def test_garbage_is_unequal_and_harmless(data):
    for expected in (1, 0.5, [1], (1,), {1}, {1: 2}, "x", b"x", None, 1j):
        assert not equal(wire.encode(expected), data)


def test_chosen_integers_cost_nothing():
    began = time.process_time()
    colliding = {"s": [{"i": hex(k * (2**61 - 1))} for k in range(20_000)]}
    assert not equal(wire.encode({1, 2}), colliding) and not equal(colliding, {"s": []})
    assert time.process_time() - began < 2
