"""What is stored of an answer reproduces, when it is fed again, the log-probabilities with which it was drawn."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import log_prob
from pipelines.engine.prompts import Prompts
from pipelines.latent.hybrid import Gates, Hybrid
from pipelines.latent.policy import Written
from pipelines.latent.sampler import score, write
from pipelines.latent.settings import GateSettings

CPU = torch.device("cpu")
TEXTS = ([5, 6, 7], [8], [9, 10, 11, 12, 13], [20, 21])


def policy(family="llama", radius=0.5, seed=0) -> Hybrid:
    """A random network with gates that let much of the mixture in."""
    network = toys.model(family)
    width = network.get_input_embeddings().embedding_dim
    draw = torch.Generator().manual_seed(seed)
    return Hybrid(network, Gates(width, GateSettings(r_min=radius, r_max=radius + 0.01), draw))


def answers(hybrid, prompts, sampling, *, after=4, ends=frozenset({2}), greedy=False) -> Written:
    """Answers whose thoughts end after some tokens."""
    streams = list(range(10, 10 + len(prompts)))
    return write(
        hybrid, Prompts.of(prompts, 0, CPU), sampling, streams, set(ends), lambda rows: [len(row) >= after for row in rows],
        greedy=greedy,
    )  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_gates_at_the_token_read_what_the_plain_model_reads(family):
    """a = 1 and i = 0: sampler and scorer have the log-probabilities of the network by itself."""
    hybrid, sampling = policy(family), Sampling(temperature=0.7, max_tokens=9)
    with torch.no_grad():
        hybrid.gates.decay.fill_(60.0)
        hybrid.gates.admission.weight.zero_()
        hybrid.gates.admission.bias.fill_(-60.0)
    written = answers(hybrid, TEXTS, sampling)
    assert written.latent.any()
    scored = score(hybrid, Prompts.of(TEXTS, 0, CPU), written, sampling).logp
    for row, prompt in enumerate(TEXTS):
        tokens = written.tokens[row][written.kept[row]]
        ids = torch.tensor([[*prompt, *tokens.tolist()]])
        with torch.no_grad():
            logits = hybrid.network(ids).logits[0, len(prompt) - 1 : -1]
        plain = log_prob(logits, tokens, sampling)
        assert torch.allclose(written.logp[row, : len(tokens)], plain, atol=1e-4)
        assert torch.allclose(scored[row, : len(tokens)], plain, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    after=st.integers(1, 9),
    seed=st.integers(0, 2**20),
    temperature=st.floats(0.4, 1.5),
    top_k=st.sampled_from([0, 5]),
    ends=st.sets(st.integers(2, 99), min_size=1, max_size=25),
)
def test_stored_mixtures_reproduce_the_sampler(lengths, after, seed, temperature, top_k, ends):
    hybrid, draw = policy(seed=seed), torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 100, (length,), generator=draw).tolist() for length in lengths]
    sampling = Sampling(temperature=temperature, top_k=top_k, max_tokens=8)
    written = answers(hybrid, prompts, sampling, after=after, ends=ends)
    with torch.no_grad():
        again = score(hybrid, Prompts.of(prompts, 0, CPU), written, sampling)
    assert torch.allclose((again.logp - written.logp) * written.kept, torch.zeros(()), atol=1e-4)
    length = written.kept.sum(1)
    for row, tokens in enumerate(written.tokens):
        ended = [place for place, token in enumerate(tokens.tolist()) if token in ends and written.kept[row, place]]
        assert ended in ([], [int(length[row]) - 1])
        assert written.latent[row].nonzero().flatten().tolist() == list(
            range(min(after - 1, int(length[row]) - bool(ended)))
        )
    assert (again.share[~written.latent] == 1).all() and (again.share[written.latent] < 1).all()
    assert (written.notes[~written.latent] == 0).all()


def test_without_what_was_stored_the_log_probabilities_are_others():
    """Without its mixtures an answer is scored otherwise, and without gates nothing is stored."""
    hybrid, sampling = policy(), Sampling(max_tokens=8)
    prompts, written = Prompts.of(TEXTS, 0, CPU), answers(policy(), TEXTS, sampling)
    with torch.no_grad():
        alone = score(Hybrid(hybrid.network, None), prompts, written, sampling).logp
    assert ((alone - written.logp).abs() * written.kept)[:, 1:].max() > 0.1
    assert torch.allclose(alone[:, 0], written.logp[:, 0], atol=1e-4)  # nothing is mixed before the first token
    plain = answers(Hybrid(hybrid.network, None), TEXTS, sampling)
    assert not plain.latent.any() and not plain.notes.any()


def test_a_row_is_the_same_whatever_stands_beside_it():
    sampling = Sampling(max_tokens=8)
    together = answers(policy(), TEXTS, sampling)
    alone = write(
        policy(), Prompts.of(TEXTS[2:3], 0, CPU), sampling, [12], {2}, lambda rows: [len(r) >= 4 for r in rows]
    )
    width = alone.tokens.shape[1]
    assert torch.equal(alone.tokens[0], together.tokens[2, :width])
    joined = Written.joined([together.rows(slice(0, 2)), alone])
    assert joined.notes.shape == (3, together.tokens.shape[1], 64) and not joined.kept[2, width:].any()


def test_greedy_takes_the_most_probable_and_mixes_as_the_sampler_does():
    hybrid, sampling = policy(), Sampling(temperature=0.5, max_tokens=3)
    written = answers(hybrid, TEXTS[:1], sampling, greedy=True)
    with torch.no_grad():
        logits = hybrid.network(torch.tensor([TEXTS[0]])).logits[:, -1]
    assert written.tokens[0, 0] == logits.argmax()
    assert torch.allclose(written.notes[0, 0], hybrid.mixture(logits, sampling)[0], atol=1e-5)


def test_gradients_reach_the_gates():
    """Through every latent place, and through none where nothing is latent."""
    hybrid, sampling = policy(), Sampling(max_tokens=6)
    written = answers(hybrid, TEXTS, sampling)
    prompts = Prompts.of(TEXTS, 0, CPU)
    score(hybrid, prompts, written, sampling).logp[written.kept].sum().backward()
    for weight in hybrid.gates.parameters():
        assert weight.grad.abs().sum() > 0
    hybrid.zero_grad()
    written.latent[:] = False
    score(hybrid, prompts, written, sampling).logp[written.kept].sum().backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in hybrid.gates.parameters())
