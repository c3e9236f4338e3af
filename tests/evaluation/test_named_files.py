"""Benchmarks that read a file of the recipe's: what they take, what `plan` refuses, and what a key holds."""

from __future__ import annotations

import json
import shutil

import pytest
import toys
import yaml

from evaluation import harness, named_files
from evaluation.documents import questions
from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Evaluate
from tasks import keys
from tasks.preflight import check as preflight

SMALL = harness.BENCHMARKS / "livecodebench" / "small.jsonl"


def refused(folder, *tasks):
    with pytest.raises(RecipeError) as told:
        check(read_recipe(toys.recipe(folder, evaluate={"tasks": list(tasks)})))
    return str(told.value)


def test_every_benchmark_of_the_table_has_its_yaml_and_its_documents():
    assert set(named_files.BENCHMARKS) <= set(harness.own_tasks())
    for name, reads in named_files.BENCHMARKS.items():
        if reads.fixed:
            settings = Evaluate.model_validate({"tasks": [name]})
            (task,) = harness.load_task(harness.manager(settings), settings.tasks[0]).values()
            assert len(task.eval_docs) >= 14, name


def test_what_a_benchmark_does_not_take_is_refused(tmp_path):
    assert "evaluate.tasks.0.data: livecodebench has no rows of its own" in refused(tmp_path, "livecodebench")
    assert "bfcl has no rows of its own" in refused(tmp_path, "bfcl")
    assert "evaluate.tasks.1.data: palindromes brings its own rows" in refused(
        tmp_path, "sums", {"name": "palindromes", "data": "x.jsonl"}
    )
    assert "bfcl_small brings its own rows" in refused(tmp_path, {"name": "bfcl_small", "data": "x.jsonl"})
    assert "start_date: the rows of sums have no date" in refused(tmp_path, {"name": "sums", "end_date": "2026-01-01"})
    days = {"start_date": "2026-02-01", "end_date": "2026-01-01"}
    assert "start_date 2026-02-01 is after end_date 2026-01-01" in refused(tmp_path, {"name": "livecode_small", **days})
    played = {"name": "x", "environment": {"task": "tools"}, "data": "x.jsonl"}
    assert "episodes of an environment do not read it" in refused(tmp_path, played)


def key(folder, *tasks):
    recipe = read_recipe(toys.recipe(folder, evaluate={"tasks": list(tasks)}))
    return {stage: keys.stage_key(keys.key_parts(recipe, stage, {})) for stage in ("curate", "evaluate")}


def test_keys_hang_on_the_rows_and_the_days_and_not_on_the_path(tmp_path):
    path, moved = tmp_path / "rows.jsonl", tmp_path / "else" / "moved.jsonl"
    moved.parent.mkdir()
    shutil.copy(SMALL, path)
    shutil.copy(SMALL, moved)
    task = {"name": "new", "benchmark": "livecodebench", "data": str(path)}
    first = key(tmp_path, task)
    assert key(tmp_path, task | {"data": str(moved)}) == first
    dated = key(tmp_path, task | {"start_date": "2026-02-01"})
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    shorter = key(tmp_path, task)
    for other in (dated, shorter):
        assert all(other[stage] != first[stage] for stage in first), "curation removes what the evaluation asks"


def test_every_file_s_questions_are_kept_out_of_the_training_data(tmp_path):
    tasks = []
    for number in (1, 2):
        path = tmp_path / f"{number}.jsonl"
        row = {"key": 1, "prompt": f"Say {number}.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        path.write_text(json.dumps(row) + "\n")
        tasks.append({"name": f"of{number}", "benchmark": "ifeval", "data": str(path)})
    assert [text for _, text in questions({"tasks": tasks})] == ["Say 1.", "Say 2."]


@pytest.mark.slow
def test_plan_reads_the_rows(tmp_path, home):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(SMALL.read_text().replace('"testtype', '"type', 1).replace('[{\\"input', '[{\\"inputs', 1))
    good = tmp_path / "if.jsonl"
    good.write_text(
        json.dumps({"key": 1, "prompt": "Hi.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}) + "\n"
    )
    tasks = [
        {"name": "new", "benchmark": "livecodebench", "data": str(rows)},
        {"name": "mine", "benchmark": "ifeval", "data": str(good)},
        {"name": "lost", "benchmark": "bfcl", "data": str(tmp_path / "lost.json")},
        {"name": "late", "benchmark": "livecode_small", "start_date": "2030-01-01"},
    ]
    found = {
        problem.field: str(problem)
        for problem in preflight.examine(read_recipe(toys.recipe(tmp_path, evaluate={"tasks": tasks})), ["evaluate"])
    }
    assert set(found) == {"evaluate.tasks.0", "evaluate.tasks.2", "evaluate.tasks.3"}
    assert f"{rows}:1: public_test_cases[0].input: is missing" in found["evaluate.tasks.0"]
    assert "lost.json: no file" in found["evaluate.tasks.2"] and "no problem was published" in found["evaluate.tasks.3"]


def test_days_are_written_as_yaml_has_them():
    task = yaml.safe_load("{name: livecode_small, start_date: 2026-02-01}")
    settings = Evaluate.model_validate({"tasks": [task]})
    assert settings.tasks[0].start_date == "2026-02-01"
