"""Real processes and real signals: a command ends as it should, nothing outlives it, the next start goes on."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import databases
import forks
import psutil
import pytest
import toys
from children import alive, wait_until
from hostile import faults

from pipelines.base.files import read_json

pytestmark = pytest.mark.hostile
NAMES = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A recipe, and a project folder in which its data is curated: (recipe, folder)."""
    folder = tmp_path_factory.mktemp("signals")
    recipe = toys.recipe(folder)
    toys.whetstone("run", str(recipe), "--until", "curate", home=folder / "home")
    return recipe, folder / "home"


class Command:
    """`whetstone run` up to SFT as the leader of a session, as a terminal would start it."""

    def __init__(self, recipe: Path, home: Path, log: Path, *overrides: str) -> None:
        env = {k: v for k, v in os.environ.items() if k not in NAMES}
        sets = [part for text in overrides for part in ("--set", text)]
        self.home, self.log, self.began = home, log, time.time()
        databases.prepare(home)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli.main", "run", str(recipe), "--until", "sft", *sets],
                env=env | {"WHETSTONE_HOME": str(home), "PYTHONPATH": str(toys.ROOT)}, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def wrote(self, path: Path) -> bool:
        """Whether a file is there and no older than the command: other runs leave work folders too."""
        return path.exists() and path.stat().st_mtime >= self.began

    def until(self, true, seconds: float = 200) -> None:
        """Wait for something to come true while the command runs."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end and self.process.poll() is None, self.said()
            time.sleep(0.02)

    def said(self) -> str:
        """All that it printed."""
        return self.log.read_text(errors="replace")


def works(home: Path) -> list[Path]:
    """Work folders of SFT."""
    return list((home / "runs" / ".work").glob("sft-*"))


def processes(home: Path) -> list[psutil.Process]:
    """Everything alive that belongs to a project folder: it is in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("WHETSTONE_HOME") == str(home):
                found.append(process)
    return found


def nothing_left(home: Path, seconds: float = 8) -> None:
    """Within seconds nothing of that folder is alive."""
    until = time.monotonic() + seconds
    while (left := processes(home)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, [p.cmdline() for p in left]


def ranks_of(home: Path) -> list[psutil.Process]:
    """Those that are a stage's process."""
    found = []
    for process in processes(home):
        with contextlib.suppress(psutil.Error):  # one may end while it is looked at
            if "--rank" in process.cmdline():
                found.append(process)
    return found


def runs(home: Path) -> dict[str, tuple[str, str, str]]:
    """MLflow's runs: id → (kind, status, parent)."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return {
        r.info.run_id: (r.data.tags.get("whetstone.kind", ""), r.info.status, r.data.tags.get("mlflow.parentRunId", ""))
        for r in found
    }


MOMENTS = {
    "importing": lambda command: "sft" in command.said(),  # it has said what it will do
    "child started": lambda command: any(command.wrote(w / "job.json") for w in works(command.home)),
    "training": lambda command: any(command.wrote(w / "checkpoints" / "LATEST.json") for w in works(command.home)),
}
CASES = [
    (signum, moment, code)
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9))
    for moment in MOMENTS
]
# One that a scheduler sends, before there is a commit, and one that nothing catches.
IN_CI = [(signal.SIGTERM, "child started", 143), (signal.SIGKILL, "training", -9)]


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize(
    ("signum", "moment", "code"),
    [case if case in IN_CI else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_signals(ready, tmp_path, signum, moment, code):
    """Exit code, one line, nothing alive; the last commit is whole and MLflow knows."""
    recipe, home = ready
    known = set(runs(home))
    for work in works(home):  # of the case before
        shutil.rmtree(work)
    command = Command(recipe, home, tmp_path / "log", f"sft.steps={20000 + CASES.index((signum, moment, code))}")
    command.until(lambda: MOMENTS[moment](command))
    time.sleep(0.3)
    began = time.monotonic()
    if signum == signal.SIGKILL:
        command.process.kill()
    else:
        os.killpg(command.process.pid, signum)
    assert command.process.wait(timeout=60) == code, command.said()
    assert time.monotonic() - began < 15
    nothing_left(home)
    if signum != signal.SIGKILL:
        assert "Traceback" not in command.said()
        assert command.said().count("stopped by") == 1, command.said()
    if moment == "training":
        (work,) = works(command.home)
        latest = read_json(work / "checkpoints" / "LATEST.json")
        assert latest["step"] > 0
        new = {k: v for k, v in runs(home).items() if k not in known}
        wanted = "RUNNING" if signum == signal.SIGKILL else "KILLED"
        assert sorted((kind, status) for kind, status, _ in new.values()) == [("pipeline", wanted), ("stage", wanted)]
        if signum == signal.SIGKILL:
            assert "closed" in toys.whetstone("sync", home=home).stdout
            assert {runs(home)[k][1] for k in new} == {"KILLED"}


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.long
def test_an_interrupted_run_goes_on(ready, tmp_path):
    """Ctrl+C in training, the same command again: from the last commit, in the same MLflow runs."""
    recipe, home = ready
    command = Command(recipe, home, tmp_path / "log", "sft.steps=400", "name=again")
    command.until(lambda: MOMENTS["training"](command))
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.process.wait(timeout=90) == 130
    stopped = {k for k, (_, status, _) in runs(home).items() if status == "KILLED"}
    again = Command(recipe, home, tmp_path / "again", "sft.steps=400", "name=again")
    assert again.process.wait(timeout=450) == 0, again.said()
    finished = [k for k in stopped if runs(home)[k][1] == "FINISHED"]
    assert len(finished) == 2, "the pipeline's run and the stage's"
    assert any("resumed from a commit" in log.read_text() for log in (home / "runs").glob("sft-*/report/stage.log")), (
        again.said()
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_a_killed_stage_goes_on(ready, tmp_path):
    """SIGKILL of the stage alone: started once more, from its last commit."""
    recipe, home = ready
    command = Command(recipe, home, tmp_path / "log", "sft.steps=401")
    command.until(lambda: MOMENTS["training"](command))
    ranks: list = []

    def one_rank():
        ranks[:] = ranks_of(home)
        return len(ranks) == 1

    command.until(one_rank)
    ranks[0].kill()
    assert command.process.wait(timeout=450) == 0, command.said()
    nothing_left(home)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.server
def test_two_pipelines_at_once(tmp_path):
    """In an empty folder: the second waits and says for whom; the first is killed; the second goes on, unmarked."""
    recipe, home = toys.recipe(tmp_path), tmp_path / "home"
    one = Command(recipe, home, tmp_path / "one", "sft.steps=402")
    one.until(lambda: MOMENTS["training"](one))
    (rank,) = ranks_of(home)
    rank.suspend()  # or it might be done before the second has started
    two = Command(recipe, home, tmp_path / "two", "sft.steps=402")
    two.until(lambda: "waits for process" in two.said())
    assert f"waits for process {one.process.pid} (since 20" in two.said()
    parents = {k: v for k, v in runs(home).items() if v[0] == "pipeline"}
    assert len(parents) == 2
    one.process.terminate()
    assert one.process.wait(timeout=60) == 143
    assert two.process.wait(timeout=450) == 0, two.said()
    assert sorted(runs(home)[k][1] for k in parents) == ["FINISHED", "KILLED"]
    nothing_left(home)


@pytest.mark.slow
def test_ranks_listen_on_loopback_only(tmp_path, start):
    """While two ranks train, no socket of theirs listens where another machine could reach it; then they die with us."""
    work = toys.job(tmp_path / "w", start, "rlvr.processes=2", "rlvr.steps=500")
    with open(tmp_path / "log", "wb") as out:
        launcher = forks.Popen(
            [sys.executable, "-m", "pipelines.stage.launch", "pipelines.rlvr", str(work)],
            env=toys.environment(OMP_NUM_THREADS="1"), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + 200
        while not (work / "spool.jsonl").exists() or not toys.spool(work):
            assert launcher.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.1)
        ranks = psutil.Process(launcher.pid).children(recursive=True)
        assert len(ranks) >= 2
        listening = [c.laddr.ip for p in ranks for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert all(ip in ("127.0.0.1", "::1") for ip in listening), listening
        (meeting,) = work.glob("ranks-*")
        assert meeting.stat().st_mode & 0o077 == 0
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not alive(p.pid for p in ranks), 5)


def test_every_row_of_the_table_has_its_test():
    """docs/operations.md is fresh, and the tests that it rests on exist."""
    page = (toys.ROOT / "docs" / "operations.md").read_text()
    assert faults.put(page) == page, "run `make docs`"
    assert all((toys.ROOT / "tests" / name).is_file() for inputs in faults.INPUTS.values() for name in inputs.files)
    assert all(0 < right <= tried for tried, right in json.loads(faults.COUNTS.read_text()).values())
    for fault in faults.FAULTS:
        file, name = fault.test.split("::")
        tree = ast.parse((toys.ROOT / "tests" / file).read_text())
        assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, fault.test


@pytest.mark.slow
def test_several_machines_meet_at_one_address(tmp_path):
    """Two launchers, as on two machines: what listens does so at the named address only."""
    from servers import free_port

    (tmp_path / "job.json").write_text('{"stage": "rlvr"}')
    address = f"127.0.0.1:{free_port()}"
    env = toys.environment(OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "pipelines.stage.launch", "ranks_toy", str(tmp_path), "--nodes", "2"]
    env["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
    with open(tmp_path / "log", "wb") as out:
        launchers = [
            subprocess.Popen(
                [*command, "--node", str(n), "--address", address, "--interface", "lo"], env=env, stderr=out
            )
            for n in range(2)
        ]
    try:
        until = time.monotonic() + 100
        while len(list(tmp_path.glob("met*"))) < 2:
            assert time.monotonic() < until and all(p.poll() is None for p in launchers), (tmp_path / "log").read_text()
            time.sleep(0.1)
        ranks = [r for p in launchers for r in psutil.Process(p.pid).children()]
        found = {c.laddr for r in ranks for c in r.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        (tmp_path / "enough").touch()
        assert [p.wait(timeout=30) for p in launchers] == [0, 0]
    finally:
        for launcher in launchers:
            launcher.kill()
    assert address in {f"{where.ip}:{where.port}" for where in found}
    assert {where.ip for where in found} == {"127.0.0.1"}
    assert (tmp_path / "met0").read_text() == "[0, 1]"


@pytest.mark.slow
def test_a_store_that_anybody_reaches_is_refused(tmp_path):
    """As torchrun starts ranks: several, and no private place to meet."""
    env = toys.environment(WORLD_SIZE="2", RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1", WHETSTONE_STORE="")
    command = [sys.executable, str(Path(__file__).parent / "ranks_toy.py"), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1 and "pipelines.stage.launch" in done.stderr
