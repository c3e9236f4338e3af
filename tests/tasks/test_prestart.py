"""The process of the next stage, started before there is work: what it makes, when it is not used, and that it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import toys
from children import TOYS, alive, job, wait_until

from pipelines.base import owner
from pipelines.recipe.read import read_recipe
from pipelines.stage import fork_server
from tasks import keys, machine, process, stages
from tasks import prestart as ahead
from tasks.environment import runs_folder
from tasks.store import artifacts


@pytest.fixture(autouse=True, params=["forked", "from scratch"])
def how(request, monkeypatch, home):
    """Whether a process is forked or starts from scratch."""
    monkeypatch.setenv("PYTHONPATH", str(TOYS))
    if request.param == "from scratch":
        monkeypatch.setattr(fork_server, "possible", lambda: False)
    elif not fork_server.possible():
        pytest.skip("stages are not forked on this machine")
    yield request.param
    ahead.leave()
    assert not ahead._servers


@pytest.fixture
def recipe(tmp_path):
    return read_recipe(toys.recipe(tmp_path), ["rlvr=null", "evaluate=null"])


@pytest.fixture
def toy(recipe):
    """A node whose process is the toy's; its code is that of curation."""
    kind = SimpleNamespace(module="stage_toy", imports=lambda node: [], processes_field="processes")
    return SimpleNamespace(recipe=recipe, name="curate", settings=recipe.node("curate").settings, kind=kind)


def pair(child):
    """Pids of the launcher and of the process that waits; a fork has no launcher and stands for both."""
    process = psutil.Process(child.pid)
    if isinstance(child, fork_server.Forked):
        return [process.pid, process.pid]
    wait_until(lambda: len(process.children()) == 1, 30)
    return [process.pid, process.children()[0].pid]


def waiting():
    """Their pids, once they are there."""
    return pair(ahead._waiting.child)


def run(toy, work, do, **settings):
    return process.run("stage_toy", work, job(do, **settings), lambda: None, partial(ahead.take, toy))


def lines(work):
    """The log without times."""
    return [re.sub(r"^\S+ \S+(?= [A-Z]+ )", "", line) for line in (work / process.LOG).read_text().splitlines()]


@pytest.mark.slow
def test_a_stage_finds_what_it_finds_after_an_ordinary_start(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_SAYS", "said while it is imported")
    monkeypatch.setenv("PREFECT_GONE", "1")
    ordinary, later = tmp_path / "ordinary", tmp_path / "later"
    ahead.begin(toy)
    pids = waiting()
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.delenv("PREFECT_GONE")
    assert run(toy, later, "surroundings") == {"done": 1.0}
    assert int((later / "pid0").read_text()) == pids[1]
    wait_until(lambda: not alive(pids))
    process.run("stage_toy", ordinary, job("surroundings"), lambda: None)
    told, wanted = (json.loads((w / "surroundings.json").read_text()) for w in (later, ordinary))
    for each, work in ((told, later), (wanted, ordinary)):
        assert each["argv"].pop() == str(work)
        del each["environment"]["WHETSTONE_PARENT"]
    assert told == wanted and wanted["environment"]["PREFECT_API_URL"].endswith(":1/api") and wanted["stdin"] == ""
    assert lines(later).count("said while it is imported") == 2, "before there is work, and as __main__"
    assert lines(later)[1:] == lines(ordinary) and lines(ordinary)[1:] == [" INFO at work"]


@pytest.mark.slow
def test_a_real_stage_makes_the_same(recipe, tmp_path):
    node = recipe.node("curate")
    told = stages.job_of(node, {})
    ahead.begin(node)
    pids = waiting()
    made = {}
    for name, take in (("later", partial(ahead.take, node)), ("ordinary", lambda *_: None)):
        metrics = process.run(node.kind.module, tmp_path / name, told, lambda: None, take)
        files = sorted(p for p in (tmp_path / name / "out").rglob("*") if p.is_file() and "report" not in p.parts)
        made[name] = metrics, {p.relative_to(tmp_path / name): p.read_bytes() for p in files}, lines(tmp_path / name)
        assert (int((tmp_path / name / "lock").read_text()) in pids) == (name == "later")
    assert made["later"] == made["ordinary"] and made["ordinary"][1]


@pytest.mark.slow
@pytest.mark.parametrize("handed_over", [False, True])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.few(3)
def test_nothing_outlives_its_owner(tmp_path, how, handed_over, signum):
    code = f"""
import sys; sys.path.insert(0, {str(TOYS)!r})
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from pipelines.recipe.read import read_recipe
from pipelines.stage import fork_server
from tasks import process
from tasks import prestart as ahead
fork_server.possible = lambda: {how == "forked"}
recipe = read_recipe({str(toys.recipe(tmp_path))!r}, [])
kind = SimpleNamespace(module="stage_toy", imports=lambda node: [], processes_field="processes")
toy = SimpleNamespace(recipe=recipe, name="curate", settings=recipe.node("curate").settings, kind=kind)
ahead.begin(toy)
print(*[ahead._waiting.child.pid, *(server._process.pid for server in ahead._servers)], flush=True)
if {handed_over}:
    process.run("stage_toy", Path({str(tmp_path / "w")!r}), {job("children")!r}, lambda: None, partial(ahead.take, toy))
sys.stdin.read()
"""
    env = toys.environment(PYTHONPATH=f"{toys.ROOT}:{TOYS}")
    owner = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    if how == "from scratch":
        wait_until(lambda: len(psutil.Process(pids[0]).children()) == 1, 30)
        pids.append(psutil.Process(pids[0]).children()[0].pid)
    assert len(pids) == 2
    if handed_over:
        file = tmp_path / "w" / "pid-child0"
        wait_until(file.exists, 30)
        pids.append(int(file.read_text()))
    assert len(alive(pids)) == len(pids)
    os.kill(owner.pid, signum)
    owner.wait(timeout=20)
    wait_until(lambda: not alive(pids))


def test_without_a_hand_over_it_leaves_quietly(toy):
    ahead.begin(toy)
    pids, child = waiting(), ahead._waiting.child
    child.stdin.close()
    wait_until(lambda: not alive(pids[1:]))
    assert child.wait(20) == 0


def refused(node, work, environment=None):
    """Whether the process that waits is not used; it is gone then."""
    pids = [ahead._waiting.child.pid, *(p.pid for p in psutil.Process(ahead._waiting.child.pid).children())]
    work.mkdir(exist_ok=True)
    taken = ahead.take(node, work, environment or process.environment_of({"threads": node.recipe.threads}))
    assert ahead._waiting is None
    if taken is not None:
        owner.end_group(taken)
    wait_until(lambda: not alive(pids))
    return taken is None


@pytest.mark.slow
@pytest.mark.parametrize("change", ["code", "comment", "threads", "variable", "another stage"])
@pytest.mark.few(3)
def test_what_an_ordinary_start_would_not_give_is_not_used(recipe, tmp_path, monkeypatch, change):
    (tmp_path / "generators.py").write_text("def problems():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe.node("curate").settings.sources[0].config["problems"] = "generators:problems"
    node = recipe.node("curate")
    assert "module/generators" in keys.code_now(recipe, "curate")
    ahead.begin(node)
    environment = process.environment_of({"threads": recipe.threads})
    if change == "code":
        (tmp_path / "generators.py").write_text("def problems():\n    return 2\n")
    elif change == "comment":
        (tmp_path / "generators.py").write_text("def problems():\n    return 1  # one\n")
    elif change == "threads":
        environment = process.environment_of({"threads": 7})
    elif change == "variable":
        environment["HF_HOME"] = str(tmp_path)
    else:
        node = recipe.node("sft")
    assert refused(node, tmp_path / "w", environment) == (change != "comment")


@pytest.mark.slow
def test_a_process_that_has_died_is_not_used(toy, tmp_path):
    ahead.begin(toy)
    os.kill(waiting()[1], signal.SIGKILL)
    ahead._waiting.child.wait(20)
    assert run(toy, tmp_path / "w", "numbers") == {"done": 1.0} and ahead._waiting is None


def test_what_cannot_be_imported_fails_as_ever(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_BREAKS", "1")
    ahead.begin(toy)
    waiting()
    for name, take in (("later", partial(ahead.take, toy)), ("ordinary", lambda *_: None)):
        with pytest.raises(process.StageFailed, match=r"exit code 1(?s:.*)ImportError: no module of that name"):
            process.run("stage_toy", tmp_path / name, job("numbers"), lambda: None, take)
    assert lines(tmp_path / "later") == lines(tmp_path / "ordinary")


@pytest.mark.slow
def test_a_stage_that_is_reused_ends_the_process_that_waits_for_it(recipe, tmp_path):
    parts = keys.key_parts(recipe, "curate", {})
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "data.json").write_text("{}")
    runs_folder().mkdir(parents=True)
    artifacts.put(tmp_path / "made", runs_folder(), "curate", keys.stage_key(parts), {"parts": parts})
    ahead.begin(recipe.node("curate"))
    pids = waiting()
    assert stages.run_stage(recipe, "curate", {}, parent=None).status == "reused"
    assert ahead._waiting is None
    wait_until(lambda: not alive(pids))


def test_the_next_stage_is_the_first_that_is_not_known_to_be_reused(recipe):
    parts = keys.key_parts(recipe, "curate", {})
    artifacts.folder(runs_folder(), "curate", keys.stage_key(parts)).mkdir(parents=True)
    stages._begin_next(recipe, ["curate", "sft"], {}, fresh=False)
    assert ahead._waiting.node.name == "sft"
    stages._begin_next(recipe, ["curate", "sft"], {}, fresh=True)
    assert ahead._waiting.node.name == "curate"


@pytest.mark.slow
def test_none_waits_where_memory_is_short_or_ranks_are_several_or_in_a_thread(recipe, toy, monkeypatch):
    toy.settings = SimpleNamespace(processes=2)
    ahead.begin(toy)
    thread = threading.Thread(target=ahead.begin, args=[recipe.node("curate")])  # it would end with the thread
    thread.start()
    thread.join()
    assert ahead._waiting is None
    ahead.begin(recipe.node("curate"))
    ahead.check_memory()
    pids = waiting()
    monkeypatch.setattr(machine, "available_bytes", lambda: ahead.ROOM_BYTES / 2 - 1)
    ahead.check_memory()
    assert ahead._waiting is None
    wait_until(lambda: not alive(pids))
    monkeypatch.setattr(machine, "available_bytes", lambda: ahead.ROOM_BYTES - 1)
    ahead.begin(recipe.node("curate"))
    assert ahead._waiting is None


def test_a_machine_says_what_memory_is_available():
    assert 0 < machine.available_bytes() <= machine.memory_bytes()
