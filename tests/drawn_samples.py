"""Artifacts of sample stages written by hand, what selections make of them, and a curate stage on them."""

from __future__ import annotations

import json
from pathlib import Path

import toys

from pipelines.curate import selected
from pipelines.curate.run import run as curate
from pipelines.data import dataset, samples
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.stage.report import Report

DRAWN = {
    "a": [("no 3", 0.0), ("7", 1.0), ("it is 7", 1.0), ("7", 1.0), ("5 or 3", 0.5)],
    "b": [("1", 1.0), ("so 1", 1.0)],
    "c": [("2", 0.0), ("it is 2", 0.0), ("4", 0.0)],
    "d": [("lost", None)],
}
"""Problem → text and score of each completion; 1 is correct."""


def write(out: Path, drawn=None, verifier="number", cut=(), rewards=None, info=None) -> Path:
    """An artifact of a sample stage with these completions."""
    rows = []
    for uid, completions in (drawn or DRAWN).items():
        prompt = [{"role": "user", "content": f"how many is {uid}"}]
        problem = Problem(
            uid=uid,
            prompt=prompt,
            answer="7",
            verifier=verifier,
            source="s",
            licence="l",
            info=(info or {}).get(uid, {"k": 1}),
        )
        rows += [
            {
                **dataset.to_row(problem), "sample": number, "text": text, "score": score, "status": "x",
                "stop": "length" if text in cut else "end",
                "correct": None if score is None else score >= 1, "prompt_ids": [1, 2],
                "components": json.dumps({"reward_model": rewards[text]} if text in (rewards or {}) else {}),
                "completion_ids": list(range(len(text))), "logp": [0.0] * len(text), "entropy": [0.0] * len(text),
            }
            for number, (text, score) in enumerate(completions)
        ]  # fmt: skip
    (out / samples.FOLDER).mkdir(parents=True)
    for number, start in enumerate(range(0, len(rows), 7)):
        toys.write_samples(out / samples.FOLDER / samples.shard_name(number), rows[start : start + 7])
    return out


def chosen(folder, seed=0, **select):
    return list(selected.problems(folder, Selection.model_validate(select), seed))


def curated(tmp_path, folder, source, **fields):
    """A curate stage on the artifact, with a tokenizer of the model that drew it."""
    recipe = read_recipe(toys.recipe(tmp_path))
    tokenizer = models.train_tokenizer("char", 128, ["how many is abcd 0123456789 it so or no lost"])
    tokenizer.save_pretrained(folder / "tokenizer")
    about = {"template": models.template_identity(tokenizer)}
    (folder / samples.ABOUT).write_text(json.dumps(about | fields.pop("about", {})))
    section = recipe.curate.model_validate({"sources": [{"kind": "stage", "path": "drafts", **source}], **fields})
    out = tmp_path / "out"
    out.mkdir()
    curate(section, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0, samples={0: folder})
    return out
