"""How much the stores of MLflow and Prefect grow with each run: bytes of files, and bytes and rows of every table.

    python -m benchmarks.growth
    python -m benchmarks.growth --runs 1 2 --keep /tmp/grown      while developing; the folder stays

Runs a small form of the quickstart from one project folder with a new seed each, so that no stage but curation is reused, on SQLite stores
that begin empty; then the same again, in which every stage is reused. Writes benchmarks/results/growth.json, with the commit that all runs
had: a tree whose files differ from their commit, or whose commit changes between two runs, is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipelines.base import project
from pipelines.base.errors import UserError
from pipelines.base.project import ROOT

RESULTS = ROOT / "benchmarks" / "results"
SMALL = ("curate.sources.0.size=1000", "sft.steps=20", "rlvr.steps=10", "rlvr.prompts=8", "evaluate.tasks.0.limit=40")
DATABASES = {"mlflow": "mlflow.db", "prefect": "prefect/prefect.db"}
LIBRARIES = ("mlflow", "prefect")


def commit(root: Path, expected: str | None = None) -> str:
    """The commit of a checkout whose tracked files are those of the commit.

    Args:
        expected: the commit that it has to be.

    Raises:
        UserError: it is no checkout, a tracked file was changed, or the commit is another one: stages would be computed again, and the
            stores would grow by other amounts.
    """
    head, changed = (
        project.git(root, "rev-parse", "HEAD"),
        project.git(root, "status", "--porcelain", "--untracked-files=no"),
    )
    fix = "Measure in a worktree of its own: `git worktree add --detach FOLDER`."
    if head is None or changed is None:
        raise UserError("benchmarks.growth", f"{root} is no git checkout", fix)
    if changed:
        raise UserError("benchmarks.growth", f"{len(changed.splitlines())} files differ from commit {head[:12]}", fix)
    if expected not in (None, head):
        raise UserError(
            "benchmarks.growth", f"the runs began at commit {expected[:12]}, and now it is {head[:12]}", fix
        )
    return head


def run(home: Path, seed: int, overrides: list[str]) -> None:
    """One `whetstone run` on the stores of a project folder.

    Raises:
        RuntimeError: it failed.
    """
    sets = [part for text in (*overrides, f"seed={seed}") for part in ("--set", text)]
    command = [sys.executable, "-m", "flows.cli.main", "run", str(ROOT / "recipes" / "quickstart.yaml"), *sets]
    env = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")}
    done = subprocess.run(
        command, env={**env, "WHETSTONE_HOME": str(home)}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError((done.stdout + done.stderr)[-3000:])


def size(path: Path) -> int:
    """Bytes of a file, or of a folder's files; 0 where there is none."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def tables(path: Path) -> dict[str, dict[str, int]]:
    """Table → rows, and bytes of its pages and of those of its indexes; those that hold nothing are left out."""
    out: dict[str, dict[str, int]] = {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        owned = dict(database.execute("select name, tbl_name from sqlite_master"))
        for name, used in database.execute("select name, sum(pgsize) from dbstat group by name"):
            table = owned.get(name, name)
            out.setdefault(table, {"rows": 0, "bytes": 0})["bytes"] += used
        for table, about in out.items():
            about["rows"] = database.execute(f'select count(*) from "{table}"').fetchone()[0]
    return {table: about for table, about in out.items() if about["rows"]}


def state(home: Path) -> dict[str, Any]:
    """What the stores of a project folder take."""
    files = {name: size(home / path) for name, path in DATABASES.items()}
    folders = {"mlartifacts": size(home / "mlartifacts"), "runs": size(home / "runs")}
    return files | folders | {"tables": {name: tables(home / path) for name, path in DATABASES.items()}}


def grown(before: dict[str, Any], after: dict[str, Any], runs: int) -> dict[str, Any]:
    """What one run adds, on the average: bytes of each store, and rows and bytes of each table that grew."""
    body: dict[str, Any] = {
        name: round((after[name] - before[name]) / runs) for name in (*DATABASES, "mlartifacts", "runs")
    }
    for store, by_table in after["tables"].items():
        gains = {}
        for table, about in by_table.items():
            was = before["tables"][store].get(table, {"rows": 0, "bytes": 0})
            gain = {name: round((about[name] - was[name]) / runs, 1) for name in ("rows", "bytes")}
            if gain["rows"] or gain["bytes"]:
                gains[table] = gain
        body[f"{store}_tables"] = dict(sorted(gains.items(), key=lambda each: -each[1]["bytes"]))
    return body


def main() -> None:
    """Measure, print, and write the result unless the runs were changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, nargs=2, default=(5, 20), metavar="N", help="look after so many runs")
    parser.add_argument("--reused", type=int, default=3, help="then so many with nothing to do")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--keep", type=Path, help="a project folder that stays; default: one that is deleted")
    arguments = parser.parse_args()
    few, many = arguments.runs
    home = arguments.keep or Path(tempfile.mkdtemp(prefix="growth-"))
    states: dict[str, dict[str, Any]] = {}
    head = commit(ROOT)
    for number in range(many + arguments.reused):
        run(home, min(number, many - 1), [*SMALL, *arguments.set])
        commit(ROOT, head)
        if number + 1 in (1, few, many, many + arguments.reused):
            states[str(number + 1)] = now = state(home)
            print(
                number + 1,
                {name: f"{value / 1e6:.2f} MB" for name, value in now.items() if name != "tables"},
                flush=True,
            )
    a_run = grown(states[str(few)], states[str(many)], many - few)
    reused = (
        grown(states[str(many)], states[str(many + arguments.reused)], arguments.reused) if arguments.reused else {}
    )
    print(json.dumps({"a_run": a_run, "a_reused_run": reused}, indent=1))
    if (few, many) == (5, 20) and not arguments.set:
        versions = {name: version(name) for name in LIBRARIES}
        about = {
            "commit": head,
            "versions": versions,
            "set": SMALL,
            "states": states,
            "a_run": a_run,
            "a_reused_run": reused,
        }
        (RESULTS / "growth.json").write_text(json.dumps(about, indent=1) + "\n")
    if arguments.keep is None:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
