"""reasoning-gym: what runs answers is refused, and what is allowed pays no nonsense."""

from __future__ import annotations

import json

import pytest

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.curate import sources
from pipelines.recipe.settings import Source
from pipelines.verifiers import reasoning_gym
from pipelines.verifiers.reasoning_gym import REFUSED

NONSENSE = ["", "xyzzy", "I do not know", "{}", "[]", "None", "nan", "(", "\ud800"]
TASKS = [
    "arc_agi", "rearc", "game_of_life", "game_of_life_halting", "prime_factorization", "coin_flip", "complex_arithmetic",
    "knights_knaves", "number_sorting", "bitwise_arithmetic", "palindrome_generation", "binary_matrix", "n_queens",
    "spiral_matrix", "string_insertion", "countdown", "puzzle24", "polynomial_multiplication", "simple_integration",
]  # fmt: skip


def entries(task: str, size: int = 4) -> list[tuple[str, dict]]:
    rows = [row.columns for row in sources.rows(Source(kind="reasoning_gym", task=task, size=size))]
    return [(row["answer"], json.loads(json.dumps(row["info"])) | {"question": row["question"]}) for row in rows]


@pytest.mark.parametrize("task", TASKS)
def test_gold_is_correct_and_nonsense_is_not(task):
    for answer, info in entries(task):
        assert verifiers.verify("reasoning_gym", answer, answer, info).correct
        assert verifiers.verify("reasoning_gym", f"so <answer> {answer}</answer>", answer, info).correct
        for text in NONSENSE:
            verdict = verifiers.verify("reasoning_gym", text, answer, info)
            assert verdict.score is not None and not verdict.correct, (text, verdict)


def test_a_box_holds_the_answer():
    answer, info = entries("countdown")[0]
    assert verifiers.verify("reasoning_gym", f"So \\boxed{{{answer}}}.", answer, info).correct
    assert not verifiers.verify("reasoning_gym", f"\\boxed{{{answer}}} or \\boxed{{1}}", answer, info).correct


def test_zero_is_no_probability_and_no_distance():
    for answer, info in entries("coin_flip"):
        assert not verifiers.verify("reasoning_gym", "0", answer, info).correct
    for answer, info in entries("complex_arithmetic"):
        assert not verifiers.verify("reasoning_gym", "nan + 2i", answer, info).correct


@pytest.mark.parametrize("task", sorted(REFUSED))
def test_refused_tasks_are_named(task, tmp_path):
    with pytest.raises(DataError, match=f"reasoning-gym task {task} is refused"):
        list(sources.rows(Source(kind="reasoning_gym", task=task, size=1)))
    attack = f"__import__('os').system('touch {tmp_path}/owned')"
    with pytest.raises(DataError, match=task):
        verifiers.verify("reasoning_gym", f"<answer>{attack}</answer>", "x", {"task": task})
    assert not (tmp_path / "owned").exists()


def test_rows_of_a_file_execute_nothing(tmp_path):
    attack = f"__import__('os').system('touch {tmp_path}/owned')"
    for task, answer, metadata in (
        ("bitwise_arithmetic", "0x1", {"problem": attack}),
        ("number_sorting", attack, {"direction": "ascending"}),
    ):
        info = {"task": task, "metadata": metadata}
        assert verifiers.verify("reasoning_gym", "[]", answer, info).status == "verifier_failed"
        assert not (tmp_path / "owned").exists()


EXECUTING = [*reasoning_gym.LITERALS, *reasoning_gym.FORMULAS, *reasoning_gym.ARITHMETIC]


@pytest.mark.parametrize("task", EXECUTING)
def test_an_answer_is_never_run(task, tmp_path):
    (answer, info), *_ = entries(task, 1)
    for attack in (
        f"__import__('os').system('touch {tmp_path}/owned')",
        f"[open('{tmp_path}/owned', 'w')]",
        f"[c for c in ().__class__.__base__.__subclasses__() if open('{tmp_path}/owned', 'w')]",
        f"exec(open('{tmp_path}/owned', 'w'))",
        f"sin(open('{tmp_path}/owned', 'w'))",
        "x.__class__",
        "lambda: 0",
        "[" * 50_000,
    ):
        verdict = verifiers.verify("reasoning_gym", f"<answer>{attack}</answer>", answer, info)
        assert not verdict.correct and verdict.score is not None
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("task", reasoning_gym.FORMULAS)
def test_a_row_is_never_run(task, tmp_path):
    (_, info), *_ = entries(task, 1)
    attack = f"open('{tmp_path}/owned', 'w')"
    metadata = json.loads(info["metadata"]) | {"integrand": attack, "variable": "x"}
    info = info | {"metadata": json.dumps(metadata)}
    verdict = verifiers.verify("reasoning_gym", "x", attack, info)
    assert verdict.score is None and not (tmp_path / "owned").exists()


def test_numbers_are_used_once_and_values_are_exact():
    for answer, info in entries("puzzle24", 3):
        numbers = json.loads(info["metadata"])["numbers"]
        for text in ("6*4*1*1", "24", "+".join(map(str, numbers)) + "*0+24", "49/2"):
            assert not verifiers.verify("reasoning_gym", text, answer, info).correct
    for answer, info in entries("countdown", 3):
        target = json.loads(info["metadata"])["target"]
        assert not verifiers.verify("reasoning_gym", str(target), answer, info).correct
        assert not verifiers.verify("reasoning_gym", f"{answer} = {target}", answer, info).correct


def test_an_unevaluated_integral_is_no_answer():
    for answer, info in entries("simple_integration", 2):
        integrand = json.loads(info["metadata"])["integrand"]
        for text in (f"Integral({integrand}, x)", f"integrate({integrand}, x)"):
            assert verifiers.verify("reasoning_gym", text, answer, info).status == "unparsable"
