"""What an agent is shown, without what it does: the observations of an episode as one text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from pipelines import environments
from pipelines.base.errors import DataError
from pipelines.data.records import Message, Problem
from pipelines.environments import Step

SEPARATOR = "\n\n"
"""Between two observations."""
ALL = 1_000_000_000
"""Messages of the expert asked for: as many as are taken."""
MOST_MESSAGES = 1_000
"""Of experts in a row that end no episode before `of_experts` raises."""


def shown(messages: Iterable[Message]) -> list[str]:
    """The observations of a conversation, in order."""
    return [message["content"] for message in messages if message["role"] in ("user", "tool")]


def text_of(observations: Sequence[str]) -> tuple[str, list[int]]:
    """The text of observations, and where in it each ends.

    >>> text_of(["A.", ".A"])
    ('A.\\n\\n.A', [2, 6])
    """
    lengths = (len(text) + len(SEPARATOR) for text in observations)
    return SEPARATOR.join(observations), [end - len(SEPARATOR) for end in accumulate(lengths)]


def last_step(name: str, row: dict[str, Any]) -> tuple[list[Message], Step]:
    """What a record of an environment's expert begins with, and what its solution is answered with."""
    world, info = environments.make(name), row["info"]
    problem = Problem(uid="", prompt=row["prompt"], answer="", verifier="exact", source="", licence="", info=info)
    before = environments.read_from(name, world.reset(problem))
    return before, environments.read_step(name, world.step(str(info.get("solution", ""))))


def of_experts(name: str, seed: int, config: dict[str, Any]) -> Iterator[str]:
    """What an environment's expert is shown in each of its episodes, up to what it sees when the episode is over.

    Raises:
        DataError: the environment has no expert whose messages end episodes.
    """
    without = 0
    for row in environments.problems(name, ALL, seed, {**config, "demonstrations": True}):
        before, step = last_step(name, row)
        observations = [text for text in (*shown(before), step.observation) if text]
        if step.done and len(observations) > 1:
            without = 0
            yield text_of(observations)[0]
        elif (without := without + 1) == MOST_MESSAGES:
            raise DataError(
                "curate.sources.text_column",
                f"none of {without:,} messages of the expert of {name} ended an episode in which more than a question is shown",
                "Choose an environment with turns and an expert, such as frozen_lake.",
            )
