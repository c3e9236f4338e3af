"""`whetstone report`: one HTML file with what a run's models answered, and what they tried while they learned."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", help="the id of the run, or its first characters")
    parser.add_argument("--out", metavar="FILE", help="where to write it; default: report-RUN.html")
    parser.add_argument(
        "--store",
        action="store_true",
        help="put it among the run's files in MLflow too, as report.html",
    )


def command(arguments: argparse.Namespace) -> int:
    """Write the file of a run, and say where it is.

    Raises:
        UserError: there is no such run, it has no stages, the file cannot be written, or MLflow does not take it.
    """
    from flows import report_data, reports
    from pipelines.base.errors import UserError

    body = report_data.run_of(arguments.run)
    out = Path(arguments.out or f"report-{body['run_id'][:8]}.html")
    page = reports.page_of(body)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}", f"cannot be written ({error.strerror}).") from None
    print(out)
    if arguments.store:
        _store(body, page)
    return 0


def _store(run: dict[str, Any], page: str) -> None:
    """Put the page among the run's files in MLflow, and say where it is.

    Raises:
        UserError: MLflow does not answer, or does not take it.
    """
    from flows.reports import STORED
    from pipelines.base.errors import UserError
    from tasks.tracking import api as tracking
    from tasks.tracking import links

    try:
        tracking.store_text(run["run_id"], STORED, page)
    except tracking.TRACKER_ERRORS as error:
        raise UserError(
            "--store", f"MLflow did not take the page ({error})", "`whetstone doctor` says whether it answers."
        ) from None
    if run.get("experiment_id"):
        print(links.file(run["experiment_id"], run["run_id"], STORED))
