"""Worlds whose prompts do not show all: problems that begin alike stay apart, in curation and in evaluation."""

from __future__ import annotations

import json

import pytest
import toys

from evaluation import documents, played
from pipelines import environments
from pipelines.curate import run as stage
from pipelines.data import dataset
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import PlayedTask
from pipelines.stage.report import Report

GUESSES = {"kind": "environment", "task": "guess_number", "size": 60, "seed": 3}


def curated(tmp_path, source, texts=None, **fields):
    """The records, and the card's rows by step."""
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source], "splits": {"rlvr": 1.0}, **fields}))
    out = tmp_path / "out"
    out.mkdir()
    stage.run(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0, benchmark_texts=texts)
    return list(dataset.iter_problems(out / "rlvr.parquet")), json.loads((out / "report/card.json").read_text())


def of_file(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "file", "path": str(path), "licence": "MIT"}


def drawn(**config):
    return [row["info"] for row in environments.problems("guess_number", 60, 3, config)]


@pytest.mark.parametrize("near", [None, {}], ids=["exact", "near"])
def test_every_number_is_a_problem_and_none_is_two(tmp_path, near):
    problems, _ = curated(tmp_path, GUESSES, near_duplicates=near, decontaminate=None)
    assert len({json.dumps(problem.prompt) for problem in problems}) == 1
    numbers = [problem.info["number"] for problem in problems]
    assert sorted(numbers) == sorted({info["number"] for info in drawn()}) and len(numbers) > 20
    assert len({problem.uid for problem in problems}) == len(problems)


def test_a_vague_user_s_luck_is_another_problem(tmp_path):
    problems, _ = curated(tmp_path, {**GUESSES, "config": {"vague": 0.5}}, decontaminate=None)
    assert len(problems) == 60


def test_of_a_benchmark_of_one_s_own_only_the_same_numbers_leak(tmp_path):
    task = {"name": "guesses", "environment": {"task": "guess_number", "size": 8, "seed": 9}}
    recipe = read_recipe(toys.recipe(tmp_path, evaluate={"tasks": [task]}))
    tested = played.problems(recipe.evaluate.tasks[0].environment, None)
    taken = {problem.info["number"] for problem in tested}

    def texts():
        return documents.questions(recipe.evaluate.model_dump(mode="json"))

    problems, _ = curated(tmp_path, GUESSES, texts)
    left = {problem.info["number"] for problem in problems}
    assert left and left == {info["number"] for info in drawn()} - taken

    tmp_path = tmp_path / "walked"
    tmp_path.mkdir()
    walked, _ = curated(tmp_path, {**GUESSES, "config": {"demonstrations": True}}, texts)
    assert walked and not {problem.info["number"] for problem in walked} & taken, "a later turn of its games leaks too"


def test_played_problems_have_uids_of_their_own():
    problems = played.problems(PlayedTask(task="guess_number", size=30, seed=4), None)
    numbers = [problem.info["number"] for problem in problems]
    assert len({problem.uid for problem in problems}) == len(set(numbers)) > 10


def shell_rows(count, repeats=0):
    """Tasks with one prompt and different folders, and some of them again."""
    rows = [
        {
            "prompt": [{"role": "user", "content": "Fix the bug."}],
            "answer": "submit",
            "verifier": "exact",
            "info": {
                "environment": "shell",
                "files": {"main.py": f"print({number})\n"},
                "tests": [{"run": "python main.py", "expect": str(number + 1)}],
            },
        }
        for number in range(count)
    ]
    return rows + rows[:repeats]


def test_repositories_with_one_prompt_are_kept_and_their_repeats_are_not(tmp_path):
    problems, card = curated(tmp_path, of_file(tmp_path, shell_rows(7, 2)), decontaminate=None)
    assert sorted(problem.info["files"]["main.py"] for problem in problems) == [f"print({n})\n" for n in range(7)]
    assert card["rows"]["exact_duplicate"] == 2


@pytest.mark.parametrize("named", [{"a": 1}, ["guess_number"], 7, True, "no_such_game"], ids=str)
def test_a_file_s_row_may_name_anything_for_an_environment(tmp_path, named):
    rows = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "info": {"environment": named}} for n in range(4)]
    problems, card = curated(tmp_path, of_file(tmp_path, rows), decontaminate=None)
    assert len(problems) == 4, card
