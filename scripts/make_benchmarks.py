"""Write the test files of evaluation/benchmarks. Run once; the files are committed.

python scripts/make_benchmarks.py                       palindromes and sums, made with reasoning-gym
python scripts/make_benchmarks.py --gsm8k test.jsonl    GSM8K's own test file, answers split off
python scripts/make_benchmarks.py --choices bbh         multiple choice: last sentences of GSM8K's questions, and BIG-Bench Hard's
                                                        boolean_expressions.json from a folder
"""

from __future__ import annotations

import argparse
import json
import random
import re
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


def last_sentence(count: int = 120, seed: int = 0) -> None:
    """GSM8K's test questions without their last sentence, to be told from three that end others and are about as long."""
    draw = random.Random(seed)
    lines = (BENCHMARKS / "gsm8k_test" / "test.jsonl").read_text().splitlines()
    texts = [" ".join(json.loads(line)["question"].split()) for line in lines]
    parts = [re.split(r"(?<=[.!?]) (?=[A-Z])", text) for text in texts]
    stories = [(" ".join(sentences[:-1]), sentences[-1]) for sentences in parts if len(sentences) > 2]
    rows = []
    for story, end in draw.sample([pair for pair in stories if len(pair[0]) < 200], count):
        candidates = draw.sample([other for _, other in stories if other != end], 60)
        others = sorted(candidates, key=lambda other: abs(len(other) - len(end)))[:3]
        shuffled = draw.sample([end, *others], len(others) + 1)
        rows.append({"question": story, "choices": shuffled, "gold": shuffled.index(end)})
    write("last_sentence", rows)


def boolean_expressions(folder: Path, count: int = 120) -> None:
    """BIG-Bench Hard's questions of this name."""
    examples = json.loads((folder / "boolean_expressions.json").read_text())["examples"]
    rows: list[dict[str, object]] = [
        {"question": e["input"], "choices": ["True", "False"], "gold": ("True", "False").index(e["target"])}
        for e in examples[:count]
    ]
    write("boolean_expressions", rows)


def write(name: str, questions: list[dict[str, object]] | list[dict[str, str]]) -> None:
    """One JSON object a line."""
    target = BENCHMARKS / name / "test.jsonl"
    target.parent.mkdir(exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in questions))
    print(f"{target}: {len(questions)} questions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path)
    parser.add_argument("--choices", type=Path)
    arguments = parser.parse_args()
    if arguments.gsm8k is not None:
        gsm8k(arguments.gsm8k)
    elif arguments.choices is not None:
        last_sentence()
        boolean_expressions(arguments.choices)
    else:
        palindromes()
        sums()
