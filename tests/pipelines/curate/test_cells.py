"""Every column of a row is used, kept in info and named, or named as in no record."""

from __future__ import annotations

import json

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.curate import run as stage
from pipelines.curate.cells import MEDIA, RESERVED, Cells
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.data import dataset
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.rlvr import scoring
from pipelines.stage.report import Report

FILE = Source(kind="file", path="x.jsonl", verifier="exact")


def read(row, **fields):
    cells = Cells(row)
    return to_problem(cells, FILE.model_copy(update=fields), self_check=False), cells


def test_a_column_that_no_part_of_the_record_is_made_of_is_kept_and_named():
    problem, cells = read({"question": "2 + 2?", "answer": "4", "difficulty": 3, "tags": ["sum"], "empty": None})
    assert problem.info == {"split": "train", "difficulty": 3, "tags": ["sum"]}
    assert (cells.extra, cells.lost) == ({"difficulty", "tags"}, set())


def test_a_removed_column_is_as_if_it_were_not_there():
    problem, cells = read({"question": "2 + 2?", "answer": "4", "image": {"bytes": b"\xff"}}, remove_columns=["image"])
    assert problem.info == {"split": "train"} and not cells.extra | cells.lost
    with pytest.raises(RowError, match="image: not text"):
        read({"question": "2 + 2?", "answer": "4", "image": {"bytes": b"\xff"}})


def test_a_column_with_the_name_of_something_else_decides_nothing():
    row = {"question": "2 + 2?", "answer": "4", "environment": "production", "toolbox": ["python"], "blob": b"\xff\xfe"}
    problem, cells = read(row)
    assert problem.info == {"split": "train"} and cells.lost == {"environment", "toolbox", "blob"}


NAMES = st.text(st.characters(categories=["Ll"]), min_size=3, max_size=8).map(lambda name: f"x_{name}")


@given(
    st.dictionaries(
        NAMES | st.sampled_from(sorted(RESERVED - {"tools"}) + list(MEDIA)),
        st.none() | st.integers() | st.text(min_size=1),
    )
)
def test_no_column_is_lost_without_a_word(extra):
    try:
        problem, cells = read({"question": "2 + 2?", "answer": "4"} | extra)
    except RowError:
        return
    for name, value in extra.items():
        kept = problem.info.get(name) == value
        assert value is None or name in cells.used or name in cells.lost or (kept and name in cells.extra)


def test_the_card_and_the_log_name_them(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"what is {i} + 1?", "answer": str(i + 1), "level": i, "split": "x"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = read_recipe(
        toys.recipe(tmp_path, curate={"sources": [{"kind": "file", "path": str(path), "verifier": "exact"}]})
    )
    out = tmp_path / "out"
    out.mkdir()
    stage.run(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0)
    card = json.loads((out / "report/card.json").read_text())
    assert card["only_in_info"] == {str(path): {"level": 40}} and card["not_used"] == {str(path): {"split": 40}}
    for text in ((out / "report/card.md").read_text(), (tmp_path / "w/spool.jsonl").read_text()):
        assert "level (40 rows)" in text and "split (40 rows)" in text
    problems = dataset.read_split(out, "train")
    assert {p.prompt[0]["content"]: p.info["level"] for p in problems} == {
        p.prompt[0]["content"]: int(p.answer) - 1 for p in problems
    }


def test_an_answer_keeps_the_name_of_its_column_too():
    """Reward functions that are written for TRL ask for it."""
    row = {"problem": "2 + 2?", "ground_truth": "#### 4", "level": 2}
    first = to_problem(row, Source(kind="file", path="x.jsonl", verifier="exact"), self_check=False)
    assert first.answer == "4" and first.info["ground_truth"] == "#### 4"
    assert (
        "answer"
        not in to_problem({"prompt": "q", "answer": "4"}, Source(kind="file", path="x.jsonl"), self_check=False).info
    )
    second = to_problem({"prompt": "3 + 3?", "answer": "6"}, Source(kind="file", path="x.jsonl"), self_check=False)
    heard = {}

    def reward(completions, ground_truth, level, **others):
        heard.update(ground_truth=ground_truth, level=level)
        return [0.0] * len(completions)

    problems = {problem.uid: problem for problem in (first, second)}
    scoring.add([("reward", reward)], [answer(uid, 0, "4", score=0.0) for uid in problems], problems)
    assert heard == {"ground_truth": ["#### 4", None], "level": [2, None]}
