"""Pairs of preferences: what files and sample stages hold of them, and what is refused."""

from __future__ import annotations

import json

import pytest
import toys

from pipelines.curate.run import run as curate
from pipelines.data import dataset
from pipelines.data.pairs import Pair, pair_of, read_pairs
from pipelines.data.records import Problem
from pipelines.errors import DataError
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report

ROWS = [
    {"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "chosen_score": 1, "rejected_score": 0.25, "user": "ann"},
    {"prompt": "2 + 2?", "chosen": "It is 4.", "rejected": "5", "margin": 2},
    {"chosen": [{"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6"}],
     "rejected": [{"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "7"}]},
    {"prompt": [{"role": "user", "content": "Name a prime."}], "chosen": [{"role": "assistant", "content": "7"}],
     "rejected": [{"role": "assistant", "content": "8"}], "answer": "7", "verifier": "number"},
]  # fmt: skip
REFUSED = [
    {"prompt": "x y", "chosen": "same", "rejected": "same"},
    {"prompt": "x z", "chosen": "a", "rejected": "b", "margin": "much"},
    {"chosen": [{"role": "user", "content": "no answer"}], "rejected": "b", "prompt": "x w"},
]


def curated(tmp_path, rows):
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = read_recipe(
        toys.recipe(tmp_path, curate={"sources": [{"kind": "file", "path": str(file)}], "splits": {"train": 1.0}})
    )
    out = tmp_path / "data"
    out.mkdir()
    metrics = curate(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0)
    return metrics, out


def test_a_file_of_pairs_becomes_records(tmp_path):
    metrics, out = curated(tmp_path, [*ROWS, *REFUSED, ROWS[0]])
    assert metrics["quarantined"] == len(REFUSED) and metrics["rows"] == len(ROWS)
    pairs = {(p.prompt[-1]["content"], p.chosen): p for p in read_pairs(out, "train")}
    assert set(pairs) == {("2 + 2?", "4"), ("2 + 2?", "It is 4."), ("3 + 3?", "6"), ("Name a prime.", "7")}
    first = pairs["2 + 2?", "4"]
    assert (first.rejected, first.chosen_score, first.rejected_score, first.user) == ("5", 1.0, 0.25, "ann")
    assert first.score_margin == 0.75 and pairs["2 + 2?", "It is 4."].score_margin == 2.0
    assert pairs["3 + 3?", "6"].prompt == [{"role": "user", "content": "3 + 3?"}]
    assert pairs["3 + 3?", "6"].score_margin is None
    assert len({p.uid for p in pairs.values()}) == 4
    by_uid = {p.uid: p for p in dataset.read_split(out, "train")}
    assert by_uid[pairs["Name a prime.", "7"].uid].answer == "7"


def problem(**info):
    return Problem(uid="u", prompt=[], answer="", verifier="exact", source="s", licence="", info=info)


def test_a_record_without_a_pair_is_refused():
    assert pair_of(problem(chosen="a", rejected="b", margin=1)) == Pair("u", [], "a", "b", None, None, 1.0)
    with pytest.raises(DataError, match=r"record u .* holds no pair"):
        pair_of(problem(chosen="a"))
    with pytest.raises(DataError, match=r"info\.margin is no finite number"):
        pair_of(problem(chosen="a", rejected="b", margin=float("nan")))
