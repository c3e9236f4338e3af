"""Programs against hidden tests: every form of tests, where the program is in a completion, HumanEval."""

from __future__ import annotations

import gzip
import json
import re
import time

import pytest
import toys

from pipelines import verifiers
from pipelines.sandbox.worker import Limits
from pipelines.verifiers import _sandboxed
from pipelines.verifiers import _tests as hidden
from pipelines.verifiers import pool as killable

HUMANEVAL = toys.ROOT.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
ADD = "def add(a, b):\n    return a + b\n"
CASES = {
    "entry_point": "add",
    "cases": [{"args": [1, 2], "expected": 3}, {"args": [2], "kwargs": {"b": 2}, "expected": 4}],
}


def verdict(completion, info, answer=""):
    return verifiers.verify("python", completion, answer, info)


FORMS = {
    "cases": CASES,
    "cases in tests": {"tests": CASES},
    "cases as text": {"tests": json.dumps(CASES)},
    "literal": {"entry_point": "add", "cases": [{"args_literal": "((1,), (2,))", "expected_literal": "(1, 2)"}]},
    "asserts": {"asserts": ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]},
    "MBPP": {"test_list": ["assert math.isclose(add(1, 2), 3)"], "test_setup_code": "import math"},
    "HumanEval": {"test": "def check(candidate):\n    assert candidate(1, 2) == 3\n", "entry_point": "add"},
    "raises": {
        "entry_point": "add",
        "cases": [{"args": [1, "a"], "raises": "TypeError"}, {"args": [1, 2], "expected": 3}],
    },
    "APPS": {"input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})},
}


@pytest.mark.parametrize("info", FORMS.values(), ids=FORMS)
def test_every_form_of_tests(info):
    assert verdict(ADD, info).status == "correct"
    assert verdict(f"```python\n{ADD}```", info).score == 1.0
    assert verdict(ADD.replace("+", "-"), info).score == 0.0
    assert verdict("I do not know.", info).status in ("unparsable", "incorrect")


@pytest.mark.slow
def test_a_run_of_many_rows_that_sleep_costs_no_other_row_its_turn(monkeypatch):
    monkeypatch.setattr(_sandboxed, "BATCH_S", 0.0)
    monkeypatch.setattr(_sandboxed, "_row_s", 0.0)
    monkeypatch.setattr(killable, "_shared", None)  # the patient pool is this test's
    info = CASES | {"timeout_s": 1}
    assert verdict(ADD, info) == verifiers.NOT_BEGUN, "the batch's time is over: unscored, never incorrect"
    _sandboxed.be_patient()
    rows = [("python", f"import time\ntime.sleep(60 + {i})", "", info) for i in range(2)] + [("python", ADD, "", info)]
    assert [v.status for v in verifiers.verify_many(rows)] == ["timed_out", "timed_out", "correct"]


@pytest.mark.parametrize(
    "source, argument, expected, status",
    [
        ("def solve(n): return float(n + 1)", 1000000007, 1000000007, "incorrect"),
        ("def solve(n): return n / 3", 3000000000000000003, 1000000000000000001, "incorrect"),
        ("def solve(n): return n // 3", 3000000000000000003, 1000000000000000001, "correct"),
        ("def solve(n): return [n + 1e-4]", 1000000, [1000000], "incorrect"),
        ("def solve(n): return n / 3", 9, 3, "correct"),
        ("def solve(n): return (0.1 + 0.2) * n", 1, 0.3, "correct"),
    ],
)
def test_a_float_is_an_integer_only_where_it_is_equal(source, argument, expected, status):
    info = {"entry_point": "solve", "cases": [{"args": [argument], "expected": expected}]}
    assert verdict(source, info).status == status


@pytest.mark.slow
def test_sleepers_take_no_time_from_right_answers(monkeypatch):
    """Each costs its own score: the batch's time is over before all of them had theirs in full."""
    monkeypatch.setattr(_sandboxed, "BATCH_S", 4.0)
    sleepy = {"graded": True, "timeout_s": 1, "stdin": [{"input": str(i), "output": str(i)} for i in range(20)]}
    rows = [("python", f"import time\ntime.sleep({100 + i})", "", sleepy) for i in range(6)]
    rows += [("python", f"{ADD}# {i}", "", CASES) for i in range(12)]
    found = verifiers.verify_many(rows)
    assert [v.status for v in found[6:]] == ["correct"] * 12
    assert {(v.score, v.status) for v in found[:6]} == {(0.0, "timed_out")}


@pytest.mark.slow
def test_all_tests_of_an_answer_together_have_a_wall_limit():
    runs = [{"input": str(i), "output": str(i)} for i in range(8)]
    info = {"graded": True, "timeout_s": 1, "stdin": runs}
    began = time.monotonic()
    sleeps = "n = input()\nif int(n) > 0:\n    import time\n    time.sleep(99)\nprint(n)"
    assert (found := verdict(sleeps, info)).status == "timed_out" and found.score == 1 / 8
    assert time.monotonic() - began < Limits(cpu_s=1).together_s(8) + 4 < 8 * Limits(cpu_s=1).wall_s
    assert verdict("print(input())", info).correct


@pytest.mark.parametrize("depth", [200, 987, 5000])
@pytest.mark.parametrize("where", ["value", "args", "error", "call", "passed"])
def test_a_hostile_reply_costs_its_own_row(where, depth):
    source = (
        "import os, struct\ndef add(*a):\n"
        f"    body = b'{{\"{where}\": ' + b'[' * {depth} + b']' * {depth} + b'}}'\n"
        "    os.write(3, struct.pack('!I', len(body)) + body)\n"
    )
    hostile = [("python", source, "", info) for info in FORMS.values()]
    rows = [*hostile, ("python", ADD, "", CASES), ("math", r"\boxed{7}", "7", {})]
    found = verifiers.verify_many(rows)
    assert [v.correct for v in found[-2:]] == [True, True]
    assert all(v.score in (0.0, None) for v in found[:-2])


def test_tests_may_be_in_the_answer():
    assert verdict(ADD, {}, json.dumps(CASES)).correct
    assert verdict(ADD, {}, json.dumps(["assert add(1, 1) == 2"])).correct


def test_standard_input():
    info = {"stdin": [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2", "output": "4  \n\n"}]}
    assert verdict("print(sum(map(int, input().split())))", info).correct
    assert verdict("a, b = map(int, input().split())\nprint(a * b)", info).status == "incorrect"
    assert verdict("print(3)", info | {"graded": True}).score == 0.5
    assert verdict("print(3)", {"cases": [{"stdin": "", "stdout": "3"}]}).correct
    apps = {"input_output": {"inputs": ["1 2"], "outputs": ["3"]}}
    assert verdict("print(sum(map(int, input().split())))", apps).correct


def test_a_graded_row_pays_the_share():
    info = {"entry_point": "f", "graded": True, "cases": [{"args": [i], "expected": i} for i in range(4)]}
    assert verdict("def f(x): return x", info).score == 1.0
    half = verdict("def f(x): return min(x, 1)", info)
    assert half.score == 0.5 and half.status == "incorrect" and half.components["passed"] == 0.5
    dies = verdict("import os\ndef f(x): return x if x < 3 else os._exit(0)", info)
    assert dies.score == 0.75
    graded = {"asserts": ["assert f(1) == 1", "assert f(2) == 2"], "graded": True}
    assert verdict("def f(x): return 1", graded).score == 0.5


def test_a_test_sees_what_a_program_does_to_its_arguments():
    info = {
        "test": "def check(candidate):\n    a = [2, 1]\n    candidate(a)\n    assert a == [1, 2]",
        "entry_point": "f",
    }
    assert verdict("def f(a): a.sort()", info).correct
    assert not verdict("def f(a): sorted(a)", info).correct


def test_exceptions_cross_by_their_names():
    test = (
        "def check(candidate):\n    try:\n        candidate()\n    except ValueError:\n        return\n    assert False"
    )
    assert verdict("class E(ValueError): pass\ndef f(): raise E('x')", {"test": test, "entry_point": "f"}).correct
    assert not verdict("def f(): raise KeyError('x')", {"test": test, "entry_point": "f"}).correct


@pytest.mark.parametrize(
    "completion",
    [
        "Think.\n```python\ndef add(a, b): return 0\n```\nBetter:\n```py\ndef add(a, b): return a + b\n```",
        "```python\ndef add(a, b): return a + b\n```\nFor example:\n```python\nprint(add(1, 2))\n```",
        "```python\ndef add(a, b): return a + b\n```\nIt prints\n```text\n3\n```",
        "<think>```python\ndef add(a, b): return 0\n```</think>```\ndef add(a, b): return a + b\n```",
        "<answer>def add(a, b): return a + b</answer>",
        "~~~python\ndef add(a, b): return a + b\n~~~",
        "```python\ndef add(a, b): return a + b",
    ],
)
def test_where_the_program_is(completion):
    assert verdict(completion, CASES).correct


def test_the_body_of_a_prompt_s_function_keeps_its_indentation():
    info = {"prompt": "def add(a, b):\n", "entry_point": "add", "asserts": ["assert add(1, 2) == 3"]}
    assert verdict("    return a + b", info).correct
    assert verdict("<think>A sum.</think>\n\n    return a + b", info).correct
    assert verdict("    return a - b", info).score == 0.0


@pytest.mark.parametrize("prompt", ["def add(a, b):\n", "class A:\n    def add(a, b):", "Write add(a, b)."])
def test_a_prompt_that_is_no_whole_program_spoils_no_answer(prompt):
    info = {"prompt": prompt, "entry_point": "add", "asserts": ["assert add(1, 2) == 3"]}
    assert verdict(f"```python\n{ADD}```", info).correct


@pytest.mark.parametrize(
    "info, why",
    [
        ({}, "no tests"),
        ({"cases": [{"args": [], "expected": 1}]}, "entry_point"),
        ({"entry_point": "f", "cases": []}, "0 tests"),
        ({"entry_point": "f", "cases": [{"args": []}]}, "without expected"),
        ({"entry_point": "f", "cases": [{"args": 3, "expected": 1}]}, "args is a list"),
        ({"asserts": ["assert True"]}, "entry_point"),
    ],
)
def test_damaged_tests_are_no_fault_of_the_program(info, why):
    with pytest.raises(ValueError, match=why):
        hidden.tests_of("x", info)
    assert verdict(ADD, info).score is None


@pytest.mark.slow
@pytest.mark.skipif(not HUMANEVAL.exists(), reason="HumanEval is not here")
def test_humaneval():
    with gzip.open(HUMANEVAL) as lines:
        rows = [json.loads(line) for line in lines]

    def statuses(program):
        verdicts = verifiers.verify_many(
            [("python", program(r), "", {k: r[k] for k in ("prompt", "test", "entry_point")}) for r in rows]
        )
        return [v.status for v in verdicts]

    assert statuses(lambda r: r["canonical_solution"]).count("correct") == 164
    assert statuses(lambda r: f"```python\n{r['prompt']}{r['canonical_solution']}```").count("correct") == 164
    wrapped = re.compile(r"return (.+)$", re.MULTILINE)
    assert "correct" not in statuses(lambda r: r["prompt"] + wrapped.sub(r"return [\1]", r["canonical_solution"]))
    assert "correct" not in statuses(lambda r: r["prompt"] + "    return None\n")
