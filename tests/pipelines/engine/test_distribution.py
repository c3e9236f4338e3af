"""The one-pass scores are those of the plain formulas, gradients included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.sampling import Sampling
from pipelines.engine import distribution


def both(logits, tokens, sampling, gradient):
    """(log-prob, entropy, gradient) in one pass, and by the plain formulas."""
    found = []
    for fused in (True, False):
        free = logits.clone().requires_grad_()
        if fused:
            value, spread = distribution.log_prob_and_entropy(free * 1, tokens, sampling)
        else:
            value, spread = distribution.log_prob(free, tokens, sampling), distribution.entropy(free, sampling)
        value.backward(gradient)
        found.append((value.detach(), spread.detach(), free.grad))
    return found


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(2, 40), st.sampled_from([0.0, 0.5, 1.0, 1.7]))
def test_one_pass_says_the_same(seed, count, vocab, temperature):
    draw = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(count, vocab, generator=draw)
    tokens = torch.randint(0, vocab, (count,), generator=draw)
    mine, theirs = both(logits, tokens, Sampling(temperature=temperature), torch.randn(count, generator=draw))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7, top_p=0.9), Sampling(top_k=5, min_p=0.01), Sampling(temperature=0)],
    ids=str,
)
def test_drawing_in_chunks_gives_the_same_bits_as_drawing_at_once(monkeypatch, sampling):
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(13, 1000, generator=draw)
    row_of = torch.randint(0, 13, (29,), generator=draw)
    points = torch.rand(29, 1, generator=draw)
    monkeypatch.setattr(distribution, "_rows_at_once", lambda _: 1000)
    together = distribution.pick(logits[row_of], sampling, points)
    sizes = []
    inner = distribution._pick
    monkeypatch.setattr(distribution, "_pick", lambda rows, *others: (sizes.append(len(rows)), inner(rows, *others))[1])
    for rows_at_once in (2, 4, 7, 28, 29):
        monkeypatch.setattr(distribution, "_rows_at_once", lambda _, size=rows_at_once: size)
        sizes.clear()
        tokens, logps = distribution.pick(logits, sampling, points, row_of)
        assert torch.equal(tokens, together[0]) and torch.equal(logps, together[1])
        assert sum(sizes) == 29 and max(sizes) <= rows_at_once and max(sizes) - min(sizes) <= 1
    drawn = [distribution.draw(*about[:1], sampling, torch.Generator().manual_seed(5), *about[1:])
             for about in ((logits[row_of],), (logits, row_of))]  # fmt: skip
    assert torch.equal(drawn[0][0], drawn[1][0]) and torch.equal(drawn[0][1], drawn[1][1])


def test_rows_beyond_one_cache_and_extreme_logits():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(70, 1 << 13, generator=draw)
    logits[3] = -1e4
    logits[3, 7], logits[4, 9] = 1e4, 80.0
    tokens = torch.randint(0, 1 << 13, (70,), generator=draw)
    tokens[3], tokens[4] = 7, 9
    assert len(logits) > 2 * distribution._rows_at_once(logits)
    mine, theirs = both(logits, tokens, Sampling(), torch.ones(70))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens = torch.arange(5)
    free = logits.clone().requires_grad_()
    value, spread = distribution.log_prob_and_entropy(free * 1, tokens, Sampling(temperature=0.7))
    assert value.dtype == spread.dtype == torch.float32
    torch.testing.assert_close(value.detach(), distribution.log_prob(logits, tokens, Sampling(temperature=0.7)))
    value.sum().backward()
    assert free.grad.dtype == torch.bfloat16


def test_its_gradient_is_taken_once():
    free = torch.randn(2, 5, requires_grad=True)
    value, _ = distribution.log_prob_and_entropy(free * 1, torch.tensor([0, 1]), Sampling())
    value.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        value.sum().backward()


@pytest.mark.parametrize("mass", [0.3, 0.8, 0.95])
def test_top_entropy_has_a_gradient_inside_the_nucleus_only(mass):
    logits = torch.randn(6, 20, generator=torch.Generator().manual_seed(2)).requires_grad_()
    distribution.top_entropy(logits, Sampling(), mass).sum().backward()
    chance = logits.detach().softmax(-1)
    for row in range(6):
        order = chance[row].argsort(descending=True)
        inside = order[chance[row][order].cumsum(0) < mass]
        outside = torch.ones(20).bool()
        outside[inside] = False
        assert (logits.grad[row, outside].abs() < 1e-6).all()
        q = chance[row, inside] / chance[row, inside].sum()
        wanted = float(-(q * q.log()).sum()) if len(inside) else 0.0
        got = float(distribution.top_entropy(logits.detach()[row : row + 1], Sampling(), mass))
        assert abs(got - wanted) < 1e-5
