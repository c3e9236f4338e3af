"""The passages of the places, and one with the code of each place's vault."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pipelines.tools.corpora import places
from pipelines.tools.passage import Passage


def code(place: str) -> str:
    """Opens the place's vault; no fact has so many digits."""
    return str(random.Random(f"vault {place}").randint(10_000, 99_999))


def passages() -> Iterator[Passage]:
    """Those of the places, and one with the code of each vault."""
    yield from places.passages()
    for position in places.PLACES:
        yield Passage(f"{position} vault", f"the vault of the {position} opens with {code(position)}")
