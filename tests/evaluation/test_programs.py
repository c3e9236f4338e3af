"""HumanEval and MBPP in the sandbox: their prompts are lm-eval's, programs are judged by the real tests, others are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import lm_eval
import pytest
import toys
import yaml
from lm_eval.tasks._index import TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from evaluation import harness, programs
from pipelines.base.errors import RecipeError
from pipelines.recipe.settings import Evaluate

HUMANEVAL = toys.ROOT.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
QUESTION = {
    "prompt": "import math\n\n\ndef root(x):\n    \"\"\" The square root. \"\"\"\n", "entry_point": "root",
    "test": "def check(candidate):\n    assert candidate(4) == 2\n    assert math.isclose(candidate(2), 2**0.5)\n",
}  # fmt: skip
MBPP = {
    "text": "Write a python function to add.", "code": "def add(a, b):\r\n  return a + b", "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"], "challenge_test_list": [],
}  # fmt: skip
THEIRS = Path(lm_eval.__file__).parent / "tasks"


def scores(doc, *answers, process=programs.process_results):
    return process(doc, [list(answers)])["scores"]


def test_programs_are_judged_by_the_question_s_tests():
    found = programs.process_results(QUESTION, [["    return math.sqrt(x)\n", "    return x / 2\n", "    return ("]])
    assert found["scores"] == [1.0, 0.0, 0.0] and found["exact_match"] == 1 / 3
    assert found["timed_out"] == found["verifier_failed"] == 0
    assert scores(MBPP, MBPP["code"], "def add(a, b): return a - b", "") == [1.0, 0.0, 0.0]
    assert programs.process_results(MBPP, ["def add(a, b): return a + b"])["scores"] == [1.0], "one answer a question"


def test_an_answer_that_begins_in_a_block_ends_with_it():
    fenced = ["    return math.sqrt(x)\n```\nIt uses `math`.", "    return x\n```\n```python\nreturn math.sqrt(x)\n```"]
    assert scores(QUESTION, *fenced, process=programs.process_fenced) == [1.0, 0.0]
    assert scores(MBPP, "def add(a, b):\n  return a + b\n```\nDone.", process=programs.process_fenced) == [1.0]


def test_a_program_that_attacks_costs_its_own_score_only():
    attack = "    import os\n    os.write(3, b'\\0\\0\\0\\x02{}')\n    os._exit(0)\n"
    assert scores(QUESTION, attack, "    raise SystemExit\n", "    return x**0.5\n") == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("name", programs.TASKS)
def test_prompts_and_settings_are_lm_eval_s(name):
    folder = name.partition("_")[0]
    ours = load_yaml(harness.BENCHMARKS / folder / f"{name}.yaml", resolve_func=False)
    theirs = load_yaml(THEIRS / folder / f"{name}.yaml", resolve_func=False)
    for key in (
        "dataset_path",
        "dataset_name",
        "test_split",
        "doc_to_text",
        "gen_prefix",
        "num_fewshot",
        "generation_kwargs",
    ):
        assert ours.get(key) == theirs.get(key), key
    assert "unsafe_code" not in ours
    loaded = load_yaml(harness.BENCHMARKS / folder / f"{name}.yaml", resolve_func=True)
    assert callable(loaded["process_results"])


def test_tasks_that_run_programs_unconfined_are_found():
    index = TaskIndex.build([THEIRS / name for name in ("humaneval", "humaneval_infilling", "mbpp", "arc")])
    for name in ("humaneval", "humaneval_plus", "humaneval_64_instruct", "humaneval_infilling", "mbpp_plus"):
        assert next(harness._unsafe(index, name), None), name
    assert not list(harness._unsafe(index, "arc_easy")) and not list(harness._unsafe(index, "unknown"))


def test_they_are_refused(tmp_path):
    (tmp_path / "runs.yaml").write_text("task: runs\ndataset_path: json\nunsafe_code: true\n")
    (tmp_path / "all.yaml").write_text("group: all\ntask: [runs]\n")
    for name in ("runs", "all"):
        with pytest.raises(RecipeError, match=r"runs runs programs .*unsafe_code.*In the sandbox run humaneval"):
            harness.manager(Evaluate.model_validate({"tasks": [name], "include": str(tmp_path)}))


def humaneval(folder, monkeypatch, rows):
    """Our benchmark over rows of a local file, in the format in which the hub has them."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    body = {
        "include": str(harness.BENCHMARKS / "humaneval" / "humaneval.yaml"),
        "task": "local",
        "dataset_path": "json",
    }
    body |= {"dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}}}
    (folder / "local.yaml").write_text(yaml.safe_dump(body))
    settings = Evaluate.model_validate({"tasks": ["local"], "include": str(folder)})
    return harness.load_task(harness.manager(settings), settings.tasks[0])["local"]


def test_a_question_through_lm_eval(tmp_path, monkeypatch):
    row = {"task_id": "HumanEval/0", "canonical_solution": "    return math.sqrt(x)\n", **QUESTION}
    task = humaneval(tmp_path, monkeypatch, [row])
    (doc,) = task.eval_docs
    assert task.doc_to_text(doc) == QUESTION["prompt"]
    assert task.process_results(doc, [[task.doc_to_target(doc), "    return x"]])["scores"] == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.skipif(not HUMANEVAL.exists(), reason="HumanEval is not here")
def test_all_of_humaneval(tmp_path, monkeypatch):
    with gzip.open(HUMANEVAL) as lines:
        rows = [json.loads(line) for line in lines]
    task = humaneval(tmp_path, monkeypatch, rows)
    found = [task.process_results(doc, [[doc["canonical_solution"], "    return None\n"]]) for doc in task.eval_docs]
    assert [each["scores"] for each in found] == [[1.0, 0.0]] * 164
