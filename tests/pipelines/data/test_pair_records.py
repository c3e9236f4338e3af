"""Pairs of preferences: what files and sample stages hold of them, and what is refused."""

from __future__ import annotations

import json

import pytest
import toys
from transformers import AutoTokenizer

from pipelines.base.errors import DataError
from pipelines.curate.run import run as curate
from pipelines.data import dataset
from pipelines.data.pair_records import Labelled, Pair, labelled_of, pair_of, read_pairs
from pipelines.data.records import Problem
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report

ROWS = [
    {"prompt": "2 + 2?", "chosen": "4", "rejected": "5", "chosen_score": 1, "rejected_score": 0.25, "user": "ann"},
    {"prompt": "2 + 2?", "chosen": "It is 4.", "rejected": "5", "margin": 2, "chosen_share": 0.8},
    {"chosen": [{"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6"}],
     "rejected": [{"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "7"}]},
    {"prompt": [{"role": "user", "content": "Name a prime."}], "chosen": [{"role": "assistant", "content": "7"}],
     "rejected": [{"role": "assistant", "content": "8"}], "answer": "7", "verifier": "number"},
]  # fmt: skip
REFUSED = [
    {"prompt": "x y", "chosen": "same", "rejected": "same"},
    {"prompt": "x z", "chosen": "a", "rejected": "b", "margin": "much"},
    {"prompt": "x v", "chosen": "a", "rejected": "b", "chosen_share": 80},
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
    assert pairs["2 + 2?", "It is 4."].chosen_share == 0.8 and first.chosen_share is None
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
    with pytest.raises(DataError, match=r"info\.chosen_share is 0\. It is a share above 0"):
        pair_of(problem(chosen="a", rejected="b", chosen_share=0))


def test_labelled_answers_become_records(tmp_path):
    rows = [
        {"prompt": "is 4 even", "completion": "yes", "label": True},
        {"prompt": "is 4 even", "completion": "no, never", "label": False},
        {"prompt": "is 5 even", "completion": [{"role": "assistant", "content": "no"}], "label": True},
        {"prompt": "not True is", "completion": "so it is False", "label": "False"},
    ]
    metrics, out = curated(tmp_path, rows)
    assert metrics["rows"] == 4
    by_text = {p.info.get("completion"): p for p in dataset.read_split(out, "train")}
    assert labelled_of(by_text["no, never"]) == Labelled(
        by_text["no, never"].uid, [{"role": "user", "content": "is 4 even"}], "no, never", False
    )
    assert (
        by_text["yes"].info["sampled_from"]
        == by_text["no, never"].info["sampled_from"]
        != by_text["no"].info["sampled_from"]
    )
    assert by_text["yes"].info["solution"] == "yes" and "solution" not in by_text["no, never"].info
    assert by_text[None].answer == "False", "a label that is text is an answer"
    with pytest.raises(DataError, match="holds no labelled answer"):
        labelled_of(by_text[None])


def test_a_fresh_tokenizer_knows_the_characters_of_both_answers(tmp_path):
    _, out = curated(tmp_path, [{"prompt": "ab", "chosen": "cd", "rejected": "xyz"}])
    assert set("abcdxyz") <= set(AutoTokenizer.from_pretrained(out / "tokenizer").get_vocab())
