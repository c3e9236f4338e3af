"""The program's side of the wall: what its process does between the seal and its end.

Nothing here is trusted by the other side: a program can replace any of it, and what it then sends is only an answer.
"""

from __future__ import annotations

import atexit
import builtins
import io
import os
import socket
import sys
import threading
import types
from typing import Any

import commands
import wire

STOPS_ITERATION = ("StopIteration", "StopAsyncIteration")
"""A program that raised these would end a test's own loop early."""


def main(descriptor: int) -> None:
    """Serve one program over a socket, then end the process."""
    connection = socket.socket(fileno=descriptor)
    request = wire.receive(connection)
    code = 1
    try:
        code = MODES[request["mode"]](connection, request) or 0
    except (EOFError, ConnectionError):
        code = 0
    finally:
        os._exit(code & 0xFF)


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _name(error: BaseException) -> str:
    """The nearest built-in exception."""
    for base in type(error).__mro__:
        if base.__module__ == "builtins" and getattr(builtins, base.__name__, None) is base:
            return base.__name__
    return "Exception"


def functions(connection: Any, request: dict[str, Any]) -> int:
    """Define the program, then answer calls of its functions until the other side hangs up."""
    module = _module("program")
    try:
        code = compile(request["source"], "program.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        wire.send(connection, {"unreadable": True})
        return 1
    try:
        exec(code, module.__dict__)
    except BaseException as error:
        wire.send(connection, {"error": _name(error)})
        return 1
    wire.send(connection, {"ready": True})
    while True:
        call = wire.receive(connection)
        try:
            reply = _called(module, call)
        except BaseException as error:
            reply = {"error": _name(error)}
        try:
            message = wire.frame(reply)
        except wire.Uncrossable as error:
            message = wire.frame({"uncrossable": str(error)})
        connection.sendall(message)


def _called(module: types.ModuleType, call: dict[str, Any]) -> dict[str, Any]:
    name = call["name"]
    target: Any = module.__dict__.get(name)
    if target is None and "Solution" in module.__dict__:
        target = getattr(module.__dict__["Solution"](), name, None)
    if target is None:
        return {"error": "NameError"}
    arguments = [wire.decode(item) for item in call["args"]]
    value = target(*arguments, **{key: wire.decode(item) for key, item in call["kwargs"].items()})
    try:
        reply = {"value": wire.encode(value)}
        if call.get("mutable"):
            reply["args"] = [wire.encode(item) for item in arguments]
    except wire.Uncrossable as error:
        return {"uncrossable": str(error)}
    return reply


def script(connection: Any, request: dict[str, Any]) -> int:
    """Run the program as `python program.py` would, on descriptors 0 and 1."""
    connection.close()
    text_in = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace")
    text_out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "backslashreplace")
    sys.stdin = sys.__stdin__ = text_in  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = text_out  # type: ignore[misc]
    sys.argv = ["program.py"]
    code = 0
    try:
        exec(compile(request["source"], "program.py", "exec"), _module("__main__").__dict__)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 1
    return code


class ProgramGone(BaseException):
    """The program ended, or gave what is no plain data: no test can go on, whatever it catches."""


def tests(connection: Any, request: dict[str, Any]) -> int:
    """Run tests against a stand-in for the program, which lives in another sandbox."""

    def candidate(*args: Any, **kwargs: Any) -> Any:
        call = {"args": [wire.encode(a) for a in args], "kwargs": {k: wire.encode(v) for k, v in kwargs.items()}}
        wire.send(connection, {"call": call})
        reply = wire.receive(connection)
        if "gone" in reply:
            raise ProgramGone(reply["gone"])
        for argument, after in zip(args, reply.get("args", ()), strict=False):
            _follow(argument, wire.decode(after))
        if "error" in reply:
            raise _exception(str(reply["error"]))
        return wire.decode(reply["value"])

    candidate.__name__ = request["entry_point"]
    module = _module("tests")
    exec(compile(request["setup"], "setup.py", "exec"), module.__dict__)
    module.__dict__[request["entry_point"]] = candidate
    module.__dict__["candidate"] = candidate
    passed = 0
    for test in request["tests"]:
        try:
            exec(compile(test, "test.py", "exec"), module.__dict__)
            if request["check"]:
                module.__dict__["check"](candidate)
            passed += 1
        except (EOFError, ConnectionError):
            raise
        except BaseException:
            if not request["graded"]:
                break
    wire.send(connection, {"passed": passed})
    return 0


def _exception(name: str) -> Exception:
    kind = getattr(builtins, name, None)
    if name in STOPS_ITERATION or not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RuntimeError(name)
    try:
        return kind()
    except TypeError:  # UnicodeDecodeError wants arguments
        return ValueError(name)


def _follow(argument: Any, after: Any) -> None:
    """What the program did to a mutable argument is seen by the test."""
    if type(argument) is not type(after):
        return
    if hasattr(argument, "shape"):
        if argument.shape == after.shape:
            argument[...] = after
        return
    try:
        if argument == after:
            return
    except ValueError:  # arrays inside
        pass
    if isinstance(argument, list):
        argument[:] = after
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(after)


def sql(connection: Any, request: dict[str, Any]) -> int:
    """Build a database in memory, then run one statement that may only read."""
    import sqlite3

    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        database.executescript(request["schema"])
    except sqlite3.Error as error:
        wire.send(connection, {"error": "schema", "message": str(error)[:200]})
        return 0
    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    steps = [int(request["steps"]) // 1000]

    def authorise(action: int, first: Any, second: Any, *_: Any) -> int:
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in (
            "load_extension",
            "writefile",
            "readfile",
            "edit",
        ):
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY

    def step() -> int:
        steps[0] -= 1
        return int(steps[0] < 0)

    for what, most in (("LENGTH", 10_000_000), ("SQL_LENGTH", 100_000), ("EXPR_DEPTH", 200), ("ATTACHED", 0)):
        database.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{what}"), most)
    database.set_authorizer(authorise)
    database.set_progress_handler(step, 1000)
    try:
        cursor = database.execute(request["query"])
        rows = cursor.fetchmany(request["rows"] + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        wire.send(connection, {"error": "steps" if steps[0] < 0 else "query", "message": str(error)[:200]})
        return 0
    message: dict[str, Any]
    if cursor.description is None:
        message = {"error": "query", "message": "the statement returns no rows"}
    elif len(rows) > request["rows"]:
        message = {"error": "rows", "message": f"over {request['rows']} rows"}
    else:
        message = {"columns": len(cursor.description), "rows": [[wire.encode(v) for v in row] for row in rows]}
    try:
        wire.send(connection, message)
    except wire.Uncrossable as error:
        wire.send(connection, {"error": "rows", "message": str(error)})
    return 0


MODES = {"functions": functions, "script": script, "tests": tests, "sql": sql, "shell": commands.shell}
