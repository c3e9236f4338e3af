"""The hint curve of SEELE."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipelines.rlvr.rollout.seele import accuracy, inverse, next_share


@given(st.floats(0.5, 50), st.floats(-1.5, 0.5), st.floats(0, 0.4), st.floats(0.45, 0.95))
def test_the_hint_curve_and_its_inverse(slope, shift, guess, target):
    p = inverse(target, slope, shift, guess)
    assert abs(float(accuracy(p, slope, shift, guess)) - target) < 1e-6
    assert inverse(target, slope, shift + 0.1, guess) < p, "a stronger policy needs less"
    assert inverse(0.3, slope, shift, 0.35) == 0


@given(st.lists(st.tuples(st.floats(0, 0.9), st.floats(0, 1)), min_size=1, max_size=4))
def test_a_hint_never_tells_everything(tried):
    assert 0 <= next_share(tried, 0.5, 0.9) <= 0.9
