"""Commands of a shell in the sandbox, one after another, on a folder of files that is plain data between them.

A command gets the folder as it was left, runs in processes that end with it, and leaves the folder that the next one gets. So a state is
its files: keeping it, copying it and going on from it are exact, whatever a command did.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.base import project
from pipelines.sandbox import SandboxError, isolation, pool
from pipelines.sandbox.inside.confine import SCRATCH, SHELL, WORK
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits

Files = dict[str, list[str]]
"""Path → its mode in octal, `file`, `folder` or `link`, and the content in base64, nothing, or what it points to."""
KINDS = ("file", "folder", "link")
MOST_BYTES = 1 << 19
"""Of all files of a folder."""
MOST_ENTRIES = 512
FOLDER_BYTES = 4 << 20
"""What a folder may hold while a command runs."""
WALL_FACTOR = 2.0
"""Wall time of a command, in seconds that it was given; the process that runs it has more."""


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    output: str
    """What it printed to both of its outputs, or to the first alone."""
    code: int
    """Its exit code; 128 and the signal where one ended it."""
    ended: str
    """What ended it: timed_out, memory or overflow; empty where it ended by itself."""
    files: Files = field(repr=False)
    """The folder afterwards."""
    refused: str = ""
    """Why the folder was left as it had been before."""


@dataclass(frozen=True)
class Command:
    """A command, and what it may use."""

    text: str
    seconds: int = 5
    """Processor time of each of its processes, and half of its wall time."""
    memory_mb: int = 256
    """Of all of its processes together."""
    output_bytes: int = 1 << 15
    errors: bool = True
    """Whether standard error is part of the output."""


def files_of(texts: Mapping[str, str]) -> Files:
    """A folder with these texts.

    >>> files_of({"a/b.txt": "hi"})
    {'a': ['755', 'folder', ''], 'a/b.txt': ['644', 'file', 'aGk=']}
    """
    folders = {str(parent) for path in texts for parent in Path(path).parents} - {"."}
    contents = {path: base64.b64encode(text.encode()).decode() for path, text in texts.items()}
    files = {folder: ["755", "folder", ""] for folder in folders}
    return dict(sorted({**files, **{path: ["644", "file", body] for path, body in contents.items()}}.items()))


def trouble() -> str:
    """Why no shell can be had; empty where one can."""
    if not pool.elsewhere():
        return trouble_here()
    try:
        return str(pool.shared().about().get("shell", "the server does not say"))
    except SandboxError as error:
        return error.problems[0].problem


def trouble_here() -> str:
    """Why no shell can be had on this machine; empty where one can."""
    if why := isolation.trouble("namespaces"):
        return why
    return "" if Path(SHELL).exists() else f"there is no {SHELL}"


def require() -> None:
    """Raise where there can be no shell.

    Raises:
        SandboxError: says why.
    """
    if why := trouble():
        page = project.page("operations")
        raise SandboxError("sandbox", f"commands of a shell need namespaces: {why}", f"See {page}, The sandbox.")


def run(files: Files, commands: Sequence[Command], *, on_copies: bool = False) -> list[Ran] | None:
    """Run commands one after another; None where the sandbox was too busy or failed.

    Args:
        files: the folder that the first begins in.
        on_copies: each begins in that folder, instead of the one that the command before it has left.

    Raises:
        SandboxError: there can be no shell here.
    """
    require()
    limits = [_limits(command) for command in commands]
    budget_s = 3 * sum(limit.wall_s for limit in limits)
    [result] = pool.shared().run([lambda worker: _run_all(worker, files, commands, on_copies)], budget_s)
    return result if isinstance(result, list) else None


def _limits(command: Command) -> Limits:
    size = {"memory_bytes": command.memory_mb << 20, "file_bytes": FOLDER_BYTES}
    return Limits(cpu_s=command.seconds, wall_factor=WALL_FACTOR + 2, **size)


def _run_all(worker: Sandbox, files: Files, commands: Sequence[Command], on_copies: bool) -> list[Ran]:
    results: list[Ran] = []
    for command in commands:
        results.append(_run(worker, files, command))
        files = files if on_copies else results[-1].files
    return results


def _run(worker: Sandbox, files: Files, command: Command) -> Ran:
    request = {
        "mode": "shell",
        "files": files,
        "command": command.text,
        "seconds": command.seconds * WALL_FACTOR,
        "memory_bytes": command.memory_mb << 20,
        "output_bytes": command.output_bytes,
        "errors": command.errors,
        "files_bytes": MOST_BYTES,
        "entries": MOST_ENTRIES,
        "folders": {WORK: FOLDER_BYTES, SCRATCH: FOLDER_BYTES},
    }
    with worker.run(request, _limits(command)) as program:
        reply = program.ask(None)
    if not {"output", "code", "ended"} <= reply.keys():
        return Ran("", 128, "timed_out", files, "the command was ended together with its sandbox")
    after = reply.get("files")
    refused = str(reply.get("refused", "")) or ("" if _is_folder(after) else "its entries cannot be read")
    kept = files if refused or after is None else after
    return Ran(str(reply["output"]), int(reply["code"]), str(reply["ended"]), kept, refused)


def _is_folder(files: Any) -> bool:
    """Whether data are a folder as `lay_out` takes it."""
    return isinstance(files, dict) and all(
        isinstance(entry, list) and len(entry) == 3 and entry[1] in KINDS and all(isinstance(part, str) for part in entry)
        and not path.startswith("/") and ".." not in path.split("/") for path, entry in files.items()
    )  # fmt: skip
