"""A finished chain of artifacts made by hand, with real small models: what the task layer sends, without any training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pipelines.engine import models
from pipelines.recipe.read import read_recipe
from tasks import environment, stages
from tasks.pipeline import Pipeline
from tasks.stages import StageResult
from tasks.store import artifacts
from tasks.tracking import outbox, record

SCORES = {"base": [0.0, 0.0], "sft": [0.0, 1.0], "rlvr": [1.0, 1.0]}
CHAIN = ("curate", "sft", "rlvr", "evaluate")


def keys(mark: str) -> dict[str, str]:
    return {stage: f"{number}{mark}".ljust(16, "0") for number, stage in enumerate(CHAIN)}


def model(recipe, folder: Path, seed: int) -> None:
    tokenizer = models.train_tokenizer("char", 128, ["palindrome abcdefghijklmnopqrstuvwxyz"])
    models.save_model(models.fresh_model(recipe.model, tokenizer, seed), tokenizer, folder, {})


def write(stage: str, recipe, folder: Path) -> None:
    """The files of a stage's artifact."""
    folder.mkdir(parents=True)
    if stage == "curate":
        (folder / "data.json").write_text(json.dumps({"splits": {"train": 3}}))
    elif stage == "sft":
        model(recipe, folder / "base", 0)
        model(recipe, folder / "model", 1)
    elif stage == "rlvr":
        model(recipe, folder / "model", 2)
        (folder / "report").mkdir(exist_ok=True)
        (folder / "report/rollouts.jsonl").write_text(json.dumps({"step": 1, "uid": "u", "text": "abba"}) + "\n")
    else:
        evaluation(folder)


def evaluation(folder: Path) -> None:
    cells = {}
    for checkpoint, scores in SCORES.items():
        place = folder / "samples" / checkpoint
        place.mkdir(parents=True)
        rows = [
            {
                "doc_id": number, "doc": {"question": f"palindrome {number}", "answer": "abba"}, "target": "abba",
                "resps": [["abba" if score else "ab", "xx"]], "filtered_resps": [["abba" if score else "ab", "xx"]],
                "scores": [score, 0.0], "exact_match": score / 2,
            }
            for number, score in enumerate(scores)
        ]  # fmt: skip
        (place / "palindromes.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        mean = sum(scores) / 4
        cells[checkpoint] = {"palindromes": {"pass@1": {"value": mean, "low": mean / 2, "high": mean, "n": 2}}}
    gain = {"value": 0.25, "low": 0.1, "high": 0.4, "n": 2}
    differences = {"palindromes": {"base → sft": gain, "sft → rlvr": gain}}
    (folder / "results.json").write_text(json.dumps({"evaluation": cells, "differences": differences}))


def entry(recipe, stage: str, key: str, done: dict, parent: str | None, name: str) -> Path:
    """Publish a stage's artifact as `tasks.stages` does; returns its entry in the outbox, not sent yet."""
    runs = environment.runs_folder()
    work = runs / ".work" / f"{stage}-{key}"
    write(stage, recipe, work / "out")
    node = recipe.node(stage)
    about = stages._about(node, {"versions": {}}, {label: done[s] for label, s in node.inputs.items()}, name)
    upload = {
        "kind": "stage", "stage": stage, "key": key, "upload_models": True, "time": 1_700_000_000_000, "about": about,
        "experiment": recipe.name, "parent": parent, "steps": {"sft": {"sft": 12}, "rlvr": {"rlvr": 4}}.get(stage, {}),
        "checkpoints": stages.checkpoints_read(recipe, stage, done), "model_params": record.params(recipe, ("model", stage)),
    }  # fmt: skip
    outbox.note(work, upload)
    body = {"parts": {}, "numbers": {}, "seconds": 1.0, "recipe": recipe.name, "run_id": None, "pipeline_run": parent}
    done[stage] = artifacts.put(work / "out", runs, stage, key, body)
    return outbox.add(work)


def run(recipe_path: Path, *overrides: str, mark: str = "a", send=None) -> Pipeline:
    """A whole pipeline run of such artifacts, told to MLflow; `send` is called with each stage's entry instead of sending."""
    from tasks.tracking.time_budget import TimeBudget

    recipe = read_recipe(recipe_path, list(overrides))
    pipeline = Pipeline.open(recipe, source="recipes/toy.yaml", overrides=list(overrides))
    done: dict = {}
    for stage, key in keys(mark).items():
        path = entry(recipe, stage, key, done, pipeline.parent, pipeline.name)
        if send is None:
            assert outbox.flush(path, TimeBudget(None)), stage
        else:
            send(stage, path)
        artifact = artifacts.read(done[stage].path)
        pipeline.results[stage] = StageResult(stage, "ran", artifact, "new", 1.0)
    pipeline.close()
    return pipeline


def forget(home: Path) -> None:
    shutil.rmtree(home / "runs", ignore_errors=True)
