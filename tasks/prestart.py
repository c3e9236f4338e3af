"""The process of the stage that will run next, started while the command prepares or another stage computes.

At most one waits, on the main thread's account: the kernel ends it with the thread that started it. It costs some hundred MB and saves
the seconds of its imports. It is used only if it is what an ordinary start would give now: the same code, the same environment. Where
`pipelines.stage.fork_server` can, it is a fork of a process that has imported the libraries once for all stages.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipelines.base import owner
from pipelines.base.errors import UserError
from pipelines.base.project import python
from pipelines.recipe.stage_checks import launched, processes
from pipelines.recipe.stage_kind import Node
from pipelines.stage import fork_server
from tasks import keys, machine, process

log = logging.getLogger("whetstone.ahead")
ROOM_BYTES = 2e9
"""No process is started ahead where less memory than this is available, and one that waits leaves at half of it."""
SERVER_VARIABLES = ("MLFLOW_", "PREFECT_")
"""Variables that change while a command starts; no library of a stage reads them while it is imported."""


@dataclass
class _Waiting:
    node: Node
    code: dict[str, str]
    environment: dict[str, str]
    child: process.Child


_waiting: _Waiting | None = None
_servers: list[fork_server.ForkServer] = []
"""The last one forks; stages that were forked from those before it may still run."""
_libraries: list[str] = []


def begin(node: Node) -> None:
    """Start the process of a stage that will probably run next, in place of one that waits; nothing where that is not possible."""
    global _waiting
    if not _main():
        return
    end()
    if processes(node) != 1 or launched(node) or machine.available_bytes() < ROOM_BYTES:
        return
    try:
        code = keys.code_now(node.recipe, node.name)  # before the process reads any of it
        environment = process.environment_of({"threads": node.recipe.threads})
        _serve(environment)
        _waiting = _start(node, code, environment)
    except (OSError, UserError) as error:
        log.debug("%s: not started ahead: %s", node.name, error)


def prepare(nodes: Sequence[Node]) -> None:
    """Start the process that the stages of a run, and what is asked before it, are forked from; nothing where that is not possible."""
    global _libraries
    if _main() and machine.available_bytes() >= ROOM_BYTES:
        _serve(process.environment_of({"threads": nodes[0].recipe.threads}))
        _libraries = [*dict.fromkeys(name for node in nodes for name in node.kind.imports(node))]


def _serve(environment: dict[str, str]) -> None:
    if fork_server.possible() and not (_servers and _servers[-1].fits(environment, SERVER_VARIABLES)):
        _servers.append(fork_server.ForkServer(environment))


def fork(
    arguments: Sequence[str], output: IO[bytes], errors: IO[bytes], libraries: Sequence[str] | None = None
) -> process.Child | None:
    """A process that runs `python -m ARGUMENTS`, forked from one that has imported libraries; None where there is none to fork from.

    Args:
        libraries: those of all the run's stages where it is None.
    """
    if not _servers or not _main():
        return None
    try:
        libraries = _libraries if libraries is None else libraries
        return _servers[-1].fork(arguments, libraries, output.fileno(), errors.fileno())
    except OSError as error:
        log.debug("%s: not forked: %s", arguments[0], error)
        return None


def _start(node: Node, code: dict[str, str], environment: dict[str, str]) -> _Waiting:
    imports = node.kind.imports(node)
    with tempfile.TemporaryFile() as output:
        forked = fork(["pipelines.stage.ahead", "--rank", node.kind.module, *imports], output, output, imports)
        if forked is not None:
            return _Waiting(node, code, _servers[-1].environment, forked)
        child = subprocess.Popen(
            python("pipelines.stage.ahead", node.kind.module, *imports),
            env={**environment, owner.PARENT: str(os.getpid())}, stdin=subprocess.PIPE, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    return _Waiting(node, code, environment, child)


def take(node: Node, work: Path, environment: dict[str, str]) -> process.Child | None:
    """The process that has waited for this stage and now works in `work`; None where none may be used, and none is left then.

    Args:
        work: the stage's work folder, with `job.json`.
        environment: of the stage's process.
    """
    global _waiting
    if not _main() or _waiting is None:
        return None
    waiting, child = _waiting, _waiting.child
    refusal = _refusal(waiting, node, environment)
    if refusal is None and child.stdin is not None:
        changed = {name: value for name, value in environment.items() if waiting.environment.get(name) != value}
        gone = dict.fromkeys(waiting.environment.keys() - environment.keys())
        try:
            child.stdin.write(json.dumps({"work": str(work.resolve()), "environment": changed | gone}).encode() + b"\n")
            child.stdin.close()
            _waiting = None
            return child
        except OSError as error:
            refusal = str(error)
    log.info("%s: the process that was started ahead is not used: %s", node.name, refusal)
    end()
    return None


def _refusal(waiting: _Waiting, node: Node, environment: dict[str, str]) -> str | None:
    """Why a process may not be used; None where it may."""
    if waiting.node.kind.module != node.kind.module or waiting.node.name != node.name:
        return f"it is for {waiting.node.name}"
    if waiting.child.poll() is not None:
        return f"it has ended with code {waiting.child.returncode}"
    set_aside = {name for name in waiting.environment.keys() | environment.keys() if name.startswith(SERVER_VARIABLES)}
    changed = {n for n, _ in waiting.environment.items() ^ environment.items()} - set_aside
    if changed:
        return f"the environment has changed: {', '.join(sorted(changed))}"
    if keys.code_now(node.recipe, node.name) != waiting.code:
        return "its code has changed"
    return None


def check_memory() -> None:
    """End the process that waits where memory has become scarce."""
    if _waiting is not None and _main() and machine.available_bytes() < ROOM_BYTES / 2:
        end()


def leave() -> None:
    """End the process that waits, the one that it was forked from, and whatever else was."""
    end()
    while _servers and _main():
        _servers.pop().end()


def end() -> None:
    """End the process that waits, if there is one."""
    global _waiting
    if _waiting is None or not _main():
        return
    child, _waiting = _waiting.child, None
    if child.stdin is not None:
        child.stdin.close()
    process.end(child, 0.0)


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()
