"""Records that a judge learns from: its own questions about completions whose scores are known, with the grades that it should give."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.recipe.selection import Selection
from pipelines.verifiers import verdicts


def grade_of(score: float, low: int, high: int) -> int:
    """A score from 0 to 1 as a whole grade.

    >>> grade_of(1.0, 1, 10), grade_of(0.0, 1, 10), grade_of(0.5, 1, 5)
    (10, 1, 3)
    """
    return low + round(min(1.0, max(0.0, score)) * (high - low))


def _asked(select: Selection) -> dict[str, Any]:
    """What a judge is asked with."""
    low, high = select.grades
    return {"low": low, "high": high, "instruction": select.instruction, "template": select.template}


def graded(problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int) -> Iterator[Problem]:
    """`judge: grade`'s question about each completion. A share `noise` of the solutions are the grade from the other end of the range."""
    low, high = select.grades
    draw = random.Random(f"{seed} {problem.uid} grades")
    for row in rows[: select.per_problem]:
        prompt = questions.grade(problem, row["text"], **_asked(select))
        gold = grade_of(row["score"], low, high)
        told = low + high - gold if draw.random() < select.noise else gold
        about = {"solution": f"Grade: {told}", "judged": row["text"]}
        yield replace(problem, prompt=prompt, answer=f"Grade: {gold}", verifier="exact", info=problem.info | about)


def compared(problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int) -> Iterator[Problem]:
    """A comparison's question about pairs of completions, which is first by chance; scored by the verifier `grades`."""
    low, high = select.grades
    draw = random.Random(f"{seed} {problem.uid} grades")
    pairs = [draw.sample(pair, 2) for pair in combinations(rows, 2)]
    draw.shuffle(pairs)
    pairs.sort(key=lambda pair: pair[0]["score"] == pair[1]["score"])  # those that differ first
    for first, second in pairs[: select.per_problem]:
        texts = first["text"], second["text"]
        prompt = questions.comparison(problem, *texts, **_asked(select))
        gold = [grade_of(row["score"], low, high) for row in (first, second)]
        told = [low + high - g for g in gold] if draw.random() < select.noise else gold
        solution = f"First: {told[0]}\nSecond: {told[1]}"
        info = problem.info | {"solution": solution, "judged": "\0".join(texts), "low": low, "high": high}
        yield replace(problem, prompt=prompt, answer=json.dumps(gold), verifier="grades", info=info)


def checked(problem: Problem, rows: Sequence[dict[str, Any]], select: Selection, seed: int) -> Iterator[Problem]:
    """A question about all criteria of the record's rubric, whose expert is the record's verifier; scored by the verifier `verdicts`.

    A share `noise` of the verdicts of the solutions are the opposite. A completion on which the verifier gave no verdicts, such as an
    empty one, is left out.

    Raises:
        DataError: the record has no rubric, or its verifier gives other verdicts than one for each criterion.
    """
    if "rubric" not in problem.info:
        raise DataError(
            "curate.sources.select",
            f"the problem {problem.uid} has no info.rubric to check",
            "Give the sampled problems a rubric with a criterion for each verdict of their verifier.",
        )
    criteria = [each.criterion for each in questions.rubric_of(problem, ())]
    draw = random.Random(f"{seed} {problem.uid} verdicts")
    for row in rows[: select.per_problem]:
        expert = _numbered(json.loads(row["components"]))
        if not expert and not row["score"]:
            continue
        if len(expert) != len(criteria):
            raise DataError(
                "curate.sources.select",
                f"the verifier {problem.verifier} gave {len(expert)} verdicts on the problem {problem.uid}, whose rubric has "
                f"{len(criteria)} criteria",
                "Give the rubric one criterion for each verdict, in their order.",
            )
        prompt = questions.rubric(
            problem, row["text"], criteria, instruction=select.instruction, template=select.template
        )
        told = [met != (draw.random() < select.noise) for met in expert]
        kept = {name: value for name, value in problem.info.items() if name != "strict"}  # it was the expert's setting
        info = kept | {"solution": verdicts.write(told), "judged": row["text"]}
        yield replace(problem, prompt=prompt, answer=json.dumps(expert), verifier="verdicts", info=info)


def _numbered(components: dict[str, float]) -> list[bool]:
    """Verdicts of the components `.../0`, `.../1`, ..., in the order of their numbers.

    >>> _numbered({"followed": 0.5, "b/1": 0.0, "a/0": 1.0})
    [True, False]
    """
    values = {int(at): value for name, value in components.items() for at in name.split("/")[1:] if at.isdigit()}
    return [values[at] == 1 for at in sorted(values)]
