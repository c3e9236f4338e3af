"""The masked loss, the bound and the one-step estimate: official values, and a bound that is one."""

from __future__ import annotations

import itertools

import pytest
import torch

from pipelines.diffusion.likelihood import bound, masked_loss, noised, one_step, partly_masked, partly_shown
from pipelines.engine.prompts import Prompts

CPU = torch.device("cpu")


def test_llada_supervised_loss(official, tables):
    case = official["sft_loss"]
    prompts, answers = Prompts.of(case["prompts"], 0, CPU), torch.tensor(case["answers"])
    shown, share = noised(answers, official["mask"], torch.Generator().manual_seed(case["seed"]))
    # the official code was run in float64, which draws other numbers of a seed
    shown, share = torch.tensor(case["shown"]), torch.tensor(case["share"], dtype=torch.float64)
    loss = masked_loss(tables, prompts, answers, shown, share, official["mask"]).mean()
    assert float(loss) == pytest.approx(case["loss"], rel=1e-9)


def test_llada_likelihood(official, tables):
    case = official["get_log_likelihood"]
    prompts, answer = Prompts.of([case["prompt"]], 0, CPU), torch.tensor(case["answer"])
    draw = torch.Generator().manual_seed(case["seed"])
    shown, share = partly_masked(answer.expand(case["samples"], -1), official["mask"], draw)
    assert shown.tolist() == case["shown"] and share.tolist() == pytest.approx(case["share"])
    draw.manual_seed(case["seed"])
    value = bound(tables, prompts, answer, official["mask"], draw, case["samples"])
    assert float(value) == pytest.approx(case["value"], rel=1e-6)


def test_one_step_log_probabilities_of_d1(official, tables):
    case = official["diffu_grpo"]
    prompts = Prompts.of(case["shown_prompts"], 0, CPU)
    logp, entropy = one_step(tables, prompts, torch.tensor(case["answers"]), official["mask"])
    assert torch.allclose(logp, torch.tensor(case["logp"], dtype=torch.float64), atol=1e-6)
    said = tables(*prompts.followed_by(torch.full((2, 5), official["mask"])))[:, 3:].softmax(-1)
    assert torch.allclose(entropy, torch.distributions.Categorical(said).entropy())


def test_the_prompt_is_masked_by_chance_and_padding_never(official):
    prompts = Prompts.of([[1] * 400, [2] * 100], 0, CPU)
    shown = partly_shown(prompts, official["mask"], 0.3, torch.Generator().manual_seed(0))
    masked = shown.tokens == official["mask"]
    assert not (masked & ~prompts.attended).any()
    assert abs(float(masked[prompts.attended].float().mean()) - 0.3) < 0.07
    assert torch.equal(partly_shown(prompts, official["mask"], 0.0, torch.Generator()).tokens, prompts.tokens)


def test_the_bound_bounds(official, tables):
    """The likelihood of an answer that is written in an order drawn at random, one token a step, is no less than the bound."""
    prompts, mask = Prompts.of([[0, 3]], 0, CPU), official["mask"]
    total = 0.0
    for answer in itertools.product(range(2), repeat=3):
        of_orders, logs = [], []
        for order in itertools.permutations(range(3)):
            shown, logp = torch.full((1, 3), mask), 0.0
            for place in order:
                said = tables(*prompts.followed_by(shown))[0, 2 + place].log_softmax(-1)
                logp += float(said[answer[place]])
                shown[0, place] = answer[place]
            of_orders.append(torch.tensor(logp).exp())
            logs.append(logp)
        likelihood, expected = float(torch.stack(of_orders).mean()), sum(logs) / len(logs)
        value = bound(tables, prompts, torch.tensor(answer), mask, torch.Generator().manual_seed(1), 1500)
        assert float(value) == pytest.approx(expected, abs=0.15)
        assert expected <= torch.tensor(likelihood).log() + 1e-6
        total += likelihood
    assert 0 < total <= 1
