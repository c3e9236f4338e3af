"""Before the first stage: every problem at once, each by its field; nothing where nothing is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import judge_server
import pytest
import remote_stores
import toys
import yaml

from pipelines import environments
from pipelines.base import owner
from pipelines.base.cache import Cache
from pipelines.base.distribution import install_hint
from pipelines.data import remote
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from tasks import machine
from tasks.preflight import answers as preflight_answers
from tasks.preflight import check as preflight
from tasks.preflight import data as preflight_data
from tasks.preflight import estimate, http_probe
from tasks.preflight import rules as preflight_rules

ALL = ["curate", "sft", "rlvr", "evaluate"]


SHAPE = dict.fromkeys(("layers", "hidden", "intermediate", "heads", "key_heads", "head_size", "vocabulary"), 0)
SHAPE["parameters"] = 20_000
"""Nothing but parameters, so that the least memory is easy to say."""


@pytest.fixture
def known(monkeypatch):
    """Heavy questions are answered well without being asked; tests of the questions do without this."""
    asked: list[dict] = []

    class Asked(preflight.Asked):
        def __init__(self, questions):
            asked.extend(questions)
            self.count = len(questions)

        def answers(self):
            return [{"positions": 64, "parameters": 20_000, "shape": SHAPE} for _ in range(self.count)]

    monkeypatch.setattr(preflight, "Asked", Asked)
    return asked


def problems(tmp_path, *overrides, stages=ALL, **changes):
    return {
        p.field: str(p)
        for p in preflight.examine(read_recipe(toys.recipe(tmp_path, **changes), list(overrides)), stages)
    }


@pytest.mark.slow
def test_the_toy_recipe_is_ready_and_good_answers_are_remembered(tmp_path, home):
    recipe = read_recipe(toys.recipe(tmp_path))
    assert preflight.examine(recipe, ALL) == []
    remembered = Cache(home / ".checked" / "answers.sqlite").read().values()
    assert home.stat().st_mode & 0o077 == 0, "recipes and data are their user's alone, before the first run too"
    assert len(remembered) == 4 and any("parameters" in answer for answer in remembered)
    began = time.monotonic()
    assert preflight.examine(recipe, ALL) == []
    assert time.monotonic() - began < 1.5


@pytest.mark.slow
def test_rules_are_checked_by_another_process_and_told_as_ever(tmp_path, home):
    recipe = toys.recipe(tmp_path)
    code = f"""
import sys
from pipelines.base.cache import Cache
from pipelines.data import remote
from pipelines.recipe.read import read_recipe
from tasks.preflight import check as preflight
print(preflight.examine(read_recipe({str(recipe)!r}), {ALL}), "transformers" in sys.modules)
print(*preflight.examine(read_recipe({str(recipe)!r}, ["rlvr.sampling.temperature=0"]), {ALL}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=toys.ROOT, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[] False"
    assert second.startswith("rlvr.sampling.temperature: 0 is greedy")


def test_the_code_that_answers_is_where_it_is_looked_for():
    assert all(any(toys.ROOT.glob(pattern)) for pattern in preflight_answers.ANSWERED_BY)
    names = {path.relative_to(toys.ROOT).as_posix() for path in environments.plugin_files()}
    assert names >= {"pipelines/papers/ragen/sokoban.py", "pipelines/papers/spiral/game.py"}


def test_what_the_answer_about_rules_depends_on(tmp_path, home, monkeypatch):
    def mark(*overrides):
        recipe = read_recipe(toys.recipe(tmp_path), list(overrides))
        (question,) = preflight_rules.questions([recipe.node("rlvr")])
        return preflight_answers.mark_of(question)

    plain = mark()
    assert plain == mark("seed=5") != mark("rlvr.group_size=6")
    scored = f"rlvr.reward={{kind: model, model: {tmp_path}}}"
    before = mark(scored)
    (tmp_path / "config.json").write_text("{}")
    assert mark(scored) != before
    assert mark("rlvr.reward_functions=[my_rewards:short]") is None, "code of the user's, which may change"
    monkeypatch.setattr(preflight_rules, "ROOT", tmp_path)
    (tmp_path / "pipelines").mkdir()
    fewer = mark()
    (tmp_path / "pipelines" / "new.py").write_text("")
    assert plain != fewer != mark()


def test_an_examination_that_nobody_waits_for_leaves_no_process(tmp_path, home):
    examination = preflight.PreflightCheck(read_recipe(toys.recipe(tmp_path)), ALL)
    assert not examination.wait_is_short
    process = examination._asked._asking._process
    examination.close()
    assert process.poll() is not None


@pytest.mark.slow
def test_who_answers_ends_with_who_asked(tmp_path, home):
    code = f"""
import time
from pipelines.base.cache import Cache
from pipelines.data import remote
from pipelines.recipe.read import read_recipe
from tasks.preflight import check as preflight
examination = preflight.PreflightCheck(read_recipe({str(toys.recipe(tmp_path))!r}), {ALL})
print(examination._asked._asking._process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=toys.ROOT) as asker:
        pid = int(asker.stdout.readline())
        asker.kill()
    until = time.monotonic() + 20
    while owner.running(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not owner.running(pid)


@pytest.mark.slow
def test_all_problems_in_one_report(tmp_path, home):
    (tmp_path / "my_rewards.py").write_text(
        "import sys\nprint('noise')\ndef good(prompts, completions, **kw): return [1.0] * len(prompts)\ndef few(completions, /): return []\n"
        "async def later(solution, **kw): return []\nnumber = 3\n"
    )
    (tmp_path / "my_exit.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "my_crash.py").write_text("import os\nos._exit(9)\n")
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        names = [
            "my_rewards:good",
            "my_rewards:few",
            "my_rewards:later",
            "my_rewards:number",
            "my_rewards:none",
            "my_exit:f",
            "my_crash:f",
            "nowhere:f",
        ]
        found = problems(
            tmp_path, f"rlvr.reward_functions={json.dumps(names)}", "curate.sources.0.task=palindrome_generatoin",
            "evaluate.tasks.0.name=palindrome", "rlvr.sampling.max_tokens=500", "sft.max_length=65", "sft.micro_batch_tokens=65",
            "rlvr.processes=9999", "model.fresh.architecture=llamma", stages=["curate", "sft", "rlvr"],
        )  # fmt: skip
    finally:
        os.chdir(here)
    assert "rlvr.reward_functions.0" not in found and "rlvr.reward_functions.2" not in found
    refused = {
        1: "completions",
        3: "not a function",
        4: "my_rewards has no none",
        5: "SystemExit",
        6: "code 9",
        7: "nowhere",
    }
    for number, words in refused.items():
        assert words in found[f"rlvr.reward_functions.{number}"], found
    assert "Did you mean 'palindrome_generation'?" in found["curate.sources.0"]
    assert "llamma" in found["model.fresh.architecture"] and "9999 processes" in found["rlvr.processes"]
    assert "Did you mean 'palindromes'?" in found["evaluate.tasks.0"]  # decontamination reads the benchmarks


def test_files(tmp_path, home, known):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "good[1].jsonl").write_text('{"question": "q", "answer": "1"}\n')
    (tmp_path / "good.jsonl.gz").write_bytes(b"x")
    names = [
        "pipe.jsonl",
        "folder.jsonl",
        "dangling.jsonl",
        "empty.csv",
        "rows.txt",
        "none.jsonl",
        "none*.jsonl",
        "good[1].jsonl",
        "good.jsonl.gz",
    ]
    sources = [{"kind": "file", "path": str(tmp_path / name)} for name in names]
    found = problems(tmp_path, curate={"sources": sources, "splits": {"train": 0.9, "heldout": 0.1}})
    words = [
        "not a regular file",
        "is a folder",
        "a link to a file that is not there",
        "is empty",
        "does not end in",
        "no file at",
        "no file at",
    ]
    assert list(found) == [f"curate.sources.{i}.path" for i in range(len(words))]
    for number, said in enumerate(words):
        assert (
            said in found[f"curate.sources.{number}.path"] and names[number] in found[f"curate.sources.{number}.path"]
        )


def test_files_at_addresses(tmp_path, home, known):
    """Their store is asked; nothing is fetched. What was fetched before is looked into like a file."""
    remote.forget()
    with remote_stores.web() as web:
        web.files |= {"/empty.csv": b"", "/rows.txt": b"x", "/good.jsonl": b'{"question": "q", "answer": "1"}\n'}
        web.files["/bad.jsonl"] = b'{"note": "n"}\n'
        names = ["empty.csv", "rows.txt", "none.jsonl", "good.jsonl", "bad.jsonl"]
        listed = [{"kind": "file", "path": f"{web.url}/{name}"} for name in names]
        found = problems(tmp_path, curate={"sources": listed, "splits": {"train": 0.9, "heldout": 0.1}})
        assert list(found) == [f"curate.sources.{i}.path" for i in range(3)]
        for number, said in enumerate(["is empty", "does not end in", "there is no file"]):
            assert said in found[f"curate.sources.{number}.path"]
            assert f"{web.url}/{names[number]}" in found[f"curate.sources.{number}.path"]
        assert {path for method, path, _ in web.requests if method == "GET"} <= {"/none.jsonl"}
        bad = Source(**listed[4])
        assert preflight_data.question(bad) is None
        remote.fetch(str(bad.path))
        question = preflight_data.question(bad)
        remote.forget()
    assert "bad.jsonl:1: prompt: no prompt" in preflight_data.answer(question)["problem"]


def test_names(tmp_path, home, known):
    hub = {
        "sources": [
            {"kind": "hub", "path": "owner/na me"},
            {"kind": "hub", "path": "./nowhere"},
            {"kind": "hub", "path": "a/b"},
        ]
    }
    more = {"difficulty": {"model": "/nowhere"}, "splits": {"train": 0.9, "heldout": 0.1}}
    fields = ["model.chat_template=none.jinja", "evaluate.include=/nowhere"]
    found = problems(tmp_path, *fields, curate=hub | more)
    wrong = {
        "curate.sources.0.path": "owner/na me",
        "curate.sources.1.path": "./nowhere",
        "curate.difficulty.model": "/nowhere",
        "model.chat_template": "none.jinja",
        "evaluate.include": "/nowhere",
    }
    assert set(found) == set(wrong), "and not a/b, which may be a name on the hub"
    assert {field: value for field, value in wrong.items() if value not in found[field]} == {}


@pytest.mark.parametrize("installed", [False, True])
def test_an_attention_that_is_not_installed(tmp_path, home, known, monkeypatch, installed):
    find_spec = importlib.util.find_spec
    other = find_spec("json") if installed else None
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: other if name == "flash_attn" else find_spec(name, *more)
    )
    found = problems(tmp_path, "model.attention=flash_attention_2")
    print(found)
    assert ("model.attention" in found) == (not installed)


def test_stages_that_do_not_run_are_not_looked_at(tmp_path, home, known):
    overrides = [
        "rlvr.processes=9999",
        "rlvr.sampling.max_tokens=500",
        "evaluate.include=/nowhere",
        "curate.decontaminate=null",
    ]
    assert set(problems(tmp_path, *overrides)) == {"rlvr.processes", "rlvr.sampling.max_tokens", "evaluate.include"}
    known.clear()
    assert problems(tmp_path, *overrides, stages=["sft"]) == {}
    assert sorted(q["ask"] for q in known) == ["fresh", "rules"]
    known.clear()
    assert problems(tmp_path, *overrides, stages=[]) == {} and known == []


def test_generation_fits_the_positions(tmp_path, home, known):
    assert problems(tmp_path, "rlvr.sampling.max_tokens=63", "sft.max_length=64") == {}
    found = problems(
        tmp_path,
        "rlvr.sampling.max_tokens=64",
        "rlvr.by_source={palindrome_generation: {max_tokens: 70}}",
        "sft.max_length=65",
        "sft.micro_batch_tokens=65",
        "evaluate.tasks.0.sampling={max_gen_toks: 64}",
    )
    limits = {"rlvr.sampling.max_tokens", "rlvr.by_source.palindrome_generation.max_tokens"}
    assert set(found) == {*limits, "sft.max_length", "evaluate.tasks.0.sampling.max_gen_toks"}
    assert "64 positions of model.fresh.config.max_position_embeddings" in found["sft.max_length"]


class Answer(BaseHTTPRequestHandler):
    code, key, delay = 200, None, 0.0

    def do_GET(self):
        time.sleep(self.delay)
        allowed = self.key is None or self.headers.get("Authorization") == f"Bearer {self.key}"
        self.send_response(self.code if allowed else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("code", "key", "delay", "given", "said"),
    [
        (200, None, 0, None, None),
        (404, None, 0, None, None),
        (500, None, 0, None, "answers 500"),
        (200, "s3cret-key", 0, "s3cret-key", None),
        (200, "s3cret-key", 0, "other-key", "refuses us (401)"),
        (200, None, 3, None, "no answer"),
    ],
)
def test_a_decoding_server_must_answer(code, key, delay, given, said, tmp_path, home, known, monkeypatch):
    handler = type("Handler", (Answer,), {"code": code, "key": key, "delay": delay})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)
    monkeypatch.setenv("MY_KEY", given or "")
    settings = {"url": f"http://127.0.0.1:{server.server_port}", "weights": str(tmp_path)}
    if given:
        settings["api_key_env"] = "MY_KEY"
    problems(tmp_path)  # imports
    began = time.monotonic()
    found = problems(tmp_path, f"rlvr.sampler={json.dumps(settings)}")
    assert time.monotonic() - began < 3
    server.shutdown()
    assert set(found) == ({"rlvr.sampler.url"} if said else set())
    assert not said or (
        said in found["rlvr.sampler.url"] and "key" not in found["rlvr.sampler.url"].replace("api_key_env", "")
    )
    monkeypatch.delenv("MY_KEY")
    if given:
        assert "rlvr.sampler.api_key_env" in problems(tmp_path, f"rlvr.sampler={json.dumps(settings)}")


def test_every_listed_server_is_asked_and_a_served_one_needs_its_program(tmp_path, home, known, monkeypatch):
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)
    addresses = ["http://127.0.0.1:9", "http://127.0.0.1:11"]
    found = problems(tmp_path, f"rlvr.sampler={json.dumps({'urls': addresses, 'weights': str(tmp_path)})}")
    assert set(found) == {"rlvr.sampler.urls.0", "rlvr.sampler.urls.1"}
    found = problems(tmp_path, "rlvr.sampler={serve: {command: [no-such-vllm, serve]}}")
    assert set(found) == {"rlvr.sampler.serve.command"} and "no-such-vllm" in found["rlvr.sampler.serve.command"]
    assert not problems(tmp_path, "rlvr.sampler={serve: {command: [env, A=1, vllm]}}")
    none = "{serve: {command: [no-such-vllm, serve]}}"
    band = f"curate.difficulty={{model: ./none, sampler: {none}}}"
    found = problems(tmp_path, f"evaluate.sampler={none}", band)
    assert {"evaluate.sampler.serve.command", "curate.difficulty.sampler.serve.command"} <= set(found)


def test_a_judge_must_answer(tmp_path, home, known, monkeypatch):
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    def found(**settings):
        return problems(
            tmp_path, f"rlvr.reward={json.dumps(['verifier', {'kind': 'judge', 'model': 'm', **settings}])}"
        )

    assert "where is the judge" in found()["rlvr.reward.terms.1.url"]
    assert "no answer" in found(url="http://127.0.0.1:9/v1")["rlvr.reward.terms.1.url"]
    missing = found(url="http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    assert "export NO_SUCH_KEY" in missing["rlvr.reward.terms.1.api_key_env"]
    with judge_server.running(lambda body: "Grade: 1") as judge:
        assert not found(url=judge.url)


def test_a_judge_of_pairs_must_answer_too(tmp_path, home, known, monkeypatch):
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)

    def found(url):
        judge = {"model": "m", "url": url}
        return problems(tmp_path, f"rlvr.reward={json.dumps({'kind': 'arena_tournament', 'judge': judge})}")

    assert "no answer" in found("http://127.0.0.1:9/v1")["rlvr.reward.judge.url"]
    with judge_server.running(lambda body: "") as judge:
        assert not found(judge.url)


def test_a_judge_of_a_rollout_must_answer_too(tmp_path, home, known, monkeypatch):
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)
    rollout = json.dumps({"kind": "herl", "judge": {"model": "m", "url": "http://127.0.0.1:9/v1", "criteria": ["x"]}})
    asked = problems(tmp_path, "presets=[herl]", f"rlvr.rollout={rollout}")
    assert "no answer" in asked["rlvr.rollout.judge.url"]


def test_a_teacher_must_answer(tmp_path, home, known, monkeypatch):
    """And its answers may be longer than the recipe's own model can read."""
    monkeypatch.setattr(http_probe, "PROBE_SECONDS", 0.5)

    def problems_of(**teacher):
        body = yaml.safe_load(toys.recipe(tmp_path).read_text())
        answers = {
            "kind": "sample",
            "data": "rows",
            "model": {"endpoint": "m", **teacher},
            "sampling": {"max_tokens": 999},
        }
        body = {
            "name": "x",
            "model": body["model"],
            "stages": {"rows": {"kind": "curate", **body["curate"]}, "answers": answers},
        }
        path = tmp_path / "teacher.yaml"
        path.write_text(yaml.safe_dump(body))
        return {p.field: str(p) for p in preflight.examine(read_recipe(path), ["answers"])}

    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert "where is the model?" in problems_of()["answers.model.url"]
    assert "no answer" in problems_of(url="http://127.0.0.1:9/v1")["answers.model.url"]
    assert "export NO_SUCH_KEY" in problems_of(api_key_env="NO_SUCH_KEY", url="http://h")["answers.model.api_key_env"]
    with judge_server.running(lambda body: "") as server:
        assert not problems_of(url=server.url)


@pytest.mark.slow
def test_functions_that_are_terms_are_imported(tmp_path, home):
    terms = ["verifier", {"kind": "function", "path": "textwrap:dedent"}]
    assert "keyword" in problems(tmp_path, f"rlvr.reward={json.dumps(terms)}")["rlvr.reward.terms.1.path"]


def test_room(tmp_path, home, known, monkeypatch):
    assert problems(tmp_path) == {}
    per_parameter = {"memory": 16, "disk": 2 * 4 + 3 * 12}  # two models, and three commits of weights and moments
    monkeypatch.setattr(machine, "memory_bytes", lambda: 20_000 * per_parameter["memory"] - 1)
    assert set(problems(tmp_path)) == {"sft.lora", "rlvr.lora"}
    assert problems(tmp_path, "rlvr.lora={}", "sft.lora={}") == {}
    monkeypatch.setattr(machine, "memory_bytes", lambda: 20_000 * per_parameter["memory"])
    assert problems(tmp_path) == {}
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 20_000 * per_parameter["disk"] - 1)
    assert "3 GB" not in problems(tmp_path)["WHETSTONE_HOME"] and "are free" in problems(tmp_path)["WHETSTONE_HOME"]
    monkeypatch.setattr(preflight, "free_bytes", lambda _: 20_000 * per_parameter["disk"])
    assert problems(tmp_path) == {}
    monkeypatch.setattr(machine, "free_inodes", lambda _: 999)
    assert "999 more files" in problems(tmp_path)["WHETSTONE_HOME"]


def test_gpus_are_counted_where_there_are_any(tmp_path, home, known, monkeypatch):
    monkeypatch.setattr(machine, "gpu_bytes", lambda: (10**9, 10**9))
    assert problems(tmp_path, "rlvr.processes=2") == {}
    for wanted in ("rlvr.processes", "evaluate.processes", "curate.difficulty.processes"):
        band = ["curate.difficulty={model: ./none}"] if "difficulty" in wanted else []
        assert "2 GPUs" in problems(tmp_path, *band, f"{wanted}=3")[wanted]


def test_parameters_are_read_from_the_files_headers(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=100, **toys.SMALL))
    model.save_pretrained(tmp_path / "m")
    assert estimate.parameters_of(str(tmp_path / "m")) == sum(p.numel() for p in model.parameters())
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\xff" * 100)
    assert estimate.parameters_of(str(tmp_path / "m")) is None and estimate.parameters_of("owner/name") is None


@pytest.mark.slow
@pytest.mark.long
def test_a_model_folder_must_load_its_tokenizer_and_template(tmp_path, home, start):
    source = start / "sft" / "out" / "model"
    model = {"path": str(source)}
    folder = tmp_path / "broken"
    shutil.copytree(source, folder)
    body = yaml.safe_load(toys.recipe(tmp_path).read_text()) | {"model": model}
    path = tmp_path / "pre.yaml"
    path.write_text(yaml.safe_dump(body))
    assert preflight.examine(read_recipe(path), ["sft"]) == []
    (folder / "chat_template.jinja").write_text("{% for %}")
    found = preflight.examine(read_recipe(path, [f"model.path={folder}"]), ["sft"])
    assert [p.field for p in found] == ["model.path"] and "template" in str(found[0])
    (folder / "chat_template.jinja").write_text("")
    (folder / "config.json").write_text("{")
    assert [p.field for p in preflight.examine(read_recipe(path, [f"model.path={folder}"]), ["sft"])] == ["model.path"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "no file name"),
        (".", "is a folder"),
        ("none/s.json", "no folder"),
        ("a\0b", "no file name"),
        ("x" * 300, "File name too long"),
        ("s.json", None),
    ],
)
def test_the_summary_can_be_written(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if said is None:
        return preflight.summary_file(name)
    with pytest.raises(preflight.NotReady, match=said):
        preflight.summary_file(name)


@pytest.mark.slow
@pytest.mark.long
def test_plan_and_run_say_it_all_with_exit_code_2(tmp_path, home):
    path = toys.recipe(tmp_path)
    options = ("--set", "evaluate.tasks.0.name=palindrome", "--set", "rlvr.sampling.max_tokens=500")
    done = toys.whetstone("plan", str(path), *options, "--json", home=home, check=False)
    assert done.returncode == 2 and "2 problems" in json.loads(done.stdout)["error"]["message"], "one document"
    done = toys.whetstone("plan", str(path), *options, home=home, check=False)
    assert done.returncode == 2 and [line.split()[1] for line in done.stdout.splitlines()[1:5]] == ["run"] * 4
    assert (
        "2 problems" in done.stderr
        and "evaluate.tasks.0: " in done.stderr
        and "rlvr.sampling.max_tokens: " in done.stderr
    )
    began = time.monotonic()
    done = toys.whetstone("run", str(path), *options, home=home, check=False)
    assert done.returncode == 2 and "2 problems" in done.stderr and not (home / "runs").exists()
    assert time.monotonic() - began < 120
    done = toys.whetstone("run", str(path), "--summary", str(tmp_path / "none" / "s.json"), home=home, check=False)
    assert done.returncode == 2 and "--summary: there is no folder" in done.stderr


def test_samples_and_what_is_made_of_them(tmp_path, home, known):
    """A source that is a stage has nothing to be looked at before it ran; what is to be sampled must fit the model."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "sampling": {"max_tokens": 64}},
        "chosen": {"kind": "curate", "sources": [{"kind": "stage", "path": "drafts", "select": "best"}]},
    }  # fmt: skip
    path = tmp_path / "named.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    read = read_recipe(path)
    assert [p.field for p in preflight.examine(read, read.stage_names())] == ["drafts.sampling.max_tokens"]
    assert [q["ask"] for q in known].count("rows") == 1


def missing_package(monkeypatch, missing):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == missing else real(name, *more))


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "trackio"])
def test_a_mirror_needs_its_client(tmp_path, known, monkeypatch, name):
    missing_package(monkeypatch, name)
    told = problems(tmp_path, f"tracking.mirror=[{name}]")["tracking.mirror"]
    assert f"the client of {name} is not installed" in told and install_hint(name) in told
    assert "tracking.mirror" not in problems(tmp_path)


def test_a_corpus_that_is_not_there_is_known_before_the_first_stage(tmp_path, known, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    lost = str(tmp_path / "lost.jsonl")
    sources = [
        {"kind": "file", "path": str(rows), "verifier": "retrieval", "corpus": lost},
        {"kind": "environment", "task": "tools", "size": 2, "config": {"tools": [{"kind": "search", "corpus": lost}]}},
        {"kind": "environment", "task": "conv_search", "size": 2},
    ]
    reward = f"rlvr.reward={{kind: verifier, verifier: retrieval, info: {{corpus: '{lost}'}}}}"
    refused = problems(tmp_path, reward, curate={"sources": sources})
    fields = {"curate.sources.0.corpus", "curate.sources.1.config", "rlvr.reward.info"}
    assert {field for field, text in refused.items() if "no corpus at" in text} == fields
    assert set(refused) == fields and all("a passage a line" in text for text in refused.values())
    Path(lost).write_text("a b\n")
    assert not problems(tmp_path, reward, curate={"sources": sources})
    missing_package(monkeypatch, "bm25s")
    refused = problems(tmp_path, curate={"sources": sources})
    assert {"curate.sources.0.corpus", "curate.sources.1.config", "curate.sources.2.config"} == set(refused)
    assert all(install_hint("search") in text for text in refused.values())


def test_rows_that_become_no_records_are_known_before_the_first_stage(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"q": "1 + 1", "answer": "2"}\n' * 3)
    (tmp_path / "z.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n')
    file = {"kind": "file", "path": str(tmp_path / "rows.jsonl")}
    gym = {"kind": "reasoning_gym", "task": "palindrome_generation", "size": 20}
    cases = [
        (file, "none of its first 3 rows becomes a record: rows.jsonl:1: prompt: no prompt"),
        (file | {"size": 1}, "its only row becomes no record"),
        (file | {"columns": {"prompt": "querry"}}, "columns.prompt: .* has no column 'querry'. Its columns: q, answer"),
        (file | {"columns": {"prompt": "q"}}, None),
        (file | {"path": str(tmp_path / "*.jsonl")}, None),
        (gym, None),
        (gym | {"prompt_template": "turn {metadata.word}"}, "prompt_template asks for 'word'"),
        (gym | {"prompt_template": "turn {metadata.letters}"}, None),
        (
            gym | {"config": {"min_length": 9, "max_length": 3}},
            "^reasoning-gym task palindrome_generation refuses its config",
        ),
    ]
    for fields, said in cases:
        answer = preflight_data.answer(preflight_data.question(Source.model_validate(fields)))
        assert ("info" in answer) if said is None else re.search(said, answer["problem"]), answer


def test_fields_that_no_generated_record_has_are_named(tmp_path, home, monkeypatch):
    monkeypatch.setattr(preflight, "Asked", known_rows(["metadata", "split", "task"]))
    noisy = "rlvr.rollout={kind: noisy, field: %s}"
    assert "no record of train has info.context" in problems(tmp_path, noisy % "context")["rlvr.rollout.field"]
    assert problems(tmp_path, noisy % "metadata.letters") == {}
    assert "They have: metadata, split, task" in problems(tmp_path, "sft.weight_from=score")["sft.weight_from"]


def known_rows(fields):
    """What answers every question about rows so, and all others well."""

    class Asked(preflight.Asked):
        def __init__(self, questions):
            self.asked = questions

        def answers(self):
            return [{"info": fields} if q["ask"] == "rows" else {"positions": 64} for q in self.asked]

    return Asked


@pytest.mark.slow
@pytest.mark.long
def test_names_that_are_taken(tmp_path, monkeypatch):
    """A reward function in `tasks.py`, and one whose file imports `tasks.py`: refused with the file and what to do."""
    monkeypatch.chdir(tmp_path)
    reward = "def short(completions, **columns):\n    return [0.0 for _ in completions]\n"
    (tmp_path / "tasks.py").write_text(reward)
    (tmp_path / "own.py").write_text(f"def late():\n    from tasks import short\n{reward}")
    for name, told in (
        ("tasks", "rlvr.reward_functions.0: tasks.py of the working folder cannot be imported"),
        ("own", "rlvr: own.py imports tasks: tasks.py of the working folder cannot be imported"),
    ):
        read = read_recipe(toys.recipe(tmp_path), [f"rlvr.reward_functions=['{name}:short']"])
        (problem,) = preflight.examine(read, ["rlvr"])
        assert str(problem).startswith(told) and "Rename it to my_tasks.py" in str(problem)


def test_the_library_of_a_base_in_four_bits(tmp_path, home, known, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name))
    told = problems(tmp_path, "sft.lora={load_in_4bit: true}")
    assert set(told) == {"sft.lora.load_in_4bit"} and "pip install" in told["sft.lora.load_in_4bit"]
    assert problems(tmp_path, "sft.lora={}") == {}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find("json") if name == "bitsandbytes" else find(name)
    )
    assert problems(tmp_path, "sft.lora={load_in_4bit: true}") == {}
