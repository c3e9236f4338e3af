"""Providers: found by what they make, filled for whoever reads it, trained and restored with the run."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace

import pytest
import torch
import toys
from transformers import AutoModelForCausalLM

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import load, names
from pipelines.contract.method import PolicyUpdate
from pipelines.engine.policy import Policy
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import bind_providers, bind_slots, bound_list
from pipelines.rlvr import algorithm

PRIME = ["presets=[prime]", "rlvr.filter=all_rows"]
FAST_PRM = "rlvr.providers=[{kind: implicit_prm, learning_rate: 0.001, beta: 0.5, update_first: %s}]"


def trainer(tmp_path, start, *overrides):
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *overrides)


def names_of(tmp_path, *overrides):
    settings = read_recipe(toys.recipe(tmp_path), list(overrides)).rlvr
    return [bound.name for bound in bind_providers(settings, bound_list(bind_slots(settings)))]


def packed(made):
    """Token ids of a step's rows, and its columns with those that the providers filled."""
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    return columns["token"], SimpleNamespace(**columns)


def test_who_stores_what_turns_are_paid_reads_all_that_is():
    """`turn_payments` takes the row's reward and what tokens are charged too."""
    sources = {
        name: [inspect.getsource(base) for base in load("rlvr.providers", name).__mro__[:2]]
        for name in names("rlvr.providers")
    }
    stores = [name for name, own in sources.items() if any("ended(" in source for source in own)]
    assert stores == ["archer", "digirl", "f_dvl", "iql"]
    for name in stores:
        assert {"turn", "turn_reward", "reward", "token_penalty"} <= set(load("rlvr.providers", name).reads), name


def test_only_what_is_read_is_provided(tmp_path):
    assert names_of(tmp_path) == []
    assert names_of(tmp_path, "rlvr.divergence={kind: k3, weight: 0.1}") == ["reference"]
    assert names_of(tmp_path, "rlvr.providers=[critic]") == [], "nothing here reads values"
    assert names_of(tmp_path, "rlvr.providers=[critic]", "rlvr.advantage=gae") == ["critic"]
    assert names_of(tmp_path, "rlvr.curriculum=uniform", "presets=[canon]", "rlvr.credit=[verl_erank]") == [
        "hidden_statistics"
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.advantage=prime"], "prime needs process_reward.*implicit_prm"),
        (["rlvr.credit=[distillation]"], "distillation needs logp_teacher.*kind: teacher"),
        (["rlvr.providers=[critic, critic]", "rlvr.advantage=gae"], "value is made twice"),
        (["rlvr.providers=[critik]"], "Did you mean 'critic'"),
        (["rlvr.providers=[{kind: critic, epoch: 2}]"], "no such setting"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


def test_reference_is_the_starting_policy(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.divergence={kind: k3, weight: 0.1}")
    with torch.no_grad():
        for weight in made.learner.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    tokens, batch = packed(made)
    at_start = AutoModelForCausalLM.from_pretrained(start / "sft/out/model")
    expected = Policy(at_start.eval(), made.settings.sampling).logp(tokens, batch.mask).logp.detach()
    torch.testing.assert_close(batch.logp_ref, expected, atol=2e-5, rtol=0)
    assert (batch.logp_ref - batch.logp_old)[batch.mask].abs().max() > 0.01


FAST = ("rlvr.prompts=32", "rlvr.optimizer.learning_rate=0.001", "rlvr.steps=40", "rlvr.commit.every=40")


@pytest.fixture
def taught(tmp_path, start):
    """Another model than the starting policy, of the same vocabulary, and its folder."""
    folder = tmp_path / "teacher"
    other = AutoModelForCausalLM.from_pretrained(start / "sft/out/model")
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.3 * weight.std() * torch.randn_like(weight))
    other.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (start / "sft/out/model" / name).exists():
            (folder / name).write_bytes((start / "sft/out/model" / name).read_bytes())
    return other.eval(), folder


def losses_of_a_run(made, folder):
    """The loss of each step."""
    made.run()
    lines = [json.loads(line) for line in (folder / "work/spool.jsonl").read_text().splitlines()]
    return [line["values"]["loss/policy"] for line in lines if line["kind"] == "metrics"]


@pytest.mark.slow
def test_teacher_is_another_model_and_distillation_draws_near_to_it(tmp_path, start, taught):
    teacher, folder = taught
    provider = f"rlvr.providers=[{{kind: teacher, path: {folder}}}]"
    made = trainer(tmp_path, start, "presets=[on_policy_distillation]", provider, *FAST)
    tokens, batch = packed(made)
    expected = Policy(teacher, made.settings.sampling).logp(tokens, batch.mask).logp.detach()
    torch.testing.assert_close(batch.logp_teacher, expected, atol=2e-5, rtol=0)
    divergence = losses_of_a_run(made, tmp_path)
    assert len(divergence) == 40, "on policy the loss is the reverse KL a token, by the policy's own samples"
    assert sum(divergence[-8:]) < 0.6 * sum(divergence[:8])


@pytest.mark.parametrize("top", [5, 1000])
def test_gkd_has_the_gradient_of_the_divergence_of_both_distributions(tmp_path, start, taught, top):
    """Through the real trainer, at a temperature and with the policy's own truncation, which the teacher's tokens are not cut by."""
    teacher, folder = taught
    provider = f"rlvr.providers=[{{kind: teacher_top, path: {folder}, top: {top}}}]"
    made = trainer(
        tmp_path, start, "presets=[gkd]", provider, "rlvr.sampling.temperature=0.7", "rlvr.sampling.top_p=0.9",
        "rlvr.micro_batch_tokens=256", *FAST,
    )  # fmt: skip
    tokens, batch = packed(made)
    policy, mask = made.learner.model, batch.mask
    both = [(model(tokens).logits[:, :-1][mask[:, 1:]] / 0.7).log_softmax(-1) for model in (policy, teacher)]
    named = both[1].topk(min(top, both[1].shape[1])).indices  # [M, V]
    assert torch.equal(batch.teacher_top_id[mask].sort(-1).values, named.sort(-1).values)
    q, p = (torch.cat([x.gather(-1, named), rest_of(x, named)], -1) for x in both)
    m = ((p.exp() + q.exp()) / 2).log()
    per_token = 0.5 * ((p.exp() * (p - m)).sum(-1) + (q.exp() * (q - m)).sum(-1))
    expected = torch.autograd.grad(per_token.mean(), list(policy.parameters()))

    seen = []
    made.learner.stepper.step = lambda number: seen.append([x.grad.clone() for x in policy.parameters()]) or {}
    columns = algorithm.assign_credit(made.update, vars(batch))
    assert made.learner.learn([PolicyUpdate(columns)])["loss/policy"] == pytest.approx(
        float(per_token.mean()), rel=1e-4
    )
    for ours, theirs in zip(seen[0], expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=2e-3)


def rest_of(logp, named):
    """The log-probability of all tokens that are not named, [M, 1]."""
    rest = torch.ones_like(logp, dtype=torch.bool).scatter(-1, named, False)
    return (logp.exp() * rest).sum(-1, keepdim=True).clamp(min=1e-7).log()


@pytest.mark.slow
@pytest.mark.long
def test_gkd_draws_near_to_the_teacher(tmp_path, start, taught):
    made = trainer(
        tmp_path, start, "presets=[gkd]", f"rlvr.providers=[{{kind: teacher_top, path: {taught[1]}}}]", *FAST
    )
    divergence = losses_of_a_run(made, tmp_path)
    assert len(divergence) == 40 and sum(divergence[-8:]) < 0.4 * sum(divergence[:8])


def test_a_teacher_of_another_vocabulary_is_refused(tmp_path, start):
    from pipelines.engine.models import train_tokenizer

    folder = tmp_path / "teacher"
    AutoModelForCausalLM.from_pretrained(start / "sft/out/model").save_pretrained(folder)
    train_tokenizer("char", 128, ["xyz"]).save_pretrained(folder)
    with pytest.raises(RecipeError, match="another vocabulary"):
        trainer(
            tmp_path, start, "presets=[on_policy_distillation]", f"rlvr.providers=[{{kind: teacher, path: {folder}}}]"
        )


def test_implicit_prm_starts_silent_and_its_gradient_is_that_of_the_cross_entropy(tmp_path, start):
    made = trainer(tmp_path, start, *PRIME, FAST_PRM % "false")
    tokens, batch = packed(made)
    assert batch.process_reward.abs().max() == 0, "the model is its own reference before it learns"
    prm = made.learner.providers["implicit_prm"]
    gradients = []
    prm.optimizer.step = lambda: gradients.append([p.grad.clone() for p in prm.model.model.parameters()])
    prm.max_grad_norm = 1e9
    columns = vars(batch) | {"raw_reward": (torch.arange(len(tokens)) % 3 == 0).float()}
    with torch.no_grad():
        for weight in prm.model.model.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    metrics = prm.update(tokens, columns)
    prm.model.model.zero_grad()
    reference = prm.reference.logp(tokens, batch.mask).logp.detach()
    score = 0.5 * (prm.model.logp(tokens, batch.mask).logp - reference).sum(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score, columns["raw_reward"])
    loss.backward()
    assert metrics["prm/loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    for ours, weight in zip(gradients[0], prm.model.model.parameters(), strict=True):
        torch.testing.assert_close(ours, weight.grad, atol=1e-6, rtol=1e-3)


def test_implicit_prm_learns_from_outcomes(tmp_path, start):
    made = trainer(tmp_path, start, *PRIME, FAST_PRM % "false")
    tokens, batch = packed(made)
    columns = vars(batch) | {"raw_reward": (torch.arange(len(tokens)) % 2 == 0).float()}
    assert 0 < columns["raw_reward"].sum() < len(tokens)
    prm = made.learner.providers["implicit_prm"]
    losses = [prm.update(tokens, columns)["prm/loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3) and losses[-1] < 0.5 * losses[0]
    prm.fill(tokens, columns)
    totals = columns["process_reward"].sum(1)
    assert totals[columns["raw_reward"] == 1].mean() > 1 + totals[columns["raw_reward"] == 0].mean()


@pytest.mark.slow
@pytest.mark.parametrize("first", ["true", "false"])
def test_implicit_prm_resumes_to_the_same_bytes(tmp_path, start, first):
    runs = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()
        made = trainer(tmp_path / name, start, *PRIME, FAST_PRM % first, "rlvr.steps=6", "rlvr.prompts=8")
        if name == "halves":
            step = made.step

            def dies(number, step=step):
                if number == 3:
                    raise KeyboardInterrupt
                return step(number)

            made.step = dies
            with pytest.raises(KeyboardInterrupt):
                made.run()
            made.committer.wait()
            made = trainer(tmp_path / name, start, *PRIME, FAST_PRM % first, "rlvr.steps=6", "rlvr.prompts=8")
        made.run()
        runs.append((tmp_path / name / "work/out/model/model.safetensors").read_bytes())
        lines = [json.loads(line) for line in (tmp_path / name / "work/spool.jsonl").read_text().splitlines()]
        losses = [line["values"]["prm/loss"] for line in lines if line["kind"] == "metrics"]
        assert len(losses) == 6 and losses[0] == pytest.approx(0.6931, abs=0.01)
    assert runs[0] == runs[1]
