"""Log-likelihoods of continuations beside lm-eval's HFLM, whatever the requests share."""

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from scripted import tokenizer

from evaluation import likelihoods
from evaluation.model import SamplerLM
from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine.policy import Policy

FEW_SHOT = "ab cd ef gh ij kl mn op qr st uv wx yz " * 2
REQUESTS = [
    *(
        (FEW_SHOT + question, choice)
        for question in ("one?", "two plus?", "o")
        for choice in (" a", " b", " abc", " abd")
    ),
    *(("zz top", choice) for choice in (" x", " y")),
    ("q", " alone"),
    (FEW_SHOT + "one?", " a"),
]


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt2"])
def pair(request):
    """Full attention, sliding windows with capped logits, learned positions."""
    return toys.model(request.param, len(tokenizer())), tokenizer()


def asked(lm, requests, **changes):
    return lm.loglikelihood([Instance("loglikelihood", {}, each, 0) for each in requests], **changes)


def same(ours, theirs):
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=2e-4)


@pytest.mark.parametrize("rows", [1, 8, 256])
def test_the_numbers_of_hflm(pair, rows):
    model, words = pair
    theirs = asked(HFLM(pretrained=model, tokenizer=words, batch_size=4), REQUESTS)
    same(asked(SamplerLM(model, words, batch_size=rows), REQUESTS), theirs)
    assert len({round(value, 4) for value, _ in theirs}) > 12


def test_bfloat16_is_that_of_hflm_in_mixed_precision(pair):
    model, words = pair
    exact = asked(HFLM(pretrained=model, tokenizer=words, batch_size=4), REQUESTS)
    theirs = asked(HFLM(pretrained=model, tokenizer=words, batch_size=4, mixed_precision_dtype="bfloat16"), REQUESTS)
    ours = asked(SamplerLM(model, words, batch_size=8, dtype="bfloat16"), REQUESTS)
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=0.1)
    assert max(abs(a - b) for (a, _), (b, _) in zip(ours, exact, strict=True)) > 1e-3


def test_weights_are_rounded_once_for_all_questions(pair, monkeypatch):
    model, words = pair
    lm = SamplerLM(model, words, batch_size=8, dtype="bfloat16")
    ids = [words(context, add_special_tokens=False)["input_ids"] for context, _ in REQUESTS]
    rows = [([*context, 5, 6], 2) for context in ids]
    policy = Policy(model, Sampling(), dtype="bfloat16")
    by_autocast = {i: value for i, value, _ in likelihoods.log_likelihoods(policy, rows, 64)}
    rounded = []
    real = lm.sampler.weights._round, lm.sampler.weights._pack
    for name, function in zip(("_round", "_pack"), real, strict=True):
        monkeypatch.setattr(
            lm.sampler.weights, name, lambda module, *rest, real=function: (rounded.append(module), real(module, *rest))
        )
    ours = lm._loglikelihood_tokens([(("", ""), context, [5, 6]) for context in ids])
    assert [value for value, _ in ours] == pytest.approx([by_autocast[i] for i in range(len(rows))], abs=0.05)
    assert len(rounded) == len(set(rounded)) > 4, "each matrix once, whatever the number of passes"


def test_the_most_probable_continuation_is_greedy(pair):
    model, words = pair
    ids = words(FEW_SHOT, add_special_tokens=False)["input_ids"]
    best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    policy = Policy(model, Sampling())
    results = {
        i: greedy
        for i, _, greedy in likelihoods.log_likelihoods(policy, [([*ids, t], 1) for t in (best, best - 1)], 64)
    }
    assert results == {0: True, 1: False}


def test_what_all_requests_share_is_computed_once(pair):
    model, words = pair
    fed = []
    hook = getattr(model, model.base_model_prefix).register_forward_pre_hook(
        lambda module, inputs, named: fed.append(tuple((inputs or [named["input_ids"]])[0].shape)), with_kwargs=True
    )
    asked(SamplerLM(model, words, batch_size=256), [each for each in REQUESTS if each[0].startswith(FEW_SHOT)])
    hook.remove()
    shared, *rest = [shape for shape in fed if shape != (1, 4)]  # the policy tries its head on four tokens
    assert shared == (1, len(words(FEW_SHOT + "o")["input_ids"]) - 1)
    assert sum(rows * width for rows, width in rest) < 40


def test_choices_that_begin_alike(pair):
    model, words = pair
    alike = [(FEW_SHOT, "abc"), (FEW_SHOT, "abd"), (FEW_SHOT, "ab")]
    same(
        asked(SamplerLM(model, words, batch_size=8), alike),
        asked(HFLM(pretrained=model, tokenizer=words, batch_size=1), alike),
    )


def test_a_group_is_never_larger_than_its_limit(pair, monkeypatch):
    model, words = pair
    whole = asked(SamplerLM(model, words, batch_size=8), REQUESTS)
    monkeypatch.setattr(likelihoods, "GROUP", 3)
    same(asked(SamplerLM(model, words, batch_size=8), REQUESTS), whole)


def test_progress_and_the_cache_of_answers(pair):
    told, kept = [], {}
    lm = SamplerLM(*pair, batch_size=8, progress=lambda done, total: told.append((done, total)))
    lm.cache_hook.add_partial = lambda kind, request, answer: kept.update({request: answer})
    answers = asked(lm, REQUESTS)
    assert told == [(i, len(REQUESTS)) for i in range(1, len(REQUESTS) + 1)]
    assert kept == dict(zip(REQUESTS, answers, strict=True))


def test_perplexity_of_a_text_in_windows(pair):
    model, words = pair
    text = [Instance("loglikelihood_rolling", {}, (FEW_SHOT * 5,), 0)]
    ours = SamplerLM(model, words, batch_size=4).loglikelihood_rolling(text)
    assert ours == pytest.approx(
        HFLM(pretrained=model, tokenizer=words, batch_size=4).loglikelihood_rolling(text), abs=2e-3
    )


def test_long_questions_are_cut_on_the_left_and_long_choices_refused(pair, caplog):
    model, words = pair
    lm, peer = SamplerLM(model, words, batch_size=4), HFLM(pretrained=model, tokenizer=words, batch_size=4)
    lm._max_length = peer._max_length = 48
    long = [("x" * 80, "ab"), ("y", "ab")]
    same(asked(lm, long), asked(peer, long))
    assert "1 of 2 questions are cut on the left" in caplog.text
    with pytest.raises(ModelError, match="a choice of 60 tokens, and the model reads at most 48"):
        asked(lm, [("x", "a" * 60)])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(4, 9), min_size=1, max_size=50), st.lists(st.integers(4, 9), min_size=1, max_size=4)),
        min_size=1, max_size=12,
    ),
    st.lists(st.integers(4, 9), max_size=60),
    st.integers(1, 200),
)  # fmt: skip
def test_every_request_as_if_it_were_alone(requests, shared, budget):
    policy = Policy(toys.model("llama", len(tokenizer())), Sampling())
    rows = [([*shared, *context, *choice], len(choice)) for context, choice in requests]
    together = {i: (value, greedy) for i, value, greedy in likelihoods.log_likelihoods(policy, rows, budget)}
    assert sorted(together) == list(range(len(rows)))
    for i, (tokens, count) in enumerate(rows):
        logits = policy.causal(torch.tensor([tokens])).logits[0, -count - 1 : -1].detach().log_softmax(-1)
        expected = logits.gather(1, torch.tensor(tokens[-count:])[:, None]).sum()
        assert together[i][0] == pytest.approx(float(expected), abs=1e-3)
        best, chosen = logits.argmax(1).tolist(), tokens[-count:]
        ties = logits.topk(2).values.diff(dim=1).abs().min() < 1e-4
        assert ties or together[i][1] == (best == chosen)
