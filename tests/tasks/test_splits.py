"""Empty splits: those that a stage of the run reads are an error of its field, the others are nobody's concern."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe
from tasks.splits import check_filled
from tasks.store.artifacts import Artifact

SPLITS = {"train": 0.5, "rl": 0.4, "heldout": 0.1}


def made(folder: Path, **rows: int) -> Artifact:
    (folder / "data.json").write_text(json.dumps({"splits": rows}))
    return Artifact("curate", "k", folder, "d")


def test_a_split_that_a_stage_reads_must_not_be_empty(tmp_path):
    path = toys.recipe(tmp_path, curate={"splits": SPLITS}, rlvr={"split": "rl"})
    recipe = read_recipe(path)
    check_filled(recipe, recipe.stage_names(), "curate", made(tmp_path, train=5, rl=4, heldout=1))
    for rows, stages, told in (
        ({"train": 9, "rl": 0, "heldout": 1}, ["sft", "rlvr"], r"rlvr.split: split 'rl' of curate is empty.* of 10 rows.*curate.splits"),
        ({"train": 9, "rl": 4, "heldout": 0}, ["sft", "rlvr"], r"sft.heldout: .*Or set heldout: null"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=told):
            check_filled(recipe, stages, "curate", made(tmp_path, **rows))


def test_a_split_that_nobody_reads_may_be_empty(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path, curate={"splits": SPLITS}, rlvr={"split": "rl"}), ["sft.heldout=null"])
    check_filled(recipe, ["sft", "rlvr"], "curate", made(tmp_path, train=5, rl=4, heldout=0))
    check_filled(recipe, ["sft"], "curate", made(tmp_path, train=5, rl=0, heldout=0))
    check_filled(recipe, ["rlvr"], "sft", made(tmp_path, train=0, rl=0))
