"""Fields of a record's `info` that hold a preference pair or a labelled answer, and checks of their values.

`pipelines/data/pair_records.py` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.data.records import Message, Problem

CHOSEN, REJECTED = "chosen", "rejected"
TEXTS = (CHOSEN, REJECTED)
SHARE = "chosen_share"
"""Share of those asked who preferred the chosen answer, above 0 and at most 1."""
VALUES = ("chosen_score", "rejected_score", "margin", SHARE)
"""Fields of `info` beside the two texts, in files columns of these names; each may be left out."""
CRITIQUES = ("chosen_critique", "rejected_critique")
"""What somebody wrote about each answer without seeing the other one; in files columns of these names."""
USER = "user"
"""Who preferred it, where several people or judges differ."""
CUT = ("chosen_cut", "rejected_cut")
"""In a pair's info where it is true: the answer ended at the token limit, so no end token follows it."""
REJECTED_PROMPT = "rejected_prompt"
"""The conversation that the rejected answer follows, where it is not the record's prompt; in files a column of this name."""
TURNS = ("chosen_turns", "rejected_turns")
"""Of an answer of several turns those before the last: messages, the assistant's first and another's last; columns of these names too."""
PARTS = (REJECTED_PROMPT, *TURNS)
"""What only a pair of parts of episodes has."""
IMPORTANCE = ("chosen_importance", "rejected_importance")
"""Of an answer of several turns how much each counts for the preference, the last one too: numbers from 0, in proportion."""
COMPLETION, DESIRABLE = "completion", "desirable"
"""Of a labelled answer; in files the columns are `completion` and `label` (true or false)."""


def has_pair(problem: Problem) -> bool:
    """Whether a record holds a pair."""
    return all(isinstance(problem.info.get(name), str) for name in TEXTS)


def of_state(shown: str) -> list[Message]:
    """What precedes the empty answer of which a reward model says how good a state is.

    Args:
        shown: what the environment shows of it.
    """
    return [{"role": "user", "content": shown}]


def is_message(value: Any) -> bool:
    """Whether a value is a message."""
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))


def alternates(turns: Sequence[Message]) -> bool:
    """Whether every other message is the assistant's, from the first on, and the last is another's.

    >>> alternates([{"role": "assistant"}, {"role": "user"}]), alternates([{"role": "assistant"}]), alternates([])
    (True, False, True)
    """
    return len(turns) % 2 == 0 and all((m["role"] == "assistant") == (i % 2 == 0) for i, m in enumerate(turns))
