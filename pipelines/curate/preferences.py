"""What records say that each of several aims is worth: weights on the simplex, which the policy reads in its prompt."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import pairwise

from pipelines.data.records import Message

PARTS = 10
"""Weights are multiples of one over this."""


def drawn(names: Sequence[str], seed: int, prompt: Sequence[Message]) -> dict[str, float]:
    """Weights in tenths that add up to 1, every choice of them as likely; they depend on the names, the seed and the prompt alone.

    >>> weights = drawn(["correct", "varied", "brief"], 0, [{"role": "user", "content": "2 + 2?"}])
    >>> list(weights), round(sum(weights.values()), 9)
    (['correct', 'varied', 'brief'], 1.0)
    """
    hashed = hashlib.sha256(json.dumps([seed, list(names), list(prompt)]).encode()).digest()
    positions = PARTS + len(names) - 1
    bars = sorted(random.Random(hashed).sample(range(positions), len(names) - 1))
    shares = [after - before - 1 for before, after in pairwise([-1, *bars, positions])]
    return {name: share / PARTS for name, share in zip(names, shares, strict=True)}
