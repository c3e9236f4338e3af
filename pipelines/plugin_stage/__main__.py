"""`python -m pipelines.plugin_stage WORK`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError, out_of_memory
from pipelines.base.files import disk_full
from pipelines.base.user_modules import users_line
from pipelines.recipe.stage_kind import kind_named
from pipelines.stage import process


def work(job: dict[str, Any], folder: Path) -> dict[str, float]:
    """What the kind of the job's stage does; the plug-in that brings it is loaded.

    Raises:
        UserError: in place of an exception that comes from the plug-in's code, with the file and the line.
    """
    kind = kind_named(job["stage"])
    try:
        metrics = kind.work(job, folder)
        return {name: float(value) for name, value in (metrics or {}).items()}
    except UserError:
        raise
    except Exception as error:
        place = users_line(error)
        if not place or out_of_memory(error) or disk_full(error, folder):
            raise
        logging.getLogger("whetstone").exception("%s fails", kind.name)
        raise UserError(kind.name, f"{type(error).__name__}: {error} ({place})", "Mend it there.") from error


if __name__ == "__main__":
    process.main(work)
