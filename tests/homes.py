"""Finished pipeline runs in a home, written in seconds: real artifacts and index, answers drawn instead of sampled from a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import databases
import pytest

from tasks.environment import runs_folder
from tasks.keys import stage_key
from tasks.store import artifacts, index
from tasks.store.artifacts import Artifact

Scores = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]
"""checkpoint → task → per problem, the score of each answer."""


def with_a_store_of_its_own(tmp_path_factory):
    """The rest of a module's fixture: a home in whose store the tests register models; made once, because the database takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("WHETSTONE_HOME", str(tmp_path_factory.mktemp("registry") / "home"))
        yield


def stage(name: str, parts: dict[str, Any], files: Mapping[str, str], run_id: str) -> Artifact:
    """Publish an artifact with these files."""
    building = runs_folder() / f".{name}-building"
    for path, text in files.items():
        (building / path).parent.mkdir(parents=True, exist_ok=True)
        (building / path).write_text(text)
    whole = {"settings": {}, "inputs": {}, "seed": 0, "source": {}, "versions": {}, **parts}
    about = {"parts": whole, "numbers": {}, "seconds": 10.0, "recipe": "drawn", "run_id": None, "pipeline_run": run_id}
    return artifacts.put(building, runs_folder(), name, stage_key(whole), about)


def log_lines(scores: Sequence[Sequence[float]], text: str = "answer") -> str:
    """`samples/<checkpoint>/<task>.jsonl` as the evaluation writes it."""
    return "".join(
        json.dumps({
            "doc_id": i, "doc": {"question": f"question {i}", "answer": "7"}, "target": "7", "prompt_hash": "p",
            "resps": [[f"{text} {v}" for v in row]], "scores": list(row),
        }) + "\n"
        for i, row in enumerate(scores)
    )  # fmt: skip


def run(
    run_id: str,
    scores: Scores,
    *,
    seed: int = 0,
    advantage: str = "grpo",
    name: str = "drawn",
    experiment: str = "drawn",
    reward: Sequence[float] = (0.1, 0.2),
    text: str = "answer",
    label: str = "rlvr",
    kind: str = "rlvr",
) -> dict[str, Artifact]:
    """A finished run whose checkpoint, of a stage of this kind, was evaluated under this label; returns its artifacts by stage."""
    points = [
        {"kind": "metrics", "step": i + 1, "time": 1, "values": {"reward/mean": r, "rollout/rows": 4.0, "rollout/length_mean": 5.0,
                                                                  "tokens/trained": 7.0}}
        for i, r in enumerate(reward)
    ]  # fmt: skip
    spool = "".join(json.dumps(p) + "\n" for p in points)
    settings = {kind: {"advantage": {"kind": advantage}, "steps": len(reward)}}
    trained = stage(
        kind, {"settings": settings, "seed": seed}, {"report/spool.jsonl": spool, "model/weights": run_id}, run_id
    )
    tasks = [{"name": t, "samples": len(rows[0])} for t, rows in next(iter(scores.values())).items()]
    parts = {"settings": {"evaluate": {"tasks": tasks}}, "inputs": {label: trained.digest}, "seed": seed}
    files = {f"samples/{c}/{t}.jsonl": log_lines(rows, text) for c, by in scores.items() for t, rows in by.items()}
    evaluated = stage("evaluate", parts, files | {"results.json": json.dumps({"evaluation": {}})}, run_id)
    made = {kind: trained, "evaluate": evaluated}
    summary = {"seconds": 20.0, "evaluation": {}, "differences": {}, "stages": {
        s: {
            "status": "ran", "kind": a.stage, "key": a.key, "seconds": 10.0, "artifact": str(a.path), "run_id": None, "why": "",
        } for s, a in made.items()
    }}  # fmt: skip
    index.start(run_id, name, experiment, {})
    index.end(run_id, "FINISHED", summary, {})
    return made


def registered(name: str, scores: Scores, *, seed: int = 0, label: str = "rlvr", kind: str = "rlvr") -> str:
    """A run that MLflow knows too, with its model as a version of `name`; returns its id."""
    from tasks.tracking import api as tracking
    from tasks.tracking.client import client, experiment

    databases.store()
    to = client()
    folder = experiment(name)
    run_id = to.create_run(folder, run_name=name).info.run_id
    made = run(run_id, scores, seed=seed, name=f"{name}-{seed}", experiment=name, label=label, kind=kind)
    model = to.create_logged_model(folder, name=f"{name}-{kind}", source_run_id=run_id)
    to.finalize_logged_model(model.model_id, "READY")
    note = runs_folder() / ".uploaded" / f"{made[kind].path.name}.json"
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"run_id": run_id, "models": {kind: model.model_id}}))
    tracking.register(model.model_id, name, {"whetstone.parent_run": run_id})
    return run_id


def manifest(folder: Path) -> dict[str, Any]:
    """An artifact's manifest."""
    return json.loads((folder / "manifest.json").read_text())
