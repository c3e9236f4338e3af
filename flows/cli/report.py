"""`whetstone report`: one HTML file with what a run's models answered, and what they tried while they learned."""

from __future__ import annotations

import argparse
from pathlib import Path

SAMPLED_STEPS = 8
"""Steps whose rollouts are shown."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run", help="the id of the run, or its first characters")
    parser.add_argument("--out", metavar="FILE", help="where to write it; default: report-RUN.html")


def command(arguments: argparse.Namespace) -> int:
    """Write the file of a run, and say where it is.

    Raises:
        UserError: there is no such run, it has no stages, or the file cannot be written.
    """
    from flows.cli import report_data, report_page
    from pipelines.base.errors import UserError
    from tasks.tracking import rollouts

    body = report_data.run_of(arguments.run)
    stages = body["summary"]["stages"]
    pairs = report_data.last_flips(stages)
    rewarded = [name for name, about in stages.items() if report_data.kind_of(about).rewards]
    last = rewarded[-1] if rewarded else ""
    rows = rollouts.read(Path(stages[last]["artifact"])) if last else []
    steps = rollouts.spread(sorted({row["step"] for row in rows}), SAMPLED_STEPS)
    out = Path(arguments.out or f"report-{body['run_id'][:8]}.html")
    sampled = [row for row in rows if row["step"] in steps]
    page = report_page.page(body, pairs, report_data.followed(rows), sampled, last)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}", f"cannot be written ({error.strerror}).") from None
    print(out)
    return 0
