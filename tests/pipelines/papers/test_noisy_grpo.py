"""NoisyGRPO's advantage: how much the noise decides, and in which direction."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.papers.noisy_grpo import noisy_grpo

LEVELS = st.integers(0, 10).map(lambda n: n / 10)
ROWS = st.lists(st.tuples(st.integers(0, 4).map(lambda n: n / 4), LEVELS), min_size=2, max_size=8)


def fused(reward, noise, **settings):
    rows = len(reward)
    made = noisy_grpo(
        torch.tensor(reward), torch.tensor(noise), torch.zeros(rows).long(), torch.ones(rows).bool(), **settings
    )
    return made.tolist()


def z(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    return ((tensor - tensor.mean()) / (tensor.std() + 1e-4)).tolist()


@given(ROWS, st.sampled_from([0.01, 0.1, 1.0]), st.sampled_from([0.0, 0.1, 2.0]))
def test_against_a_loop(rows, alpha, variance):
    reward, noise = map(list, zip(*rows, strict=True))
    p = alpha / (torch.tensor(reward, dtype=torch.float64).std().item() ** 2 + alpha)
    gain = p / (variance + p)
    mixed = [a + gain * (b - a) for a, b in zip(z(reward), z([1 - n for n in noise]), strict=True)]
    assert fused(reward, noise, alpha=alpha, variance=variance) == pytest.approx(z(mixed), abs=1e-3)


@given(ROWS)
def test_at_equal_reward_the_cleaner_row_is_never_worse(rows):
    values = fused(*map(list, zip(*rows, strict=True)))
    for (r, n), a in zip(rows, values, strict=True):
        assert all(a >= b - 1e-5 for (s, m), b in zip(rows, values, strict=True) if s == r and m >= n)
    assert sum(values) == pytest.approx(0, abs=1e-4)


@given(st.floats(0.05, 1.0), st.floats(1.1, 4.0))
def test_the_more_the_rewards_differ_the_less_the_noise_decides(size, factor):
    """The better answers come from the noisier prompts: the advantages follow the rewards the more, the more these differ."""
    order, noise = [0.0, 0.0, 1.0, 1.0], [0.0, 0.3, 0.6, 0.9]
    followed = [
        sum(a * b for a, b in zip(fused([scale * r for r in order], noise), z(order), strict=True))
        for scale in (size, size * factor)
    ]
    assert followed[1] > followed[0]


@pytest.mark.parametrize("level", [0.0, 0.6])
def test_equal_noise_leaves_grpo(level):
    batch = toys.rough(3)
    given_columns = columns_of(batch) | {"noise": torch.full((len(batch.group),), level)}
    ours = bind("rlvr.advantage", {"kind": "noisy_grpo", "eps": 1e-9})(given_columns)
    theirs = bind("rlvr.advantage", {"kind": "grpo", "eps": 1e-9})(given_columns)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ours.abs().max() > 0


def test_groups_of_equal_rewards_learn_unless_no_observation_is_trusted():
    noise = [0.0, 0.3, 0.6, 0.9]
    assert fused([1.0] * 4, noise) == pytest.approx([1.161767, 0.387256, -0.387256, -1.161767], abs=1e-5)
    assert fused([1.0, 0, 1, 0], noise, variance=1e9) == pytest.approx(z([1.0, 0, 1, 0]), abs=1e-3)
