"""A Python interpreter in the sandbox: the reply is what the program prints, or the value of its last line."""

from __future__ import annotations

from typing import Any

from pipelines.sandbox import pool
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits, ended_late
from pipelines.tools import Tool, ToolError, ToolTimeout, ToolUnavailable, function_schema

SCHEMA = function_schema(
    "python",
    "Run a Python program; the reply is what it prints, or the value of its last line.",
    code={"type": "string", "description": "the program"},
)
_RUNNER = """
import ast as _ast, sys as _sys
try:
    _tree = _ast.parse({source!r}, "program.py")
    _last = _tree.body.pop() if _tree.body and isinstance(_tree.body[-1], _ast.Expr) else None
    _scope = {{"__name__": "__main__"}}
    exec(compile(_tree, "program.py", "exec"), _scope)
    if _last is not None:
        _value = eval(compile(_ast.Expression(_last.value), "program.py", "eval"), _scope)
        if _value is not None:
            print(_value)
except SystemExit:
    pass
except BaseException as _error:
    print(f"{{type(_error).__name__}}: {{_error}}")
    _sys.stdout.flush()
    raise
"""
"""The same as an interactive session does with a cell."""


def tools(*, cpu_s: int = 3, memory_mb: int = 512) -> list[Tool]:
    """The interpreter; every call is a program of its own.

    Args:
        cpu_s: processor time of a call in whole seconds; wall time is three times as much.
        memory_mb: address space of a call.
    """
    limits = Limits(cpu_s=cpu_s, memory_bytes=memory_mb << 20)

    def run(code: str) -> str:
        [result] = pool.shared().run([lambda worker: _run(worker, code, limits)], 10 * limits.wall_s)
        if result is pool.Late:
            raise ToolUnavailable("the sandbox was busy for too long")
        if isinstance(result, pool.Failed):
            raise ToolUnavailable("the sandbox failed under this program")
        printed, stopped = result
        if stopped == "timed_out":
            raise ToolTimeout(f"the program took longer than {cpu_s} s")
        if stopped:
            raise ToolError(printed.strip()[-1000:] or stopped)
        return printed.rstrip("\n")

    return [Tool(SCHEMA, run, waits=True)]


def _run(worker: Sandbox, code: str, limits: Limits) -> tuple[str, str]:
    """What a program printed, and what stopped it; empty where nothing did."""
    request: dict[str, Any] = {"mode": "script", "source": _RUNNER.format(source=code)}
    with worker.run(request, limits, b"") as running:
        printed = running.output().decode(errors="replace")
        if running.overflow:
            return printed, "the program printed too much"
        status = running.finish(running.left_s())
    if ended_late(status):
        return printed, "timed_out"
    return printed, "" if status["status"] == 0 else "the program failed"
