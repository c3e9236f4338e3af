"""The trainer as it is installed on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pipelines.base.files import digest
from pipelines.base.project import git

if TYPE_CHECKING:
    from pipelines.external.settings import External

ABSENT = "absent"
_ASK = """
import importlib.metadata, json, sys
found = importlib.metadata.distribution(sys.argv[1])
print(json.dumps([found.version, found.read_text("direct_url.json")]))
"""


def resolved_python(name: str) -> str:
    """The path of the trainer's Python; its name where there is no such program."""
    path = shutil.which(str(Path(name).expanduser()))
    return str(Path(path).absolute()) if path else name


def trainer_version(settings: External) -> str:
    """The version that the recipe states, else the one that the trainer's Python says of its package."""
    from pipelines.external.adapter import adapter

    package = settings.package or adapter(settings.trainer).package
    return settings.version or version(resolved_python(settings.python), str(package))


@cache
def version(python: str, package: str) -> str:
    """The version of a package in a Python's environment, and the commit that it was installed from, where it was from a repository;
    `absent` where it has none or cannot say."""
    ask = [python, "-I", "-c", _ASK, package]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ABSENT
    if told.returncode != 0:
        return ABSENT
    number, origin = json.loads(told.stdout)
    return " ".join([number, *_revision(json.loads(origin or "{}"))])


def _revision(origin: dict[str, Any]) -> list[str]:
    """Words for the commit of a package, and for what was changed since where it is an editable checkout.

    Args:
        origin: its `direct_url.json`, as the specification of installed packages has it.
    """
    commit, folder = origin.get("vcs_info", {}).get("commit_id"), None
    if origin.get("dir_info", {}).get("editable"):
        folder = Path(url2pathname(urlsplit(origin["url"]).path))
        commit = git(folder, "rev-parse", "HEAD")
    changes = git(folder, "diff", "HEAD") if folder is not None and commit else None
    return [*(["at", commit[:12]] if commit else []), *(["changed", digest(changes)[:12]] if changes else [])]
