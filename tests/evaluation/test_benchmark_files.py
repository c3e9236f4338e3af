"""A benchmark of the user's is read before anything runs: its faults are told with file and line."""

from __future__ import annotations

import json
import shutil

import pytest
import toys

from evaluation import benchmark_files, harness
from pipelines.base.errors import UserError
from pipelines.recipe.read import read_recipe
from tasks.preflight import check as preflight
from tasks.preflight import probe

GOOD = {"question": "58 + 26?", "answer": "84", "verifier": "number", "info": ""}


def benchmark(folder, *rows, task="my_test"):
    """As docs/evaluation.md says one is made."""
    own = folder / "mine" / "my_test"
    benchmark_files.create(own)
    (own / "my_test.yaml").write_text((own / "my_test.yaml").read_text().replace("task: my_test", f"task: {task}"))
    (own / "test.jsonl").write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return own


def asked(folder):
    return probe.answer({"ask": "benchmark", "name": "my_test", "include": str(folder / "mine"), "own": True})


def test_a_new_one_can_be_asked(tmp_path):
    benchmark_files.create(tmp_path / "mine" / "my_test")
    assert {p.name for p in (tmp_path / "mine" / "my_test").iterdir()} == {"my_test.yaml", "test.jsonl", "utils.py"}
    assert asked(tmp_path) == {}
    assert benchmark_files.read_yaml(tmp_path / "mine" / "my_test" / "my_test.yaml")["description"] == ""


@pytest.mark.parametrize(
    ("name", "told"), [("there", "there already"), ("file/x", "Not a directory"), ("a b", "a benchmark's name")]
)
def test_where_none_can_be_made(tmp_path, name, told):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=told):
        benchmark_files.create(tmp_path / name)


def test_one_without_faults_is_loaded(tmp_path):
    benchmark(tmp_path, GOOD, GOOD | {"info": '{"a": 1}'})
    assert asked(tmp_path) == {}


@pytest.mark.parametrize(
    "row, words",
    [
        (GOOD | {"verifier": "numbr"}, "unknown verifier 'numbr'. Did you mean 'number'?"),
        ({k: v for k, v in GOOD.items() if k != "verifier"}, "no text in verifier"),
        (GOOD | {"answer": 84}, "no text in answer"),
        (GOOD | {"info": "{"}, "info is not JSON text"),
        (GOOD | {"info": {"a": 1}}, "info is not JSON text"),
        (GOOD | {"info": "[1]"}, "info is JSON text of an object"),
        ({k: v for k, v in GOOD.items() if k != "question"}, "no text in question"),
        ('{"question": ', "not JSON"),
        ("[1]", "a row is an object"),
        (GOOD | {"verifier": "reasoning_gym", "info": '{"task": "composite"}'}, "composite"),
    ],
)
def test_a_row_s_fault_has_its_line(tmp_path, row, words):
    own = benchmark(tmp_path, GOOD, row, GOOD)
    problem = asked(tmp_path)["problem"]
    assert problem.startswith(f"{own / 'test.jsonl'}:2: ") and words in problem


def test_many_faults_are_counted(tmp_path):
    benchmark(tmp_path, *[GOOD | {"verifier": "none"}] * 9)
    with pytest.raises(UserError, match="and 4 more"):
        benchmark_files.require(tmp_path / "mine", "my_test")


def test_the_yaml_s_faults(tmp_path):
    own = benchmark(tmp_path, GOOD, task="gsm8k_test")
    assert asked(tmp_path)["problem"].startswith(f"{own / 'my_test.yaml'}:1: task is 'gsm8k_test'")
    (own / "my_test.yaml").write_text("task: my_test\nfilter_list: [\n")
    assert f"{own / 'my_test.yaml'}:" in asked(tmp_path)["problem"]
    shutil.rmtree(own)
    own = benchmark(tmp_path)
    assert asked(tmp_path)["problem"] == f"{own / 'test.jsonl'}: it has no rows"


@pytest.mark.slow
def test_plan_refuses_it_by_its_field(tmp_path, home):
    benchmark(tmp_path, GOOD | {"verifier": "numbr"})
    evaluate = {"include": str(tmp_path / "mine"), "tasks": ["palindromes", "my_test"]}
    found = preflight.examine(read_recipe(toys.recipe(tmp_path, evaluate=evaluate)), ["evaluate"])
    assert [problem.field for problem in found] == ["evaluate.tasks.1"] and "test.jsonl:1: unknown verifier" in str(
        found[0]
    )


@pytest.mark.parametrize("name", harness.own_tasks())
def test_our_own_have_none(name):
    benchmark_files.require(harness.BENCHMARKS, name)
