"""Problems out of plain text: the gold answer rebuilds the text, a constant answer is right by chance, equal texts give equal problems."""

from __future__ import annotations

import json
import random
import statistics

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.base.errors import RecipeError
from pipelines.curate.formats import Row
from pipelines.curate.run import run
from pipelines.curate.sources import of_texts
from pipelines.data.dataset import read_split
from pipelines.papers import PARTS, ssl4rl
from pipelines.recipe.check import check_stage
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.stage.report import Report

TASKS = sorted(PARTS["curate.self_supervised"])
words = st.lists(st.from_regex(r"[a-z]{2,7}", fullmatch=True), min_size=4, max_size=9)
texts = st.lists(words, min_size=12, max_size=16, unique_by=tuple).map(
    lambda listed: " ".join(" ".join(each).capitalize() + "." for each in listed)
)


def problems(task, text, seed=0, **fields):
    source = Source(kind="file", path="x.jsonl", self_supervised=task, seed=seed, **fields)
    return list(of_texts(iter([Row("x", 1, {"text": text})]), source))


def shown(question):
    return {line[0]: line[3:] for line in question.splitlines() if line[1:3] == ". "}


@given(texts)
def test_the_gold_order_rebuilds_the_text(text):
    rows = problems("sentence_order", text)
    assert len(rows) == len(ssl4rl.sentences(text)) // 4
    rebuilt = []
    for row in rows:
        options, order = shown(row.columns["question"]), json.loads(row.columns["answer"])
        assert order != sorted(order), "the order of the letters is never the answer"
        rebuilt += [options[letter] for letter in order]
    assert " ".join(rebuilt) == " ".join(ssl4rl.sentences(text)[: 4 * len(rows)])


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@given(text=texts, seed=st.integers(0, 5))
def test_the_gold_answer_is_correct_and_what_is_made_is_fixed(task, text, seed):
    rows = problems(task, text, seed)
    assert rows == problems(task, text, seed)
    for row in rows:
        about = row.columns
        assert verifiers.verify(about["verifier"], gold_of(about), about["answer"], about.get("info", {})).score == 1


def gold_of(about):
    return ", ".join(json.loads(about["answer"])) if about["verifier"] == "overlap" else about["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["masked_span", "next_sentence"])
def test_one_letter_for_all_is_correct_by_chance(task):
    draw = random.Random(0)
    text = ""
    for _ in range(1200):
        text += " ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(6)).capitalize() + ". "
    answers = [row.columns["answer"] for row in problems(task, text)]
    assert len(answers) == 300
    assert all(0.17 < statistics.fmean(a == letter for a in answers) < 0.33 for letter in "ABCD")


def test_half_an_order_is_half_paid():
    """The sheet's order (2, 4, 1, 3) and the answer (2, 4, 3, 1): 5 of 6 pairs."""
    row = {"answer": '["B", "D", "A", "C"]', "info": {"metric": "pair_order"}}
    verdict = verifiers.verify("overlap", "B, D, C, A", row["answer"], row["info"])
    assert verdict.score == pytest.approx(5 / 6) and verdict.correct is False


@pytest.mark.parametrize("columns", [{"text": " "}, {"text": 4}, {"other": "x"}])
def test_a_row_without_text_is_named(columns):
    source = Source(kind="file", path="x.jsonl", self_supervised="next_sentence")
    (row,) = of_texts(iter([Row("x", 7, columns)]), source)
    assert row.columns is None and row.error.field == "text" and row.place == "x:7"


def test_short_texts_and_equal_sentences_make_nothing():
    assert problems("next_sentence", "One sentence is here. And a second one too.") == []
    assert problems("sentence_order", "All of it is equal. " * 8) == []


def test_curate_makes_them_of_a_file(tmp_path):
    draw = random.Random(1)
    lines = []
    for _ in range(100):  # so many that neither split can be empty, however the texts fall
        listed = [" ".join("".join(draw.choices("abcdefgh", k=5)) for _ in range(5)).capitalize() for _ in range(8)]
        lines.append(json.dumps({"body": ". ".join(listed) + "."}))
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, json.dumps({"body": ""})]) + "\n")
    source = {
        "kind": "file",
        "path": str(tmp_path / "texts.jsonl"),
        "self_supervised": "sentence_order",
        "columns": {"prompt": "body"},
    }
    recipe = read_recipe(
        toys.recipe(tmp_path, curate={"sources": [source], "near_duplicates": None, "max_prompt_tokens": None})
    )
    (tmp_path / "data").mkdir()
    metrics = run(recipe.curate, recipe.model, out=tmp_path / "data", report=Report(tmp_path / "w"), seed=0)
    rows = [p for split in ("train", "heldout") for p in read_split(tmp_path / "data", split)]
    assert len(rows) == 200 and {p.verifier for p in rows} == {"overlap"}, metrics
    assert "no text to make problems of" in (tmp_path / "data" / "report/quarantine.jsonl").read_text()


def test_only_texts_can_be_made_into_problems(tmp_path):
    source = {"kind": "reasoning_gym", "task": "chain_sum", "size": 4, "self_supervised": "next_sentence"}
    with pytest.raises(RecipeError, match="of a file or hub source"):
        read_recipe(toys.recipe(tmp_path, curate={"sources": [source]}))


def test_an_unknown_name_is_refused_and_the_key_holds_the_paper_s_code(tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "One. Two."}) + "\n")
    source = {"kind": "file", "path": str(tmp_path / "texts.jsonl"), "self_supervised": "masked_spans"}
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source]}))
    with pytest.raises(
        RecipeError, match=r"sources\.0\.self_supervised: no problems called 'masked_spans'.*masked_span"
    ):
        check_stage(recipe.node("curate"))
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source | {"self_supervised": "masked_span"}]}))
    check_stage(recipe.node("curate"))
    assert "pipelines.papers.ssl4rl" in recipe.node("curate").kind.reads(recipe.node("curate")).modules
