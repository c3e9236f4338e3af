"""The process of a stage that has no job yet: it imports what the stage needs, then waits for its work folder.

    python -m pipelines.stage.ahead pipelines.rlvr MODULE ...

Imports take seconds, which pass while the stage before computes. The owner, whose pid is in the environment, hands the work over as
one line on standard input, `{"work": FOLDER, "environment": {NAME: VALUE or null}}`, with the variables that have changed since; if
the input ends without one, nothing has happened and the process leaves. From the hand-over on it is the process that
`pipelines.stage.launch` starts: one of one rank, with its output in the stage's log and an empty standard input. What was written
while it imported goes into the log first. If an import fails, the stage's process starts from scratch, and says so as it always does.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipelines.base import owner
from pipelines.base.project import python
from pipelines.base.user_modules import import_named
from pipelines.stage import launch

LOG = "stage.log"


def main(argv: list[str] | None = None) -> None:
    """Start the rank at once, and end with it or with the owner."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.stage.ahead", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("module", help="such as pipelines.rlvr")
    parser.add_argument("imports", nargs="*", help="modules that its work will import")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.rank:
        _rank(arguments.module, arguments.imports)
        return

    def ranks(_: int) -> Iterator[subprocess.Popen[bytes]]:
        command = python("pipelines.stage.ahead", "--rank", arguments.module, *arguments.imports)
        yield subprocess.Popen(command, env={**os.environ, **launch.alone()})
        _input_from(os.devnull)  # the rank alone reads what the owner writes

    launch.supervise(ranks, int(os.environ[owner.PARENT]))


def _rank(module: str, names: list[str]) -> None:
    owner.bind_rank()
    imported = _import(module, names)
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        os._exit(0)
    told = json.loads(line)
    folder = Path(told["work"])
    for name, value in told["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _input_from(os.devnull)
    _output_to(folder / LOG, earlier=imported)
    if not imported:
        os.execv(sys.executable, launch.rank_command(module, folder))
    launch.remove_stale(folder)
    launch.run(module, folder)


def _import(module: str, names: list[str]) -> bool:
    """Import all that `python -m module` imports before its work, then what its work will; whether that went well.

    Its logging is set up in between, as it is then: libraries look at levels and variables when they are imported.
    """
    try:
        entry = importlib.import_module(module)
        if hasattr(entry, "__path__"):
            entry = importlib.import_module(f"{module}.__main__")
        del sys.modules[entry.__name__]  # it is run as __main__ later
        from pipelines.stage import process

        process.set_up_logging()
        for name in names:
            with contextlib.suppress(ModuleNotFoundError):  # a guess of the recipe's; the work says what it misses
                import_named(name)
    except BaseException:  # other people's code: SystemExit too
        return False
    return True


def _input_from(path: str) -> None:
    with open(path, "rb") as source:
        os.dup2(source.fileno(), 0)


def _output_to(path: Path, *, earlier: bool) -> None:
    """Write into a log from here on, and into it first what was written `earlier` into the file that is standard output now."""
    with open(path, "ab") as log:
        if earlier:
            log.write(os.pread(1, os.fstat(1).st_size, 0))
            log.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    main()
