"""reasoning-gym: what runs answers is refused, and what is allowed pays no nonsense."""

from __future__ import annotations

import json

import pytest

from pipelines import verifiers
from pipelines.curate import sources
from pipelines.errors import DataError
from pipelines.recipe.settings import Source
from pipelines.verifiers.reasoning_gym import REFUSED

NONSENSE = ["", "xyzzy", "I do not know", "{}", "[]", "None", "nan", "(", "\ud800"]
TASKS = [
    "arc_agi", "rearc", "game_of_life", "game_of_life_halting", "prime_factorization", "coin_flip", "complex_arithmetic",
    "knights_knaves", "number_sorting", "bitwise_arithmetic", "palindrome_generation",
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
