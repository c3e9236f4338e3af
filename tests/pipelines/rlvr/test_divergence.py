"""Divergences are those of their names."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=6), st.lists(st.floats(0.05, 1), min_size=2, max_size=6))
def test_rehearsal_divergences_are_those_of_their_names(first, second):
    n = min(len(first), len(second))
    ref, pi = (torch.tensor(x[:n], dtype=torch.float64) for x in (first, second))
    ref, pi = ref / ref.sum(), pi / pi.sum()
    middle = (ref + pi) / 2

    def kl(a, b):
        return float((a * (a / b).log()).sum())

    def mean(f):
        columns = {"logp": pi.log()[None], "logp_old": ref.log()[None], "replayed": torch.tensor([True])}
        value = bind("rlvr.divergence", {"kind": "dph_rl", "f": f})(columns)
        assert (value >= -1e-9).all()
        return float((ref * value[0]).sum())

    assert mean("forward") == pytest.approx(kl(ref, pi), abs=1e-9)
    assert mean("js") == pytest.approx(kl(pi, middle) + kl(ref, middle), abs=1e-9)


def test_chi_squared_over_whole_answers_is_unbiased():
    """By enumeration of three answers; and it is never below the KL."""
    from pipelines.papers.chi2 import linear_expm1

    pi, ref = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    d = (pi / ref).log()
    estimate = float((pi * (linear_expm1(d) + linear_expm1(-d))).sum())
    assert estimate == pytest.approx(0.163333, abs=1e-5) == pytest.approx(float((pi * pi / ref).sum()) - 1, abs=1e-6)
    assert estimate >= math.exp(float((pi * d).sum())) - 1 >= float((pi * d).sum())
