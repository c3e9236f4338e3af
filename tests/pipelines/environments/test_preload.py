"""Agent programs that are forks of a process with their packages: they behave as when each is started by itself."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import agents
import pytest
import worlds

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments import Unavailable, _preload
from pipelines.environments._program import Program

HEAVY = """
import os
with open(os.environ["IMPORTS"], "a") as log:
    log.write(f"{os.getpid()}\\n")
loaded_by = os.getpid()
"""
"""A module that counts how often it is imported."""


@pytest.fixture
def variables(tmp_path):
    """Of programs that can import `heavy`."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "heavy.py").write_text(HEAVY)
    return {"PYTHONPATH": str(tmp_path / "modules"), "IMPORTS": str(tmp_path / "imports")}


def imports(tmp_path):
    path = tmp_path / "imports"
    return len(path.read_text().splitlines()) if path.exists() else 0


def ended(folder, text, variables, *, host=None, task="the task", arguments=(), result_file=None, output=1 << 20):
    """What comes of a program of this text."""
    path = folder / "program.py"
    path.write_text(text)
    told: queue.Queue = queue.Queue()
    command = [sys.executable, str(path), *arguments]
    Program(command, variables, task=task, output=output, result_file=result_file, on_end=told.put, host=host)
    return told.get(timeout=60)


@pytest.fixture
def host(variables):
    made = _preload.Preloaded(sys.executable, ["heavy"], variables)
    yield made
    made._control.shutdown(2)
    made._process.wait(60)


SAME = {
    "its streams": "import sys\nprint(sys.stdin.read() * 2)\nprint('more', file=sys.stderr)",
    "its arguments": "import os, sys\nprint(os.path.basename(sys.argv[0]), sys.argv[1:], __name__, os.path.basename(__file__))",
    "its folder": "import os, tempfile\nprint(os.listdir('.'), tempfile.gettempdir() == os.environ['TMPDIR'] == os.getcwd())",
    "its variables": "import os\nprint(sorted(name for name in os.environ if name not in ('LC_CTYPE', 'PWD', 'TMPDIR')))",
    "modules beside it": "import os, sys\nprint(sys.path[0] == os.path.dirname(__file__), [p for p in sys.path if 'environments' in p])",
    "exit code": "import sys\nprint('x')\nsys.exit(300)",
    "exit code of nothing": "raise SystemExit",
    "exit with a text": "import sys\nsys.exit('the reason')",
    "an exception": "print('before')\nraise ValueError('the reason')",
    "a mistake in the text": "print('before'\n",
    "a signal": "import os\nos.kill(os.getpid(), 9)",
    "what is done at the end": "import atexit, os\nprint('first', flush=True)\natexit.register(print, 'last')",
    "a thread that goes on": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()",
    "an abrupt end": "import os\nprint('kept', flush=True)\nprint('lost')\nos._exit(4)",
    "a class of the main module": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
    "a result": "open('result.txt', 'w').write('7')",
    "too much": "print('x' * 5_000_000)",
    "signals' handlers": "import signal\nprint(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGPIPE))",
    "a child of its own": "import subprocess\nprint(subprocess.run(['sh', '-c', 'echo child; exit 3'], capture_output=True))",
}  # fmt: skip


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_a_fork_ends_as_a_program_of_its_own(tmp_path, variables, host, text):
    more = {"arguments": ("one", "two words"), "result_file": "result.txt", "output": 1 << 21}
    alone = ended(tmp_path, text, variables, **more)
    forked = ended(tmp_path, text, variables, host=host, **more)
    assert (forked.code, forked.stdout, forked.result, forked.overflow) == (
        alone.code,
        alone.stdout,
        alone.result,
        alone.overflow,
    )
    assert forked.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]


def test_modules_are_imported_once_and_nothing_is_shared(tmp_path, variables, host):
    text = "import heavy, os, random\nheavy.x = getattr(heavy, 'x', 0) + 1\nprint(heavy.loaded_by != os.getpid(), heavy.x, random.random())"
    told = [ended(tmp_path, text, variables, host=host).stdout.split() for _ in range(4)]
    assert imports(tmp_path) == 1
    assert [each[:2] for each in told] == [["True", "1"]] * 4, "what a program changes is its own"
    assert len({each[2] for each in told}) == 4, "random numbers are not those of the process that was forked"
    ended(tmp_path, text, variables)
    assert imports(tmp_path) == 2


def test_an_agent_plays_the_same(tmp_path, variables):
    text = "import heavy\n" + agents.ADDING
    tasks = [{"task": f"{number} and 2", "answer": str(number + 2)} for number in range(3)]
    alone = agents.rows(tmp_path, text, *tasks, variables=variables)
    assert imports(tmp_path) == 3
    rows = agents.rows(tmp_path, text, *tasks, variables=variables, preload=["heavy", "json"])
    assert imports(tmp_path) == 4
    for before, row in zip(alone, rows, strict=True):
        assert row["info"]["settings"]["preload"] == ["heavy", "json"]
        settings = {**row["info"]["settings"], "preload": []}
        assert {**row, "info": {**row["info"], "settings": settings}} == before
    world = worlds.started("agent", rows[1])
    assert world.step(rows[1]["answer"]).reward == 1.0
    assert worlds.copy_of("agent", world).state_key() == world.state_key()
    assert imports(tmp_path) == 4


def test_one_whose_process_is_gone_gets_another(tmp_path, variables):
    first = _preload.host_of(sys.executable, ["heavy"], variables)
    assert ended(tmp_path, "print(1)", variables, host=first).stdout == "1\n"
    assert _preload.host_of(sys.executable, ["heavy"], variables) is first
    os.kill(first._process.pid, signal.SIGKILL)
    while first.over is None:
        time.sleep(0.01)
    assert "exit code -9" in first.over
    with pytest.raises(Unavailable, match="is gone"):
        ended(tmp_path, "print(1)", variables, host=first)
    second = _preload.host_of(sys.executable, ["heavy"], variables)
    assert ended(tmp_path, "print(2)", variables, host=second).stdout == "2\n" and imports(tmp_path) == 2


@pytest.mark.parametrize(
    ("module", "body", "words"),
    [
        ("absent_module", None, "absent_module cannot be imported: ModuleNotFoundError"),
        ("leaves", "import sys\nsys.exit(1)", "leaves cannot be imported: SystemExit: 1"),
        ("threaded", "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "starts threads"),
        ("dies", "import os\nos._exit(3)", "is gone: exit code 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_said_where_data_are_made(tmp_path, variables, module, body, words):
    if body is not None:
        (tmp_path / "modules" / f"{module}.py").write_text(body)
    with pytest.raises(RecipeError, match=words):
        agents.rows(tmp_path, agents.ADDING, {"task": "q"}, variables=variables, preload=[module])


@pytest.mark.parametrize(
    ("command", "preload", "words"),
    [
        (["python", "program.py"], "json", "is no list of modules"),
        (["python", "program.py"], ["not a module"], "is no list of modules"),
        (["python", "program.py"], [7], "is no list of modules"),
        (["sh", "-c", "true"], ["json"], "programs of Python alone"),
        (["python", "-u", "program.py"], ["json"], "programs of Python alone"),
        (["python"], ["json"], "programs of Python alone"),
    ],
)
def test_refused_before_anything_starts(command, preload, words):
    told = list(environments.module("agent").refusals({"command": command, "tasks": "tasks.jsonl", "preload": preload}))
    assert [problem for problem in told if problem.field == "preload" and words in problem.problem]


def alive(word):
    """Processes with this word in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_is_left_when_the_process_is_killed(tmp_path, variables):
    """By SIGKILL, of the process with the modules, the keeper, the program, and a child of its that left its group."""
    text = """
import subprocess, sys, time
subprocess.Popen(["sleep", "78.25"], start_new_session=True)
print("begun", flush=True)
time.sleep(60)
"""
    (tmp_path / "program.py").write_text(text)
    player = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from pipelines.environments import _preload
from pipelines.environments._program import Program
variables = {variables!r}
host = _preload.host_of(sys.executable, ["heavy"], variables)
Program([sys.executable, {str(tmp_path / "program.py")!r}], variables, task="", output=1000, result_file=None, on_end=print, host=host)
print(host._process.pid, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", player], stdout=subprocess.PIPE, text=True)
    host = process.stdout.readline().strip()
    deadline = time.monotonic() + 30
    while not alive("78.25") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive("78.25") and len(alive("_preload_host.py")) >= 3 and host in alive("_preload_host.py")
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    mine = alive("_preload_host.py")
    while (alive("78.25") or host in mine) and time.monotonic() < deadline:
        time.sleep(0.02)
        mine = alive("_preload_host.py")
    assert not alive("78.25") and host not in mine


def test_a_program_that_is_killed_leaves_no_child(tmp_path, variables, host):
    (tmp_path / "program.py").write_text("import json, os, subprocess, sys\nsubprocess.run(['sleep', '78.75'])")
    program = Program(
        [sys.executable, str(tmp_path / "program.py")],
        variables, task=json.dumps("q"), output=1000, result_file=None, on_end=pytest.fail, host=host,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not alive("78.75") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive("78.75")
    program.kill()
    while alive("78.75") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive("78.75")
    assert ended(tmp_path, "print('on')", variables, host=host).stdout == "on\n", "the others go on"
