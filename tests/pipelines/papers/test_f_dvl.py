"""f-DVL: the value against the released losses, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from toys import rough

from pipelines.papers.f_dvl import f_dvl

NAMES = ["chi_square", "total_variation", "reverse_kl"]
ALPHAS = st.floats(0.5, 0.95)


def released(name, d, alpha, softness):
    """The value loss of one difference Q - V, as the released functions say it; that of reverse_kl up to its scaling and constant."""
    if name == "chi_square":
        return alpha * max(d + d**2 / 4, 0) - (1 - alpha) * d
    if name == "total_variation":
        return alpha * max(d, 0) - (1 - alpha) * d
    return math.exp(d / softness) - d / softness


@given(st.integers(0, 5_000), st.sampled_from(NAMES), ALPHAS, st.floats(0.1, 3), st.floats(0.1, 3))
def test_the_value_minimises_the_released_loss(seed, name, alpha, softness, temperature):
    """Weights tell the value: it is no worse than any value near it or on a grid, and the weights are exp(temperature (r - V))."""
    batch = rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.reward = torch.randint(0, 9, batch.reward.shape, generator=draw) / 8
    made = run_method(
        "advantage",
        {"kind": "f_dvl", "divergence": name, "alpha": alpha, "softness": softness, "temperature": temperature},
        batch,
    )
    for number in set(batch.group.tolist()):
        rows = [r for r in range(len(batch.group)) if batch.group[r] == number and batch.scored[r]]
        if not rows:
            continue
        rewards = [float(batch.reward[r]) for r in rows]
        values = [reward - math.log(float(made[r])) / temperature for r, reward in zip(rows, rewards, strict=True)]
        assert values == pytest.approx([values[0]] * len(values), abs=1e-4)

        def loss(value, rewards=rewards):
            return sum(released(name, r - value, alpha, softness) for r in rewards) / len(rewards)

        others = [values[0] - 0.01, values[0] + 0.01, *(i / 40 for i in range(-10, 51))]
        assert loss(values[0]) <= min(map(loss, others)) + 1e-5
    assert (made[~batch.scored] == 0).all()


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), ALPHAS, ALPHAS)
def test_the_value_rises_with_alpha_from_the_least_to_the_best(rewards, low, high):
    r = torch.tensor(rewards)
    columns = (r, torch.zeros(len(r)).long(), torch.ones(len(r)).bool())
    for name in NAMES[:2]:
        values = [
            float(r[0]) - math.log(float(f_dvl(*columns, divergence=name, alpha=a, temperature=1.0)[0]))
            for a in sorted((low, high))
        ]
        assert min(rewards) - 1e-5 <= values[0] <= values[1] + 1e-5 and values[1] <= max(rewards) + 1e-5
    soft = f_dvl(*columns, divergence="reverse_kl", softness=0.7, temperature=1 / 0.7)
    assert soft.mean().item() == pytest.approx(1.0, rel=1e-4), (
        "the weights of the reverse KL are those of the best policy near the data"
    )


def test_by_hand():
    """1, 1, 0, 0 and alpha 0.75: half of the rows are above any V below 1, and 0.75 / 2 > 0.25, so V is 1; of 1, 0, 0, 0 it is 0."""
    yes = torch.ones(8).bool()
    r, g = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 0]), torch.arange(8) // 4
    expected = [1.0, 1.0, math.exp(-3), math.exp(-3), math.exp(3), 1.0, 1.0, 1.0]
    assert f_dvl(r, g, yes, divergence="total_variation", alpha=0.75).tolist() == pytest.approx(expected)
    assert f_dvl(r, g, yes, divergence="total_variation", alpha=0.75, temperature=9.0)[4] == 100, "capped as released"
    assert f_dvl(r, g, ~yes).tolist() == [0.0] * 8
