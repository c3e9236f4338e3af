"""Whetstone from Python, for notebooks and scripts: recipes, plans, runs, verdicts, answers and comparisons as objects and pandas frames.

Nothing here prints or ends the process. What a person can fix is a `UserError`, as in the commands, with its `problems`. Results are kept
in the project folder (`WHETSTONE_HOME`, else `.whetstone` in the working folder), which the command `whetstone` reads too.

Importing it makes the project's packages win over files of the same name in the working folder (`whetstone_launcher.py`).
"""

from __future__ import annotations

import os
import sys

from whetstone_launcher import FOLDER, PACKAGES, prefer_own_packages


def _refuse_others() -> None:
    """Say so where another module has the name of one of our packages already, since what we import would be that.

    Raises:
        ImportError: names the module and the fix.
    """
    for name in PACKAGES:
        place = getattr(sys.modules.get(name), "__file__", None)
        if place and not os.path.realpath(place).startswith(os.path.join(FOLDER, "")):
            raise ImportError(
                f"whetstone_rlvr needs its own package {name}, and {place} has been imported by that name. "
                f"Import whetstone_rlvr first, or rename the file to my_{name}.py.",
                name=name,
            )


_refuse_others()
prefer_own_packages()

from pipelines.base.errors import UserError  # noqa: E402
from pipelines.recipe.read import Recipe  # noqa: E402
from whetstone_rlvr import settings  # noqa: E402
from whetstone_rlvr.catalogue import methods  # noqa: E402
from whetstone_rlvr.models import compare, sample  # noqa: E402
from whetstone_rlvr.plans import Plan, plan  # noqa: E402
from whetstone_rlvr.recipes import recipe  # noqa: E402
from whetstone_rlvr.runs import Run, find_run, run  # noqa: E402
from whetstone_rlvr.verdicts import verify  # noqa: E402

__all__ = [
    "Plan",
    "Recipe",
    "Run",
    "UserError",
    "compare",
    "find_run",
    "methods",
    "plan",
    "recipe",
    "run",
    "sample",
    "settings",
    "verify",
]
