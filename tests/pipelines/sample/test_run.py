"""The stage: what its rows hold, that they do not depend on their neighbours, and that a kill changes no byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import forks
import pytest
import torch
import toys
import vision_models
import yaml
from pydantic import ValidationError
from ranks import run_stage, start_stage
from stand_in import StandIn

from pipelines.base.errors import DataError, ModelError, RecipeError, StaleWeights
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.curate import selected
from pipelines.data import dataset, images, marks, samples
from pipelines.engine import models, server_endpoint
from pipelines.engine.chat_model import ChatModel
from pipelines.engine.policy import Policy
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.sample import run
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report
from tasks import keys


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Curated data and a random model of its tokenizer, in `data` and `model`."""
    folder = tmp_path_factory.mktemp("sample")
    recipe = toys.curated(folder, "curate.sources.0.size=60")
    tokenizer = models.load_tokenizer(folder / "data" / "tokenizer", recipe.model)
    models.save_model(models.fresh_model(recipe.model, tokenizer, 0), tokenizer, folder / "model", {"stage": "sft"})
    return folder


SETTINGS = {"k": 3, "problems": 10, "rows_per_shard": 7, "sampling": {"max_tokens": 6}}


def sampled(begun, folder, **changes):
    settings = Sample.model_validate(SETTINGS | changes)
    report = Report(folder)
    model = str(begun / "model")
    metrics = run.run(
        settings, Model(path=model), start=model, data=begun / "data", out=folder / "out", report=report, seed=5
    )
    return metrics, list(samples.read(folder / "out"))


def test_rows_hold_what_was_sampled_and_what_it_is_worth(begun, tmp_path):
    metrics, rows = sampled(begun, tmp_path)
    problems = dataset.read_split(begun / "data", "train")[:10]
    assert [(row["uid"], row["sample"]) for row in rows] == [(p.uid, i) for p in problems for i in range(3)]
    assert metrics["rows"] == 30 and samples.about(tmp_path / "out")["shards"] == 5
    assert dataset.from_row({k: rows[0][k] for k in dataset.SCHEMA}) == problems[0]
    for row in rows:
        assert len(row["completion_ids"]) == len(row["logp"]) == len(row["entropy"]) <= 6
        assert row["stop"] in ("end", "length") and row["score"] is not None and row["status"] != "unscored"
        assert set(json.loads(row["components"])) >= {"verifier"}
    assert len({tuple(row["completion_ids"]) for row in rows}) > 20


def test_the_log_ratio_is_the_difference_of_log_probs(begun, tmp_path):
    """Against the sampled model itself it is 0; against another one what transformers says, at the sampler's temperature."""
    tokenizer = models.load_tokenizer(begun / "model")
    other = models.load_model(begun / "model", Model(path=str(begun / "model")))
    with torch.no_grad():
        other.get_output_embeddings().weight.mul_(1.5)
    models.save_model(other, tokenizer, tmp_path / "other", {"stage": "sft"})
    settings = Sample.model_validate(SETTINGS | {"sampling": {"max_tokens": 6, "temperature": 0.7}})
    for reference in (begun / "model", tmp_path / "other"):
        out, model = tmp_path / f"out-{reference.name}", str(begun / "model")
        metrics = run.run(
            settings, Model(path=model), start=model, data=begun / "data", out=out, report=Report(out / "w"), seed=5,
            reference=str(reference),
        )  # fmt: skip
        rows = list(samples.read(out))
        ratios = [json.loads(row["components"])["log_ratio"] for row in rows]
        assert metrics["kl/mean"] == pytest.approx(sum(ratios) / len(ratios))
        if reference.name == "model":
            assert max(map(abs, ratios)) < 1e-4
            continue
        row = rows[4]
        start = len(row["prompt_ids"])
        with torch.no_grad():
            logits = other(torch.tensor([row["prompt_ids"] + row["completion_ids"]])).logits[0]
        logps = torch.log_softmax(logits / 0.7, -1)[start - 1 : -1].gather(
            1, torch.tensor(row["completion_ids"])[:, None]
        )
        assert ratios[4] == pytest.approx(sum(row["logp"]) - float(logps.sum()), abs=1e-3)


def test_with_guidance_rows_come_from_the_mixture_with_its_log_probs(begun, tmp_path):
    """A base whose head is negated: at weight 2 the logits are three times the model's own."""
    tokenizer = models.load_tokenizer(begun / "model", Model(path=str(begun / "model")))
    model = models.load_model(begun / "model", Model(path=str(begun / "model")))
    with torch.no_grad():
        model.model.norm.weight.neg_()
    models.save_model(model, tokenizer, tmp_path / "base", {"stage": "sft"})

    def rows(weight):
        settings = Sample.model_validate(SETTINGS | {"guidance": {"base": "cold", "weight": weight}})
        out = tmp_path / str(weight)
        own = str(begun / "model")
        run.run(
            settings, Model(path=own), start=own, data=begun / "data", out=out / "out", report=Report(out), seed=5,
            guide=str(tmp_path / "base"),
        )  # fmt: skip
        return list(samples.read(out / "out"))

    _, alone = sampled(begun, tmp_path / "alone")
    assert rows(1.0) == alone
    policy = Policy(models.load_model(begun / "model", Model(path=str(begun / "model"))), Sampling(temperature=1 / 3))
    for row in rows(2.0)[:6]:
        tokens = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        mask = torch.arange(tokens.shape[1])[None] >= len(row["prompt_ids"])
        torch.testing.assert_close(
            policy.logp(tokens, mask).logp[mask], torch.tensor(row["logp"], dtype=torch.float32), atol=2e-5, rtol=0
        )


def test_a_search_of_one_candidate_changes_nothing_and_of_several_takes_the_best(begun, tmp_path):
    _, alone = sampled(begun, tmp_path / "alone")
    single = {"kind": "beam", "n": 1, "width": 1, "step_tokens": 2, "score": "likelihood"}
    _, same = sampled(begun, tmp_path / "single", search=single)
    for row, other in zip(alone, same, strict=True):
        assert {k: v for k, v in row.items() if k != "components"} == {
            k: v for k, v in other.items() if k != "components"
        }
        assert json.loads(other["components"])["drawn_tokens"] == len(row["completion_ids"])
    metrics, best = sampled(begun, tmp_path / "best", search={"kind": "best_of_n", "n": 4, "score": "likelihood"})
    _, candidates = sampled(begun, tmp_path / "again", search={"kind": "best_of_n", "n": 4, "score": "likelihood"}, k=1)
    tokens = [[row["completion_ids"] for row in rows] for rows in (candidates, best[::3])]
    assert tokens[0] == tokens[1], "a row depends on its problem and place only"
    changed = 0
    for row, chosen in zip(alone, best, strict=True):
        components = json.loads(chosen["components"])
        assert components["search_score"] == pytest.approx(sum(chosen["logp"]), abs=1e-5)
        assert sum(chosen["logp"]) >= sum(row["logp"]) - 1e-6, "the first candidate is the row without a search"
        assert components["scored_tokens"] == 0 and components["drawn_tokens"] >= len(chosen["completion_ids"]) + 3
        assert len(chosen["entropy"]) == len(chosen["completion_ids"])
        changed += row["completion_ids"] != chosen["completion_ids"]
    assert changed > 10
    drawn = [json.loads(row["components"])["drawn_tokens"] for row in best]
    assert metrics["drawn_tokens/mean"] == pytest.approx(sum(drawn) / 30) and metrics["scored_tokens/mean"] == 0


def test_log_probs_are_the_models_own(begun, tmp_path):
    _, rows = sampled(begun, tmp_path, sampling={"max_tokens": 6, "temperature": 0.7})
    network = models.load_model(begun / "model", Model(path=str(begun / "model")))
    row = rows[4]
    ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
    with torch.no_grad():
        logps = torch.log_softmax(network(ids).logits[0] / 0.7, -1)
    start = len(row["prompt_ids"])
    for place, token in enumerate(row["completion_ids"]):
        before = logps[start + place - 1]
        assert row["logp"][place] == pytest.approx(float(before[token]), abs=1e-4)
        assert row["entropy"][place] == pytest.approx(float(-(before.exp() * before).sum()), abs=1e-4)


def test_a_reward_model_scores_the_completions_and_selects_among_them(begun, tmp_path):
    from pipelines.engine.reward_model import RewardNetwork, RewardScorer, save

    tokenizer = models.load_tokenizer(begun / "model")
    base = models.load_model(begun / "model", Model(path="x"))
    save(RewardNetwork(base, 2, seed=3, text=False), tokenizer, tmp_path / "rm", {})
    settings = Sample.model_validate(SETTINGS)
    model = str(begun / "model")
    metrics = run.run(
        settings, Model(path=model), start=model, data=begun / "data", out=tmp_path / "out", report=Report(tmp_path),
        seed=5, reward_model=str(tmp_path / "rm"),
    )  # fmt: skip
    rows = list(samples.read(tmp_path / "out"))
    scorer = RewardScorer(tmp_path / "rm", Model(path="x"), budget=1, field="f")
    rewards = [json.loads(row["components"])["reward_model"] for row in rows]
    for row, reward in list(zip(rows, rewards, strict=True))[:4]:
        alone = scorer.score([row["prompt_ids"] + row["completion_ids"]], [len(row["prompt_ids"])]).mean()
        assert reward == pytest.approx(float(alone), abs=1e-4)
    best = [max(range(i, i + 3), key=rewards.__getitem__) for i in range(0, 30, 3)]
    assert metrics["best_of_k"] == pytest.approx(sum(rows[i]["correct"] for i in best) / 10)
    assert metrics["reward_model/mean"] == pytest.approx(sum(rewards) / 30)


def test_a_row_depends_on_its_problem_and_place_only(begun, tmp_path):
    """More problems, more completions of each and other shards draw the same tokens for what they share."""
    _, few = sampled(begun, tmp_path / "few", problems=4, k=2, rows_per_shard=2)
    _, many = sampled(begun, tmp_path / "many", k=4, rows_per_shard=100)
    tokens = {(row["uid"], row["sample"]): row["completion_ids"] for row in many}
    assert all(tokens[row["uid"], row["sample"]] == row["completion_ids"] for row in few)


def job(begun, folder, **changes):
    folder.mkdir()
    (folder / "out").mkdir()
    model = Model(path=str(begun / "model"))
    body = {
        "seed": 5, "threads": 1, "settings": {"sample": SETTINGS | changes, "model": model.model_dump()}, "stage": "sample",
        "inputs": {"data": str(begun / "data")},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", "pipelines.sample", str(folder)]


@pytest.mark.slow
def test_a_kill_changes_no_byte(begun, tmp_path):
    """SIGKILL after a shard, with half of the next one on disk; then to the end."""
    more = {"problems": 40, "k": 8, "rows_per_shard": 16, "sampling": {"max_tokens": 24}}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forks.run(job(begun, whole, **more), cwd=toys.ROOT, check=True, capture_output=True)
    command = job(begun, killed, **more)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL)
    first = killed / "out" / samples.FOLDER / samples.shard_name(1)
    while not first.exists():
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    shards = sorted((killed / "out" / samples.FOLDER).glob("shard-*"))
    assert 2 <= len(shards) < 20
    before = {path: path.stat().st_mtime_ns for path in shards}
    (first.parent / f".{samples.shard_name(9)}.0badf00d").write_bytes(b"half")
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(whole / "out") == contents(killed / "out")
    assert {path: path.stat().st_mtime_ns for path in shards} == before


@pytest.mark.slow
@pytest.mark.long
def test_any_number_of_processes_writes_the_same_bytes(begun, tmp_path):
    """Three processes are killed after some shards and two go on; every shard has its metrics once."""
    more = {"problems": 30, "k": 4, "rows_per_shard": 8, "sampling": {"max_tokens": 16}}
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    forks.run(job(begun, alone, **more), cwd=toys.ROOT, check=True, capture_output=True)
    job(begun, shared, **more, processes=3)
    stage = start_stage("pipelines.sample", shared)
    written = shared / "out" / samples.FOLDER
    while not any(written.glob("shard-*")):
        assert stage.poll() is None, stage.stderr.read()
        time.sleep(0.005)
    os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()
    before = {path: path.stat().st_mtime_ns for path in written.glob("shard-*")}
    body = json.loads((shared / "job.json").read_text())
    body["settings"]["sample"]["processes"] = 2
    (shared / "job.json").write_text(json.dumps(body))
    run_stage("pipelines.sample", shared)
    assert contents(alone / "out") == contents(shared / "out")
    assert before.items() <= {path: path.stat().st_mtime_ns for path in written.glob("shard-*")}.items()
    lines = [line for line in toys.spool(shared) if line["kind"] == "metrics" and "shard/correct" in line["values"]]
    steps = [line["step"] for line in lines]
    assert len(steps) == len(set(steps)) and len(set(range(15)) - set(steps)) <= 3, "a shard each may have been killed"
    alone_values = {
        line["step"]: line["values"]["shard/length_mean"]
        for line in toys.spool(alone)
        if "values" in line and "shard/correct" in line["values"]
    }
    assert all(line["values"]["shard/length_mean"] == alone_values[line["step"]] for line in lines)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampler": {"urls": ["http://localhost:1"], "weights": "w"}}, "leave `sampler` out"),
        ({"comparisons": {"by": "score"}}, "compute no model here"),
    ],
)
def test_processes_need_a_model_to_share(fields, words):
    with pytest.raises(ValidationError, match=words):
        Sample.model_validate({"processes": 2, **fields})


def test_servers_draw_with_the_model_s_weights(begun, tmp_path, monkeypatch):
    """Two stand-ins share the prompts; one dies under way, its prompts are asked elsewhere, and no entropies are made up."""
    monkeypatch.setattr(server_endpoint, "PATIENCE", (0.01, 0.01))
    servers = [StandIn(tmp_path / "served") for _ in range(2)]
    servers[1].dies_after = 2
    asked = {"urls": [server.url for server in servers], "weights": str(tmp_path / "served")}
    metrics, rows = sampled(begun, tmp_path / "s", sampler=asked)
    assert metrics["rows"] == 30 and metrics["scored"] == 1 and "entropy/mean" not in metrics
    assert servers[0].calls.count("/v1/completions") > 5 and servers[1].dead
    network = models.load_model(begun / "model", Model(path=str(begun / "model")))
    for row in rows[:5]:
        assert row["entropy"] is None
        ids = torch.tensor([row["prompt_ids"] + row["completion_ids"]])
        with torch.no_grad():
            logps = torch.log_softmax(network(ids).logits[0], -1)
        start = len(row["prompt_ids"])
        own = [float(logps[start + place - 1][token]) for place, token in enumerate(row["completion_ids"])]
        assert row["logp"] == pytest.approx(own, abs=1e-4)
    for server in servers:
        server.shutdown()


def test_a_server_with_other_weights_is_an_error(begun, tmp_path, monkeypatch):
    monkeypatch.setattr(server_endpoint, "PATIENCE", (0.01, 0.01))
    server = StandIn(tmp_path / "served")
    network = models.load_model(begun / "model", Model(path=str(begun / "model")))
    with torch.no_grad():
        next(network.parameters()).normal_()
    network.save_pretrained(tmp_path / "served")
    tokenizer = models.load_tokenizer(begun / "model")
    tokenizer.save_pretrained(tmp_path / "served")
    server.load()
    server.deaf = True
    with pytest.raises(StaleWeights, match=r"sampler: .* old weights|sampler: .*weights"):
        sampled(begun, tmp_path / "s", sampler={"url": server.url, "weights": str(tmp_path / "served")})
    server.shutdown()


def test_a_prompt_without_room_is_unscored(begun, tmp_path):
    """The toy reads 64 positions: a longer problem gets an empty completion that nobody calls incorrect."""
    data = tmp_path / "data"
    shutil.copytree(begun / "data", data)
    problem = dataset.read_split(data, "train")[0]
    long = {"role": "user", "content": "palindrome" * 8}
    from pipelines.data.dataset import Writer

    writer = Writer(data / "train.parquet", 10)
    writer.add(problem)
    writer.add(type(problem)(**{**{k: getattr(problem, k) for k in dataset.SCHEMA}, "uid": "b", "prompt": [long]}))
    writer.close()
    model = str(begun / "model")
    out = tmp_path / "out"
    settings = Sample.model_validate(SETTINGS)
    metrics = run.run(settings, Model(path=model), start=model, data=data, out=out, report=Report(tmp_path), seed=5)
    rows = list(samples.read(out))[3:]
    assert {(row["stop"], row["score"], row["correct"], row["status"]) for row in rows} == {
        ("error", None, None, "unscored")
    }
    assert metrics["scored"] == 0.5


def test_data_of_another_template_is_refused(begun, tmp_path):
    shutil.copytree(begun / "data", tmp_path / "data")
    about = tmp_path / "data" / "data.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"template": "another"}))
    model = str(begun / "model")
    with pytest.raises(ModelError, match="sample: the chat template"):
        run.run(
            Sample(), Model(path=model), start=model, data=tmp_path / "data", out=tmp_path / "out",
            report=Report(tmp_path), seed=0,
        )  # fmt: skip


def recipe(tmp_path, **sample):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {"data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
              "drafts": {"kind": "sample", "data": "data", "model": "cold", **sample}}  # fmt: skip
    path = tmp_path / "sample.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_it_is_a_stage_like_any_other(tmp_path):
    read = recipe(tmp_path, seed=3)
    check(read)
    node = read.node("drafts")
    assert node.inputs == {"data": "data", "model": "cold"} and node.seed == 3
    parts = keys.key_parts(read, "drafts", dict.fromkeys(node.inputs, "d"))
    assert "pipelines.sample.run" in parts["source"] and "pipelines.rlvr.train" not in parts["source"]
    assert parts["settings"]["sample"]["k"] == 8


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "base"}, "fresh model must be trained before SAMPLE"),
        ({"split": "other"}, r"drafts\.split: data makes no split called 'other'"),
        ({"sampler": {"url": "http://localhost:1"}}, r"drafts\.sampler: .*`weights` is required"),
        ({"reference": "cold", "sampling": {"top_p": 0.9}}, r"reference: the KL to it is infinite"),
        ({"guidance": {"base": "cold", "weight": 2}}, r"drafts\.guidance\.base: cold was not made from cold"),
        (
            {"guidance": {"base": "cald", "weight": 2}},
            r"drafts\.guidance\.base: there is no stage called 'cald'. Did you mean 'cold'",
        ),
        ({"guidance": {"base": "data", "weight": 2}}, r"drafts\.guidance\.base: data makes data, and model is wanted"),
        (
            {"guidance": {"base": "cold", "weight": 2}, "sampler": {"url": "http://localhost:1", "weights": "/tmp/w"}},
            r"drafts.*servers decode one model",
        ),
        (
            {"search": {"kind": "best_of_n", "score": {"kind": "reward_model", "model": "cold"}}},
            r"drafts\.search\.0: cold makes model, and reward_model is wanted",
        ),
        ({"search": {"kind": "beam", "score": "verifier"}}, r"drafts.*the verifier judges whole answers"),
        ({"search": {"kind": "beam", "n": 3, "score": "likelihood"}}, r"drafts.*3 is no multiple of width \(2\)"),
        (
            {"search": {"kind": "best_of_n", "score": "likelihood"}, "reference": "cold"},
            r"drafts.*the KL of searched completions",
        ),
        (
            {"search": {"kind": "best_of_n", "score": "likelihood"}, "sampling": {"temperature": 0}},
            r"drafts.*sampling is greedy",
        ),
        ({"reference": "data"}, r"reference: data .*makes data, and model is wanted"),
        ({"reward_model": "cold"}, r"drafts\.reward_model: cold .* makes model, and reward_model is wanted"),
        ({"data": "cold"}, r"drafts\.data: cold .* makes model"),
    ],
)
def test_what_cannot_be_sampled_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(recipe(tmp_path, **fields))


def by_length(self, conversations, *, temperature, max_tokens, sample=0):
    """A grade that is the number of letters, for what is not empty."""
    texts = [conversation[0]["content"].removeprefix("judge ") for conversation in conversations]
    return [(f"Grade: {len(text)}" if text else "hm", 1) for text in texts]


def test_the_sampled_model_grades_its_own_completions_and_pairs_are_made_by_it(begun, tmp_path, monkeypatch):
    judge = {"template": "judge {answer}", "low": 0, "high": 6, "max_tokens": 4}
    metrics, rows = sampled(begun, tmp_path / "random", self_judge=judge)
    assert metrics["judge/unread"] == 1.0 and "judge/mean" not in metrics, (
        "an untrained model says nothing that can be read"
    )
    assert all(json.loads(row["components"])["judge"] is None for row in rows)
    by_judge = Selection(kind="pairs", by="judge", low=None)
    assert list(selected.problems(tmp_path / "random/out", by_judge, 0)) == [], "which is no fault of the data"
    plain = [row["text"] for row in rows]
    monkeypatch.setattr(ChatModel, "reply", by_length)
    metrics, rows = sampled(begun, tmp_path / "graded", self_judge=judge)
    assert [row["text"] for row in rows] == plain, "grading changes no draw"
    for row in rows:
        length = len(row["text"].strip())
        assert json.loads(row["components"])["judge"] == (length / 6 if length else None)
    records = list(selected.problems(tmp_path / "graded/out", by_judge, 0))
    assert records and all(len(r.info["chosen"].strip()) > len(r.info["rejected"].strip()) > 0 for r in records)
    graded = [len(text.strip()) / 6 for text in plain if text.strip()]
    assert metrics["judge/mean"] == pytest.approx(sum(graded) / len(graded))
    assert metrics["judge/unread"] == pytest.approx(1 - len(graded) / len(plain))


def test_of_several_sampled_grades_the_mean_of_those_that_can_be_read_counts(begun, tmp_path, monkeypatch):
    """Grades 0, 3 and 6 of 6; every second one cannot be read where the text is short."""
    asked = []

    def sampled_grades(self, conversations, *, temperature, max_tokens, sample=0):
        asked.append((temperature, sample))
        return [
            ("hm" if sample == 1 and len(c[0]["content"]) < 9 else f"Grade: {3 * sample}", 1) for c in conversations
        ]

    monkeypatch.setattr(ChatModel, "reply", sampled_grades)
    judge = {"template": "judge {answer}", "low": 0, "high": 6, "samples": 3, "temperature": 0.7}
    metrics, rows = sampled(begun, tmp_path / "graded", self_judge=judge)
    assert set(asked) == {(0.7, 0), (0.7, 1), (0.7, 2)} and metrics["judge/unread"] == 0
    assert {json.loads(row["components"])["judge"] for row in rows} == {0.5}, "(0 + 1/2 + 1) / 3 and (0 + 1) / 2"


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ({"low": 5, "high": 5}, "is not above low"),
        ({"template": "judge it"}, "answer"),
        ({"samples": 3}, "greedy grades are all the same"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(judge, words):
    with pytest.raises(ValidationError, match=words):
        Sample.model_validate({"self_judge": judge})


def test_new_prompts_are_asked_for_by_examples(begun, tmp_path):
    """Each problem shows others of the split, by the seed and its uid alone; nobody can verify what is written."""
    shown = {"shots": 3, "template": "more: {examples}", "separator": "|"}
    metrics, rows = sampled(begun, tmp_path, new_prompts=shown)
    problems = dataset.read_split(begun / "data", "train")[:10]
    prompts = {p.prompt[-1]["content"] for p in problems}
    asked = {}
    for row in rows:
        request = dataset.from_row({k: row[k] for k in dataset.SCHEMA})
        examples = request.prompt[-1]["content"].removeprefix("more: ").split("|")
        assert len(set(examples)) == 3 and set(examples) <= prompts, "three different prompts of the split"
        assert row["score"] is None and row["correct"] is None and row["status"] == "unscored"
        asked[request.uid] = examples
    assert list(asked) == [p.uid for p in problems] and len(set(map(tuple, asked.values()))) > 5
    assert metrics["scored"] == 0 and "pass_at_1" not in metrics
    _, fewer = sampled(begun, tmp_path / "again", new_prompts=shown, k=1)
    assert [row["text"] for row in fewer] == [row["text"] for row in rows if row["sample"] == 0]
    with pytest.raises(DataError, match=r"new_prompts.shots: 11 prompts are to be shown, and the split has 10"):
        sampled(begun, tmp_path / "few", new_prompts={"shots": 11})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"new_prompts": {"template": "write one"}}, "no {examples}"),
        ({"new_prompts": {}, "self_judge": {}}, "`self_judge` is about answers"),
        ({"new_prompts": {}, "episodes": {}}, "`episodes` is about answers"),
    ],
)
def test_new_prompts_that_make_no_sense_are_refused(fields, words):
    with pytest.raises(ValidationError, match=words):
        Sample.model_validate(fields)


def test_images_that_episodes_drew_lie_beside_their_shard(tmp_path):
    seen, last = (images.IMAGES.add(vision_models.picture(8, 8, 80 + n)) for n in range(2))
    told = json.dumps({"turns": [{"reply": ""}], "last": last})
    rows = {"completion_ids": [[5, *marks.place_ids(marks.marked(seen)[0], 3)]], samples.EPISODE: [told]}
    run._write_drawn(rows, tmp_path / samples.FOLDER / samples.shard_name(2))
    other = images.Images()
    other.open_folder(tmp_path)
    for mark in (seen, last):
        assert other.png(marks.marked(mark)[0]) == images.IMAGES.png(marks.marked(mark)[0])
