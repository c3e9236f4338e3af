"""What a policy says that it believes about a world that it does not see whole, and how well that agrees with what it could know."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import pairwise
from typing import Any

COMPONENT = "belief"
"""Name of the part of a turn's reward that pays its belief."""
NO_BELIEF = "none"
"""Key of a turn whose belief cannot be read."""
_BLOCK = re.compile(r"<belief>(.*?)</belief>", re.DOTALL)


def parse(message: str) -> tuple[dict[str, Any] | None, str]:
    """The belief of a message (a JSON object between `<belief>` and `</belief>`; the first one counts) and the message without blocks.

    >>> parse('<belief>{"phase": "search"}</belief> right')
    ({'phase': 'search'}, ' right')
    >>> parse("<belief>no idea</belief>left"), parse("left")
    ((None, 'left'), (None, 'left'))
    """
    block, rest = _BLOCK.search(message), _BLOCK.sub("", message)
    if block is None:
        return None, rest
    try:
        belief = json.loads(block.group(1))
    except (ValueError, RecursionError):
        return None, rest
    return (belief if isinstance(belief, dict) else None), rest


def consistency(state: float, phase: float, prediction: float, form: float) -> float:
    """Reward of a belief from its parts, each from 0 to 1.

    >>> round(consistency(0.8, 1, 0.5, 1), 6)
    0.82
    """
    return 0.40 * state + 0.30 * phase + 0.20 * prediction + 0.10 * form


def state_score(objects: float, states: float, visited: float, unvisited: float) -> float:
    """How much of the hidden state is right, from its parts.

    >>> round(state_score(1, 0.5, 0.8, 0), 6)
    0.675
    """
    return 0.35 * objects + 0.25 * states + 0.25 * visited + 0.15 * unvisited


def f1(claimed: Any, true: Collection[str]) -> float:
    """Agreement of a list of strings with a set; 1 where both are empty, 0 for what is no list.

    >>> f1(["a", "b", "b"], {"a"}), f1([], []), f1("a", {"a"}), f1(["c"], {"a"})
    (0.6666666666666666, 1.0, 0.0, 0.0)
    """
    if not isinstance(claimed, list):
        return 0.0
    items = {item for item in claimed if isinstance(item, str)}
    if len(items) + len(true) == 0:
        return 1.0
    return 2 * len(items & set(true)) / (len(items) + len(true))


def overlap(prediction: Any, observation: str) -> float:
    """Share of the prediction's words and pairs of neighbouring words that the observation has; 0 without a prediction.

    >>> overlap("a b c", "x a b"), overlap("", "x"), overlap(None, "x")
    (0.6, 0.0, 0.0)
    """
    features = _features(prediction) if isinstance(prediction, str) else []
    observed = set(_features(observation))
    return sum(feature in observed for feature in features) / len(features) if features else 0.0


def _features(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [(word,) for word in words] + list(pairwise(words))
