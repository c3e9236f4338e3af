"""Write the test files of evaluation/benchmarks. Run once; the files are committed.

python scripts/make_benchmarks.py                       palindromes and sums, made with reasoning-gym
python scripts/make_benchmarks.py --gsm8k test.jsonl    GSM8K's own test file, answers split off
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import reasoning_gym

from pipelines.curate.mapping import to_problem
from pipelines.curate.sources import rows
from pipelines.recipe.settings import Source

BENCHMARKS = Path(__file__).resolve().parent.parent / "evaluation" / "benchmarks"


def palindromes(count: int = 250, seed: int = 90_001) -> None:
    """Distinct problems from a seed that no recipe trains on."""
    dataset = reasoning_gym.create_dataset(
        "palindrome_generation", size=count * 4, seed=seed, min_length=4, max_length=8
    )
    by_question: dict[str, dict[str, str]] = {}
    for entry in dataset:
        question = "palindrome " + "".join(entry["metadata"]["letters"])
        info = json.dumps({"task": "palindrome_generation", "metadata": json.dumps(entry["metadata"])})
        row = {"question": question, "answer": entry["answer"], "verifier": "reasoning_gym", "info": info}
        if len(entry["metadata"]["letters"]) >= 6:
            by_question.setdefault(question, row)
    write("palindromes", list(by_question.values())[:count])


def sums(count: int = 120, seed: int = 90_001) -> None:
    """Distinct sums and differences of two numbers below 100, asked as recipes/smollm2.yaml asks them."""
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    dataset = reasoning_gym.create_dataset("chain_sum", size=count * 2, seed=seed, **config)
    questions = {f"What is {entry['metadata']['expression']}?": entry["answer"] for entry in dataset}
    rows = [{"question": q, "answer": a, "verifier": "number", "info": ""} for q, a in questions.items()]
    write("sums", rows[:count])


def gsm8k(path: Path) -> None:
    """The test questions with the final number as the answer."""
    questions = []
    for row in rows(Source(kind="file", path=str(path))):
        problem = to_problem(row.columns or {}, Source(kind="file", path=str(path), verifier="number"), self_check=True)
        questions.append(
            {"question": problem.prompt[-1]["content"], "answer": problem.answer, "verifier": "number", "info": ""}
        )
    write("gsm8k_test", questions)


def write(name: str, questions: list[dict[str, str]]) -> None:
    """One JSON object a line."""
    target = BENCHMARKS / name / "test.jsonl"
    target.write_text("".join(json.dumps(row) + "\n" for row in questions))
    print(f"{target}: {len(questions)} questions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path)
    arguments = parser.parse_args()
    if arguments.gsm8k is not None:
        gsm8k(arguments.gsm8k)
    else:
        palindromes()
        sums()
