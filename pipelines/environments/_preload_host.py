"""A process of a Python that has imported a program's packages, of which every start of the program is a fork; it needs no packages itself.

It is started with the number of a Unix socket and a list of modules in JSON. It imports the modules and says so in one line of JSON,
`{"error": null}`, or what was the matter. Every byte that follows on the socket comes with a file descriptor: the other end of a
socket on which a fork of this process is the program's keeper (`_keeper`). The program is a fork of the keeper that runs the script as
`__main__`. The process ends when the socket is closed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
from typing import Any


def main() -> None:
    """Import, and start a keeper for each socket that comes."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if path != here]
    sys.path[:] = [here, *others]
    keeper = importlib.import_module("_keeper")
    sys.path[:] = others  # this folder has no module of the program's
    control = socket.socket(fileno=int(sys.argv[1]))
    error = _imported(json.loads(sys.argv[2]))
    control.sendall(json.dumps({"error": error}).encode() + b"\n")
    if error is not None:
        return
    gc.collect()
    gc.freeze()  # what the forks share stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        byte, ends, _, _ = socket.recv_fds(control, 1, 1)
        if not byte:
            return
        if os.fork() == 0:
            _be_keeper(keeper, control, ends[0])
        os.close(ends[0])


def _imported(modules: list[str]) -> str | None:
    """Why the modules cannot be imported, or programs not be forked from what they are then."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"preload: {name} cannot be imported: {type(error).__name__}: {str(error)[:200]}"
        if threading.active_count() > 1:
            return f"preload: {name} starts threads when it is imported, which a fork of the process would lack"
    return None


def _be_keeper(keeper: Any, control: socket.socket, end: int) -> None:
    """Be the keeper of one program; never returns."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number in (0, 1):
            os.dup2(end, number)
        os.close(end)
        keeper.main(_run)
    finally:
        os._exit(0)


def _run(command: list[str], environment: dict[str, str]) -> None:
    """The script of the command `PYTHON FILE ARGUMENT...` as the main module, and the interpreter's end."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR is another one
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as the interpreter has it
    path, sys.argv = command[1], command[1:]
    sys.path.insert(0, os.path.dirname(path))
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = path
    code = 0
    try:
        with open(path, "rb") as handle:
            text = handle.read()
        exec(compile(text, path, "exec"), module.__dict__)
    except SystemExit as asked:
        code = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        if code and not isinstance(asked.code, int):
            print(asked.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
