"""The plain loop of pipelines/rlvr/README.md: it runs as it stands, and its steps are those of the trainer."""

from __future__ import annotations

import re
import sys
import types

import forks
import pytest
import torch
import toys

README = (toys.ROOT / "pipelines" / "rlvr" / "README.md").read_text()
(CODE,) = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)
LINES = 80
"""The most that the loop may take."""
SETTINGS = ("rlvr.steps=3", "rlvr.optimizer.learning_rate=0.0002", "rlvr.prompts=6", "rlvr.group_size=6")


@pytest.fixture(scope="module")
def plain():
    """The README's code as a module."""
    module = types.ModuleType("plain")
    exec(compile(CODE, "README.md", "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return toys.start(tmp_path_factory.mktemp("begun"), overrides=["sft.steps=80", "sft.tokens_per_step=1024"])


def test_it_is_short():
    assert len(CODE.splitlines()) <= LINES
    assert max(len(line) for line in CODE.splitlines()) <= 120


@pytest.mark.slow
def test_its_steps_are_the_trainer_s(plain, begun, tmp_path):
    """With the trainer's own tokens: the same scores, advantages, loss, gradient and weights, in float32, over three steps.

    The trainer's rows are trees of shared prefixes and its log-probabilities come from blocks of logits, so its sums are taken in
    another order.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pipelines.data.records import Role
    from pipelines.verifiers import verify

    trainer = toys.trainer(tmp_path, begun, toys.recipe(tmp_path), *SETTINGS)
    folder = begun / "sft/out/model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).float(), AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4, betas=(0.9, 0.95), weight_decay=0.0)
    gradient, seen = {}, {}
    take_step, learn = trainer.learner.stepper.step, trainer.learner.learn

    def stepped(number):
        gradient.update({name: w.grad.clone() for name, w in trainer.learner.model.named_parameters()})
        return take_step(number)

    def learned(updates):
        seen["columns"] = updates[0].columns
        return learn(updates)

    trainer.learner.stepper.step, trainer.learner.learn = stepped, learned
    draw = trainer.collector.collect
    trainer.collector.collect = lambda step: seen.setdefault("batch", draw(step))
    for step in range(3):
        seen.clear()
        metrics = trainer.step(step)
        rows, columns = seen["batch"].rows, seen["columns"]
        starts = [row.role.index(Role.POLICY) for row in rows]
        prompts = [row.tokens[:start] for row, start in zip(rows, starts, strict=True)]
        answers = [row.tokens[start:] for row, start in zip(rows, starts, strict=True)]
        tokens, mask = plain.pack(prompts, answers)
        assert torch.equal(tokens, columns["token"]) and torch.equal(mask, columns["mask"])
        asked = [trainer.by_uid[row.uid] for row in rows]
        texts = [tokenizer.decode(a, skip_special_tokens=True) for a in answers]
        scores = [verify(p.verifier, text, p.answer, p.info).score for p, text in zip(asked, texts, strict=True)]
        assert scores == [row.score for row in rows]
        assert len(set(scores)) > 1, "a step without a difference shows nothing"

        advantage = plain.advantages(torch.tensor(scores), 6)
        torch.testing.assert_close(advantage[:, None] * mask, columns["advantage"], atol=1e-6, rtol=1e-6)
        logp_old = plain.log_probs(model, tokens).detach()
        torch.testing.assert_close(logp_old * mask, columns["logp_old"] * mask, atol=2e-5, rtol=0)
        loss = plain.loss(plain.log_probs(model, tokens), logp_old, advantage, mask)
        assert loss.item() == pytest.approx(metrics["loss/policy"], abs=1e-6)
        own = torch.autograd.grad(loss, [*model.parameters()])
        for (name, _), wanted in zip(model.named_parameters(), own, strict=True):
            torch.testing.assert_close(gradient[name], wanted, atol=5e-6, rtol=0, msg=f"gradient of {name}")
        assert max(float(g.abs().max()) for g in own) > 0.01, "the bound is small beside the gradient"

        before = [weight.detach().clone() for weight in model.parameters()]
        plain.update(model, optimizer, tokens, mask, logp_old, advantage)
        trained = dict(trainer.learner.model.named_parameters())
        for (name, weight), old in zip(model.named_parameters(), before, strict=True):
            torch.testing.assert_close(weight, trained[name], atol=1e-6, rtol=0, msg=name)
            assert float((weight.detach() - old).abs().max()) > 1e-5, "the bound is small beside the step"


@pytest.mark.slow
def test_it_runs_as_it_stands(begun, tmp_path):
    """Its own sampling and scoring too, in a process of its own: the mean reward of the last steps is above that of the first."""
    (tmp_path / "plain.py").write_text(CODE)
    done = forks.run(
        [sys.executable, "plain.py", str(begun / "sft/out/model"), str(begun / "data"), "train"],
        capture_output=True, text=True, cwd=tmp_path, env=toys.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rewards = [float(value) for value in re.findall(r"^step \d+: mean reward ([\d.]+)$", done.stdout, re.M)]
    assert len(rewards) == 20
    assert sum(rewards[-5:]) > 1.1 * sum(rewards[:5]), rewards
