"""Programs on a server, which is a process of its own: what they come to, and that no fault of the server's makes a verdict."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

import pytest
import sandbox_server
from worlds import started

from pipelines import verifiers
from pipelines.environments import Unavailable
from pipelines.sandbox import SandboxError, isolation, pool, server, shell
from pipelines.sandbox.remote import Remote, RemoteSandbox
from pipelines.sandbox.worker import Broken, Limits
from pipelines.stage import process
from pipelines.tools import Outcome, ToolUnavailable, toolbox

needs_namespaces = pytest.mark.skipif(bool(shell.trouble_here()), reason=shell.trouble_here())
ADD = "def add(a, b):\n    return a + b\n"
CASES = {"entry_point": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [0.5, 2], "expected": 2.5}]}
ASSERTS = {"asserts": ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]}
RUNS = {"cases": [{"input": "3\n", "output": "9\n"}, {"input": "4\n", "output": "16\n"}]}
ROWS = [
    (ADD, CASES), (ADD.replace("+", "-"), CASES), ("I do not know.", CASES), ("import os\n" + ADD.replace("return", "os.abort();"), CASES),
    (ADD, ASSERTS), (ADD.replace("+", "-"), ASSERTS), ("def add(a, b):\n    while True: pass", CASES | {"timeout_s": 1}),
    ("print(int(input()) ** 2)", RUNS), ("print(int(input()) * 3)", RUNS), ("print('x' * 9_000_000)", RUNS), ("1 / 0", RUNS),
    ("def add(a, b):\n    return open('/etc/passwd').read()", CASES), ("import socket\nsocket.create_connection(('127.0.0.1', 80))", RUNS),
]  # fmt: skip


def python_rows():
    return [("python", completion, "", info) for completion, info in ROWS]


@pytest.fixture(scope="module")
def url():
    with sandbox_server.serving() as (address, _):
        yield address


@pytest.fixture
def remote(url, monkeypatch):
    """This process's programs run on the server."""
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", sandbox_server.KEY)
    fields = {"url": url, "api_key_env": "WHETSTONE_SANDBOX_KEY", "timeout_s": 5.0, "patience": (0.1,)}
    pool.confine(fields)
    yield Remote(**fields)
    pool.confine("auto")


@pytest.mark.slow
def test_verdicts_are_those_of_this_machine(remote):
    elsewhere = verifiers.verify_many(python_rows())
    pool.confine("auto")
    here = verifiers.verify_many(python_rows())
    assert [each.status for each in here[:3]] == ["correct", "incorrect", "unparsable"] and here[
        6
    ].status == "timed_out"
    assert elsewhere == here


def test_a_query_and_a_construction_are_judged_there(remote):
    schema = {"schema": "create table t (a); insert into t values (1), (2);"}
    row = {"construction": {"kind": "cap_set", "dimension": 2}}
    assert verifiers.verify("sql", "SELECT a FROM t", "SELECT a FROM t WHERE a > 0", schema).score == 1.0
    assert (
        verifiers.verify("construction", "def construct(): return [[0, 0], [0, 1], [1, 0], [1, 1]]", "4", row).score
        == 1.0
    )


def test_two_programs_side_by_side_share_a_sandbox_and_a_slow_network_is_no_fault_of_theirs(remote):
    with (
        RemoteSandbox(remote) as sandbox,
        sandbox.run({"mode": "functions", "source": ADD}, Limits(cpu_s=1, wall_factor=0.4)) as first,
    ):
        assert first.ask(None) == {"ready": True}
        time.sleep(0.6)
        assert first.ask({"name": "add", "args": [1, 2], "kwargs": {}}) == {"value": 3}
        with sandbox.run({"mode": "functions", "source": ADD}) as second:
            assert second.ask(None) == {"ready": True} and len(sandbox.sessions) == 2
            with (
                pytest.raises(Broken, match="two programs"),
                sandbox.run({"mode": "functions", "source": ADD}) as third,
            ):
                third.ask(None)
    with RemoteSandbox(remote) as sandbox, sandbox.run({"mode": "functions", "source": ADD + "import time\ndef rest(): time.sleep(9)"},
                                                       Limits(cpu_s=1, wall_factor=0.4)) as slow:  # fmt: skip
        assert slow.ask(None) == {"ready": True}
        assert slow.ask({"name": "rest", "args": [], "kwargs": {}}) == {"gone": "timed_out"}


@needs_namespaces
def test_a_shell_and_the_python_tool(remote):
    info = {"environment": "shell", "files": {"a.txt": "hi"}, "tests": [{"run": "cat b.txt", "expect": "hi"}]}
    world = started(
        "shell",
        {"prompt": [{"role": "user", "content": "do it"}], "answer": "submit", "verifier": "exact", "info": info},
    )
    assert world.step("mv a.txt b.txt; id -u > c").observation == "[exit 0]"
    assert sorted(world.files) == ["b.txt", "c"]
    assert world.step("cat /etc/passwd; echo x > /dev/tcp/127.0.0.1/80").info["invalid"] is False
    assert "No such file" in world.shown and world.step("submit").reward == 1.0
    tools = toolbox([{"kind": "python", "cpu_s": 1}])
    assert tools.call("python", {"code": "6 * 7"}).text == "42"
    assert tools.call("python", {"code": "while True: pass"}).outcome is Outcome.TIMED_OUT


def test_a_program_reaches_neither_files_nor_the_server_itself(remote, tmp_path):
    """What decides over a level on this machine, asked through the server."""
    (tmp_path / "planted").write_text("x")
    arguments = [str(tmp_path / "planted"), int(remote.url.rpartition(":")[2]), str(tmp_path)]
    with RemoteSandbox(remote) as sandbox, sandbox.run({"mode": "functions", "source": isolation._PROBE}) as program:
        assert program.ask(None) == {"ready": True}
        assert program.ask({"name": "reached", "args": arguments, "kwargs": {}}) == {"value": []}
        key = {"name": "key", "args": [], "kwargs": {}}
    with (
        RemoteSandbox(remote) as sandbox,
        sandbox.run({"mode": "functions", "source": "import os\ndef key(): return sorted(os.environ)"}) as program,
    ):
        program.ask(None)
        assert "WHETSTONE_SANDBOX_KEY" not in program.ask(key)["value"]


@pytest.mark.slow
@needs_namespaces
def test_a_server_that_is_killed_leaves_rows_and_episodes_unscored(monkeypatch):
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", sandbox_server.KEY)
    with sandbox_server.serving(workers=1) as (address, process):
        pool.confine({"url": address, "api_key_env": "WHETSTONE_SANDBOX_KEY", "timeout_s": 5.0, "patience": (0.05,)})
        try:
            world = started("shell", {"prompt": [{"role": "user", "content": "x"}], "answer": "submit", "verifier": "exact",
                                      "info": {"environment": "shell", "files": {}, "tests": [{"run": "true", "expect": ""}]}})  # fmt: skip
            assert world.step("ls").observation == "[exit 0]"
            threading.Timer(0.5, process.kill).start()
            row = ("python", "import time\n" + ADD.replace("return", "time.sleep(2); return"), "", CASES)
            (verdict,) = verifiers.verify_many([row])
            assert verdict.score is None and verdict.status == "verifier_failed"
            with pytest.raises(Unavailable):
                world.step("submit")
            tools = toolbox([{"kind": "python"}])
            with pytest.raises(ToolUnavailable):
                tools.call("python", {"code": "1"})
        finally:
            pool.confine("auto")


@pytest.mark.slow
def test_a_busy_server_is_asked_again_and_its_queue_is_no_time_of_the_program(monkeypatch):
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", sandbox_server.KEY)
    with sandbox_server.serving(workers=1) as (address, _):
        remote = Remote(address, "WHETSTONE_SANDBOX_KEY", patience=())
        nap = {"mode": "script", "source": "import time\ntime.sleep(1.2)"}

        def script(seconds):
            with RemoteSandbox(remote) as sandbox:
                sandbox.until = time.monotonic() + seconds
                with sandbox.run({"mode": "script", "source": "print(1)"}) as program:
                    return program.output(), program.finish(0)["status"], sandbox.left_s > 0

        with RemoteSandbox(remote) as other:
            thread = threading.Thread(target=lambda: other.run(nap).__enter__().output())
            thread.start()
            time.sleep(0.3)
            assert script(0.8) == (b"1\n", 0, True), "it waits longer than the program may take, and is not late"
            thread.join()


def test_a_server_that_stays_busy_leaves_the_row_unscored(monkeypatch):
    monkeypatch.setattr(server, "QUEUE_S", 0.05)
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", sandbox_server.KEY)
    host = server.Host(1, isolation.best())
    with server.Server(("127.0.0.1", 0), host, sandbox_server.KEY) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{listener.server_address[1]}"
        pool.confine({"url": address, "api_key_env": "WHETSTONE_SANDBOX_KEY", "patience": (0.05,)})
        try:
            with host.free:
                assert verifiers.verify("python", ADD, "", CASES).status == "verifier_failed"
            assert verifiers.verify("python", ADD, "", CASES).status == "correct"
        finally:
            pool.confine("auto")
            listener.shutdown()


@pytest.mark.parametrize("key", ["", "wrong"])
def test_the_wrong_key_and_another_runtime_are_refused_before_anything_runs(url, monkeypatch, key):
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", key)
    remote = Remote(url, "WHETSTONE_SANDBOX_KEY", patience=())
    with pytest.raises(SandboxError, match=r"sandbox\.api_key_env: .*(refuses the key|environment has no)"):
        remote.about()
    monkeypatch.setenv("WHETSTONE_SANDBOX_KEY", sandbox_server.KEY)
    assert remote.about()["level"] == isolation.best()
    monkeypatch.setattr("pipelines.sandbox.levels.runtime", lambda: {"python": "2.7"})
    with pytest.raises(SandboxError, match=r"sandbox\.url: .*verdicts could differ"):
        remote.about()


def test_what_is_no_server_is_named():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        gone = Remote(f"http://127.0.0.1:{probe.getsockname()[1]}", patience=())
        with pytest.raises(SandboxError, match=r"sandbox\.url: .*does not answer"):
            gone.about()
        probe.listen()
        with pytest.raises(SandboxError, match="is silent"):
            replace(gone, timeout_s=0.2).about()


def test_a_pool_has_as_many_sandboxes_as_the_server_and_says_so(remote):
    sandboxes = pool.shared()
    assert sandboxes.run([lambda sandbox: sandbox.left_s > 0], 10) == [True]
    assert sandboxes.size == 2 and f"{isolation.best()} at {remote.url}" in pool.used
    assert pool.elsewhere() and shell.trouble() == shell.trouble_here()


def test_the_same_choice_again_keeps_the_pool():
    pool.confine("auto")
    sandboxes = pool.shared()
    pool.confine("auto")
    assert pool.shared() is sandboxes
    try:
        pool.confine({"url": "http://127.0.0.1:9"})
        assert pool.shared() is not sandboxes and pool.elsewhere()
    finally:
        pool.confine("auto")


def test_a_stage_s_job_says_where_its_programs_run():
    try:
        process.prepare({"sandbox": {"url": "http://127.0.0.1:9", "api_key_env": "K", "timeout_s": 1.0}})
        assert pool.elsewhere()
    finally:
        pool.confine("auto")
