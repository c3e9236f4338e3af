"""Answers of a mixture of two models: at its ends they are each model's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys

from pipelines.contract.rollout import RolloutRequest
from pipelines.contract.streams import Streams
from pipelines.data.records import Role, Stop
from pipelines.papers.common.mixture import mixture_answers
from pipelines.rlvr.common.answers import answers


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, start):
    """A trainer, requests, and a context of any key; the policy is another model than the one that it started from."""
    folder = tmp_path_factory.mktemp("mixture")
    made = toys.trainer(folder, start, toys.recipe(folder), "presets=[xpo]")
    problems = made.problems[:3]
    prompts = made.collector.rendered(problems)
    requests = [
        RolloutRequest(problem, prompt, n, 2) for n, (problem, prompt) in enumerate(zip(problems, prompts, strict=True))
    ]
    made.learner.policy.sampling = made.collector.begin(0)
    context = made.collector._context(3, (0,))
    own = answers(requests, replace(context, streams=Streams("key")))
    with torch.no_grad():
        for weight in made.learner.model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    return requests, context, own


def test_all_of_the_starting_model_is_what_it_drew_before_it_was_changed(drawn):
    requests, context, before = drawn
    rows = mixture_answers(requests, replace(context, streams=Streams("key")), context.scorer.mixture(1.0))
    assert [row.tokens for row in rows] == [row.tokens for row in before]
    assert [row.stop for row in rows] == [row.stop for row in before]
    assert [row.text for row in rows] == [row.text for row in before]
    assert {*rows[0].role} == {Role.PROMPT, Role.TEACHER_FORCED} and [row.group for row in rows] == [0, 0, 1, 1, 2, 2]


def test_none_of_it_is_what_the_policy_draws(drawn):
    requests, context, before = drawn
    rows = mixture_answers(requests, replace(context, streams=Streams("key")), context.scorer.mixture(0.0))
    now = answers(requests, replace(context, streams=Streams("key")))
    assert [row.tokens for row in rows] == [row.tokens for row in now] != [row.tokens for row in before]


def test_between_them_the_likeliest_token_is_that_of_the_mixed_logits(drawn):
    requests, context, _ = drawn
    greedy = context.sampling.model_copy(update={"temperature": 0.0, "max_tokens": 3})
    rows = mixture_answers(
        requests[:1], replace(context, sampling=greedy, streams=Streams("key")), context.scorer.mixture(0.25)
    )
    from pipelines.contract.scorer import POLICY, REFERENCE, Passage, TokenStatistics

    row, width = rows[0], len(context.tokenizer)
    first = len(requests[0].prompt)
    passage = Passage(row.tokens[:first], row.tokens[first:])
    asked = TokenStatistics(width, lambda logits, ids, _: logits.float().log_softmax(-1)[:, :width])
    start, policy = (context.scorer.statistics([passage], asked, model=model)[0] for model in (REFERENCE, POLICY))
    assert (0.25 * start + 0.75 * policy).argmax(-1).tolist() == row.tokens[first:]


def test_a_full_context_ends_the_answer(drawn):
    requests, context, _ = drawn
    long = [
        replace(requests[0], prompt=(requests[0].prompt * 9)[:62], rollouts=1),
        replace(requests[1], prompt=(requests[1].prompt * 9)[:64], rollouts=1),
    ]  # the toy reads 64 tokens
    rows = mixture_answers(long, replace(context, streams=Streams("key")), context.scorer.mixture(0.5))
    assert len(rows[0].tokens) <= 64 and rows[1].stop == Stop.ERROR and len(rows[1].tokens) == 64


def test_adapters_are_in_the_policy_alone(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[xpo]", "rlvr.lora={rank: 2}")
    with torch.no_grad():
        for name, weight in made.learner.model.named_parameters():
            weight.add_(0.5 if "lora_B" in name else 0.0)
    request = RolloutRequest(made.problems[0], made.collector.rendered(made.problems[:1])[0], 0, 4)
    made.learner.policy.sampling = made.collector.begin(0)
    context = made.collector._context(3, (0,))
    own, policy, first = (
        drawn([request], replace(context, streams=Streams("key")))
        for drawn in (
            answers,
            lambda *asked: mixture_answers(*asked, context.scorer.mixture(0.0)),
            lambda *asked: mixture_answers(*asked, context.scorer.mixture(1.0)),
        )
    )
    assert [row.tokens for row in own] == [row.tokens for row in policy] != [row.tokens for row in first]
