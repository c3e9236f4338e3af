"""Invented places with a fact of each kind, a passage a fact: the corpus of the search environments."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from pipelines.tools.passage import Passage

NAMES = [
    first + last
    for first in ("be", "ka", "lo", "mi", "ru", "sa", "te", "vo")
    for last in ("la", "dor", "nim", "ris", "vel")
]
KINDS = ("museum", "bridge", "harbour", "garden")
PEOPLE = ("ada", "bo", "cleo", "dan", "eve", "finn", "gil", "hana", "ivo", "jun", "kit", "lea")
TOWNS = ("rome", "oslo", "bonn", "lima", "kyiv", "graz", "nice", "cork")


class Fact(NamedTuple):
    """A kind of fact. Questions and passages have no content word in common but the place's name, as is usual in search."""

    key: str
    """The word by which passages tell it."""
    questions: tuple[str, ...]
    passage: str


FACTS = (
    Fact("founded", ("who started {}?", "who was behind {}?"), "the {} was founded by {}"),
    Fact("opened", ("how old is {}?", "since when is there {}?"), "the {} opened in {}"),
    Fact("stands", ("where is {}?", "how do i get to {}?"), "the {} stands in {}"),
    Fact("costs", ("what do i pay for {}?", "how expensive is {}?"), "entry to the {} costs {} coins"),
)
PLACES = [f"{name} {kind}" for name in NAMES for kind in KINDS]


def value(place: str, fact: Fact) -> str:
    """What is true of a place.

    >>> value("bela museum", FACTS[1]) == value("bela museum", FACTS[1])
    True
    """
    draw = random.Random(f"places {place} {fact.key}")
    return {
        "founded": draw.choice(PEOPLE),
        "opened": str(draw.randint(1500, 1999)),
        "stands": draw.choice(TOWNS),
        "costs": str(draw.randint(2, 60)),
    }[fact.key]


def passage_id(place: str, fact: Fact) -> str:
    """Id of the passage that tells the fact."""
    return f"{place} {fact.key}"


def passages() -> Iterator[Passage]:
    """One for each fact of each place; its id says which."""
    for position in PLACES:
        for fact in FACTS:
            yield Passage(passage_id(position, fact), fact.passage.format(position, value(position, fact)))
