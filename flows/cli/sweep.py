"""`whetstone sweep`: several settings, presets and seeds of one recipe, ranked."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", help="a YAML file with an evaluate section")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE[,VALUE]",
        help="a field of all runs, or an axis of values",
    )
    parser.add_argument(
        "--presets", metavar="NAME[,NAME]", help="an axis of presets; all: every one that fits the recipe"
    )
    parser.add_argument("--seeds", default="1", metavar="N", help="how many seeds; or which, comma separated")
    parser.add_argument(
        "--tune", metavar="FIELD=VALUE,VALUE", help="judge each variant at its own best value, found in short runs"
    )
    parser.add_argument("--tune-full", action="store_true", help="with --tune: in runs as long as the ranked ones")
    parser.add_argument("--budget", metavar="AMOUNT", help="what a run's RLVR may spend: 30m, 2h or 1e6tokens")
    parser.add_argument(
        "--split",
        metavar="SHARE[,SHARE]",
        help="an axis: shares of a token budget that SFT spends, RLVR spends the rest",
    )
    parser.add_argument(
        "--sft-price",
        type=float,
        default=1.0,
        metavar="X",
        help="with --split: what an SFT token costs, in completion tokens",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (default: 1)")
    parser.add_argument(
        "--runner",
        default="threads",
        metavar="NAME",
        help="threads (default), dask (processes), or dask:ADDRESS or ray:ADDRESS of a cluster of several machines",
    )
    parser.add_argument("--fresh", action="store_true", help="run every stage even where nothing changed")
    parser.add_argument("--json", action="store_true", help="for machines: the leaderboard, or the error, as JSON")
    parser.add_argument("--summary", metavar="FILE", help="write the leaderboard as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write the leaderboard as a Markdown table")
    parser.add_argument(
        "--html", metavar="FILE", help="write the leaderboard as one page, with learning curves and links"
    )


def command(arguments: argparse.Namespace) -> int:
    """Run it: exit code 1 where one of the runs failed."""
    from flows import embedded
    from pipelines.base.errors import UserError
    from tasks import environment
    from tasks.environment import folder as project_folder
    from tasks.preflight import check as preflight
    from tasks.sweep import plan as sweeps

    if not 1 <= arguments.jobs <= 256:
        raise UserError(f"--jobs {arguments.jobs}", "at least 1, at most 256.")
    preflight.summary_file(arguments.summary)
    environment.prepare()
    check_runner(arguments.runner)
    project_folder.check(environment.home())
    preflight.summary_file(arguments.markdown, "--markdown")
    preflight.summary_file(arguments.html, "--html")
    names = ("presets", "seeds", "tune", "budget", "split", "sft_price", "tune_full")
    axes = {"sets": arguments.set, **{name: getattr(arguments, name) for name in names}}
    read = sweeps.read(arguments.recipe, **axes)
    sweeps.check(read, arguments.fresh)
    if not arguments.json:
        print(read.describe(), flush=True)
    environment.check_reachable()
    body = embedded.run_flow(
        "flows.sweep_flow",
        lambda module: module.start(
            arguments.jobs,
            arguments.runner,
            recipe=str(arguments.recipe),
            axes=axes,
            fresh=arguments.fresh,
        ),
    )
    if arguments.summary:
        Path(arguments.summary).write_text(json.dumps(body, indent=1))
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(body))
    if arguments.html:
        Path(arguments.html).write_text(page(body))
    if arguments.json:
        print(json.dumps(body, indent=1))
    else:
        print()
        show(body)
    return 1 if body["failed"] else 0


def page(body: dict[str, Any]) -> str:
    """The sweep's page, with the learning curves of its runs as far as they are here, and links to MLflow."""
    from evaluation.pages import sweep as pages
    from tasks.store import index
    from tasks.sweep import leaderboard
    from tasks.tracking import links

    known = {run["run_id"]: run for run in index.runs()}
    curves = leaderboard.curves(
        body["leaderboard"], {n: run["summary"] for n, run in known.items() if run.get("summary")}
    )
    return pages.page(
        body,
        pages.cells(body["leaderboard"], body.get("start")),
        curves=curves,
        links=links.known(),
        notes=notes(body)[1:],
    )


def check_runner(text: str) -> None:
    """Whether `--runner` can be had; nothing of Prefect is imported.

    Raises:
        UserError: there is none of that name, its package is missing, or other machines could not reach the servers.
    """
    from pipelines.base.distribution import install_hint
    from pipelines.base.errors import UserError
    from tasks import environment

    kind, colon, address = text.partition(":")
    clusters = {"dask": (True, False), "ray": (True,), "threads": (False,)}
    if bool(colon) != bool(address) or bool(address) not in clusters.get(kind, ()):
        raise UserError(
            f"--runner {text[:80]}",
            "write threads, dask, or a cluster's address, such as dask:tcp://10.0.0.1:8786 or ray:10.0.0.1:6379.",
        )
    if kind != "threads" and importlib.util.find_spec(f"prefect_{kind}") is None:
        raise UserError(f"--runner {kind}", f"needs prefect-{kind}", f"Run: {install_hint(kind)}.")
    if address and environment.prefect_api() is None:
        raise UserError("--runner", "other machines need a Prefect server", "Start one, and set PREFECT_API_URL.")
    if address and not environment.tracking_uri().startswith("http"):
        raise UserError(
            f"--runner {text[:80]}",
            "other machines need an MLflow server, which holds what they make",
            "Set MLFLOW_TRACKING_URI, here and on the machines of the cluster.",
        )


def show(body: dict[str, Any]) -> None:
    """Print the leaderboard."""
    from rich.console import Console
    from rich.table import Table

    from evaluation.pages import sweep as pages

    console = Console() if sys.stdout.isatty() else Console(width=160)
    table = Table(box=None, pad_edge=False)
    rows = pages.cells(body["leaderboard"], body.get("start"))
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    about, *lines = notes(body)
    print(f"\n{about}", *lines, sep="\n")
    print(f"more: whetstone compare experiment:{body['experiment']} --html sweep.html")


def notes(body: dict[str, Any]) -> list[str]:
    """How to read the leaderboard; then a line per tuned value, variant left out and run that failed."""
    return [
        f"{body['task']}: % of the answers that are correct, with {100 * body['confidence']:g} % intervals over problems and "
        "seeds. rank: its interval; gain: over the checkpoint that all start from; cut: answers that ended at the token limit; best: how "
        "often it is first when problems and seeds are resampled.",
        *(f"tuned: {variant}: {value}" for variant, value in body["tuned"].items()),
        *(f"left out: {name}: {reason}" for name, reason in body["left_out"].items()),
        *(f"failed: {name}: {str(error).splitlines()[0]}" for name, error in body["failed"].items()),
    ]


def markdown(body: dict[str, Any]) -> str:
    """The leaderboard as Markdown."""
    from evaluation.pages import sweep as pages

    rows = pages.cells(body["leaderboard"], body.get("start"))
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    about, *details = notes(body)
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([about, "", *table, "", *(f"- {detail}" for detail in details)]) + "\n"
