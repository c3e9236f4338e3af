"""The pool of killable verifiers: deadlines, deaths, budgets, and that nothing outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import toys
from children import alive, wait_until

from pipelines import verifiers
from pipelines.verifiers import pool as pools
from pipelines.verifiers.pool import Limits, Pool, PoolError, Request

BOMB = "a" * 60 + "b"
"""Takes a pattern with a repetition within a repetition longer than anybody waits."""
SHORT = Limits(cpu_s=0.3, quick_s=0.1)


def row(completion: str, answer: str = "7") -> Request:
    if completion.startswith(BOMB):
        return Request("verify", "regex", completion, "(a+)+", {})
    return Request("verify", "math", completion, answer, {})


@pytest.fixture
def pool():
    made = Pool(workers=2, limits=SHORT)
    yield made
    made.close()


def statuses(results):
    return [r.status for r in results]


def test_a_bomb_costs_its_own_row(pool):
    rows = [row(f"\\boxed{{{i}}}", str(i)) for i in range(40)]
    rows[5] = rows[21] = row(BOMB)
    began = time.monotonic()
    found = statuses(pool.run(rows))
    assert time.monotonic() - began < 20
    assert [i for i, s in enumerate(found) if s != "correct"] == [5, 21]
    assert found[5] == found[21] == "timed_out"
    assert pool.killed == 2, "equal rows are computed once: a short try and a long one"
    assert statuses(pool.run(rows[:3])) == ["correct"] * 3, "the pool goes on"


def test_extraction_has_the_same_limits(pool):
    pool.run([row("\\boxed{7}")])
    pool.limits = Limits(cpu_s=0.002, quick_s=0.001)
    slow = [
        Request("extract", "math", rf"\boxed{{\frac{{x}}{{{i}}} + " + "y + " * 4000 + "z}", "", {}) for i in range(3)
    ]
    assert "" in pool.run(slow)
    pool.limits = Limits()
    found = pool.run([Request("extract", "math", text, "", {}) for text in (r"\boxed{\frac{2x}{4}}", "nothing")])
    assert found[0] and not found[1]


def test_a_worker_killed_in_mid_row_costs_that_row(pool):
    pool.limits = Limits(cpu_s=20, quick_s=20)
    rows = [row(f"\\boxed{{{i}}}", str(i)) for i in range(48)]
    rows[20] = row(BOMB)
    results = []
    thread = threading.Thread(target=lambda: results.extend(pool.run(rows)))
    thread.start()
    victim = _busy_for(0.3, pool)
    os.kill(victim, signal.SIGKILL)
    thread.join(30)
    found = statuses(results)
    assert [i for i, s in enumerate(found) if s != "correct"] == [20]
    assert found[20] == "verifier_failed" and results[20].score is None
    assert not psutil.pid_exists(victim), "reaped"


def _busy_for(seconds: float, pool: Pool) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for worker in list(pool.workers):
            if worker.rows and worker.begun and time.monotonic() - worker.since > seconds:
                return worker.pid
        time.sleep(0.02)
    raise AssertionError("no worker was busy")


def test_the_batch_has_a_budget():
    pool = Pool(workers=1, limits=Limits(cpu_s=5, quick_s=5, batch_s=1.5, batch_row_s=0))
    try:
        pool.run([row("\\boxed{7}")])
        began = time.monotonic()
        found = pool.run([row(BOMB), row(BOMB + " "), row("\\boxed{7}")])
        assert 1.4 < time.monotonic() - began < 4
        assert [v.score for v in found] == [None] * 3, (
            "none had the time that a row may take: unscored, never incorrect"
        )
        assert found[2] == verifiers.NOT_BEGUN
        assert statuses(pool.run([row("\\boxed{7}")])) == ["correct"]
    finally:
        pool.close()


@pytest.mark.slow
def test_quick_rows_come_before_slow_ones():
    pool = Pool(workers=1, limits=Limits(cpu_s=30, quick_s=0.2, batch_s=8, batch_row_s=0))
    try:
        rows = [row(BOMB + " " * i) for i in range(4)] + [row(f"\\boxed{{{i}}}", str(i)) for i in range(30)]
        found = statuses(pool.run(rows))
        assert found == ["timed_out"] * 4 + ["correct"] * 30
    finally:
        pool.close()


def test_a_worker_is_limited_and_alone(pool):
    pool.run([row("\\boxed{7}")])
    process = psutil.Process(pool.workers[0].pid)
    assert process.rlimit(psutil.RLIMIT_AS) == (SHORT.memory_bytes, SHORT.memory_bytes)
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert 0 < process.rlimit(psutil.RLIMIT_CPU)[0] < 60
    assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"
    assert os.getsid(process.pid) == process.pid
    assert process.num_threads() == 1 and process.parent().num_threads() == 1
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
    assert not any("TOKEN" in name for name in process.parent().environ())


def test_a_worker_retires_after_its_rows():
    pool = Pool(workers=1, limits=Limits(rows_per_worker=10))
    try:
        assert set(statuses(pool.run([row(f"\\boxed{{{i}}}", str(i)) for i in range(64)]))) == {"correct"}
        assert pool.killed == 0
    finally:
        pool.close()


@pytest.mark.slow
def test_memory_is_bounded():
    pool = Pool(workers=1, limits=Limits(memory_bytes=400 << 20, cpu_s=20, quick_s=20))
    try:
        bomb = "$" + "+".join(f"x_{{{i}}}^{{2}}" for i in range(200_000)) + "$"
        found = pool.run(
            [row("\\boxed{7}"), Request("verify", "math", "\\boxed{" + bomb + "}", bomb, {}), row("7", "7")]
        )
        assert found[0].correct and found[1].status in ("verifier_failed", "timed_out", "unparsable", "incorrect")
        assert found[2].correct
    finally:
        pool.close()


def test_the_pool_ends_with_its_owner(tmp_path):
    code = f"""
import os, sys, time
sys.path.insert(0, {str(toys.ROOT)!r})
from pipelines.verifiers.pool import Limits, Pool, Request
pool = Pool(workers=1, limits=Limits(cpu_s=60, quick_s=60))
pool.run([Request("verify", "math", "7", "7", {{}})])
print(pool._server.pid, pool.workers[0].pid, flush=True)
pool.run([Request("verify", "regex", {BOMB!r}, "(a+)+", {{}})])
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    time.sleep(0.3)
    owner.kill()
    owner.wait()
    wait_until(lambda: not alive(pids))


@pytest.mark.slow
def test_a_lost_server_is_replaced(pool):
    pool.run([row("\\boxed{7}")])
    os.kill(pool._server.pid, signal.SIGKILL)
    rows = [row(f"\\boxed{{{i}}}", str(i)) for i in range(64)]
    assert set(statuses(pool.run(rows))) == {"correct"}
    pool.limits = Limits(cpu_s=2, quick_s=2)
    results = []
    thread = threading.Thread(target=lambda: results.extend(pool.run([row(BOMB), *rows])))
    thread.start()
    _busy_for(0.2, pool)
    os.kill(pool._server.pid, signal.SIGKILL)
    thread.join(60)
    assert set(statuses(results[1:])) == {"correct"}, "whoever was in hand"
    assert results[0].status == "timed_out", "asked again, and ended by its own limit"


def test_a_server_that_cannot_start_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(pools, "python", lambda *_: ["/bin/false"])
    with pytest.raises(PoolError, match="server"):
        Pool(workers=1).run([row("7")])


def test_a_fork_of_the_owner_leaves_the_pool_alone(pool):
    pool.run([row("\\boxed{7}")])
    child = os.fork()
    if child == 0:
        pool.close()
        os._exit(0 if pool.workers else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert statuses(pool.run([row("\\boxed{7}")])) == ["correct"]


def test_texts_that_no_encoding_likes():
    rows = [("math", text, "7", {}) for text in ("\ud800 \\boxed{7}", "\x00\\boxed{7}", "", "7" * 2_000_000)]
    found = statuses(verifiers.verify_many(rows))
    assert found[0] == "correct" and found[3] == "unparsable"
    assert all(s in ("correct", "incorrect", "unparsable") for s in found)


@pytest.mark.parametrize("name", ["json_schema", "python", "staged", "number"])
def test_an_info_that_is_nested_too_deeply_costs_its_own_row(name):
    info: dict = {}
    for _ in range(100_000):
        info = {"schema": info}
    rows = [("number", "#### 7", "7", {}), (name, "7", "7", info), ("math", r"\boxed{7}", "7", {})]
    found = verifiers.verify_many(rows)
    assert found[0].correct and found[2].correct
    if name != "number":  # which reads no info
        assert found[1].score is None and found[1].status == "verifier_failed"


def test_an_exception_is_unscored():
    verdict = verifiers.verify("reasoning_gym", "x", "y", {"task": "no_such_task"})
    assert verdict.score is None and verdict.status == "verifier_failed" and verdict.correct is None
