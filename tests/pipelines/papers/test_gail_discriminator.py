"""The discriminator of adversarial imitation: what it reads, the released loss, the gradient penalty, and runs."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from provider_toys import LETTERS, letter_context, letter_rows

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.papers.gail import fit_loss, gradient_norms, network
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

SOLUTIONS = ["cd", "efg", "h", "ij"]


def discriminator(tmp_path, answers=SOLUTIONS, info=None, **settings):
    part = bind("rlvr.providers", {"kind": "demonstration_discriminator", **settings}).fn
    part.setup(letter_context(tmp_path, answers, info=info))
    return part


def read(part, prompt, answer):
    """Mean and last of the frozen policy's hidden states at an answer's tokens, from a pass over it alone."""
    ids = [LETTERS.index(letter) for letter in prompt + answer]
    with torch.no_grad():
        states = part.passes.policy.decoder(input_ids=torch.tensor([ids])).last_hidden_state[0, len(prompt) :]
    return torch.cat([states.mean(0), states[-1]])


def test_it_reads_answers_and_demonstrations_after_their_prompt(tmp_path):
    """A demonstration ends with the end token; the solution goes before the answer; demonstrations of the step are not judged."""
    part = discriminator(tmp_path, info={1: {"solution": "gfe"}})
    tokens, columns = letter_rows(["klm", "", "no", "cd", "p", "cop"], [1, 0, 0, 2, 77, 0])
    columns["teacher_forced"][3] = columns["mask"][3]
    columns["teacher_forced"][5] = torch.arange(5) == 2  # a hint makes no demonstration
    part.fill(tokens, columns)
    wanted = [("klm", "gfe#"), ("no", "cd#"), ("cop", "cd#")]
    assert part.judged.shape[:2] == (3, 2)
    for found, (answer, solution) in zip(part.judged, wanted, strict=True):
        torch.testing.assert_close(found[0], read(part, "ab", answer), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found[1], read(part, "ab", solution), atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        logits = part.network.eval()(part.judged[:, 0]).squeeze(1)
    torch.testing.assert_close(columns["demonstration_logit"], torch.tensor([logits[0], 0, logits[1], 0, 0, logits[2]]))


def test_prompts_are_compared_with_their_own_demonstration(tmp_path):
    part = discriminator(tmp_path)
    answers = letter_rows(["cd#", "efg#", "cd#"], [0, 1, 1])
    part.fill(*answers)
    own, shown = part.judged.unbind(1)
    torch.testing.assert_close(own[:2], shown[:2], atol=1e-5, rtol=1e-4)
    assert (own[2] - shown[2]).abs().max() > 0.1


@given(st.integers(0, 500), st.integers(1, 5))
def test_the_loss_is_the_released_one(seed, count):
    draw = torch.Generator().manual_seed(seed)
    own, shown = torch.randn(2, count, generator=draw) * 3
    labels = 0.7 + 0.5 * torch.rand(count, generator=draw)
    found = fit_loss(torch.nn.Identity(), own[:, None], shown[:, None], labels)

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    fake = sum(-math.log(1 - sigmoid(x)) for x in own.tolist()) / count
    real = sum(
        -u * math.log(sigmoid(x)) - (1 - u) * math.log(1 - sigmoid(x))
        for x, u in zip(shown.tolist(), labels.tolist(), strict=True)
    )
    shares = [sigmoid(x) for x in [*own.tolist(), *shown.tolist()]]
    entropy = sum(-p * math.log(p) - (1 - p) * math.log(1 - p) for p in shares) / len(shares)
    assert float(found) == pytest.approx(fake + real / count - 0.001 * entropy, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("spectral", [False, True])
def test_the_norm_is_that_of_finite_differences_and_can_be_descended(spectral):
    torch.manual_seed(0)
    judge = network(6, spectral).double().eval()
    places = torch.randn(3, 6, dtype=torch.float64)
    norms = gradient_norms(judge, places)
    for place, norm in zip(places, norms, strict=True):
        steps = 1e-6 * torch.eye(6, dtype=torch.float64)
        with torch.no_grad():
            slope = ((judge(place + steps) - judge(place - steps)) / 2e-6).squeeze(1)
        assert float(norm.detach()) == pytest.approx(float(slope.norm()), rel=1e-4)
    norms.sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in judge.parameters() if weight.ndim > 1)


def fitted(tmp_path, **settings):
    """After many steps on answers that are easy to tell from demonstrations."""
    part = discriminator(tmp_path, learning_rate=0.01, epochs=100, spectral_norm=False, **settings)
    answers = letter_rows(["klm", "nop", "lm", "cd#"], [0, 1, 2, 3])
    for _ in range(2):
        part.fill(*answers)
        metrics = part.update(*answers)
    part.fill(*answers)
    return part, answers[1]["demonstration_logit"], metrics


@pytest.mark.slow
def test_it_learns_to_tell_them_apart_and_the_penalty_keeps_it_smooth(tmp_path):
    part, logits, metrics = fitted(tmp_path)
    with torch.no_grad():
        shown = part.network(part.judged[:, 1]).squeeze(1)
    assert (logits < shown).all() and metrics["discriminator/loss"] < 2 * math.log(2)
    _, _, unbounded = fitted(tmp_path, penalty=0.0)
    assert unbounded["discriminator/gradient_norm"] > 1.4 > 1.1 > metrics["discriminator/gradient_norm"]
    _, _, tight = fitted(tmp_path, bound=0.1, penalty=1000.0)
    assert tight["discriminator/gradient_norm"] < 0.2
    _, _, both_sides = fitted(tmp_path, one_sided=False, penalty=1000.0)
    assert both_sides["discriminator/gradient_norm"] == pytest.approx(1, abs=0.1)
    assert fitted(tmp_path, bound=50.0)[2]["discriminator/penalty"] == 0, "what is gentle is left alone"


def test_it_remembers_the_newest_rows_of_earlier_steps(tmp_path):
    part = discriminator(tmp_path, memory=3)
    kept = []
    for texts in (["kl", "mn"], ["op", "lk"]):
        answers = letter_rows(texts, [0, 1])
        part.fill(*answers)
        kept += list(part.judged)
        part.update(*answers)
    torch.testing.assert_close(part.earlier, torch.stack(kept[-3:]))
    forgetful = discriminator(tmp_path, memory=0)
    forgetful.fill(*answers)
    forgetful.update(*answers)
    assert len(forgetful.earlier) == 0 and len(forgetful.state_dict()["earlier"]) == 0


def test_a_step_without_rows_teaches_nothing(tmp_path):
    part = discriminator(tmp_path)
    part.fill(*letter_rows(["kl"], [0]))
    before = copy.deepcopy(part.network.state_dict())
    tokens, columns = letter_rows(["", ""], [0, 1], prompt="abc")
    part.fill(tokens, columns)
    assert part.update(tokens, columns) == {} and not columns["demonstration_logit"].any()
    assert all(torch.equal(weight, before[name]) for name, weight in part.network.state_dict().items())


def test_records_without_demonstrations_are_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"record 0+1 has neither a solution nor an answer"):
        discriminator(tmp_path, ["cd", " "])
    single = discriminator(tmp_path, ["cd", "ef"], {1: {"environment": "worked_sums"}})
    assert single.texts == {0: "cd", 1: "ef"}, "an environment may ask for single answers"


def test_episodes_are_refused_before_a_run(tmp_path):
    with pytest.raises(RecipeError, match="demonstration_discriminator reads single answers, and rollout: multi_turn"):
        check(read_recipe(toys.lake(tmp_path), ["presets=[gail]"]))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 24])
def test_a_run_resumes_to_the_same_bytes(tmp_path, start, memory):
    runs = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()

        def build(name=name):
            learner = f"rlvr.providers=[{{kind: demonstration_discriminator, learning_rate: 0.01, memory: {memory}}}]"
            return toys.trainer(tmp_path / name, start, toys.recipe(tmp_path), "presets=[gail]", learner)

        if name == "whole":
            build().run()
        else:
            toys.run_stopped(build, step=3)
        runs.append(toys.result(tmp_path / name / "work"))
    assert json.dumps(runs[0]) == json.dumps(runs[1])
    steps = [values for _, values in runs[0][1]]
    assert len(steps) == 4 and steps[0]["reward/shaped_mean"] == pytest.approx(math.log(2), abs=0.1)
    assert steps[-1]["discriminator/loss"] != steps[0]["discriminator/loss"]
