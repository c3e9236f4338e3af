"""Scores: unbiased, with honest intervals, and the same as lm-eval's own HFLM gives."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from evaluation import harness, named_files, programs, statistics
from evaluation.documents import questions
from evaluation.model import SamplerLM, load
from evaluation.searching import SearchedLM
from pipelines.base.errors import RecipeError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import generator
from pipelines.engine.models import PLAIN_TEMPLATE, save_model, stop_ids, train_tokenizer
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.settings import Evaluate


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_mean_over_all_draws(right, data):
    k = data.draw(st.integers(1, len(right)))
    every = [any(c) for c in combinations(right, k)]
    assert statistics.pass_at_k(len(right), sum(right), k) == pytest.approx(sum(every) / len(every))


def test_paired_difference_is_narrower_than_two_intervals():
    draw = np.random.default_rng(2)
    hard = draw.random(200)
    first, second = hard, np.clip(hard + 0.05 + 0.02 * draw.standard_normal(200), 0, 1)
    value, low, high = statistics.paired_difference(first.tolist(), second.tolist())
    assert low < value < high and low > 0.03 and high - low < 0.02
    with pytest.raises(ValueError, match="paired comparison of 2 and 3"):
        statistics.paired_difference([0, 1], [0, 1, 1])


def test_summary_of_known_answers():
    made = statistics.summarise([[1, 0, 0, 1], [0, 0, 0, 0]], [["a", "b", "c", "a"], ["x"] * 4], [[3] * 4, [5] * 4])
    assert made["avg@4"]["value"] == made["pass@1"]["value"] == 0.25
    assert made["pass@4"]["value"] == 0.5 and made["maj@4"]["value"] == 0.5
    assert made["pass@2"]["value"] == pytest.approx((1 - 1 / 6) / 2)
    assert made["mean_length"]["value"] == 4 and made["pass@1"]["n"] == 2


@pytest.fixture(scope="module")
def pair():
    texts = [q for _, q in questions({"tasks": [{"name": "palindromes"}]})]
    tokenizer = train_tokenizer("char", 128, [*texts, "0123456789 .#:QuestionAnswer\n"])
    assert tokenizer.chat_template == PLAIN_TEMPLATE
    return toys.model("llama", len(tokenizer)), tokenizer


def scores(lm, tasks, settings):
    metrics, samples = harness.evaluate(lm, tasks, settings.tasks[0], settings)
    return metrics, samples


def test_same_numbers_as_hflm(pair):
    """Greedy generation: answers token for token, scores digit for digit."""
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = pair
    greedy = {"do_sample": False, "temperature": 0.0, "max_gen_toks": 12, "until": ["z"]}
    settings = Evaluate(tasks=[{"name": "palindromes", "limit": 25, "samples": 1, "sampling": greedy}])
    tasks = harness.manager(settings)
    ours = scores(SamplerLM(model, tokenizer, batch_size=8), tasks, settings)
    theirs = scores(HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8), tasks, settings)
    assert [s["resps"] for s in ours[1]["palindromes"]] == [s["resps"] for s in theirs[1]["palindromes"]]
    cut = ours[0]["palindromes"].pop("truncated_share")  # lm-eval's own sampler says of no answer whether it was cut
    assert ours[0] == theirs[0] and cut["n"] == 25


@pytest.mark.parametrize("samples", [1, 2])
def test_lm_evals_own_sampler_says_which_answers_were_cut(pair, samples):
    """A setting that our sampler does not know, at a value that changes nothing: the same answers, and the same ones cut."""
    greedy = {"do_sample": False, "temperature": 0.0, "max_gen_toks": 40, "until": ["z"]}
    made = []
    for more in ({}, {"repetition_penalty": 1.0}):
        task = {"name": "palindromes", "limit": 25, "samples": samples, "sampling": greedy | more}
        settings = Evaluate(tasks=[task])
        made.append(scores(SamplerLM(*pair, batch_size=8), harness.manager(settings), settings))
    (ours, our_log), (theirs, their_log) = made
    assert [s["resps"] for s in our_log["palindromes"]] == [s["resps"] for s in their_log["palindromes"]]
    assert ours["palindromes"]["truncated_share"] == theirs["palindromes"]["truncated_share"]
    cut = [s["truncated_share"] for s in our_log["palindromes"]]
    assert cut == [s["truncated_share"] for s in their_log["palindromes"]] and 0 < sum(cut) < 25


@pytest.mark.parametrize("kind", [SamplerLM, SearchedLM])
def test_a_checkpoint_computes_in_the_dtype_of_the_recipe(pair, tmp_path, kind):
    save_model(*pair, tmp_path, {})
    settings, sampling = Evaluate(tasks=[{"name": "palindromes", "limit": 4, "samples": 1}]), Sampling(max_tokens=4)
    tasks, logp = harness.manager(settings), {}
    for dtype in ("float32", "bfloat16"):
        lm = load(str(tmp_path), Model(path=str(tmp_path), dtype=dtype), kind=kind, batch_size=8)
        training = TorchSampler(lm.model, stop=stop_ids(*pair), pad=lm.sampler.pad, dtype=dtype)
        prompt = [lm.tok_encode("aba")]
        own, same = (s.extend(prompt, sampling, generator(s.device, 0, 1)) for s in (lm.sampler, training))
        assert own == same
        logp[dtype] = own[0].logp
        assert len(scores(lm, tasks, settings)[1]["palindromes"]) == 4
    assert logp["float32"] != logp["bfloat16"]


def test_repeats_are_independent_and_reproducible(pair):
    settings = Evaluate(tasks=[{"name": "palindromes", "limit": 5, "samples": 4}])
    tasks = harness.manager(settings)
    one, two = (scores(SamplerLM(*pair, batch_size=16, seed=3), tasks, settings)[1]["palindromes"] for _ in range(2))
    answers = [s["filtered_resps"][0] for s in one]
    assert answers == [s["filtered_resps"][0] for s in two]
    assert all(len(a) == 4 for a in answers) and any(len(set(a)) > 1 for a in answers)


@pytest.mark.slow
def test_unknown_task_is_named():
    with pytest.raises(RecipeError, match=r"no lm-eval task called 'palindrome'\. Did you mean 'palindromes'"):
        harness.manager(
            Evaluate(tasks=[{"name": "a", "benchmark": "palindrome"}, "palindromes"], include=str(harness.BENCHMARKS))
        )


@pytest.mark.parametrize(
    "name",
    [
        name for name in harness.own_tasks() if name not in (*programs.TASKS, *named_files.BENCHMARKS)
    ],  # theirs have tests of their own
)
def test_every_shipped_gold_answer_verifies_itself(name):
    from pipelines import verifiers

    rows = [json.loads(line) for line in (harness.BENCHMARKS / name / "test.jsonl").read_text().splitlines()]
    assert len(rows) >= 100 and len({r["question"] for r in rows}) == len(rows)
    for row in rows:
        if "choices" in row:
            assert len(set(row["choices"])) == len(row["choices"]) and 0 <= row["gold"] < len(row["choices"])
            continue
        info = json.loads(row["info"]) if row["info"] else {}
        assert verifiers.verify(row["verifier"], row["answer"], row["answer"], info).correct


def test_a_benchmark_is_asked_once_per_mode(pair, monkeypatch):
    """Each label sees its own system message and start of the answer; scores, logs and tokens are filed under it."""
    modes = [
        {"name": "free", "benchmark": "palindromes"},
        {"name": "direct", "benchmark": "palindromes", "system": "abc", "prefill": "ba ", "against": "free"},
        {"name": "listed", "benchmark": "palindromes", "system": "abc"},
    ]
    settings = Evaluate(tasks=[{**mode, "limit": 3, "samples": 2} for mode in modes], bootstrap=100)
    tasks, lm = harness.manager(settings), SamplerLM(*pair, batch_size=16)
    lm.system_prompt = "c"
    prompts: list[str] = []
    extend = lm.sampler.extend

    def recorded(prefixes, *arguments, **options):
        prompts.extend(lm.tokenizer.decode(ids) for ids in prefixes)
        return extend(prefixes, *arguments, **options)

    monkeypatch.setattr(lm.sampler, "extend", recorded)
    texts, metrics = {}, {}
    for task in settings.tasks:
        task_metrics, samples = harness.evaluate(lm, tasks, task, settings)
        assert list(task_metrics) == list(samples) == [task.name] and len(samples[task.name]) == 3
        metrics |= task_metrics
        texts[task.name], prompts[:] = list(prompts), []
    assert all("abc" not in text and text.endswith("<|assistant|>") for text in texts["free"])
    assert all("<|system|>c\n\nabc" in text and text.endswith("<|assistant|>ba ") for text in texts["direct"])
    assert [text + "ba " for text in texts["listed"]] == texts["direct"]
    assert "mean_tokens" not in metrics["free"] and metrics["direct"]["mean_tokens"]["n"] == 3
    drawn = [n for lengths in lm.drawn.values() for n in lengths]
    assert len(drawn) == 6 and metrics["listed"]["mean_tokens"]["value"] == sum(drawn) / 6
    assert list(questions(settings.model_dump())) == list(questions({"tasks": [{"name": "palindromes"}]}))


def test_thoughts_are_tokens_of_an_answer_though_lm_eval_drops_them(pair, monkeypatch):
    from pipelines.contract.rollout import Completion
    from pipelines.data.records import Stop

    lm = SamplerLM(*pair, batch_size=16)
    drawn = lm.tokenizer("abc</think>ba", add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(
        lm.sampler, "extend", lambda prefixes, *_, **__: [Completion(drawn, [], Stop.END)] * len(prefixes)
    )
    monkeypatch.setattr("evaluation.model.completion_text", lambda *_: "abc</think>ba")
    settings = Evaluate(tasks=[{"name": "palindromes", "limit": 2, "samples": 2}], bootstrap=100)
    metrics, samples = scores(lm, harness.manager(settings), settings)
    assert samples["palindromes"][0]["resps"][0] == ["ba", "ba"]
    assert metrics["palindromes"]["mean_length"]["value"] == 2
    assert metrics["palindromes"]["mean_tokens"]["value"] == len(drawn) > 2


def test_a_mode_needs_a_chat_template(pair):
    import copy

    model, tokenizer = pair
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = None
    task = {"name": "mode", "benchmark": "palindromes", "prefill": "<think>"}
    settings = Evaluate(tasks=[task])
    with pytest.raises(RecipeError, match=r"tasks\.mode: `system` and `prefill` go through the chat template"):
        scores(SamplerLM(model, plain, batch_size=8), harness.manager(settings), settings)
    with pytest.raises(ValueError, match="mode: `system` and `prefill` go through the chat template"):
        Evaluate(tasks=[{**task, "chat": False}])
    with pytest.raises(ValueError, match="mode: episodes of an environment have no `benchmark`"):
        Evaluate(tasks=[{**task, "environment": {"task": "frozen_lake"}}])
    with pytest.raises(ValueError, match=r"mode\.prefill: episodes of several turns have none"):
        Evaluate(tasks=[{"name": "mode", "prefill": "x", "environment": {"task": "frozen_lake"}}])


def test_a_tasks_own_start_of_the_answer_is_not_doubled(pair, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "ab", "a": "ba"}) + "\n")
    (tmp_path / "own_prefix.yaml").write_text(
        f"task: own_prefix\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "output_type: generate_until\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\ngen_prefix: 'So '\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    settings = Evaluate(tasks=[{"name": "own_prefix", "prefill": "<think>"}], include=str(tmp_path))
    with pytest.raises(RecipeError, match=r"own_prefix\.prefill: own_prefix has a `gen_prefix` of its own"):
        scores(SamplerLM(*pair, batch_size=8), harness.manager(settings), settings)


def test_foreign_tasks_keep_their_own_metrics(pair, tmp_path):
    """A multiple-choice YAML of the user's: lm-eval's accuracy, with an interval from its standard error."""
    rows = [{"q": f"{i}+{i}=", "choices": [str(2 * i), str(2 * i + 1)], "gold": 0} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "tiny_choice.yaml").write_text(
        f"task: tiny_choice\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "output_type: multiple_choice\ntest_split: test\ndoc_to_text: '{{q}}'\ndoc_to_choice: '{{choices}}'\n"
        "doc_to_target: gold\nmetric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    settings = Evaluate(tasks=["tiny_choice"], include=str(tmp_path))
    metrics, samples = scores(SamplerLM(*pair, batch_size=8), harness.manager(settings), settings)
    cell = metrics["tiny_choice"]["acc"]
    assert cell["n"] == 20 and 0 <= cell["value"] <= 1 and cell["low"] < cell["value"] < cell["high"]
    assert cell["value"] == sum(s["acc"] for s in samples["tiny_choice"]) / 20
    assert [t for t, _ in questions(settings.model_dump())] == ["tiny_choice"] * 20
