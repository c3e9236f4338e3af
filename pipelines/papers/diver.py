"""A bonus for correct answers that differ from the others of their group, in equations or in words.

Presets: diver.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory, by_group
from pipelines.rlvr.scoring import verify

FORMULAS = (r"\\\[([^\]]*?)\\\]", r"\\\(([^\)]*?)\\\)", r"\$([^$]*?)\$")
WEIGHTS = (0.02, 0.10, 0.15, 0.25, 0.38)
"""Of n-grams from 1 to 5 in the similarity of two texts; they add up to 0.9, as in the released code."""


@method(
    paper="https://github.com/NJU-RL/DIVER",
    title="Diversity-Incentivized Exploration for Versatile Reasoning (DIVER)",
    checked="official code (read; the schedule is the composite's, whose sign is right from the first step)",
)
class diver(Reward):
    """min(diversity, cap) of a correct row, 0 of any other; with `form: equations` times the group's share of correct rows.

    Diversity of equations: the share of the row's formulas (between $ $, \\( \\) or \\[ \\]) that no other row of its group has. Of words:
    1 minus the mean similarity to the others, the mean of BLEU in both directions on the first `characters` of the texts. A row alone in
    its group has 0. A term of a composite reward: `reward: [verifier, {kind: diver, weight: {start: 1, end: 0, steps: 50, after: 100}}]`.
    """

    label = "diversity"

    def __init__(
        self,
        *,
        form: Literal["equations", "words"] = "equations",
        cap: Annotated[float, Field(gt=0, le=1)] = 0.68,
        characters: Annotated[int, Field(ge=1)] = 1000,
    ) -> None:
        self.form, self.cap, self.characters = form, cap, characters

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        for members in by_group(rows).values():
            judged = [row for row in members if row.correct is not None]
            texts = [row.text[: self.characters] for row in judged]
            diversity = equations(texts) if self.form == "equations" else words(texts)
            accuracy = sum(bool(row.correct) for row in judged) / max(1, len(judged))
            factor = accuracy if self.form == "equations" else 1.0
            for row, value in zip(judged, diversity, strict=True):
                row.score = min(value, self.cap) * factor if row.correct else 0.0


def equations(texts: Sequence[str]) -> list[float]:
    """Share of each text's distinct formulas that no other text has; 0 without formulas.

    >>> equations(["$a$ $b$ $c$", "$b$ $d$", "$a$ $e$", "none"])
    [0.3333333333333333, 0.5, 0.5, 0.0]
    """
    formulas = [{match for pattern in FORMULAS for match in re.findall(pattern, text)} for text in texts]
    counts = Counter(formula for own in formulas for formula in own)
    alone = len(texts) < 2
    return [0.0 if not own or alone else sum(counts[f] == 1 for f in own) / len(own) for own in formulas]


def words(texts: Sequence[str]) -> list[float]:
    """1 - mean similarity of each text to the others; 0 for a text alone."""
    tokens = [text.split() for text in texts]
    similar = [[0.0] * len(texts) for _ in texts]
    for i in range(len(texts)):
        for j in range(i):
            similar[i][j] = similar[j][i] = (bleu(tokens[i], tokens[j]) + bleu(tokens[j], tokens[i])) / 2
    others = len(texts) - 1
    return [1 - sum(row) / others if others else 0.0 for row in similar]


def bleu(candidate: Sequence[str], reference: Sequence[str]) -> float:
    """BLEU of one candidate against one reference with `WEIGHTS`, without smoothing: 0 where an order has no match.

    >>> a = "the cat sat on the red mat today".split()
    >>> bleu(a, a), bleu(a, a[::-1]), round(bleu(a[:6], a), 6)
    (1.0, 0.0, 0.716531)
    """
    logs = 0.0
    for order, weight in enumerate(WEIGHTS, 1):
        own, other = (Counter(zip(*(text[i:] for i in range(order)), strict=False)) for text in (candidate, reference))
        matches = sum((own & other).values())
        if matches == 0:
            return 0.0
        logs += weight * math.log(matches / sum(own.values()))
    brevity = min(0.0, 1 - len(reference) / len(candidate))
    return math.exp(logs + brevity)
