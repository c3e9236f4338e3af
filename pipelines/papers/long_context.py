"""Questions about a long ledger, of the nine types of GoLongRL's data (2605.19577), each judged by its own metric.

Ann is in Riga. Bob is in Oslo.      # what type a question is of decides what is asked, and what a part of an answer is worth
Day 3: Bob sold 4 lamps.
Day 1: Ann sold 2 bells.
What did Bob sell on day 3?

The paper's data are built from books, papers and dialogues. Here a ledger is drawn, so that a document of any length can be had again.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, validate_call

from pipelines.environments._answered import Part, World, belongs
from pipelines.environments._rows import accepted

__all__ = ["World", "problems"]

VERIFIERS = ("overlap", "choice", "number")
NAMES = ("Ann", "Bob", "Cem", "Dag", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo")
CITIES = ("Riga", "Oslo", "Bern", "Rome", "Kyiv", "Lima", "Baku", "Cork", "Doha", "Graz", "Linz", "Metz")
GOODS = ("lamps", "bells", "pots", "rugs", "nails")
Kind = Literal[
    "retrieval", "comprehension", "exhaustive", "numeric", "extraction", "matching", "grading", "ordering", "summary"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_REFUSED = 10_000
"""Rejected ledgers in a row (of the other part, or with a tie where people are ranked) before `problems` raises."""


class Sale(NamedTuple):
    """One line of a ledger; a day has one."""

    day: int
    name: str
    amount: int
    good: str


class Asked(NamedTuple):
    """A question about a ledger."""

    question: str
    answer: str | list[str]
    metric: str
    """Of the verifier `overlap`, or `choice` or `number`: the verifier itself."""


def _first(names: list[str], sales: list[Sale]) -> list[str]:
    """Names by the day of their first sale."""
    return sorted(names, key=lambda name: min(sale.day for sale in sales if sale.name == name))


def _sold(names: list[str], sales: list[Sale]) -> dict[str, int]:
    """Name → things sold in all, most first."""
    totals = Counter({name: sum(sale.amount for sale in sales if sale.name == name) for name in names})
    return dict(totals.most_common())


def _summary(names: list[str], sales: list[Sale]) -> str:
    """What each sold last."""
    return " ".join(f"{name} sold {[sale.good for sale in sales if sale.name == name][-1]} last." for name in names)


def _of_sale(kind: str, sale: Sale, cities: dict[str, str], names: list[str]) -> Asked:
    """A question about a single sale."""
    if kind == "retrieval":
        return Asked(f"What did {sale.name} sell on day {sale.day}?", sale.good, "sub_em")
    if kind == "matching":
        return Asked(f"In which city were {sale.good} sold on day {sale.day}?", cities[sale.name], "sub_em")
    letters = dict(zip("ABCDEFGHIJKL", names, strict=False))
    shown = " ".join(f"{letter}) {name}" for letter, name in letters.items())
    answer = next(letter for letter, name in letters.items() if name == sale.name)
    return Asked(f"Who sold on day {sale.day}? {shown}", answer, "choice")


ABOUT_ALL: dict[str, Callable[[list[str], list[Sale], str, str], Asked]] = {
    "exhaustive": lambda names, sales, name, good: Asked(
        f"Name everybody who sold {good}.",
        [each for each in names if any((s.name, s.good) == (each, good) for s in sales)],
        "set_f1",
    ),
    "numeric": lambda names, sales, name, good: Asked(
        f"How many {good} were sold in all?", str(sum(s.amount for s in sales if s.good == good)), "number"
    ),
    "extraction": lambda names, sales, name, good: Asked(
        f"On which days did {name} sell something?", [str(s.day) for s in sales if s.name == name], "iou"
    ),
    "grading": lambda names, sales, name, good: Asked(
        "Rank everybody by how many things they sold, most first.", list(_sold(names, sales)), "ndcg"
    ),
    "ordering": lambda names, sales, name, good: Asked(
        "Order everybody by the day of their first sale.", _first(names, sales), "pair_order"
    ),
    "summary": lambda names, sales, name, good: Asked(
        "Say of everybody what they sold last, a sentence each.", _summary(names, sales), "rouge_l"
    ),
}
"""Kind → its question, from the names, the sales by day, a name and a good that was sold."""


def ledger(draw: random.Random, people: int, sales: int) -> tuple[list[str], dict[str, str], list[Sale]]:
    """Names, name → city, and sales by day; everybody sells something."""
    names = sorted(draw.sample(NAMES, people))
    cities = dict(zip(names, draw.sample(CITIES, people), strict=True))
    sellers = [*names, *draw.choices(names, k=sales - people)]
    draw.shuffle(sellers)
    return (
        names,
        cities,
        [Sale(day, name, draw.randint(1, 9), draw.choice(GOODS)) for day, name in enumerate(sellers, 1)],
    )


@validate_call
def problems(
    size: int,
    seed: int,
    *,
    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)] = KINDS,
    people: Annotated[int, Field(ge=2, le=12)] = 3,
    sales: Annotated[int, Field(ge=2, le=100_000)] = 8,
    part: Part = "train",
    demonstrations: bool = False,
) -> Iterator[dict[str, Any]]:
    """Questions of the kinds in turn, each about a ledger of its own whose lines are in no order.

    Args:
        size: rows.
        seed: of ledgers and questions.
        kinds: types of questions: retrieval and matching (sub_em), comprehension (a choice), exhaustive (set_f1), numeric (a number),
            extraction (iou), grading (ndcg), ordering (pair_order), summary (rouge_l).
        people: names in a ledger.
        sales: lines of a ledger; at least as many as people. 1,000 are 27,000 characters.
        part: `train` or `test`; a ledger is of one of them.
        demonstrations: with the answer as the solution, for SFT.

    Raises:
        RecipeError: people can hardly be ranked: too few lines for so many.
    """
    draw = random.Random(f"long context {seed}")
    most = max(sales, people)
    problem = f"environment long_context: in none of {MAX_REFUSED:,} ledgers of {most} lines did {people} people sell different amounts"

    def told(kind: Kind) -> tuple[str, Asked] | None:
        names, cities, sold = ledger(draw, people, most)
        chosen, lines = draw.choice(sold), draw.sample(sold, len(sold))
        head = " ".join(f"{name} is in {city}." for name, city in cities.items())
        text = "\n".join([head, *(f"Day {s.day}: {s.name} sold {s.amount} {s.good}." for s in lines)])
        tied = kind == "grading" and len(set(_sold(names, sold).values())) < people
        if tied or not belongs(text, part):
            return None
        about_all = ABOUT_ALL.get(kind)
        asked = about_all(names, sold, chosen.name, chosen.good) if about_all else _of_sale(kind, chosen, cities, names)
        return text, asked

    for kind in islice(cycle(kinds), size):
        text, asked = next(accepted(partial(told, kind), MAX_REFUSED, problem, "Raise `sales`, or lower `people`."))
        listed = isinstance(asked.answer, list)
        of_overlap = asked.metric not in VERIFIERS
        info: dict[str, Any] = {"environment": "long_context", "long_context_kind": kind}
        info |= {"metric": asked.metric} if of_overlap else {}
        info |= {"solution": ", ".join(asked.answer) if listed else asked.answer} if demonstrations else {}
        yield {
            "prompt": [{"role": "user", "content": f"{text}\n{asked.question}"}],
            "answer": json.dumps(asked.answer) if listed else asked.answer,
            "verifier": "overlap" if of_overlap else asked.metric, "info": info,
        }  # fmt: skip
