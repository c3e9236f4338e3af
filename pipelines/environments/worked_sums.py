"""Sums and differences of a few numbers, with an expert who works them out in steps or answers at once.

    What is 12 + 7 - 30?   ->   <think>12 + 7 = 19; 19 - 30 = -11</think>-11

With `efforts` each prompt names one in its system message. The expert at `low` answers at once, at `medium` works the sum out, and at
`high` also takes it back, number by number. A share `rewriting` of the demonstrations shows an answer and has the expert write another sum
with the same result, so that a policy knows what is asked when it is to write problems of its own (`rollout: svs`).

    Another sum with this answer: <think>12 + 7 = 19</think>19   ->   [What is 30 - 11?]
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data.chat import with_effort
from pipelines.data.records import Message
from pipelines.environments._answered import Part, World, belongs

__all__ = ["World", "problems"]

EFFORTS = ("low", "medium", "high")
REWRITE = "Another sum with this answer: {answer}"
MAX_REFUSED = 1000
"""Sums in a row that are none of the wanted kind before `another` gives up."""
VERIFIERS = ("number",)


def steps(addends: Sequence[int]) -> list[str]:
    """The sum of signed numbers, a line for each after the first.

    >>> steps([12, 7, -30])
    ['12 + 7 = 19', '19 - 30 = -11']
    """
    lines, total = [], addends[0]
    for number in addends[1:]:
        lines.append(f"{total} {_signed(number)} = {total + number}")
        total += number
    return lines


def thoughts(addends: Sequence[int], effort: str) -> str:
    """What the expert writes before the answer; empty for `low`.

    >>> thoughts([12, 7], "low"), thoughts([12, 7], "medium"), thoughts([12, 7], "high")
    ('', '12 + 7 = 19', '12 + 7 = 19; 19 - 7 = 12')
    """
    if effort == "low":
        return ""
    back = [sum(addends), *(-number for number in addends[:0:-1])] if effort == "high" else [0]
    return "; ".join(steps(addends) + steps(back))


def _signed(number: int) -> str:
    return f"{'-' if number < 0 else '+'} {abs(number)}"


def _question(addends: Sequence[int]) -> str:
    return f"What is {addends[0]} {' '.join(map(_signed, addends[1:]))}?"


def _addends(draw: random.Random, count: int, most: int) -> list[int]:
    return [draw.randint(1, most)] + [draw.choice((-1, 1)) * draw.randint(1, most) for _ in range(count - 1)]


def another(draw: random.Random, addends: Sequence[int], most: int, part: Part) -> str | None:
    """The question of another sum of the part, with as many numbers and the same result; None where none was found.

    >>> another(random.Random(0), [3, 4], 9, "train") != "What is 3 + 4?"
    True
    """
    for _ in range(MAX_REFUSED):
        other = _addends(draw, len(addends), most)
        other[0] += sum(addends) - sum(other)
        question = _question(other)
        if 1 <= other[0] <= most and question != _question(addends) and belongs(question, part):
            return question
    return None


def problems(
    size: int,
    seed: int,
    *,
    terms: Sequence[int] = (2, 4),
    most: int = 99,
    part: Part = "train",
    demonstrations: bool = False,
    thinking: float = 0.5,
    efforts: Sequence[str] | None = None,
    suited: float = 1.0,
    rewriting: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Questions; a question is of the part that its own text falls into.

    Args:
        size: rows.
        seed: of the problems.
        terms: fewest and most numbers.
        most: largest number; the smallest is 1.
        part: `train` or `test`.
        demonstrations: with an expert's answer as the solution, for SFT.
        thinking: share of the demonstrations that work the sum out, where no effort is named.
        efforts: of low, medium, high; each prompt names one of them.
        suited: share of the demonstrations that are as long as the named effort asks; the others are of any of them.
        rewriting: share of the demonstrations that write another sum with the result of the one that they were drawn for.

    Raises:
        RecipeError: an unknown effort, or a range without numbers.
    """
    for name in efforts or ():
        if name not in EFFORTS:
            raise RecipeError(f"environment worked_sums: no effort {name!r}", fix=did_you_mean(name, EFFORTS))
    if not 2 <= terms[0] <= terms[1] <= 20 or not 1 <= most <= 10**6:
        raise RecipeError("environment worked_sums: terms are from 2 to 20, the fewest first, and most from 1 to 10^6.")
    draw = random.Random(f"worked sums {seed}")
    choices = random.Random(f"worked sums {seed} choices")
    yielded = 0
    while yielded < size:
        count = draw.randint(terms[0], terms[1])
        addends = _addends(draw, count, most)
        effort = draw.choice(efforts) if efforts else None
        question = _question(addends)
        if not belongs(question, part):
            continue
        info: dict[str, Any] = {"environment": "worked_sums", "terms": count}
        prompt: list[Message] = [{"role": "user", "content": question}]
        if effort:
            info["effort"] = effort
            prompt = with_effort(prompt, effort)
        if demonstrations:
            if effort is None:
                shown = "medium" if choices.random() < thinking else "low"
            else:
                shown = effort if choices.random() < suited else choices.choice(efforts or EFFORTS)
            info["solution"] = f"<think>{thoughts(addends, shown)}</think>{sum(addends)}"
            rewritten = another(choices, addends, most, part) if rewriting and choices.random() < rewriting else None
            if rewritten is not None:
                prompt = [{"role": "user", "content": REWRITE.replace("{answer}", info["solution"])}]
                info["solution"] = f"[{rewritten}]"
        yield {"prompt": prompt, "answer": str(sum(addends)), "verifier": "number", "info": info}
        yielded += 1
