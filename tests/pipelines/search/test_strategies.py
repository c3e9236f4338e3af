"""Search against what can be enumerated, and against the model alone."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import toys
from pydantic import TypeAdapter

from pipelines.base.errors import RecipeError
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_id
from pipelines.data import chat
from pipelines.data.records import Stop
from pipelines.engine.models import train_tokenizer
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.search import Search
from pipelines.search.paths import Drawer, Path, Question, pause_ids, slots
from pipelines.search.scores import LikelihoodScored
from pipelines.search.strategies import Searcher

PREFIX = [1, 0, 1]
LENGTH = 3
SAMPLING = Sampling(max_tokens=LENGTH, temperature=1.5)


def settings(**fields):
    return TypeAdapter(Search).validate_python({"score": "likelihood", **fields})


def stepwise(**fields):
    return settings(separator=None, step_tokens=1, **fields)


class Table:
    """Scores every text by a table that holds one for each."""

    reads = True

    def __init__(self, values):
        self.values, self.read = values, []

    def __call__(self, paths):
        self.read += [tuple(path.tokens) for path in paths]
        return [self.values(path.tokens) for path in paths]


def value(tokens):
    """A number in [0, 1] without order, for each text."""
    return 1 - (stream_id("value", *tokens) % 1000) / 1000


def question(number=0, prompt=PREFIX):
    return Question(prompt, stream_id("question", number), text=str)


@pytest.fixture(scope="module")
def sampler():
    """Three tokens, of which 2 ends an answer: 15 answers of up to three tokens."""
    return TorchSampler(toys.model("llama", 3), stop=[2], pad=0)


@pytest.fixture(scope="module")
def exact(sampler):
    """Every answer's probability."""
    answers = {}
    for length in range(1, LENGTH + 1):
        for tokens in itertools.product(range(3), repeat=length):
            if 2 in tokens[:-1] or (tokens[-1] != 2 and length < LENGTH):
                continue
            total = 0.0
            for place, token in enumerate(tokens):
                with torch.no_grad():
                    logits = sampler.model(torch.tensor([[*PREFIX, *tokens[:place]]])).logits[0, -1]
                total += float((logits / SAMPLING.temperature).log_softmax(-1)[token])
            answers[tokens] = math.exp(total)
    assert len(answers) == 15 and sum(answers.values()) == pytest.approx(1, abs=1e-5)
    return answers


def search(sampler, strategy, score, questions, sampling=SAMPLING):
    return Searcher(strategy, sampler, None, score).answers(questions, sampling)


def shares_of(answers):
    drawn = [tuple(answer.completion.tokens) for answer in answers]
    return {tokens: drawn.count(tokens) / len(drawn) for tokens in set(drawn)}


def chi_squared(shares, wanted, count):
    """Pearson's statistic over the answers that are expected five times and the rest together; at most 35 by chance (p < 0.001)."""
    common = [x for x, p in wanted.items() if p * count >= 5]
    cells = [(shares.get(x, 0), wanted[x]) for x in common]
    cells.append((1 - sum(own for own, _ in cells), 1 - sum(p for _, p in cells)))
    return count * sum((own - p) ** 2 / p for own, p in cells)


@pytest.mark.parametrize(("potential", "below"), [("difference", 1.0), ("max", 1.0), ("sum", 0.5), ("difference", 0.0)])
def test_particles_have_the_tilted_distribution(sampler, exact, potential, below):
    """One particle of each question, drawn by the weights, against p(x) exp(2 r(x)) / Z within chance; the model alone is far off."""
    weights = {x: p * math.exp(2 * value(x)) for x, p in exact.items()}
    tilted = {x: w / sum(weights.values()) for x, w in weights.items()}
    strategy = stepwise(kind="particles", n=24, weight=2, potential=potential, resample_below=below, choose="sample")
    count = 300
    answers = search(sampler, strategy, Table(value), [question(i) for i in range(count)])
    shares = shares_of(answers)
    assert chi_squared(shares, tilted, count) < 35, (shares, tilted)
    assert chi_squared(shares, exact, count) > 60


def test_a_beam_of_full_width_is_an_exhaustive_search(sampler, exact):
    """As wide as there are texts, and so many ways on that each of them is drawn: every text is scored, the best answer found."""
    score = Table(value)
    (answer,) = search(sampler, stepwise(kind="beam", n=16 * 60, width=16), score, [question()])
    assert set(exact) <= set(score.read) and len(score.read) == len(set(score.read)) == 15 + 6
    best = max(exact, key=value)
    assert tuple(answer.completion.tokens) == best and answer.score == value(best)
    assert answer.scored == sum(len(tokens) for tokens in score.read)


def test_a_narrow_beam_follows_the_best_step(sampler):
    """Scored by the sum of its tokens, a width of 1 takes the largest token at each step, and 2 ends an answer: the best is 1 1 1."""
    score = Table(lambda tokens: sum(tokens) if tokens[-1] != 2 else -1.0)
    (answer,) = search(sampler, stepwise(kind="beam", n=60, width=1), score, [question()])
    assert answer.completion.tokens == [1, 1, 1] and answer.drawn == 180
    assert answer.completion.stop == Stop.LENGTH


def test_best_of_n_is_the_best_of_its_candidates(sampler):
    """Candidates are the first n streams of a question, whatever the others are asked; the first is what the model alone answers."""
    questions = [question(i) for i in range(8)]
    score = Table(value)
    answers = search(sampler, settings(kind="best_of_n", n=5), score, questions)
    for each, answer in zip(questions, answers, strict=True):
        streams = [(slot.stream, 0) for slot in slots(each, 5)]
        drawn = sampler.extend([PREFIX] * 5, SAMPLING, torch.Generator(), streams=streams)
        assert streams[0][0] == each.stream and len(set(streams)) == 5
        best = max(drawn, key=lambda completion: value(completion.tokens))
        assert answer.completion.tokens == best.tokens
        assert answer.completion.logp == pytest.approx(best.logp, abs=1e-5)
        assert answer.drawn == sum(len(completion.tokens) for completion in drawn)
        assert answer.scored == sum(map(len, {tuple(completion.tokens) for completion in drawn}))


ALONE = [
    {"kind": "best_of_n"},
    {"kind": "beam", "width": 1, "step_tokens": 2, "separator": None},
    {"kind": "particles", "step_tokens": 2, "separator": None},
    {"kind": "particles", "step_tokens": 2, "separator": None, "choose": "sample"},
]


@pytest.mark.parametrize("fields", ALONE, ids=lambda f: "-".join(map(str, f.values())))
def test_a_single_candidate_has_the_model_s_own_bytes(fields):
    own = TorchSampler(toys.model(), stop=[2], pad=0)
    questions = [question(i, prompt) for i, prompt in enumerate([[5, 6, 7], [8, 9], [5, 6, 7]])]
    sampling = Sampling(max_tokens=9)
    alone = own.extend(
        [q.prompt for q in questions],
        sampling,
        torch.Generator(),
        entropy=True,
        streams=[(q.stream, 0) for q in questions],
    )
    searcher = Searcher(
        settings(n=1, **fields), own, None, LikelihoodScored(settings(**fields, n=1).score), entropy=True
    )
    answers = searcher.answers(questions, sampling)
    assert [answer.completion for answer in answers] == alone
    assert [(answer.drawn, answer.scored, answer.score) for answer in answers] == [
        (len(c.tokens), 0, None) for c in alone
    ]


def test_a_particle_that_is_never_resampled_is_what_the_model_draws_at_once(sampler):
    """Steps change nothing: a place's random numbers go on where they were."""
    own = TorchSampler(toys.model(), stop=[2], pad=0)
    strategy = settings(kind="particles", n=3, separator=None, step_tokens=2, resample_below=0)
    questions = [question(i, [5, 6, 7]) for i in range(4)]
    score = Table(lambda tokens: 0.5)  # all alike: the first particle is given
    answers = search(own, strategy, score, questions, Sampling(max_tokens=9))
    alone = own.extend(
        [q.prompt for q in questions],
        Sampling(max_tokens=9),
        torch.Generator(),
        streams=[(q.stream, 0) for q in questions],
    )
    for answer, completion in zip(answers, alone, strict=True):
        assert answer.completion.tokens == completion.tokens and answer.completion.stop == completion.stop
        assert answer.completion.logp == pytest.approx(completion.logp, abs=1e-5)


@pytest.mark.parametrize("kind", ["beam", "particles"])
def test_answers_of_one_step_are_best_of_n(sampler, kind):
    questions = [question(i) for i in range(6)]
    best = search(sampler, settings(kind="best_of_n", n=4), Table(value), questions)
    assert search(sampler, stepwise(kind=kind, n=4, most=1), Table(value), questions) == best


def test_paths_without_a_score_come_last_and_ties_go_to_the_first(sampler):
    questions = [question(i) for i in range(10)]
    unread = Table(lambda tokens: math.nan if len(tokens) == LENGTH else 0.0)
    answers = search(sampler, settings(kind="best_of_n", n=4), unread, questions)
    for each, answer in zip(questions, answers, strict=True):
        drawn = sampler.extend(
            [PREFIX] * 4, SAMPLING, torch.Generator(), streams=[(slot.stream, 0) for slot in slots(each, 4)]
        )
        scored = [c for c in drawn if len(c.tokens) < LENGTH]
        assert answer.completion.tokens == (scored or drawn)[0].tokens and (answer.score is None) == (not scored)


def test_a_prompt_that_fills_the_context_gets_no_answer_and_a_long_one_a_short_one():
    own = TorchSampler(toys.model("gpt2"), stop=[2], pad=0)
    questions = [question(0, [5] * 128), question(1, [5] * 125), question(2, [5, 6])]
    strategy = settings(kind="particles", n=3, separator=None, step_tokens=1)
    answers = search(own, strategy, LikelihoodScored(strategy.score), questions, Sampling(max_tokens=6))
    assert answers[0].completion.stop == Stop.ERROR and answers[0].drawn == 0
    assert len(answers[1].completion.tokens) <= 3 and len(answers[2].completion.tokens) > 0


def test_equal_candidates_are_refused(sampler):
    with pytest.raises(RecipeError, match="decoded greedily, so all 3 would be equal"):
        search(sampler, settings(kind="best_of_n", n=3), Table(value), [question()], Sampling(temperature=0))


def steps_of(texts, separator):
    """Where the steps of an answer end, by its tokens' texts: a loop in plain Python. The last one is the rest."""
    ends, step = [], ""
    for place, text in enumerate(texts):
        step += text
        if separator in step and step[: step.rindex(separator)].strip():
            ends.append(place + 1)
            step = ""
    return ends if ends and ends[-1] == len(texts) else [*ends, len(texts)]


@pytest.mark.parametrize("separator", ["a", "bc", "\n\n"])
def test_a_step_ends_with_the_token_that_completes_the_separator(separator):
    tokenizer = train_tokenizer("char", 64, ["abc\n"])
    own = TorchSampler(toys.model(vocab=len(tokenizer)), stop=[], pad=tokenizer.pad_token_id)
    search_settings = settings(kind="particles", n=2, separator=separator, most=5)
    stop = own.stop.tolist()
    pausing = TorchSampler(own.model, stop=[*stop, *pause_ids(tokenizer, separator)], pad=own.pad)
    drawer = Drawer(
        own, pausing, stop, lambda ids: chat.completion_text(tokenizer, ids), search_settings, entropy=False
    )
    ended = 0
    for number in range(5):
        asked = question(number, [tokenizer.bos_token_id or 3, 4])
        path, slot = Path(asked), slots(asked, 1)[0]
        ends = []
        while path.stop is None:
            drawer.step([(path, slot)], Sampling(max_tokens=60, temperature=30.0))
            ends.append(len(path.tokens))
        wanted = steps_of([chat.completion_text(tokenizer, [token]) for token in path.tokens], separator)
        assert ends[:4] == wanted[:4] and len(ends) == min(5, len(wanted)) and ends[-1] == len(path.tokens)
        ended += len(ends) > 1
    assert ended > 1
