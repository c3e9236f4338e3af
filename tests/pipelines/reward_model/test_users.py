"""VPL: users who disagree, rewards that depend on whose pair it is, and what a latent may and may not depend on."""

from __future__ import annotations

import json
import random

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from reward_pairs import begin, recipe, trainer

from pipelines.base.errors import ModelError, RecipeError
from pipelines.base.files import contents
from pipelines.contract.catalogue import bind
from pipelines.contract.model_settings import Model
from pipelines.data.chat import render_answer
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.engine import models, user_latent
from pipelines.engine.reward_model import RewardScorer
from pipelines.engine.user_latent import UserLatent, draw, kl
from pipelines.recipe.check import check

USERS = {"latent": 8, "hidden": 32, "context": 4}
VPL = {
    "loss": {"kind": "vpl", "kl_weight": 0.001}, "users": USERS, "steps": 30, "pairs_per_step": 64,
    "optimizer": {"learning_rate": 0.003},
}  # fmt: skip


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Pairs of an answer of a to d and one of e to h: `ann` prefers the first kind, `bob` the second, on the same prompts."""
    folder = tmp_path_factory.mktemp("users")
    words, rows = random.Random(0), []
    for number in range(300):
        first, second = ("".join(words.choices(letters, k=words.randint(2, 5))) for letters in ("abcd", "efgh"))
        user = "ann" if number % 2 else "bob"
        chosen, rejected = (first, second) if user == "ann" else (second, first)
        row = {"prompt": f"say {number // 2 % 60}", "chosen": chosen, "rejected": rejected, "user": user}
        rows.append(row | {"data_source": "users"})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return begin(folder, {"kind": "file", "path": str(folder / "pairs.jsonl")}, pretrained)


def pretrained(model, tokenizer):
    """A model whose state after an answer tells the two kinds apart, as any pretrained one's does: there it learns to name the kind."""
    draws, optimizer = random.Random(1), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(50):
        rows = []
        for _ in range(24):
            letters, prompt = (
                draws.choice(("abcd", "efgh")),
                [{"role": "user", "content": f"say {draws.randint(0, 59)}"}],
            )
            ids, _ = render_answer(tokenizer, prompt, "".join(draws.choices(letters, k=4)), "x")
            rows.append(torch.tensor([*ids, *tokenizer(letters[0], add_special_tokens=False)["input_ids"]]))
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        labels = ids.masked_fill(ids == tokenizer.pad_token_id, -100)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def trained(divided, tmp_path_factory):
    work = tmp_path_factory.mktemp("vpl")
    metrics = trainer(divided, work, **VPL).run()
    return work / "out" / "model", metrics


@pytest.mark.slow
@pytest.mark.long
def test_users_who_disagree_need_a_latent(divided, trained, tmp_path):
    """On pairs that the users judge in opposite ways a reward for all is a coin; one for each user is not."""
    common = trainer(divided, tmp_path, steps=60, optimizer={"learning_rate": 0.003}).run()
    assert 0.35 < common["accuracy"] < 0.6
    assert trained[1]["accuracy"] > 0.9


@pytest.mark.slow
def test_a_new_user_is_known_by_a_few_pairs(divided, trained):
    folder, _ = trained
    scorer = RewardScorer(folder, Model(path="x"), budget=512, field="f")

    def tokens(text, number=1):
        return render_answer(scorer.tokenizer, [{"role": "user", "content": f"say {number}"}], text, "x")[0]

    kinds = [
        [tokens(text, n) for n, text in enumerate(texts)] for texts in (("abba", "cad", "dab"), ("hef", "feh", "egg"))
    ]
    answers = [tokens("bad"), tokens("geh")]
    like_ann, like_bob = scorer.infer_latent(*kinds), scorer.infer_latent(*kinds[::-1])
    for latent, better in ((like_ann, 0), (scorer.latent_of("ann"), 0), (like_bob, 1), (scorer.latent_of("bob"), 1)):
        scores = scorer.score(answers, [len(ids) - 1 for ids in answers], latent=latent)[:, 0]
        assert scores.argmax() == better
    with pytest.raises(ModelError, match=r"knows no user called 'eve'\. It knows ann, bob"):
        scorer.latent_of("eve")


@pytest.mark.slow
def test_the_reward_of_rlvr_takes_a_user(divided, trained):
    folder, _ = trained
    tokenizer = models.load_tokenizer(folder)
    prompt = [{"role": "user", "content": "say 1"}]
    problems = {"u": Problem(uid="u", prompt=prompt, answer="4", verifier="exact", source="s", licence="l")}

    class Lends:
        def tokenizer(self, model="policy"):
            return tokenizer

        def reward_model(self, path, field):
            return RewardScorer(path, Model(path=path), budget=256, field=field)

    better = {}
    for user in ("ann", "bob"):
        rows = []
        for text in ("bad", "geh"):
            ids, start = render_answer(tokenizer, prompt, text, "x")
            role = [0] * start + [3] * (len(ids) - start)
            rows.append(
                Trajectory(uid="u", group=0, tokens=ids, role=role, logp_old=[0.0] * len(ids), max_tokens=9,
                           stop=Stop.END, version=0, text=text)
            )  # fmt: skip
        reward = bind("rlvr.reward", {"kind": "model", "model": str(folder), "user": user}).fn
        reward.connect(Lends())
        reward.score(rows, problems)
        better[user] = rows[0].score > rows[1].score
    assert better == {"ann": True, "bob": False}


@pytest.mark.slow
def test_it_resumes_to_the_same_bytes(divided, tmp_path):
    changes = VPL | {"steps": 9, "pairs_per_step": 16, "commit": {"every": 2}}
    trainer(divided, tmp_path / "through", **changes).run()
    toys.run_stopped(lambda: trainer(divided, tmp_path / "stopped", **changes), 7, None)
    assert contents(tmp_path / "through" / "out") == contents(tmp_path / "stopped" / "out")


def test_a_pair_is_never_in_its_own_context(divided, tmp_path):
    run = trainer(divided, tmp_path, **VPL)
    asked = []
    run.user_pairs.embed = lambda rows: asked.append(rows) or run._embed(rows)
    for pair in run.pairs[:20]:
        for step in (None, 0, 1):
            asked.clear()
            context = run.user_pairs.context([pair], 8, step=step)
            assert all(other is not pair and other.pair.user == pair.pair.user for other in asked[0])
            assert len(asked[0]) == context.present.sum() == USERS["context"]
    first, second = (run.user_pairs.context(run.pairs[:4], 8, step=step) for step in (0, 0))
    assert torch.equal(first.hidden, second.hidden) and torch.equal(first.noise, second.noise)
    assert not torch.equal(first.noise, run.user_pairs.context(run.pairs[:4], 8, step=1).noise)


def test_parts_of_a_step_have_the_gradient_of_the_whole(divided, tmp_path):
    run = trainer(divided, tmp_path, **VPL, micro_batch_tokens=128)
    batch = [run.pairs[i] for i in range(8)]
    gradients = []
    for budget in (128, 100_000):
        run.settings = run.settings.model_copy(update={"micro_batch_tokens": budget})
        run.model.zero_grad(set_to_none=True)
        loss, _ = run._summed(batch, range(8), 5)
        gradients.append((loss, {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}))
    (loss, parts), (direct, whole_step) = gradients
    assert loss == pytest.approx(direct, abs=1e-5) and "users.mean.weight" in parts
    for name, gradient in whole_step.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-3)


@given(st.integers(0, 99), st.permutations(range(4)))
def test_a_latent_depends_on_which_pairs_not_on_their_order(seed, order):
    draws = torch.Generator().manual_seed(seed)
    encoder = UserLatent(6, 5, 8, seed=seed)
    context = torch.randn(1, 4, 2, 6, generator=draws)
    present = torch.tensor([[True, True, True, False]])
    encoder.requires_grad_(False)
    mean, log_variance = encoder.posterior(context, present)
    moved = encoder.posterior(context[:, list(order)], present[:, list(order)])
    torch.testing.assert_close((mean, log_variance), moved, atol=1e-5, rtol=1e-4)
    changed = context.clone()
    changed[:, 3] = 9.0
    torch.testing.assert_close(encoder.posterior(changed, present), (mean, log_variance))
    assert mean.abs().max() <= 1 and log_variance.abs().max() <= 1 and float(kl(mean, log_variance)) > 0
    flipped, _ = encoder.posterior(context.flip(2), present)
    assert not torch.allclose(flipped, mean), "swapped labels are another user"
    z = draw(mean, log_variance, torch.randn(1, 5, generator=draws))
    assert float(z.norm()) == pytest.approx(5**0.5, rel=1e-5)


def test_without_pairs_there_is_the_prior_and_no_gain():
    encoder = UserLatent(6, 5, 8, seed=0).requires_grad_(False)
    mean, log_variance = encoder.posterior(torch.randn(2, 1, 2, 6), torch.zeros(2, 1, dtype=torch.bool))
    assert float(mean.abs().sum() + log_variance.abs().sum() + kl(mean, log_variance).sum()) == 0
    hidden = torch.randn(2, 6)
    nothing = encoder.gain(hidden, draw(mean, log_variance, torch.zeros(2, 5)))
    torch.testing.assert_close(nothing, torch.zeros(2), atol=1e-6, rtol=0)
    assert (encoder.gain(hidden, torch.ones(2, 5)) != 0).all()


def test_a_saved_encoder_is_the_same(tmp_path):
    encoder, latents = UserLatent(6, 5, 8, seed=0), torch.randn(3, 5)
    user_latent.save(encoder, latents, tmp_path / "users.safetensors")
    again, read = user_latent.load(tmp_path / "users.safetensors")
    hidden, z = torch.randn(4, 6), torch.randn(4, 5)
    assert torch.equal(read, latents) and torch.equal(again.gain(hidden, z), encoder.gain(hidden, z))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss": "vpl"}, r"judge\.users: vpl infers a latent per user"),
        ({"loss": "odin", "users": {}}, r"judge\.users: odin couples the pairs of a step"),
        ({"loss": "vpl", "users": {}, "heads": 2}, r"users works with one head"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))
