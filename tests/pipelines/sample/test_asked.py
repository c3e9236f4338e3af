"""A teacher behind a server: rows like those of any sample stage, paid for once however often the stage is killed."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time

import forks
import judge_server
import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError, UserError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.curate import selected
from pipelines.data import dataset, samples
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.sample import run
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report
from tasks import keys

TEACHER = {"endpoint": "teacher", "price": {"prompt": 1.0, "completion": 10.0}}
SETTINGS = {"k": 2, "problems": 10, "rows_per_shard": 7, "sampling": {"max_tokens": 9, "temperature": 0.7}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    toys.curated(folder, "curate.sources.0.size=60")
    return folder / "data"


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def told(content, finish="stop", **message):
    usage = {"prompt_tokens": 20, "completion_tokens": 5}
    return {"message": {"content": content, **message}, "finish_reason": finish, "usage": usage}


def palindrome(body):
    """Right for every problem whose letters are asked for with an even seed."""
    letters = body["messages"][-1]["content"].removeprefix("palindrome ").replace(" ", "").replace(",", "")
    counted = collections.Counter(letters)
    half = "".join(letter * (n // 2) for letter, n in sorted(counted.items()))
    odd = "".join(letter for letter, n in counted.items() if n % 2)
    return half + odd + half[::-1] if body["seed"] % 2 == 0 else "wrong"


def asked(server, data, folder, **changes):
    teacher = TEACHER | {"url": server.url} | changes.pop("model", {})
    settings = Sample.model_validate(SETTINGS | {"model": teacher} | changes)
    metrics = run.run(
        settings, Model.model_validate({"fresh": {}}), start=str(data / "tokenizer"), data=data, out=folder / "out",
        report=Report(folder), seed=5,
    )  # fmt: skip
    return metrics, list(samples.read(folder / "out"))


def test_answers_are_scored_and_kept_like_any_sample(data, tmp_path):
    with judge_server.running(lambda body: told(palindrome(body))) as server:
        metrics, rows = asked(server, data, tmp_path)
        first, again = contents(tmp_path / "out"), len(server.bodies)
        asked(server, data, tmp_path / "again")
        assert len(server.bodies) == again == 20, "answers that are paid for are not asked again"
        assert contents(tmp_path / "again" / "out") == first
    problems = dataset.read_split(data, "train")[:10]
    assert [(row["uid"], row["sample"]) for row in rows] == [(p.uid, i) for p in problems for i in range(2)]
    assert {body["messages"][0]["content"] for body in server.bodies} == {p.prompt[0]["content"] for p in problems}
    assert len({body["seed"] for body in server.bodies}) == 20 and max(b["seed"] for b in server.bodies) < 2**31
    right = [row["text"] != "wrong" for row in rows]
    assert [row["correct"] for row in rows] == right and 0 < sum(right) < 20
    assert metrics["pass_at_1"] == pytest.approx(sum(right) / 20)
    assert metrics["usage/prompt_tokens"] == 400 and metrics["usage/completion_tokens"] == 100
    assert metrics["usage/cost"] == pytest.approx(0.0014)
    assert "usage/cost" not in samples.about(tmp_path / "out")["metrics"], "a price changes no artifact"
    assert all(row["logp"] is None and row["entropy"] is None and row["stop"] == "end" for row in rows)
    assert all(json.loads(row["components"])["completion_tokens"] == 5 for row in rows)
    records = list(selected.problems(tmp_path / "out", Selection.model_validate({"kind": "correct"}), 0))
    assert {record.info["solution"] for record in records} == {row["text"] for row in rows if row["correct"]}


def test_truncated_refused_and_reasoned_answers(data, tmp_path):
    problems = dataset.read_split(data, "train")[:3]
    place = {p.prompt[0]["content"]: number for number, p in enumerate(problems)}
    replies = [told("aba", "length"), (400, "content policy"), told("aba", reasoning_content="a, b, a")]

    with judge_server.running(lambda body: replies[place[body["messages"][0]["content"]]]) as server:
        metrics, rows = asked(server, data, tmp_path, problems=3, k=1)
        assert len(server.bodies) == 3
        asked(server, data, tmp_path / "again", problems=3, k=1)
        assert len(server.bodies) == 4, "what was refused is asked again, and nothing else"
    assert [row["stop"] for row in rows] == ["length", "error", "end"] and metrics["cut"] == pytest.approx(1 / 3)
    assert rows[1]["text"] == "" and rows[1]["score"] is None and rows[1]["status"] == "unscored"
    assert rows[2]["text"] == "<think>\na, b, a\n</think>\n\naba" and metrics["scored"] == pytest.approx(2 / 3)
    assert metrics["usage/prompt_tokens"] == 40


def test_a_greedy_teacher_is_asked_the_same_whatever_the_seed(data, tmp_path):
    with judge_server.running(lambda body: told("aba")) as server:
        asked(server, data, tmp_path, k=1, sampling={"temperature": 0.0})
        assert {body["seed"] for body in server.bodies} == {0}


def test_new_prompts_may_come_from_a_teacher(data, tmp_path):
    with judge_server.running(lambda body: told("palindrome a, b, a")) as server:
        metrics, rows = asked(server, data, tmp_path, new_prompts={"shots": 2}, problems=4)
    assert "Write one more task" in server.bodies[0]["messages"][0]["content"]
    assert all(row["score"] is None and row["text"] == "palindrome a, b, a" for row in rows)
    assert metrics["usage/completion_tokens"] == 40, "what is not scored is paid for too"


def recipe_of(folder, *more, learner=None, **teacher):
    body = yaml.safe_load(toys.recipe(folder).read_text())
    model = TEACHER | {"url": "http://127.0.0.1:9/v1"} | teacher
    body = {
        "name": "taught", "threads": 1, "model": body["model"],
        "stages": {
            "rows": {"kind": "curate", **body["curate"]},
            "answers": {"kind": "sample", "data": "rows", "model": model, **SETTINGS},
            "chosen": {"kind": "curate", "sources": [{"kind": "stage", "path": "answers", "select": "correct"}]},
            "student": {"kind": "sft", "data": "chosen", **body["sft"]},
        },
    }  # fmt: skip
    body["stages"] |= {} if learner is None else {"learner": learner}
    path = folder / "taught.yaml"
    path.write_text(yaml.safe_dump(body))
    return read_recipe(path, list(more))


def test_a_recipe_names_it_where_it_could_name_a_stage(tmp_path):
    recipe = recipe_of(tmp_path)
    check(recipe)
    node = recipe.node("answers")
    assert node.settings.model.endpoint == "teacher" and node.labels == {"data": "rows"} and node.parents == []
    assert not node.reads_base, "a fresh model need not be trained before a teacher answers"
    written = recipe.model_dump(mode="json")
    assert written["stages"]["answers"]["model"]["endpoint"] == "teacher"
    assert type(recipe).model_validate(written).node("answers").settings == node.settings


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("model.urll=http://h/v1", r"answers\.model\.urll"),
        ("model.url=h:8000", r"answers\.model\.url: write an address"),
        ("model.price.input=1", r"answers\.model\.price\.input"),
        ("model.concurrency=0", r"answers\.model\.concurrency"),
        ("episodes.max_turns=3", r"answers.*episodes: it needs the model itself"),
        ("reference=student", r"answers.*reference: it needs the model itself"),
        ("processes=2", r"answers.*processes: an endpoint computes no model here"),
        ("self_judge={}", r"answers.*self_judge: it needs the model itself"),
        ("sampling.temperature=0", r"answers\.sampling\.temperature: at 0 all 2 completions"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused(tmp_path, change, problem):
    with pytest.raises(RecipeError, match=problem):
        check(recipe_of(tmp_path, f"answers.{change}"))


def test_stored_rollouts_need_log_probabilities(tmp_path):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())["rlvr"]
    learner = {"kind": "rlvr", "data": "rows", "model": "student", "samples": "answers", **body, "rollout": "stored"}
    with pytest.raises(RecipeError, match="does not say how likely"):
        check(recipe_of(tmp_path, learner=learner))


def test_the_key_holds_the_model_and_not_the_way_to_it(tmp_path):
    def key(*changes, **teacher):
        recipe = recipe_of(tmp_path, *changes, **teacher)
        return keys.stage_key(keys.key_parts(recipe, "answers", {"data": "0" * 16}))

    first = key()
    assert key(url="http://elsewhere/v1", api_key_env="KEY", concurrency=2, timeout_s=3, price=None) == first
    assert key("model.dtype=bfloat16") == first, "the recipe's own model is not computed"
    different = [key(endpoint="other"), key(stop=["x"]), key(seeds=False), key(extra_body={"a": 1}), key("answers.k=3")]
    assert len({first, *different}) == 6


@pytest.mark.slow
def test_a_killed_stage_pays_for_no_answer_twice(data, tmp_path):
    """SIGKILL of the stage's process in the middle of a shard, twice; the end has the bytes of a run that was never killed."""
    count = 40
    slow = threading.Event()
    slow.set()

    def rule(body):
        time.sleep(0.03 if slow.is_set() else 0)
        return told(palindrome(body))

    with judge_server.running(rule) as server:
        job = {
            "stage": "sample", "seed": 5, "threads": 1, "sandbox": "auto", "plugins": [], "computes": False,
            "inputs": {"data": str(data)},
            "settings": {
                "sample": SETTINGS | {"problems": count // 2, "rows_per_shard": 16}
                | {"model": TEACHER | {"url": server.url, "concurrency": 2, "api_key_env": "TEACHER_KEY"}},
                "model": {"fresh": {}},
            },
        }  # fmt: skip
        work = tmp_path / "work"
        work.mkdir()
        (work / "job.json").write_text(json.dumps(job))
        environment = os.environ | {"TEACHER_KEY": "sk-very-secret", "WHETSTONE_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "pipelines.sample", str(work)]
        for kill_at in (9, 25):
            process = forks.Popen(command, cwd=toys.ROOT, env=environment, stdout=subprocess.DEVNULL)
            while len(server.bodies) < kill_at and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
        forks.run(command, cwd=toys.ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        paid = collections.Counter(json.dumps(body, sort_keys=True) for body in server.bodies)
        assert len(paid) == count and sum(paid.values()) <= count + 2 * 2, "what was under way at a kill, at most"
        assert {header["Authorization"] for header in server.headers} == {"Bearer sk-very-secret"}
        slow.clear()
        asked(server, data, tmp_path / "whole", problems=count // 2, rows_per_shard=16)
    assert contents(work / "out" / samples.FOLDER) == contents(tmp_path / "whole" / "out" / samples.FOLDER)
    stored = [p for root in (work, tmp_path / "home") for p in root.rglob("*") if p.is_file()]
    assert stored and all(b"very-secret" not in path.read_bytes() for path in stored)


def test_a_wrong_key_names_its_variable(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-wrong")
    refusal = pytest.raises(UserError, match=r"sample\.model\.api_key_env: .*refuses the key")
    with judge_server.running(lambda body: (401, "invalid api key")) as server, refusal:
        asked(server, data, tmp_path, model={"api_key_env": "TEACHER_KEY"})
    monkeypatch.delenv("TEACHER_KEY")
    with pytest.raises(UserError, match="the environment has no TEACHER_KEY"):
        asked(server, data, tmp_path, model={"api_key_env": "TEACHER_KEY"})
