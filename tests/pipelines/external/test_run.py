"""The stage with a trainer that keeps the contract, dies, hangs, and leaves what is no model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from children import alive, wait_until
from safetensors.torch import load_file

from pipelines.base.errors import UserError
from pipelines.contract.model_settings import Model
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.engine.models import load_model, load_tokenizer, save_model, train_tokenizer
from pipelines.external.run import run
from pipelines.external.settings import External
from pipelines.stage.report import SPOOL, Report, history, lines_of

TRAINER = str(toys.ROOT / "tests" / "fake_trainer.py")
CONFIG = {
    "model": "{model}", "output": "{output}", "steps": 4, "shift": 0.5, "data": {"train": "{train_file}"},
    "reward": {"file": "{reward_file}"},
}  # fmt: skip

WAITS = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """A model, and data of twelve rows."""
    folder = tmp_path_factory.mktemp("begun")
    tokenizer = train_tokenizer("char", 128, [f"{number} + 1 is" for number in range(99)])
    save_model(toys.model("llama", len(tokenizer)), tokenizer, folder / "model", {"stage": "sft"})
    (folder / "data").mkdir()
    writer = dataset.Writer(folder / "data" / "train.parquet")
    for number in range(12):
        prompt = [{"role": "user", "content": f"{number} + 1"}]
        row = {"uid": f"{number:032x}", "verifier": "number", "source": "sums", "licence": "none"}
        writer.add(Problem(prompt=prompt, answer=str(number + 1), **row))
    writer.close()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def settings(begun: Path, mode: str = "", **changes) -> External:
    fields = {
        "command": [sys.executable, TRAINER, "{config}", *(["--mode", mode] if mode else [])], "version": "1", "hang_limit_s": 60,
        "config": str(begun / "config.json"), "result": "final/*", "checkpoints": "step_*", "metrics": {"path": "metrics.jsonl"},
    }  # fmt: skip
    return External(**fields | changes)


def trained(begun: Path, work: Path, mode: str = "", **changes) -> dict[str, float]:
    job = {"seed": 0, "inputs": {"data": str(begun / "data")}}
    report = Report(work)
    try:
        start = os.path.relpath(begun / "model")
        return run(settings(begun, mode, **changes), Model(path=start), job, start=start, work=work, report=report)
    finally:
        report.close()


def refused(begun: Path, work: Path, mode: str, **changes) -> UserError:
    with pytest.raises(UserError) as error:
        trained(begun, work, mode, **changes)
    assert not (work / "out" / "model" / "whetstone.json").exists()
    assert all(problem.field.startswith("external.") and problem.fix for problem in error.value.problems)
    return error.value


def test_the_model_that_was_trained_is_handed_on_with_its_metrics(begun, tmp_path):
    assert trained(begun, tmp_path) == {"steps": 4, "attempts": 1, "rows": 12}
    before, after = (load_file(folder / "model/model.safetensors") for folder in (begun, tmp_path / "out"))
    assert all((after[name] == weight + 0.5).all() for name, weight in before.items())
    load_model(str(tmp_path / "out/model"), Model(path=str(tmp_path / "out/model")))
    about = json.loads((tmp_path / "out/model/whetstone.json").read_text())
    assert about["version"] == "1" and load_tokenizer(tmp_path / "out/model").chat_template
    lines = history(tmp_path / SPOOL)
    assert [(line["step"], line["values"]) for line in lines] == [
        (step, {"reward": 1.0, "loss": 1 / step}) for step in range(1, 5)
    ]


@pytest.mark.slow
def test_it_goes_on_from_its_own_checkpoint_after_it_has_died(begun, tmp_path):
    assert trained(begun, tmp_path, "dies", retries=1)["attempts"] == 2
    steps = [line["step"] for line in history(tmp_path / SPOOL)]
    assert steps == [1, 2, 3, 4]
    (event,) = [line for line in lines_of(tmp_path / SPOOL) if line["kind"] == "event"]
    assert event["text"] == "the trainer was killed by signal 6"


@pytest.mark.slow
def test_a_later_run_goes_on_where_a_failed_one_was(begun, tmp_path, capfd):
    assert "was killed by signal 6" in str(refused(begun, tmp_path, "dies"))
    trained(begun, tmp_path, "dies")
    assert "starts after step 1 " in capfd.readouterr().out
    assert [line["step"] for line in history(tmp_path / SPOOL)] == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.long
def test_it_is_started_again_when_it_hangs(begun, tmp_path):
    assert trained(begun, tmp_path, "hangs", retries=1, hang_limit_s=10)["attempts"] == 2


def test_the_nan_of_a_run_does_not_end_the_next(begun, tmp_path):
    finite = {"metrics": {"path": "*.jsonl", "finite": ["loss"]}}
    assert "loss is nan at step 1" in str(refused(begun, tmp_path, "nan_once", **finite))
    trained(begun, tmp_path, "nan_once", **finite)
    assert [line["values"].get("loss") for line in history(tmp_path / SPOOL)][-1] == 0.25


@pytest.mark.parametrize(
    ("mode", "changes", "words"),
    [
        ("nan_metric", {"metrics": {"path": "*.jsonl", "finite": ["loss"]}}, "loss is nan at step 1"),
        ("nan_weights", {}, "model.norm.weight holds NaN"),
        ("half", {}, "model-00001-of-00002.safetensors is missing; model.safetensors.index.json names it"),
        ("truncated", {}, "cannot be read"),
        ("nothing", {}, "ended without a model folder"),
        ("refuses", {"retries": 1}, "exit code 1 (attempt 2): fake_trainer: error: no such option"),
        ("hangs", {"hang_limit_s": 2}, "showed nothing new for 2 seconds"),
        ("hangs", {"time_limit_s": 2, "retries": 3}, "ran past 2 seconds"),
        ("", {"metrics": {"path": "*.jsonl", "finite": ["kl"]}}, "has not written kl"),
    ],
)
def test_what_is_no_result_is_refused(begun, tmp_path, mode, changes, words):
    assert words in str(refused(begun, tmp_path, mode, **changes))


def test_metrics_are_read_from_the_output(begun, tmp_path):
    trained(begun, tmp_path, "console", metrics={"kind": "console"})
    assert [line["values"]["loss"] for line in history(tmp_path / SPOOL)] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]


def test_a_command_exports_the_model(begun, tmp_path):
    copy = [sys.executable, "-c", "import shutil, sys; shutil.copytree(*sys.argv[1:], dirs_exist_ok=True)"]
    trained(begun, tmp_path, "nothing", export=[*copy, "{checkpoint}", "{export}"], result=None)
    assert (tmp_path / "out/model/config.json").is_file()


def test_weights_alone_are_completed_from_the_model_that_was_trained(begun, tmp_path):
    strip = "import shutil, sys; shutil.copy(sys.argv[1] + '/model.safetensors', sys.argv[2])"
    trained(begun, tmp_path, "", export=[sys.executable, "-c", strip, "{output}/final/step_4", "{export}"], result=None)
    load_model(str(tmp_path / "out/model"), Model(path=str(tmp_path / "out/model")))


def test_its_processes_end_with_the_stage(begun, tmp_path):
    """As a cancelled run ends it: SIGTERM to the process group, then SIGKILL."""
    (tmp_path / "out").mkdir()
    pids, program = tmp_path / "pids", tmp_path / "program.py"
    program.write_text(WAITS)
    fields = settings(begun, command=[sys.executable, str(program), str(pids)]).model_dump()
    job = {
        "stage": "external", "settings": {"external": fields, "model": {"path": str(begun / "model")}}, "seed": 0,
        "inputs": {"data": str(begun / "data")}, "parent_pid": os.getpid(), "computes": False,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "pipelines.stage.launch", "pipelines.external", str(tmp_path)]
    with open(tmp_path / "log", "w") as log:
        stage = subprocess.Popen(command, env=toys.environment(), start_new_session=True, stdout=log, stderr=log)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
    os.killpg(stage.pid, signal.SIGTERM)
    stage.wait(10)
    wait_until(lambda: not alive(map(int, pids.read_text().split())), 10)
