"""Latent-GRPO against its official code, the density against scipy, sampler and scorer against each other, and whole steps."""

from __future__ import annotations

import dataclasses

import latent_toys
import numpy as np
import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import log_prob
from pipelines.engine.prompts import Prompts
from pipelines.latent.policy import Written
from pipelines.latent.rl import GAP, SUMS
from pipelines.latent.sampler import score, write
from pipelines.latent.settings import SuperposedSettings
from pipelines.latent.superposed import Superposed, first_of_the_best, gumbel_log_density, gumbel_noise, superpose
from pipelines.rlvr.ops import row_mean

CPU = torch.device("cpu")
TEXTS = ([5, 6, 7], [8], [9, 10, 11, 12, 13], [20, 21])
DRAWS = {
    "uniform": [[0.9, 0.05, 0.5, 0.97, 0.3, 0.6], [0.1, 0.99, 0.7, 0.2, 0.999, 0.4]],
    "logits": [[2.0, 0.5, -1.0, 1.0, 0.0, -3.0], [0.3, 0.1, 0.2, 3.0, -2.0, 0.0]],
    "top_p": 0.9,
    "tau": 0.7,
    (1.0, True): {
        "ids": [[0, 3], [3, 2]], "scores": [[3.172142744, 2.921775579], [0.809355378, -0.483829021]],
        "weights": [[0.588475704, 0.411524355], [0.863822341, 0.136177719]],
    },
    (0.5, False): {
        "ids": [[0, 3], [3, 2]], "scores": [[0.546959221, -0.078224421], [-0.452702075, -2.499294281]],
        "weights": [[0.709533513, 0.290466487], [0.949005842, 0.050994191]],
    },
}  # fmt: skip
"""What `Sampler.forward` of the official SGLang draws with this noise (its exponential variables are -log of `uniform`)."""
DENSITY = {
    "logits": [[-1.13, -1.15, -0.25, -0.43, 0.6], [-1.56, -0.34, 1.85, 0.47, -0.16], [1.44, 0.27, 1.39, 1.59, 0.95],
               [-0.84, 0.93, 1.26, 2.0, 0.05]],
    "ids": [[2, 0], [4, 1], [1, 3], [0, 0]],
    "scores": [[0.4, -0.9], [-2.6, -1.1], [-3.0, 1.3], [0.0, 0.0]],
    "tokens": [2, 4, 1, 3],
    "latent": [True, True, True, False],
    "temperature": 0.6,
    "advantage": [0.7, -0.7, 0.5, -0.7],
    "logp": [-1.967869997, -1.374784231, -1.866768599, -0.410099864],
    "gradient": [[0.3289301, -0.0676078, 0.2666295, -0.1388958, -0.3890561], [-0.0067866, 0.3671754, -0.2053995, -0.0516741, -0.1033152],
                 [-0.0467039, -0.2867697, -0.0444261, 0.4065118, -0.0286121],
                 [-0.0097294, -0.1858886, -0.322192, 0.5606933, -0.0428832]],
}  # fmt: skip
"""`logprobs_from_logits_topk_gumbel` of the official code and its gradient; the last place is a token, two places have d < 0."""
CREDIT = {
    "reward": [1, 1, 0, 0, 0, 1, 1, 0],
    "logp": [[-0.62, -2.79, 0, 0], [-1.58, -0.73, -1.75, 0], [-0.42, -0.73, -2.45, -2.38], [-0.83, -1.45, -2.46, 0],
             [-2.1, -1.7, 0, 0], [-1.78, -0.34, -0.46, -0.73], [-2.18, 0, 0, 0], [-2.32, -1.31, -1.56, 0]],
    "length": [2, 3, 4, 3, 2, 4, 1, 3],
    "masked": [[0, 0.866024, 0, 0], [0.866024, 0.866024, 0.866024, 0], [0, 0, 0, 0], [0, -0.866024, -0.866024, 0],
               [0, -0.866024, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, -0.866024, -0.866024, 0]],
    "excluded": [[0, 0.577349, 0, 0], [0.577349, 0.577349, 0.577349, 0], [0, 0, 0, 0], [0, -1.154699, -1.154699, 0],
                 [0, -0.577349, 0, 0], [0, 0, 0, 0], [1.154698, 0, 0, 0], [0, -0.577349, -0.577349, 0]],
}  # fmt: skip
"""`compute_latent_grpo_outcome_advantage_firstmask_best_include_advantage` with the zeros of `update_policy`, and `..._exclude_advantage`:
answers of four places are cut off. In the second group the best correct answer is such a one, which the first selects nevertheless."""


def policy(closing=3, seed=0, **fields) -> Superposed:
    """A random network; its thoughts end with a token that seldom comes."""
    return Superposed(toys.model("llama"), SuperposedSettings(tokens=4, **fields), closing)


def answers(made, prompts, sampling, *, ends=frozenset({2}), greedy=False) -> Written:
    def answering(rows):
        raise AssertionError("a thought ends with its token, not with a text")

    streams = list(range(10, 10 + len(prompts)))
    return write(made, Prompts.of(prompts, 0, CPU), sampling, streams, set(ends), answering, greedy=greedy)


def test_there_are_as_many_candidates_as_are_superposed():
    """However little of the mass the nucleus is."""
    ids, scores = superpose(torch.tensor([[0.9, 0.06, 0.04]]).log(), 0.0, 0.5, 2)
    assert ids.tolist() == [[0, 1]] and torch.allclose(scores.exp(), torch.tensor([[0.9, 0.06]]))


@pytest.mark.parametrize(("scale", "one_sided"), [(1.0, True), (0.5, False)])
def test_official_draws(scale, one_sided):
    noise = gumbel_noise(torch.tensor(DRAWS["uniform"]), scale=scale, one_sided=one_sided)
    ids, scores = superpose(torch.tensor(DRAWS["logits"]), noise, DRAWS["top_p"], 2)
    official = DRAWS[scale, one_sided]
    assert ids.tolist() == official["ids"]
    assert torch.allclose(scores, torch.tensor(official["scores"]), atol=1e-6)
    made = policy(temperature=DRAWS["tau"])
    made.count = 2
    notes = torch.cat([ids.float(), scores], -1)[None]
    embedded, share = made.read(ids[None, :, 0], torch.ones(1, 2, dtype=torch.bool), notes)
    weights = torch.tensor(official["weights"])
    table = made.network.get_input_embeddings().weight
    assert torch.allclose(embedded[0], (weights[..., None] * table[ids]).sum(1), atol=1e-6)
    assert torch.allclose(share[0], weights[:, 0], atol=1e-6) and not embedded.requires_grad


def test_official_density():
    made, logits = policy(), torch.tensor(DENSITY["logits"], requires_grad=True)
    made.count = 2
    notes = torch.cat([torch.tensor(DENSITY["ids"]).float(), torch.tensor(DENSITY["scores"])], -1)
    tokens, latent = torch.tensor(DENSITY["tokens"]), torch.tensor(DENSITY["latent"])
    written = Written(tokens[None], torch.ones(1, 4).bool(), torch.zeros(1, 4), latent[None], notes[None])
    sampling = Sampling(temperature=DENSITY["temperature"])
    logp = made.log_prob(logits[None], written, sampling, torch.tensor(DENSITY["advantage"])[None])[0]
    logp.sum().backward()
    assert torch.allclose(logp, torch.tensor(DENSITY["logp"]), atol=1e-5)
    assert torch.allclose(logits.grad, torch.tensor(DENSITY["gradient"]), atol=1e-5)


@pytest.mark.parametrize("unfinished", ["masked", "excluded"])
def test_official_masks(unfinished, begun, tmp_path):
    """Through the stage's own advantage."""
    read = latent_toys.recipe(
        begun, rl={"superposed": {"unfinished": unfinished}, "advantage": {"kind": "grpo", "eps": 1e-6}}
    )
    trainer = latent_toys.trainer(read, "rl", tmp_path, begun)
    finished = torch.tensor(CREDIT["length"]) < 4
    kept = torch.arange(4) < torch.tensor(CREDIT["length"])[:, None]
    written = Written(torch.zeros(8, 4).long(), kept, torch.tensor(CREDIT["logp"]), kept, torch.zeros(8, 4, 20))
    columns = {
        "reward": torch.tensor(CREDIT["reward"]).float(), "group": torch.arange(8) // 4,
        "scored": trainer.model.counts(finished), "correct": torch.tensor(CREDIT["reward"]).float(),
    }  # fmt: skip
    credit = trainer.model.credit(trainer.advantage(columns), written, finished, 4)
    assert torch.allclose(credit * kept, torch.tensor(CREDIT[unfinished]), atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    logits=st.lists(st.floats(-6, 6), min_size=5, max_size=5),
    scores=st.lists(st.floats(-12, 6), min_size=3, max_size=3),
    advantage=st.sampled_from([None, -1.0, 0.0, 1.0]),
)
def test_the_density_is_that_of_gumbel_noise(logits, scores, advantage):
    """scipy's, averaged over tokens, whatever the advantage; and it has a mass of 1."""
    logp = torch.tensor(logits, dtype=torch.float64).log_softmax(-1)[:3]
    ours = gumbel_log_density(
        torch.tensor(scores, dtype=torch.float64), logp, None if advantage is None else torch.tensor(advantage)
    )
    assert ours.item() == pytest.approx(stats.gumbel_r.logpdf(scores, loc=logp.numpy()).mean(), rel=1e-9, abs=1e-9)
    place = logp[:1]

    def density(x):
        return gumbel_log_density(torch.tensor([x], dtype=torch.float64), place).exp().item()

    mass = integrate.quad(density, place.item() - 8, place.item() + 40, limit=200)[0]
    assert mass == pytest.approx(1, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(st.floats(-5, 5), min_size=3, max_size=3), advantage=st.sampled_from([-1.0, 0.0, 1.0]),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_gradients_of_the_density(scores, advantage, seed):
    """1 - exp(-d), of the sign of d; below 0 and without a positive advantage never longer than 1."""
    logp = torch.randn(3, generator=torch.Generator().manual_seed(seed)).double().requires_grad_()
    gumbel_log_density(torch.tensor(scores).double(), logp, torch.tensor(advantage)).mul(3).backward()
    d = torch.tensor(scores).double() - logp.detach()
    below = (d < 0) & (advantage <= 0)
    assert torch.allclose(logp.grad, torch.where(below, d.exp() - 1, 1 - (-d).exp()))
    assert (logp.grad[d > 0] > 0).all() and (logp.grad[below].abs() <= 1).all()


def test_noise_is_clamped_gumbel_noise():
    """Kolmogorov and Smirnov cannot tell it from scipy's between the bounds."""
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    noise = gumbel_noise(uniform, scale=1.0, one_sided=False).numpy()
    assert noise.min() == -1.5 and noise.max() == 3.0
    inside = noise[(noise > -1.5) & (noise < 3)]
    low, high = stats.gumbel_r.cdf([-1.5, 3.0])
    assert stats.kstest((stats.gumbel_r.cdf(inside) - low) / (high - low), "uniform").pvalue > 0.01
    assert abs((noise == -1.5).mean() - low) < 0.005 and abs((noise == 3).mean() - (1 - high)) < 0.006
    one_sided = gumbel_noise(uniform, scale=2.0, one_sided=True).numpy()
    assert np.allclose(one_sided, 2 * (noise + 1.5), atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    closing=st.integers(3, 99),
    seed=st.integers(0, 2**20),
    temperature=st.floats(0.4, 1.5),
    top_p=st.sampled_from([1.0, 0.8]),
    ends=st.sets(st.integers(2, 99), min_size=1, max_size=25),
    one_sided=st.booleans(),
    noise=st.sampled_from([0.5, 2.0]),
)
def test_what_is_stored_reproduces_the_sampler(lengths, closing, seed, temperature, top_p, ends, one_sided, noise):
    ends = ends - {closing} or {2}
    made, draw = policy(closing, one_sided=one_sided, noise=noise), torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 100, (length,), generator=draw).tolist() for length in lengths]
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=8)
    written = answers(made, prompts, sampling, ends=ends)
    with torch.no_grad():
        again = score(made, Prompts.of(prompts, 0, CPU), written, sampling)
    assert torch.allclose((again.logp - written.logp) * written.kept, torch.zeros(()), rtol=1e-3, atol=1e-3)
    for row, tokens in enumerate(written.tokens.tolist()):
        length = int(written.kept[row].sum())
        thought = next((place for place in range(length) if tokens[place] == closing), length)
        assert written.latent[row].nonzero().flatten().tolist() == [*range(thought)]
        assert written.notes[row, :thought, 0].tolist() == tokens[:thought]  # the token is that of the largest sum
        assert not written.notes[row, thought:].any()
        ended = [place for place in range(length) if tokens[place] in ends]
        assert ended in ([], [length - 1])
    assert (again.share[~written.latent] == 1).all() and (again.share[written.latent] < 1).all()


def test_a_thought_ends_where_its_end_is_most_probable():
    """Whatever the noise; the token has the log-probability of a token, and what follows is drawn as tokens are."""
    made, sampling = policy(), Sampling(temperature=0.7, max_tokens=6)
    with torch.no_grad():
        logits = made.network(torch.tensor([TEXTS[0]])).logits[:, -1]
    made.closing = int(logits.argmax())
    written = answers(made, TEXTS[:1], sampling)
    assert written.tokens[0, 0] == made.closing and not written.latent.any() and not written.notes.any()
    ids = torch.tensor([[*TEXTS[0], *written.tokens[0, written.kept[0]].tolist()]])
    with torch.no_grad():
        logits = made.network(ids).logits[0, len(TEXTS[0]) - 1 : -1]
    plain = log_prob(logits, written.tokens[0, written.kept[0]], sampling)
    assert torch.allclose(written.logp[0, written.kept[0]], plain, atol=1e-4)


def test_a_row_is_the_same_whatever_stands_beside_it_and_each_place_has_noise_of_its_own():
    sampling = Sampling(max_tokens=8)
    together = answers(policy(), TEXTS, sampling)
    alone = write(policy(), Prompts.of(TEXTS[2:3], 0, CPU), sampling, [12], {2}, lambda rows: [])
    assert torch.allclose(alone.notes[0], together.notes[2, : alone.notes.shape[1]], atol=1e-4)
    flat = torch.zeros(2, 100)
    noises = [
        policy().draw(flat, torch.ones(2).bool(), sampling, torch.tensor([1, 2]), place, greedy=False).notes
        for place in (0, 1)
    ]
    assert len({tuple(row[:4].tolist()) for notes in noises for row in notes}) == 4


def test_without_noise_the_most_probable_tokens_are_superposed():
    made, sampling = policy(), Sampling(temperature=0.5, max_tokens=3)
    with torch.no_grad():
        logits = made.network(torch.tensor([TEXTS[0]])).logits[:, -1]
    first = answers(made, TEXTS[:1], sampling, greedy=True)
    top = logits.log_softmax(-1).topk(4)
    assert first.notes[0, 0, :4].tolist() == top.indices[0].tolist()
    assert torch.allclose(first.notes[0, 0, 4:], top.values[0], atol=1e-5)
    assert first.tokens[0, 0] == logits.argmax()


def test_embeddings_stay_and_gradients_come_through_the_densities_alone():
    for freezes in (True, False):
        made = policy(freeze_embeddings=freezes)
        written, prompts = answers(made, TEXTS, Sampling(max_tokens=6)), Prompts.of(TEXTS, 0, CPU)
        score(made, prompts, written, Sampling(max_tokens=6)).logp[written.kept].sum().backward()
        table, head = made.network.get_input_embeddings().weight, made.network.get_output_embeddings().weight
        assert head is not table and table.grad is None and (head.grad is None) == freezes
        assert made.network.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


FIELDS = {"superposed": {"tokens": 6}, "sampling": {"temperature": 1.0, "max_tokens": 10}}


def test_a_step_of_the_stage(begun, tmp_path, monkeypatch):
    """Sampler and trainer agree, superpositions are read, and the network moves while its embeddings stay."""
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=FIELDS | {"updates": 2}), "rl", tmp_path, begun)
    assert isinstance(made.model, Superposed) and isinstance(made.reference, Superposed)
    assert made.tokenizer.decode([made.model.closing]) == "#"
    before = {name: value.clone() for name, value in made.model.network.state_dict().items()}
    rewards, asked, log_prob_of = torch.tensor([1.0, 0.0] * 8), [], made.model.log_prob
    made.advantage = lambda columns: rewards - 0.5  # whatever the toy answers, there is something to learn
    monkeypatch.setattr(type(made.writer), "finished", lambda self, written: torch.ones(16).bool())
    monkeypatch.setattr(made.model, "log_prob", lambda *given: asked.append(given[3]) or log_prob_of(*given))
    metrics = made.make_step(0)
    credit = torch.cat(asked)[:16]
    assert (credit[:, 0] != 0).view(4, 4).sum(1).tolist() == [1] * 4 and (credit[:, 0] >= 0).all()
    assert torch.equal(credit[:, 1], rewards - 0.5)
    assert metrics[GAP] < 1e-3 and 0 < metrics["latent/places"] < 1
    assert 1 / 6 < metrics["latent/token_share"] < 1
    assert metrics["latent/mixture_share"] == pytest.approx(1 - metrics["latent/token_share"], abs=1e-5)
    after = made.model.network.state_dict()
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved and not any("embed" in name or "lm_head" in name for name in moved)


@pytest.mark.parametrize("unfinished", ["masked", "excluded"])
def test_a_step_whose_answers_were_all_cut_off_learns_nothing(begun, tmp_path, unfinished):
    """Whatever the advantage says; they are compared with each other with `masked` alone."""
    fields = {
        "superposed": {"unfinished": unfinished},
        "sampling": {"temperature": 1.0, "max_tokens": 2},
        "kl": 0.0,
        "twin": None,
    }
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=fields), "rl", tmp_path, begun)
    columns = []
    made.advantage = lambda given: columns.append(given) or torch.tensor([0.5, -0.5] * 8)
    metrics = made.make_step(0)
    assert metrics["rollout/unfinished"] == 1 and metrics["loss/train"] == 0
    assert columns[0]["scored"].tolist() == [unfinished == "masked"] * 16


def test_masked_places_move_nothing(begun, tmp_path):
    """With every answer cut off there is no gradient; with all finished there is, and the first place of a loser has no part in it."""
    fields = FIELDS | {"kl": 0.0}
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=fields), "rl", tmp_path, begun)
    rows = [question for question in made.questions[:2] for _ in range(4)]
    written = made.writer.write(rows, list(range(8)))
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(2)

    def gradient(credit):
        made.optimizer.zero_grad()
        made._update(rows, written, None, credit, torch.ones(8, dtype=torch.bool), dict.fromkeys(SUMS, 0.0))
        return torch.cat([w.grad.flatten() for w in made.model.parameters() if w.grad is not None])

    none = made.model.credit(advantage, written, torch.zeros(8).bool(), 4)
    assert not gradient(none).any()
    full = made.model.credit(advantage, written, torch.ones(8).bool(), 4)
    winners = first_of_the_best(advantage, row_mean(written.logp, written.kept), 4)
    assert winners.sum() == 2 and full[:, 0].nonzero().flatten().tolist() == winners.nonzero().flatten().tolist()
    assert torch.equal(full[:, 1:], advantage[:, None].expand(8, written.kept.shape[1])[:, 1:])
    unselected = advantage[:, None].expand(written.kept.shape)
    assert gradient(full).any() and not torch.allclose(gradient(full), gradient(unselected))


def test_an_update_moves_towards_what_is_paid(begun, tmp_path):
    """Densities of an answer that is paid rise against those of one that is not; each group has one of both."""
    fields = FIELDS | {"kl": 0.0}
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=fields), "rl", tmp_path, begun)
    rows = [question for question in made.questions[:4] for _ in range(2)]
    written = made.writer.write(rows, list(range(8)))
    everything = slice(0, 8)
    credit = made.model.credit(torch.tensor([1.0, -1.0]).repeat(4), written, torch.ones(8).bool(), 2)
    before = made._score(made.model, rows, written, everything).logp.detach()
    assert torch.allclose(before * written.kept, written.logp, atol=1e-3)
    made._update(rows, written, None, credit, torch.ones(8, dtype=torch.bool), dict.fromkeys(SUMS, 0.0))
    made.stepper.step(0)
    gain = row_mean(made._score(made.model, rows, written, everything).logp.detach() - before, written.kept)
    assert gain[::2].mean() > gain[1::2].mean()


def test_the_loss_is_the_mean_over_all_places():
    made = policy()
    losses, every = torch.rand(3, 4), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    parts = [made.reduced(losses[rows], every[rows], every) for rows in (slice(0, 2), slice(2, 3))]
    assert sum(parts).item() == pytest.approx(losses[every].mean().item(), abs=1e-6)


def test_who_ended_by_themselves(begun, tmp_path):
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=FIELDS), "rl", tmp_path, begun)
    written = made.writer.write(made.questions[:8], list(range(8)))
    full = written.kept.sum(1) == 10
    cut = dataclasses.replace(written, tokens=written.tokens[:, :2], kept=written.kept[:, :2])
    assert torch.equal(made.writer.finished(written) | full, torch.ones(8).bool())
    assert not made.writer.finished(cut)[written.kept.sum(1) > 2].any() and (written.kept.sum(1) > 2).any()
