"""Stages as jobs of Slurm: the script, waiting, lost machines, time limits, cancelling, and pipelines that are killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_toy
import toys
from children import TOYS as HERE
from children import alive, job
from children import wait_until as wait

from pipelines.base.errors import Problem
from pipelines.recipe.launch import Launch
from pipelines.recipe.read import read_recipe
from tasks import launchers, process, slurm, stages
from tasks.preflight import check, surroundings

SECTION = {"stages": {"rlvr": {}}, "poll_s": 0.1}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """The folder of a toy Slurm that answers in this test."""
    for name, value in slurm_toy.install(tmp_path / "slurm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr(slurm, "GRACE_S", 1.0)
    monkeypatch.setattr(slurm, "CANCEL_POLL_S", 0.1)
    yield tmp_path / "slurm" / "state"
    for each in slurm_toy.jobs(tmp_path / "slurm" / "state"):
        slurm_toy.order(tmp_path / "slurm" / "state", each["number"], "cancel")


def body_of(do, threads=1, **settings):
    """The job of the toy, which then imports no torch."""
    return job(do, **settings) | {"threads": threads, "computes": False}


def run(work, do, tick=lambda: None, section=SECTION, **settings):
    launcher = slurm.Slurm(Launch.model_validate(section), "rlvr")
    return process.run("stage_toy", work, body_of(do, **settings), tick, launcher=launcher)


def in_background(work, do, **options):
    """Run meanwhile; the error or the metrics come in the list."""
    ended: list[object] = []

    def body():
        try:
            ended.append(run(work, do, **options))
        except process.StageFailed as error:
            ended.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, ended


def wait_until(true):
    wait(true, 120)


def running(state):
    return [each for each in slurm_toy.jobs(state) if each["state"] == "RUNNING"]


def test_the_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = {
        "stages": {"rlvr": {"nodes": 2, "gpus": 8, "cpus": 32, "memory": "200G", "time": "12:00:00"}},
        "partition": "gpu", "account": "the lab", "options": ["--constraint=h100"], "setup": ["module load cuda"],
        "interface": "ib0", "requeue": 3,
    }  # fmt: skip
    launch = Launch.model_validate(section)
    text = slurm.script_of(launch, launch.stages["rlvr"], "pipelines.rlvr", Path("/home/a b/50%"), "whetstone-1-2")
    for value, name in ((str(tmp_path), "HERE"), (sys.executable, "PYTHON"), (str(toys.ROOT), "ROOT")):
        text = text.replace(value, name)
    assert text == (Path(__file__).parent / "slurm_two_nodes.sh").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_stage_runs_as_a_job(tmp_path, state):
    asked = {"cpus": 3, "memory": "20G", "time": "90"}
    assert run(tmp_path / "w", "world", section=SECTION | {"stages": {"rlvr": asked}}) == {"done": 1.0}
    (only,) = slurm_toy.jobs(state)
    options = only["options"]
    assert (options["cpus-per-task"], options["mem"], options["time"]) == ("3", "20G", "90")
    assert "parent_pid" not in json.loads((tmp_path / "w" / "job.json").read_text())


@pytest.mark.slow
def test_threads_are_the_recipes_or_a_share_of_the_cores(tmp_path, monkeypatch):
    path = toys.recipe(tmp_path, launch={"stages": {"rlvr": {"cpus": 64}, "sft": {}}}, threads=None)
    there = str(max(1, (os.cpu_count() or 2) // 2))
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    threads = {
        (name, more): launchers.threads_of(read_recipe(path, list(more)).node(name))
        for name in ("rlvr", "sft", "curate")
        for more in ((), ("rlvr.processes=8",), ("threads=3",))
    }
    assert [threads["rlvr", more] for more in ((), ("rlvr.processes=8",), ("threads=3",))] == [64, 8, 3]
    assert threads["sft", ()] is threads["curate", ()] is None
    for threads, wanted in ((3, "3"), (None, there)):
        run(tmp_path / f"w{threads}", "world", threads=threads)
        assert json.loads((tmp_path / f"w{threads}" / "world0.json").read_text())["OMP_NUM_THREADS"] == wanted


def test_a_pipeline_in_a_job_hands_in_a_job_of_its_own(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SRUN_CPUS_PER_TASK"):
        monkeypatch.setenv(name, "77")
    run(tmp_path / "w", "world")
    told = json.loads((tmp_path / "w" / "world0.json").read_text())
    assert told["SLURM_JOB_ID"] == "1" and not {"SLURM_MEM_PER_CPU", "SRUN_CPUS_PER_TASK"} & told.keys()


@pytest.mark.slow
def test_several_machines_are_one_world(tmp_path):
    section = SECTION | {"stages": {"rlvr": {"nodes": 2}}, "interface": "lo", "port": 29511}
    run(tmp_path / "w", "world", section=section, processes=2)
    ranks = [json.loads((tmp_path / "w" / f"world{rank}.json").read_text()) for rank in range(4)]
    assert [each["RANK"] for each in ranks] == ["0", "1", "2", "3"]
    assert {(each["WORLD_SIZE"], each["WHETSTONE_STORE"], each["GLOO_SOCKET_IFNAME"]) for each in ranks} == {
        ("4", "tcp:127.0.0.1:29511", "lo")
    }


def test_waiting_is_said_with_the_reason_and_is_no_work(tmp_path, state, caplog):
    (state / "hold").touch()
    launcher = slurm.Slurm(Launch.model_validate(SECTION), "rlvr")
    waiting_since: list[float] = []

    def tick():
        if "rlvr: job 1: pending (Resources)" in caplog.text:
            waiting_since.append(time.monotonic())
            if waiting_since[-1] - waiting_since[0] > 0.5:
                (state / "hold").unlink(missing_ok=True)

    began = time.monotonic()
    assert process.run("stage_toy", tmp_path / "w", body_of("numbers"), tick, launcher=launcher) == {"done": 1.0}
    assert 0.4 < launcher.waited_s < time.monotonic() - began


def test_a_lost_machine_queues_the_stage_again(tmp_path, state):
    thread, ended = in_background(tmp_path / "w", "twice")
    wait_until(lambda: (tmp_path / "w" / "attempts").exists())
    name = slurm_toy.jobs(state)[0]["name"]
    (tmp_path / "w" / slurm.EXIT).write_text(f"{name} 1 0")  # as srun has it say then, without metrics
    slurm_toy.order(state, "1", "node_fail")
    thread.join(120)
    assert ended == [{"done": 1.0}]
    assert [each["restarts"] for each in slurm_toy.jobs(state)] == [1]


@pytest.mark.slow
def test_a_time_limit_queues_the_stage_again(tmp_path, state):
    section = SECTION | {"stages": {"rlvr": {"time": "1:00:00"}}, "requeue": 1}
    thread, ended = in_background(tmp_path / "w", "twice", section=section)
    wait_until(lambda: (tmp_path / "w" / "attempts").exists())
    slurm_toy.order(state, "1", "limit")
    thread.join(120)
    assert ended == [{"done": 1.0}]
    assert "queued again" in (tmp_path / "w" / process.LOG).read_text()


@pytest.mark.parametrize(
    ("order", "state_of_slurm", "field"),
    [
        ("limit", "TIMEOUT", "launch.stages.rlvr.time"),
        ("out_of_memory", "OUT_OF_MEMORY", "launch.stages.rlvr.memory"),
        ("cancel", "CANCELLED", "launch.stages.rlvr"),
        ("preempt", "PREEMPTED", "launch.stages.rlvr"),
    ],
)
@pytest.mark.parametrize("accounting", [False, True], ids=["", "sacct"])
@pytest.mark.few(4)
def test_what_slurm_ends_fails_with_the_reason(tmp_path, state, order, state_of_slurm, field, accounting):
    if accounting:
        (state / "accounting").touch()
    section = SECTION | {"stages": {"rlvr": {"time": "1:00:00"}}}
    thread, ended = in_background(tmp_path / "w", "sleep", section=section)
    wait_until(lambda: (tmp_path / "w" / "pid0").exists())
    slurm_toy.order(state, "1", order)
    thread.join(120)
    (error,) = ended
    assert isinstance(error, process.StageFailed)
    (problem,) = error.problems
    how = " (exit code 0, signal 9)" if accounting else ""
    assert (problem.field, problem.problem) == (field, f"Slurm ended job 1: {state_of_slurm}{how}")
    assert "continues from its last commit" in problem.fix
    assert error.signal == (9 if accounting else None)
    assert "what the stage says" in error.log and str(tmp_path / "w" / process.LOG) in error.log


@pytest.mark.parametrize(
    ("do", "code", "said"), [("user error", 2, "line 3"), ("bug", 1, "a bug"), ("kill", 1, "signal 9")]
)
def test_failures_of_the_stage_are_its_own(tmp_path, do, code, said):
    with pytest.raises(process.StageFailed, match=said) as caught:
        run(tmp_path / "w", do)
    assert caught.value.exit_code == code


def test_a_refused_job_says_what_slurm_says(tmp_path, state):
    (state / "refuse").write_text("sbatch: error: QOSMaxGRESPerUser")
    with pytest.raises(process.StageFailed, match="QOSMaxGRESPerUser") as caught:
        run(tmp_path / "w", "numbers")
    assert caught.value.problems[0].field == "launch.stages.rlvr"


def test_an_interrupt_cancels_the_job(tmp_path, state):
    def tick():
        if (tmp_path / "w" / "pid0").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "w", "sleep", tick)
    assert [each["state"] for each in slurm_toy.jobs(state)] == ["CANCELLED"]
    wait_until(lambda: not alive([int((tmp_path / "w" / "pid0").read_text())]))


def test_a_controller_that_is_away_is_waited_for(tmp_path, state, caplog):
    thread, ended = in_background(tmp_path / "w", "go")
    wait_until(lambda: (tmp_path / "w" / "pid0").exists())
    (state / "away").touch()
    wait_until(lambda: "Unable to contact slurm controller" in caplog.text)
    (state / "away").unlink()
    (tmp_path / "w" / "go").touch()
    thread.join(120)
    assert ended == [{"done": 1.0}]


def test_a_job_that_nobody_knows_any_more_has_failed(tmp_path, state):
    thread, ended = in_background(tmp_path / "w", "sleep")
    wait_until(lambda: (tmp_path / "w" / "pid0").exists())
    (state / "1.forgotten").touch()
    thread.join(120)
    assert "Slurm ended job 1: it is gone" in str(ended[0])


def killed_pipeline(work, do, state):
    """Start a pipeline, and kill it once its job runs."""
    code = f"""
import sys; sys.path[:0] = [{str(HERE)!r}, {str(Path(slurm_toy.__file__).parent)!r}]
from pathlib import Path
from pipelines.recipe.launch import Launch
from tasks import process
from tasks import slurm
process.run("stage_toy", Path({str(work)!r}), {body_of(do)!r}, lambda: None,
            launcher=slurm.Slurm(Launch.model_validate({SECTION!r}), "rlvr"))
"""
    pipeline = subprocess.Popen([sys.executable, "-c", code], env=toys.environment(PYTHONPATH=f"{toys.ROOT}:{HERE}"))
    wait_until(lambda: (work / "pid0").exists())
    pipeline.send_signal(signal.SIGKILL)
    pipeline.wait()
    assert len(running(state)) == 1


def test_a_killed_pipeline_finds_its_job_again(tmp_path, state, caplog):
    """SIGKILL of the pipeline: the job goes on, and the next pipeline waits for the same one instead of a second."""
    work = tmp_path / "w"
    killed_pipeline(work, "go", state)
    (work / "out/half").write_text("what the job has written so far")
    thread, ended = in_background(work, "go")
    wait_until(lambda: "continues with job 1" in caplog.text)
    assert len(running(state)) == 1
    (work / "go").touch()
    thread.join(120)
    assert ended == [{"done": 1.0}] and (work / "out/half").exists()
    assert len(slurm_toy.jobs(state)) == 1


@pytest.mark.slow
def test_what_a_job_has_done_meanwhile_is_taken_once(tmp_path, state):
    work = tmp_path / "w"
    killed_pipeline(work, "go", state)
    (work / "go").touch()
    wait_until(lambda: slurm_toy.jobs(state)[0]["state"] == "COMPLETED")
    assert run(work, "go") == {"done": 1.0} and len(slurm_toy.jobs(state)) == 1
    assert run(work, "go") == {"done": 1.0} and len(slurm_toy.jobs(state)) == 2


def test_another_request_is_another_job(tmp_path, state):
    work = tmp_path / "w"
    killed_pipeline(work, "twice", state)
    wait_until(lambda: (work / "attempts").exists())
    assert run(work, "twice", section=SECTION | {"stages": {"rlvr": {"memory": "2G"}}}) == {"done": 1.0}
    wait_until(lambda: [each["state"] for each in slurm_toy.jobs(state)] == ["CANCELLED", "COMPLETED"])


def test_a_stage_that_runs_here_ends_the_job_before(tmp_path, state):
    work = tmp_path / "w"
    killed_pipeline(work, "sleep", state)
    node = read_recipe(toys.ROOT / "recipes" / "quickstart.yaml").node("rlvr")
    assert launchers.launcher_of(node, work, anew=False) is None
    assert [each["state"] for each in slurm_toy.jobs(state)] == ["CANCELLED"]
    (state / "away").touch()
    with pytest.raises(process.StageFailed, match="Unable to contact") as caught:
        launchers.launcher_of(node, work, anew=False)
    assert str(work / slurm.SCRIPT) in caught.value.problems[0].fix


def test_a_job_that_does_not_end_keeps_the_folder(tmp_path, state, monkeypatch):
    work = tmp_path / "w"
    killed_pipeline(work, "sleep", state)
    monkeypatch.setattr(slurm, "CANCEL_S", 0.0)
    (state / "deaf").touch()
    with pytest.raises(process.StageFailed, match="job 1 works in the same folder and does not end"):
        run(work, "numbers")
    assert len(slurm_toy.jobs(state)) == 1


@pytest.mark.parametrize("stops", [True, False], ids=["Ctrl+C", "time limit"])
def test_a_job_whose_number_was_not_heard_is_withdrawn(tmp_path, state, monkeypatch, stops):
    (state / "slow").touch()
    (state / "hold").touch()
    ask, error = slurm._ask, KeyboardInterrupt if stops else process.StageFailed

    def interrupted(command, environment=None):
        monkeypatch.setattr(slurm, "ASK_S", 2.0 if command[0] == "sbatch" else 60.0)
        try:
            return ask(command, environment)
        except slurm.SlurmError:
            if stops:
                raise KeyboardInterrupt from None
            raise

    monkeypatch.setattr(slurm, "_ask", interrupted)
    with pytest.raises(error):
        run(tmp_path / "w", "numbers")
    assert [each["state"] for each in slurm_toy.jobs(state)] == ["CANCELLED"]


def test_a_job_for_something_else_in_the_folder_is_ended_first(tmp_path, state):
    launcher = slurm.Slurm(Launch.model_validate(SECTION), "rlvr")
    work = tmp_path / "w"
    work.mkdir()
    (work / "job.json").write_text(json.dumps(body_of("sleep")))
    launcher.start("stage_toy", work, process.environment_of(body_of("sleep")))
    wait_until(lambda: (work / "pid0").exists())
    first = int((work / "pid0").read_text())
    assert run(work, "numbers") == {"done": 1.0}
    wait_until(lambda: [each["state"] for each in slurm_toy.jobs(state)] == ["CANCELLED", "COMPLETED"])
    wait_until(lambda: not alive([first]))


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--partition=nowhere", "launch.partition"),
        ("--account=nobody", "launch.account"),
        ("--constraint=b300", "launch.options"),
        ("--time=90-0", "launch.stages.rlvr.time"),
        ("--mem=9T", "launch.stages.rlvr.memory"),
        ("--cpus-per-task=999", "launch.stages.rlvr.cpus"),
        ("--gpus-per-node=64", "launch.stages.rlvr.gpus"),
        ("--ntasks-per-node=1", "launch.stages.rlvr"),
    ],
)
def test_what_sbatch_would_refuse_is_told_before_the_run_by_its_field(state, option, field):
    asked = {"time": "90-0", "memory": "9T", "cpus": 999, "gpus": 64}
    more = {"partition": "nowhere", "account": "nobody", "options": ["--constraint=b300"]}
    launch = Launch.model_validate({"stages": {"rlvr": asked, "sft": {}}} | more)
    assert list(slurm.problems(launch, ["rlvr"])) == [] == slurm_toy.jobs(state)
    (state / "unknown").write_text(option)
    (problem,) = slurm.problems(launch, ["rlvr"])
    assert problem.field == field and f"Invalid option: {option}" in problem.problem
    (state / "away").touch()
    (problem,) = slurm.problems(launch, ["rlvr"])
    assert problem.field == "launch.kind" and "Unable to contact slurm controller" in problem.problem


def test_a_machine_without_slurm_is_told_before_the_run(monkeypatch, tmp_path):
    launch = Launch.model_validate(SECTION)
    assert list(slurm.problems(launch, ["rlvr"])) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = slurm.problems(launch, ["rlvr"])
    assert problem == Problem("launch.kind", "there is no sbatch on PATH", problem.fix)


def test_a_plan_says_what_the_stages_that_run_would_be_refused_for(state):
    launch = "launch={stages: {rlvr: {}, sft: {}}, partition: nowhere}"
    recipe = read_recipe(toys.ROOT / "recipes" / "quickstart.yaml", [launch])
    (state / "unknown").write_text("--partition=nowhere")
    assert [p.field for p in surroundings.problems(recipe, ["curate", "rlvr"])] == ["launch.partition"]
    assert list(surroundings.problems(recipe, ["curate"])) == []


def test_a_plan_asks_for_slurm_and_not_for_cores(monkeypatch, tmp_path):
    recipe = read_recipe(
        toys.ROOT / "recipes" / "quickstart.yaml", ["launch={stages: {rlvr: {}}}", "rlvr.processes=512"]
    )
    monkeypatch.setattr(check, "Asked", lambda asked: SimpleNamespace(answers=lambda: [{}] * len(asked)))
    fields = {problem.field for problem in check.examine(recipe, ["rlvr"])}
    assert not fields & {"rlvr.processes", "launch.kind"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "launch.kind" in {problem.field for problem in check.examine(recipe, ["rlvr"])}


@pytest.mark.slow
def test_a_job_has_the_result_of_this_machine(tmp_path, home, state):
    here, there = (
        read_recipe(toys.recipe(tmp_path, **more))
        for more in ({}, {"launch": {"stages": {"curate": {}}, "poll_s": 0.1}})
    )
    launched = stages.run_stage(there, "curate", {}, parent=None)
    assert launched.status == "ran"
    wait_until(lambda: [each["state"] for each in slurm_toy.jobs(state)] == ["COMPLETED"])
    assert stages.run_stage(here, "curate", {}, parent=None).status == "reused"
    again = stages.run_stage(here, "curate", {}, parent=None, fresh=True)
    assert again.status == "ran" and again.artifact.digest == launched.artifact.digest
    assert len(slurm_toy.jobs(state)) == 1


@pytest.mark.slow
@pytest.mark.long
def test_ranks_on_two_nodes_train_what_two_ranks_here_do(tmp_path, start, state):
    """They meet at the first node's port; the weights are the same bytes."""
    body = json.loads((toys.job(tmp_path / "job", start, "rlvr.steps=2", "rlvr.prompts=2") / "job.json").read_text())
    section = SECTION | {"stages": {"rlvr": {"nodes": 2}}, "interface": "lo", "port": 29512}
    launcher = slurm.Slurm(Launch.model_validate(section), "rlvr")
    process.run("pipelines.rlvr", tmp_path / "two", body, lambda: None, launcher=launcher)
    body["settings"]["rlvr"]["processes"] = 2
    process.run("pipelines.rlvr", tmp_path / "here", body, lambda: None)
    there, here = ((tmp_path / name / "out/model/model.safetensors").read_bytes() for name in ("two", "here"))
    assert there == here != (start / "sft/out/model/model.safetensors").read_bytes()
    assert len(slurm_toy.jobs(state)) == 1
