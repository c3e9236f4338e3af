"""GoLongRL's nine types: what each asks, that its answer follows from the ledger, and that its metric takes it."""

from __future__ import annotations

import json
import re

import pytest

from pipelines import verifiers
from pipelines.base.errors import RecipeError
from pipelines.papers.long_context import KINDS, problems

METRICS = {
    "retrieval": "sub_em", "comprehension": "choice", "exhaustive": "set_f1", "numeric": "number", "extraction": "iou",
    "matching": "sub_em", "grading": "ndcg", "ordering": "pair_order", "summary": "rouge_l",
}  # fmt: skip


def read(text):
    """City by name, and (day, name, count, good) by day, as a reader of the ledger finds them."""
    cities = dict(re.findall(r"(\w+) is in (\w+)\.", text))
    found = re.findall(r"Day (\d+): (\w+) sold (\d+) (\w+)\.", text)
    return cities, sorted((int(day), name, int(count), good) for day, name, count, good in found)


def answer_of(kind, question, cities, sales):
    """By reading the question, in another way than the generator."""
    day = next((int(d) for d in re.findall(r"day (\d+)", question)), 0)
    asked = re.findall(r"(?:sold|many) (lamps|bells|pots|rugs|nails)|were (lamps|bells|pots|rugs|nails)", question)
    good = next((a or b for a, b in asked), "")
    seller = {d: name for d, name, _, _ in sales}.get(day)
    first, total, last = {}, {}, {}
    for d, name, count, what in sales:
        first.setdefault(name, d)
        total[name] = total.get(name, 0) + count
        last[name] = what
    return {
        "retrieval": lambda: next(what for d, _, _, what in sales if d == day),
        "comprehension": lambda: re.search(rf"(\w)\) {seller}", question)[1],
        "exhaustive": lambda: sorted({name for _, name, _, what in sales if what == good}),
        "numeric": lambda: str(sum(count for _, _, count, what in sales if what == good)),
        "extraction": lambda: [str(d) for d, name, _, _ in sales if name == re.search(r"did (\w+) sell", question)[1]],
        "matching": lambda: cities[seller],
        "grading": lambda: sorted(total, key=lambda name: -total[name]),
        "ordering": lambda: sorted(first, key=first.get),
        "summary": lambda: " ".join(f"{name} sold {last[name]} last." for name in cities),
    }[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_follows_from_the_ledger_and_its_metric_takes_it(kind):
    for row in problems(12, 5, kinds=[kind], people=4, sales=12, demonstrations=True):
        text = row["prompt"][0]["content"]
        wanted = answer_of(kind, text.rsplit("\n", 1)[1], *read(text))
        assert (json.loads(row["answer"]) if isinstance(wanted, list) else row["answer"]) == wanted
        assert row["info"].get("metric", row["verifier"]) == METRICS[kind]
        verdict = verifiers.verify(row["verifier"], row["info"]["solution"], row["answer"], row["info"])
        assert verdict.correct and verdict.score == pytest.approx(1)


def test_ledgers_are_reproducible_of_any_length_and_no_test_one_is_trained():
    made = list(problems(18, 1))
    assert made == list(problems(18, 1)) and [row["info"]["long_context_kind"] for row in made] == [*KINDS, *KINDS]
    assert next(problems(1, 1, sales=500))["prompt"][0]["content"].count("Day ") == 500
    tests = {row["prompt"][0]["content"] for row in problems(50, 1, part="test")}
    assert not tests & {row["prompt"][0]["content"] for row in problems(50, 1)}


def test_people_who_cannot_be_ranked_are_refused(monkeypatch):
    """Twelve people with a sale of one to nine things each have a tie."""
    monkeypatch.setattr("pipelines.papers.long_context.MAX_REFUSED", 20)
    with pytest.raises(RecipeError, match=r"12 people sell different amounts.* lower `people`"):
        next(problems(1, 0, kinds=["grading"], people=12, sales=12))
