"""The pipeline runs of this store, in one file of ours: `whetstone runs` and `show` answer without importing MLflow.

`index.jsonl` gets a line when a pipeline run starts and one when it ends; the later line of a run adds to the earlier. Without
the file it is made again from the manifests of the artifacts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.base import owner
from pipelines.base.files import named, read_manifest, read_object
from pipelines.base.secrets import redact
from tasks.environment import folder as project_folder
from tasks.environment import home, runs_folder

SHAPE: dict[str, type | tuple[type, ...]] = {
    "run_id": str, "name": str, "experiment": str, "status": str, "started": (int, float), "seconds": (int, float),
    "metrics": dict, "tags": dict, "summary": dict, "pid": int, "born": str, "host": str, "experiment_id": str,
}  # fmt: skip


REBUILT = "from its manifest"
"""Why a stage ran, in a run that the index knows from the artifacts that are here alone."""


def path() -> Path:
    """The file."""
    return home() / "index.jsonl"


def add(run_id: str, **about: Any) -> None:
    """Append what is known of a run.

    Args:
        about: fields of `SHAPE`.
    """
    begin()
    line = json.dumps({"run_id": run_id, **about}, default=str) + "\n"
    try:
        with open(path(), "a+b") as handle:
            size = handle.seek(0, os.SEEK_END)
            if size:
                handle.seek(size - 1)
                line = line if handle.read(1) == b"\n" else "\n" + line
            handle.write(line.encode())
    except OSError as error:
        error = named(error, path())
        raise project_folder.explain(error, home()) or error from None


def start(run_id: str, name: str, experiment: str, tags: dict[str, str], experiment_id: str | None = None) -> None:
    """Note that a pipeline run has started in this process."""
    about = {"name": name, "experiment": experiment, "status": "RUNNING", "tags": tags, "experiment_id": experiment_id}
    process = {"pid": os.getpid(), "born": owner.started(os.getpid()), "host": socket.gethostname()}
    add(run_id, **about, **process, started=time.time())


def end(run_id: str, status: str, summary: dict[str, Any], metrics: dict[str, float]) -> None:
    """Note how a pipeline run ended."""
    add(run_id, status=status, seconds=summary.get("seconds"), metrics=metrics, summary=summary)


def runs(experiment: str | None = None) -> list[dict[str, Any]]:
    """Every run, newest first, with the fields of `SHAPE`; lines that cannot be read are passed over."""
    begin()
    known: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(FileNotFoundError, IsADirectoryError), open(path(), "rb") as handle:
        for raw in handle:
            line = _parse(raw)
            if line is not None:
                known.setdefault(line["run_id"], {}).update({k: v for k, v in line.items() if v is not None})
    started = [r for r in known.values() if isinstance(r.get("started"), int | float)]
    chosen = [_complete(r) for r in started if experiment in (None, r.get("experiment"))]
    return sorted(chosen, key=lambda r: -r["started"])


def works(run: dict[str, Any]) -> bool:
    """Whether the process that a run was started in works still, which is known of those of this machine alone."""
    here = run["status"] == "RUNNING" and run.get("host") == socket.gethostname()
    return here and run.get("born") is not None and owner.started(run["pid"]) == run["born"]


def begin() -> None:
    """Make the index where there is none."""
    if not path().exists():
        rebuild()


def rebuild() -> None:
    """Write the index from the manifests: which pipeline run made which artifact, and what it measured."""
    made_by: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for folder in runs_folder().glob("*-*"):
        manifest = read_manifest(folder) if folder.is_dir() else None
        parent = (manifest or {}).get("pipeline_run")
        if manifest and isinstance(parent, str) and parent:
            made_by.setdefault(parent, []).append((folder, manifest))
    lines = [json.dumps(_from_manifests(parent, parts), default=str) for parent, parts in made_by.items()]
    if path().is_dir() or not home().is_dir():
        return
    with open(path(), "a", encoding="utf-8") as handle:
        handle.write("".join(line + "\n" for line in lines))


def _from_manifests(run_id: str, stages: list[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    ended = [(folder / "manifest.json").stat().st_mtime for folder, _ in stages]
    seconds = [float(m.get("seconds") or 0.0) for _, m in stages]
    parts = stages[0][1].get("parts") or {}
    summary: dict[str, Any] = {"recipe": str(stages[0][1].get("recipe")), "seed": parts.get("seed"), "parent_run_id": run_id,
                               "seconds": sum(seconds), "stages": {}, "evaluation": {}, "differences": {}}  # fmt: skip
    for (folder, manifest), took in sorted(zip(stages, seconds, strict=True), key=lambda p: p[0][0].stat().st_mtime):
        about = {
            "status": "ran",
            "kind": manifest["stage"],
            "makes": str(manifest.get("makes") or ""),
            "key": manifest["key"],
            "seconds": took,
            "artifact": str(folder),
        }
        summary["stages"][manifest["stage"]] = about | {"run_id": manifest.get("run_id"), "why": REBUILT}
        results = read_object(folder / "results.json", evaluation=dict, differences=dict)
        if results:
            summary["evaluation"] = results.get("evaluation") or {}
            summary["differences"] = results.get("differences") or {}
    return {
        "run_id": run_id, "name": summary["recipe"], "experiment": summary["recipe"], "status": "FINISHED", "metrics": {},
        "started": min(e - s for e, s in zip(ended, seconds, strict=True)), "seconds": sum(seconds), "summary": summary,
    }  # fmt: skip


def _parse(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("run_id"), str):
        return None
    return {k: v for k, v in line.items() if k in SHAPE and (v is None or isinstance(v, SHAPE[k]))}


def _complete(run: dict[str, Any]) -> dict[str, Any]:
    status = run.get("status", "RUNNING")
    if status == "RUNNING" and run.get("host") == socket.gethostname() and not _alive(run.get("pid")):
        status = "KILLED"
    name = redact(run.get("name", "?"))
    return {"seconds": None, "metrics": {}, "tags": {}, **run, "status": status, "name": name}


def _alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def meant(name: str, runs: Iterable[dict[str, Any]], shortest: int = 1) -> list[dict[str, Any]]:
    """Runs whose id starts with `name`, from so many characters; else those whose name it is; else those of that experiment."""
    runs = [*runs]
    ids = [run for run in runs if run["run_id"].startswith(name)] if len(name) >= shortest else []
    return ids or [r for r in runs if r.get("name") == name] or [r for r in runs if r.get("experiment") == name]


def listed(runs: list[dict[str, Any]], most: int = 6) -> str:
    """Runs among which a name does not decide: the beginnings of their ids, with their status."""
    return ", ".join([f"{run['run_id'][:8]} {run['status']}" for run in runs[:most]] + ["..."] * (len(runs) > most))
