"""Climbing on whole answers: against a loop that climbs for one question alone, what requests say, what it costs."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from pydantic import TypeAdapter, ValidationError

from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_id
from pipelines.data import chat
from pipelines.data.records import Problem
from pipelines.engine.models import train_tokenizer
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.search import Search
from pipelines.sample.settings import Sample
from pipelines.search.paths import Question
from pipelines.search.strategies import Searcher

LEVELS = ["A idea", "B details"]
SAMPLING = Sampling(max_tokens=4)
SHORT = {"template": "{level} more", "combination": "{level} of {answers}"}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("char", 64, ["AB idea details more of abcdefgh question ?"])


@pytest.fixture(scope="module")
def sampler(tokenizer):
    return TorchSampler(toys.model("llama", len(tokenizer)), stop=[tokenizer.eos_token_id], pad=tokenizer.pad_token_id)


def settings(**fields):
    return TypeAdapter(Search).validate_python(
        {"kind": "hierarchy", "n": 2, "tries": 2, "most": 3, "levels": LEVELS, "score": "verifier", **SHORT, **fields}
    )


def question(tokenizer, number):
    asked = [{"role": "user", "content": f"question {'abc'[number]}"}]
    problem = Problem(uid=str(number), prompt=asked, answer="", verifier="exact", source="", licence="")
    (prompt,) = chat.render_prompts(tokenizer, [chat.with_system_prompt(problem.prompt, "be")])
    return Question(
        prompt, stream_id("q", number), lambda ids: tokenizer.decode(ids, skip_special_tokens=True), problem
    )


class Worth:
    """Scores answers by a fixed function of their tokens, and remembers which prompts it saw."""

    reads = True

    def __init__(self, value):
        self.value, self.prompts = value, []

    def __call__(self, paths):
        self.prompts += [tuple(path.question.prompt) for path in paths]
        return [self.value(path.tokens) for path in paths]


def rough(tokens):
    """A landscape with many steps, and with answers that have no score."""
    total = sum((place + 1) * token for place, token in enumerate(tokens))
    return math.nan if total % 7 == 0 else total % 23 / 23


def alone(sampler, tokenizer, search, each, value):
    """The same climb in a loop, one request at a time: (tokens, score, tokens drawn)."""
    drawn = 0

    def draw(messages, stream):
        nonlocal drawn
        prompt = each.prompt if messages is None else chat.render_prompts(tokenizer, [messages])[0]
        (completion,) = sampler.extend([list(prompt)], SAMPLING, torch.Generator(), streams=[(stream, 0)])
        drawn += len(completion.tokens)
        return completion.tokens, value(completion.tokens)

    def rank(answer):
        return -math.inf if math.isnan(answer[1]) else answer[1]

    def climb(level, line, state, others):
        failures = gains = asked = 0
        while failures < search.tries and gains < search.most:
            template = search.combination if others else search.template
            wanted = template.replace("{level}", LEVELS[level]).replace("{answers}", "\n\n".join(others))
            messages = [{"role": "system", "content": "be"}, *each.problem.prompt]
            messages += [
                {"role": "assistant", "content": each.text(state[0]).strip()},
                {"role": "user", "content": wanted},
            ]
            new = draw(messages, stream_id("hierarchy", each.stream, level, line, asked))
            asked += 1
            if rank(new) > rank(state):
                state, failures, gains = new, 0, gains + 1
            else:
                failures += 1
        return state, gains

    best = draw(None, each.stream)
    for level in range(len(LEVELS)):
        ends = [climb(level, line, best, []) for line in range(search.n)]
        optima = [state for state, gains in ends if gains]
        if optima:
            best = max(optima, key=rank)
            texts = dict.fromkeys(each.text(state[0]).strip() for state in optima)
            others = [text for text in texts if text != each.text(best[0]).strip()]
            best = climb(level, search.n, best, others)[0] if others else best
    return best[0], best[1], drawn


def test_it_is_what_a_loop_finds_for_each_question_alone(sampler, tokenizer):
    search, score = settings(), Worth(rough)
    asked = [question(tokenizer, number) for number in range(3)]
    answers = Searcher(search, sampler, tokenizer, score, system="be").answers(asked, SAMPLING)
    better = 0
    for each, answer in zip(asked, answers, strict=True):
        tokens, value, drawn = alone(sampler, tokenizer, search, each, rough)
        assert (answer.completion.tokens, answer.score, answer.drawn) == (tokens, pytest.approx(value), drawn)
        assert answer.scored == answer.drawn
        (first,) = sampler.extend([list(each.prompt)], SAMPLING, torch.Generator(), streams=[(each.stream, 0)])
        own = rough(first.tokens)
        assert math.isnan(own) or answer.score >= own, "never worse than the model alone"
        better += math.isnan(own) or answer.score > own
    assert better, "and somewhere better"
    assert set(score.prompts) == {tuple(each.prompt) for each in asked}, "scored as answers to the question itself"


def test_where_nothing_is_better_the_answer_is_the_model_s_own(sampler, tokenizer):
    search, asked = settings(n=3, tries=2), question(tokenizer, 0)
    score = Worth(lambda tokens: 0.5)
    (answer,) = Searcher(search, sampler, tokenizer, score).answers([asked], SAMPLING)
    (first,) = sampler.extend([list(asked.prompt)], SAMPLING, torch.Generator(), streams=[(asked.stream, 0)])
    assert answer.completion.tokens == first.tokens
    assert len(score.prompts) == 1 + len(LEVELS) * 3 * 2, "three climbs a level fail twice, and nothing is combined"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"score": "likelihood"}, "cannot be compared by how likely"),
        ({"n": 1}, "greater than or equal to 2"),
        ({"levels": []}, "at least 1"),
        ({"template": "more"}, "template: it has no {level}"),
        ({"combination": "{level}"}, "combination: it has no {answers}"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        settings(**fields)


def test_a_sample_stage_refuses_it():
    search = {"kind": "hierarchy", "levels": ["a"], "score": {"kind": "judge"}}
    with pytest.raises(ValidationError, match="hierarchy samples answers from prompts of its own"):
        Sample.model_validate({"search": search})
    assert settings().suffix == "hierarchy2x2"
