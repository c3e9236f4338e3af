"""LiveCodeBench: its columns are read safely, its prompt is the released one, and programs are judged as the released code judges them."""

from __future__ import annotations

import base64
import json
import pickle
import zlib

import pytest

from evaluation import harness, livecode
from evaluation.own_rows import RowFault
from pipelines.base.errors import DataError
from pipelines.recipe.settings import Evaluate
from pipelines.verifiers.python import same_output

SMALL = harness.BENCHMARKS / "livecodebench" / "small.jsonl"
STDIN = {"input": "3 4\n", "output": "7\n", "testtype": "stdin"}
CALL = {"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}
ROW = {
    "question_title": "Add", "question_content": "Add two numbers.", "platform": "atcoder", "question_id": "x1", "contest_id": "c",
    "contest_date": "2024-08-17T00:00:00", "starter_code": "", "difficulty": "easy", "public_test_cases": json.dumps([STDIN]),
    "private_test_cases": json.dumps([STDIN | {"input": "1 1\n", "output": "2"}]), "metadata": "{}",
}  # fmt: skip
METHOD = ROW | {
    "starter_code": "class Solution:\n    def count(self, a, b):\n        ", "public_test_cases": json.dumps([CALL]),
    "private_test_cases": "[]", "metadata": json.dumps({"func_name": "count"}),
}  # fmt: skip


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def documents(folder, *rows, **days):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(livecode.documents(str(path), **days))


def fenced(code):
    return f"Here:\n```python\n{code}\n```"


def scores(doc, *programs):
    return livecode.process_results(doc, [[fenced(code) for code in programs]])["scores"]


def test_every_problem_of_ours_is_solved_by_its_solution_alone():
    rows = [json.loads(line) for line in SMALL.read_text().splitlines()]
    for doc, row in zip(livecode.documents(str(SMALL)), rows, strict=True):
        assert scores(doc, row["solution"], "print(0)") == [1.0, 0.0], row["question_title"]
        assert livecode.process_results(doc, [[row["solution"]]])["scores"] == [0.0], "no fence, no program"
    assert {row["difficulty"] for row in rows} == {"easy", "medium", "hard"} and len(rows) == 14


def test_the_prompt_is_the_released_one(tmp_path):
    doc, method = documents(tmp_path, ROW, METHOD)
    assert doc["question"].startswith(
        "### Question:\nAdd two numbers.\n\n### Format: Read the inputs from stdin solve the problem"
    )
    assert doc["question"].endswith(
        "\n```python\n# YOUR CODE HERE\n```\n\n### Answer: (use the provided format with backticks)\n\n"
    )
    assert "enclose your code within delimiters.\n```python\nclass Solution:\n    def count" in method["question"]
    assert "3 4" not in doc["question"] and doc["part"] == "easy"


def test_private_tests_are_unpacked_and_never_run(tmp_path):
    class Attack:
        def __reduce__(self):
            return (print, ("run",))

    (plain,) = documents(tmp_path, ROW)
    (other,) = documents(tmp_path, ROW | {"private_test_cases": packed(ROW["private_test_cases"])})
    assert plain == other and len(json.loads(plain["tests"])["stdin"]) == 2
    for bad in (Attack(), [STDIN], "no JSON"):
        with pytest.raises(RowFault, match=r"rows.jsonl:1: private_test_cases: is neither JSON nor its packed form"):
            documents(tmp_path, ROW | {"private_test_cases": packed(bad)})
    with pytest.raises(ValueError, match=r"REDUCE|GLOBAL"):
        livecode.pickled_text(pickle.dumps(Attack()))


def test_output_is_compared_as_the_released_code_does():
    for printed, expected, same in [
        (" 1 \n2\n", "1\n2", True), ("1.0 2", "1 2.00", True), ("1e1", "10", True), ("1\n\n2", "1\n2", False),
        ("1  2", "1 2", True), ("a  b", "a b", False), ("YES", "yes", False), ("0.1", "0.10000000000000001", False), ("", "", True),
    ]:  # fmt: skip
        assert same_output(printed, expected, decimals=True) is same, (printed, expected)
    assert not same_output("1.0", "1") and same_output("a \nb\n\n", "a\nb")


def test_programs_have_the_released_imports_and_limits(tmp_path):
    (doc,) = documents(tmp_path, ROW)
    ok = "a, b = map(int, sys.stdin.read().split())\nprint(f'{Decimal(a) + b}' if 0 else reduce(add, [a, b]))"
    assert scores(doc, ok, "print(7)", "import os\nos.write(1, b'7')", "exit()", "x = (") == [1.0, 0.0, 0.0, 0.0, 0.0]
    info = json.loads(doc["tests"])
    assert (info["timeout_s"], info["memory_mb"], info["decimals"]) == (6, 2048, True)


def test_functions_are_methods_of_a_solution_whatever_is_imported(tmp_path):
    (doc,) = documents(tmp_path, METHOD)  # `count` is also what itertools brings
    solution = "class Solution:\n    def count(self, a: List[int], b: int) -> List[int]:\n        return a + [b]"
    alone = "def count(a, b):\n    return (*a, b)"
    wrong = "class Solution:\n    def count(self, a, b):\n        return a"
    assert scores(doc, solution, alone, wrong, "class Solution: pass") == [1.0, 1.0, 0.0, 0.0]


def test_problems_are_chosen_by_their_days(tmp_path):
    rows = [ROW | {"question_id": str(day), "contest_date": f"2024-08-{day}T12:00:00"} for day in (10, 20, 30)]
    for days, left in [
        ({}, 3),
        ({"start_date": "2024-08-20"}, 2),
        ({"end_date": "2024-08-20"}, 2),
        ({"start_date": "2024-08-11", "end_date": "2024-08-29"}, 1),
    ]:
        assert len(documents(tmp_path, *rows, **days)) == left, days
    with pytest.raises(DataError, match=r"no problem was published between these days. Change start_date"):
        documents(tmp_path, *rows, start_date="2025-01-01")


def test_parquet_has_the_same_problems(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([ROW, METHOD]), tmp_path / "rows.parquet")
    assert list(livecode.documents(str(tmp_path / "rows.parquet"))) == documents(tmp_path, ROW, METHOD)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"difficulty": None}, "difficulty: is missing"),
        ({"starter_code": 3}, "starter_code: is int, not str"),
        ({"contest_date": "soon"}, "contest_date: 'soon' is no date"),
        ({"metadata": "["}, "metadata: is no JSON"),
        ({"metadata": "[]"}, "metadata: is no JSON object"),
        ({"public_test_cases": "{}"}, "public_test_cases: is no JSON list"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "public_test_cases: there is no test"),
        ({"public_test_cases": json.dumps([CALL])}, r"public_test_cases\[0\].testtype: is 'functional', not stdin"),
        ({"metadata": '{"func_name": "f"}'}, r"testtype: is 'stdin', not functional, since metadata has a func_name"),
        ({"public_test_cases": '[{"input": "1", "testtype": "stdin"}]'}, r"public_test_cases\[0\].output: is missing"),
    ],
)
def test_a_fault_has_its_file_row_and_column(tmp_path, change, told):
    with pytest.raises(RowFault, match=rf"rows.jsonl:2: .*{told}"):
        documents(tmp_path, ROW, ROW | change)


def test_through_lm_eval(tmp_path):
    documents(tmp_path, ROW, ROW | {"contest_date": "2025-02-01"})
    task = {
        "name": "new",
        "benchmark": "livecodebench",
        "data": str(tmp_path / "rows.jsonl"),
        "start_date": "2025-01-01",
    }
    settings = Evaluate.model_validate({"tasks": [task, "livecode_small"]})
    manager = harness.manager(settings)
    (mine,) = harness.load_task(manager, settings.tasks[0]).values()
    (ours,) = harness.load_task(manager, settings.tasks[1]).values()
    assert [doc["contest_date"] for doc in mine.eval_docs] == ["2025-02-01"] and len(ours.eval_docs) == 14
    assert (mine.config.repeats, ours.config.repeats) == (10, 4)
    context = mine.fewshot_context(mine.eval_docs[0], 0)
    assert context.startswith("You are an expert Python programmer.") and "### Question:" in context
    logged = harness._log({"doc_id": 0, "doc": mine.eval_docs[0], "scores": [1.0]})
    assert "tests" not in logged["doc"] and logged["doc"]["question_id"] == "x1", "hidden tests are in no log"
    parts = harness._parts(
        [{"doc": {"part": part}, "scores": s} for part, s in [("easy", [1.0, 0.0]), ("hard", [0.0])]], 0.95
    )
    assert {name: cell["value"] for name, cell in parts.items()} == {"easy pass@1": 0.5, "hard pass@1": 0.0}
