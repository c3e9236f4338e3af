"""Starts the project's code, whatever else can be imported by the names of its packages.

The packages are called `flows`, `tasks`, `pipelines` and `evaluation`, and so may be files of the user's: in the working folder, which
`python -m` searches first, or in a folder of PYTHONPATH. This module has a name that nobody else uses. It makes the packages beside it the
ones that are imported by those names, and then runs the command line (`whetstone`), or one of their modules:

    python -P whetstone_launcher.py MODULE [ARGUMENT ...]

`-P` keeps the working folder out of the modules that are searched; what a recipe names is found there all the same
(`pipelines/base/user_modules.py`).
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
from collections.abc import Sequence

PACKAGES = ("flows", "tasks", "pipelines", "evaluation", "whetstone_rlvr", "whetstone_launcher")
FOLDER = os.path.dirname(os.path.realpath(__file__))


class ProjectFinder:
    """Finds the project's packages in its own folder, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> object:
        """The spec of one of the packages; None for every other module."""
        return importlib.machinery.PathFinder.find_spec(name, [FOLDER]) if path is None and name in PACKAGES else None


def prefer_own_packages() -> None:
    """Import the project's packages from its own folder from now on, before everything on `sys.path`."""
    if not any(getattr(finder, "__name__", "") == ProjectFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, ProjectFinder)  # type: ignore[arg-type]
    if FOLDER not in sys.path:  # a checkout: what its metadata registers is found there
        sys.path.append(FOLDER)


def command() -> None:
    """The command `whetstone`."""
    prefer_own_packages()
    from flows.cli.main import main

    main()


if __name__ == "__main__":
    prefer_own_packages()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
