"""Which checkpoint is evaluated, and which one it is compared with."""

from __future__ import annotations

import json
import signal

import numpy as np
import psutil
import pytest
import torch
import toys
import vision_models
from children import alive, wait_until
from rank_threads import in_ranks
from ranks import run_stage, start_stage
from stand_in import StandIn

from evaluation import __main__, harness, run
from evaluation.documents import questions
from pipelines.base.errors import RecipeError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.data import thumbnails
from pipelines.data.images import IMAGES
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report


def job(checkpoints, path=None, inputs=("sft", "rlvr")):
    return {
        "settings": {"model": {"path": path}}, "checkpoints": checkpoints, "base_in": "sft",
        "inputs": {name: f"/runs/{name}" for name in inputs},
    }  # fmt: skip


def test_checkpoints_come_from_their_own_stages_in_the_order_that_is_asked_for():
    assert list(run.checkpoints_of(job(["base", "sft", "rlvr"])).items()) == [
        ("base", "/runs/sft/base"),
        ("sft", "/runs/sft/model"),
        ("rlvr", "/runs/rlvr/model"),
    ]
    assert run.checkpoints_of(job(["base", "rlvr"], "org/model")) == {"base": "org/model", "rlvr": "/runs/rlvr/model"}
    assert run.checkpoints_of(job(["base", "sft", "rlvr"], inputs=("rlvr",))) == {"rlvr": "/runs/rlvr/model"}


def test_questions_with_images_leave_pictures_of_them(tmp_path):
    mark = IMAGES.add(vision_models.picture(20, 16, 91))
    for name, text in (("plain", "Which?"), ("seen", f"{mark}Which?")):
        run._write(
            tmp_path / f"{name}.jsonl", [{"doc": {"prompt": [{"role": "user", "content": text}]}}], tmp_path / name
        )
    assert not (tmp_path / "plain").exists() and (tmp_path / "seen" / thumbnails.FILE).exists()


def test_differences_are_of_neighbours_later_minus_earlier():
    settings = Evaluate(tasks=["palindromes"], bootstrap=200)
    scores = {"t": {"base": [0.0, 0.5, 0.0], "sft": [0.5, 1.0, 0.5], "rlvr": [0.25, 0.75, 0.25]}}
    found = run._differences(scores, [("base", "sft"), ("sft", "rlvr")], settings)["t"]
    assert {k: v["value"] for k, v in found.items()} == {"base → sft": 0.5, "sft → rlvr": -0.25}
    assert all(v["n"] == 3 for v in found.values())


def test_a_task_against_another_is_paired_within_a_checkpoint():
    settings = Evaluate(tasks=["plain", {"name": "tools", "against": "plain"}], bootstrap=200)
    scores = {"plain": {"sft": [0.0, 0.5], "rlvr": [0.0, 0.25]}, "tools": {"sft": [0.5, 0.5], "rlvr": [1.0, 1.0]}}
    found = run._between_tasks(scores, settings)
    assert list(found) == ["tools vs plain"]
    assert {k: v["value"] for k, v in found["tools vs plain"].items()} == {"sft": 0.25, "rlvr": 0.875}
    scores["plain"]["sft"].append(1.0)
    with pytest.raises(RecipeError, match="plain asks 3 questions and tools 2"):
        run._between_tasks(scores, settings)
    for other in ("other", "tools"):
        with pytest.raises(ValueError, match=r"tools\.against: no other task is called"):
            Evaluate(tasks=["plain", {"name": "tools", "against": other}])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Results of two checkpoints that answer differently: random weights, and the same negated."""
    out = tmp_path_factory.mktemp("evaluated")
    tokenizer = train_tokenizer("char", 128, [q for _, q in questions({"tasks": [{"name": "palindromes"}]})])
    model = toys.model("llama", len(tokenizer))
    for name in ("base", "sft"):
        save_model(model, tokenizer, out / name, {"stage": name})
        with torch.no_grad():
            model.lm_head.weight.neg_()
    choices = {"name": "last_sentence", "limit": 12, "chat": False}
    settings = Evaluate(tasks=[{"name": "palindromes", "limit": 12, "samples": 4}, choices], batch_size=64)
    checkpoints = {name: str(out / name) for name in ("base", "sft")}
    (out / "report").mkdir()
    settings_of_model = Model(path=checkpoints["sft"])
    guided = [{"name": f"sft-w{w}", "model": "sft", "base": "base", "weight": float(w)} for w in (0, 1, 2)]
    pairs = [["base", "sft"], ["sft", "sft-w2"]]
    flat = run.run(
        settings, settings_of_model, checkpoints=checkpoints, out=out, report=Report(out / "w"), seed=0, differences=pairs,
        guided=guided,
    )  # fmt: skip
    return out, flat


@pytest.mark.slow
def test_guided_columns_hold_what_their_mixture_answers_and_the_last_column_is_the_last_model(evaluated):
    out, flat = evaluated
    body = json.loads((out / "results.json").read_text())
    assert list(body["evaluation"]) == ["base", "sft-w0", "sft-w1", "sft-w2", "sft"]
    assert body["guided"]["sft-w2"] == {"model": "sft", "base": "base", "weight": 2.0}

    def answers(column, task):
        return (out / "samples" / column / f"{task}.jsonl").read_text()

    assert answers("sft-w0", "palindromes") == answers("base", "palindromes")
    assert answers("sft-w1", "palindromes") == answers("sft", "palindromes") != answers("sft-w2", "palindromes")
    for column, alone in (("sft-w0", "base"), ("sft-w1", "sft")):
        given, own = (
            [
                [choice[0] for choice in json.loads(line)["filtered_resps"]]
                for line in answers(name, "last_sentence").splitlines()
            ]
            for name in (column, alone)
        )
        assert np.allclose(np.array(given, dtype=float), np.array(own, dtype=float), rtol=1e-4, atol=1e-3)
    gain = flat["sft-w2/palindromes/pass@1"] - flat["sft/palindromes/pass@1"]
    assert body["differences"]["palindromes"]["sft → sft-w2"]["value"] == pytest.approx(gain)


def test_every_number_is_of_the_checkpoint_it_is_filed_under(evaluated):
    out, flat = evaluated
    body = json.loads((out / "results.json").read_text())
    for name in ("base", "sft"):
        rows = [json.loads(line) for line in (out / "samples" / name / "palindromes.jsonl").read_text().splitlines()]
        assert len(rows) == 12 and all(len(r["scores"]) == 4 for r in rows)
        mean = sum(sum(s >= 1 for s in r["scores"]) for r in rows) / 48
        assert body["evaluation"][name]["palindromes"]["pass@1"]["value"] == pytest.approx(mean)
        assert flat[f"{name}/palindromes/pass@1"] == pytest.approx(mean)
    untrained, trained = ((out / "samples" / name / "palindromes.jsonl").read_text() for name in ("base", "sft"))
    assert untrained != trained
    difference = body["differences"]["palindromes"]["base → sft"]["value"]
    assert difference == pytest.approx(flat["sft/palindromes/pass@1"] - flat["base/palindromes/pass@1"])


def test_the_share_of_cut_answers_is_that_of_answers_without_an_end(evaluated):
    """Random weights seldom end; every question's log says its share, the task their mean, and a task of choices nothing."""
    out, flat = evaluated
    body = json.loads((out / "results.json").read_text())["evaluation"]
    for name in ("base", "sft"):
        rows = [json.loads(line) for line in (out / "samples" / name / "palindromes.jsonl").read_text().splitlines()]
        assert all(row["truncated_share"] in (0, 0.25, 0.5, 0.75, 1) for row in rows)
        mean = sum(row["truncated_share"] for row in rows) / len(rows)
        assert flat[f"{name}/palindromes/truncated_share"] == pytest.approx(mean)
        assert "truncated_share" not in body[name]["last_sentence"]
    assert flat["base/palindromes/truncated_share"] != flat["sft/palindromes/truncated_share"]


def test_a_multiple_choice_task_s_accuracy_is_paired_too(evaluated):
    out, flat = evaluated
    cell = json.loads((out / "results.json").read_text())["differences"]["last_sentence"]["base → sft"]
    base, sft = (flat[f"{name}/last_sentence/acc"] for name in ("base", "sft"))
    assert base != sft and cell["n"] == 12
    assert cell["value"] == pytest.approx(sft - base) and cell["low"] < cell["value"] < cell["high"]


def test_an_answer_s_score_is_its_verifier_s():
    from evaluation import scoring

    doc = {"verifier": "exact", "answer": "aba", "info": ""}
    made = scoring.process_results(doc, [["aba", "ab", "aba", "x"]])
    assert made["scores"] == [1.0, 0.0, 1.0, 0.0] and made["exact_match"] == 0.5
    assert scoring.mean_of_lists([[1.0, 0.0], [1.0]]) == 0.75
    assert scoring.every_answer([["a", "b"], ["c"]], [{}, {}]) == [["a", "b"], ["c"]]


def test_lengths_are_tokens():
    from evaluation import harness

    tokenizer = train_tokenizer("char", 64, ["abc"])
    samples = [
        {"scores": [1.0, 0.0], "filtered_resps": [["abca", "ab"]]},
        {"scores": [1.0, 1.0], "filtered_resps": [["c", "c"]]},
    ]
    assert (
        harness._sampled_metrics(samples, tokenizer, Evaluate(tasks=["palindromes"], bootstrap=100))["mean_length"][
            "value"
        ]
        == 2.0
    )


def test_a_foreign_mean_over_questions_has_the_interval_of_all_means():
    """lm-eval's standard error of no correct answer of 250 is 0: nothing would have been uncertain."""
    rows = [{"acc": 0.0, "f1": 0.0, "filter": "none"} for _ in range(250)]
    told = harness._mean_metrics({"alias": "x", "acc,none": 0.0, "acc_stderr,none": 0.0, "f1,none": 0.4}, rows, 0.95)
    assert told == {"acc": {"value": 0.0, "low": 0.0, "high": pytest.approx(0.0151, abs=1e-4), "n": 250}}
    both = [{"exact_match": float(i < 3), "filter": kind} for kind in ("strict", "loose") for i in range(20)]
    filtered = harness._mean_metrics({"exact_match,strict": 0.15, "exact_match,loose": 0.15}, both, 0.95)
    assert {name: cell["n"] for name, cell in filtered.items()} == {
        "exact_match (strict)": 20,
        "exact_match (loose)": 20,
    }


def test_a_foreign_metric_s_interval_is_z_standard_errors():
    from evaluation import harness

    made = harness._reported_metrics(
        {"acc,none": 0.5, "acc_stderr,none": 0.1, "f1,strict": 0.25, "alias": "x"}, 40, 0.95
    )
    assert made["acc"] == pytest.approx({"value": 0.5, "low": 0.304, "high": 0.696, "n": 40}, abs=1e-4)
    assert made["f1 (strict)"] == {"value": 0.25, "low": 0.25, "high": 0.25, "n": 40} and set(made) == {
        "acc",
        "f1 (strict)",
    }


DRAWN = {"do_sample": True, "temperature": 0.9, "max_gen_toks": 6}
BY_LM_EVAL = {"do_sample": False, "repetition_penalty": 1.2, "max_gen_toks": 3}
TASKS = [
    {"name": "palindromes", "limit": 6, "samples": 3, "sampling": DRAWN},
    {"name": "odd", "benchmark": "palindromes", "limit": 2, "samples": 1, "sampling": BY_LM_EVAL},
    {"name": "last_sentence", "limit": 8, "chat": False},
    {"name": "lake", "samples": 2, "environment": {"task": "frozen_lake", "size": 3, "max_turns": 2, "max_tokens": 6}},
]
"""Answers of our sampler and of lm-eval itself, choices, episodes."""


def work_folder(folder, models, **settings):
    """A work folder of the stage as the task layer writes it."""
    (folder / "out" / "report").mkdir(parents=True)
    body = {
        "stage": "evaluate", "seed": 3, "threads": 1, "checkpoints": ["base", "sft"], "differences": [["base", "sft"]],
        "settings": {
            "evaluate": {"tasks": TASKS, "batch_size": 4, "bootstrap": 100, **settings},
            "model": {"path": str(models / "base")},
        },
        "inputs": {"sft": str(models)},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(body))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of one tokenizer, in `base` and in `model`."""
    folder = tmp_path_factory.mktemp("models")
    texts = ["".join(map(chr, range(32, 127))), "\n"]
    tokenizer = train_tokenizer("char", 200, texts, tools=True)
    model = toys.model("llama", len(tokenizer))
    for name in ("base", "model"):
        save_model(model, tokenizer, folder / name, {"stage": "sft"})
        with torch.no_grad():
            model.lm_head.weight.neg_()
    return folder


def evaluated_by(ranks, folder, models):
    """Scores of both models, and of one with guidance and with a search."""
    job = json.loads((work_folder(folder, models) / "job.json").read_text())
    settings = Evaluate.model_validate(job["settings"]["evaluate"])
    shown = {"checkpoints": run.checkpoints_of(job), "report": Report(folder), "seed": 3, "ranks": ranks}
    guided = [{"name": "sft-w2", "model": "sft", "base": "base", "weight": 2.0}]
    model = Model(path=str(models / "base"))
    flat = run.run(settings, model, out=folder / "out", **shown)
    best = Evaluate.model_validate(
        {
            **job["settings"]["evaluate"],
            "tasks": TASKS[:1],
            "search": [{"kind": "best_of_n", "n": 2, "score": "likelihood"}],
        }
    )
    searched = [{"name": "sft-best2", "model": "sft", "strategy": 0, "scorer": None}]
    (folder / "out/searched/report").mkdir(parents=True)
    return flat | run.run(best, model, out=folder / "out/searched", guided=guided, searched=searched, **shown)


GREEDY = [
    {
        "name": "palindromes",
        "limit": 6,
        "samples": 1,
        "sampling": {"temperature": 0, "max_gen_toks": 12, "until": ["z"]},
    },
    {"name": "last_sentence", "limit": 8, "chat": False},
    {
        "name": "lake",
        "samples": 1,
        "environment": {"task": "frozen_lake", "size": 3, "max_turns": 2, "max_tokens": 6, "temperature": 0},
    },
]


@pytest.mark.slow
def test_servers_give_the_scores_of_our_own_decoding_at_temperature_0(models, tmp_path):
    """Each model with its own weights; choices are read here, because a server reports no probabilities of given texts to lm-eval."""
    server = StandIn(tmp_path / "served")
    sampler = {"url": server.url, "weights": str(tmp_path / "served")}
    results = {}
    for name, more in (("own", {}), ("served", {"sampler": sampler})):
        folder = work_folder(tmp_path / name, models, tasks=GREEDY, **more)
        job = json.loads((folder / "job.json").read_text())
        settings = Evaluate.model_validate(job["settings"]["evaluate"])
        report = Report(folder)
        shown = {"checkpoints": run.checkpoints_of(job), "report": report, "seed": 3}
        run.run(settings, Model(path=str(models / "base")), out=folder / "out", **shown)
        report.close()
        results[name] = {path: about for path, about in contents(folder / "out").items() if "report" not in path}
    server.shutdown()
    assert results["own"] == results["served"]
    answered = [body for path, body in zip(server.calls, server.bodies, strict=True) if "logprobs" in body]
    assert len(answered) >= 2 * (6 + 3) and server.calls.count("/collective_rpc") == 2
    assert not list((tmp_path / "served.work").glob("served-*"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"guidance": {"base": "base", "weight": 2}}, "leave `sampler` out, or `guidance`"),
        ({"search": [{"kind": "best_of_n", "n": 2, "score": "likelihood"}]}, "leave `sampler` out, or `search`"),
        ({"processes": 2}, "or set processes: 1"),
    ],
)
def test_what_servers_cannot_evaluate_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Evaluate(tasks=["palindromes"], sampler={"serve": True}, **changes)


def test_lm_eval_s_own_decoding_is_refused_beside_servers(tmp_path):
    more = ["evaluate.sampler={serve: true}", "evaluate.tasks=[{name: palindromes, sampling: {num_beams: 2}}]"]
    with pytest.raises(RecipeError, match=r"num_beams.*is not known to our sampler, which alone .* asks servers"):
        check(read_recipe(toys.recipe(tmp_path), more))


@pytest.mark.slow
def test_any_number_of_ranks_gives_the_same_bytes(models, tmp_path):
    alone = evaluated_by(None, tmp_path / "1", models)
    for count in (2, 3):
        folder = tmp_path / str(count)
        flat = in_ranks(count, lambda ranks, folder=folder: evaluated_by(ranks, folder, models))
        assert flat == alone
        assert contents(folder / "out") == contents(tmp_path / "1" / "out")
    lines = (tmp_path / "1/out/samples/sft/palindromes.jsonl").read_text().splitlines()
    drawn = {answer for line in lines for answer in json.loads(line)["resps"][0]}
    assert len(lines) == 6 and len(drawn) > 9, "18 answers, from 5 batches with random numbers of their own"


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_end_as_one_and_with_one_of_them(models, tmp_path):
    """A rank that is killed ends the stage, and what two write is what one writes."""
    longer = [{**TASKS[0], "limit": 500, "samples": 20, "sampling": {**DRAWN, "max_gen_toks": 60}}]
    killed = work_folder(tmp_path / "killed", models, processes=2, tasks=longer)
    stage = start_stage("evaluation", killed)
    wait_until(lambda: (killed / "progress.json").exists() or stage.poll() is not None, 120)
    ranks = sorted(psutil.Process(stage.pid).children(), key=lambda each: each.create_time())
    ranks[1].kill()
    stage.communicate(timeout=30)
    assert stage.returncode == -signal.SIGKILL and not (killed / "error.json").exists()
    wait_until(lambda: not alive(rank.pid for rank in ranks))
    two = work_folder(tmp_path / "two", models, processes=2)
    run_stage("evaluation", two)
    job, alone = json.loads((two / "job.json").read_text()), work_folder(tmp_path / "alone", models)
    metrics = __main__.work(job, alone)
    assert (
        contents(two / "out") == contents(alone / "out") and json.loads((two / "metrics.json").read_text()) == metrics
    )
    assert not list(two.glob("rank*")) and json.loads((two / "progress.json").read_text())["done"] == 2 * len(TASKS)
