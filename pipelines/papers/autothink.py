"""When to think: correct answers without thinking are paid most, and the share of thinking answers is kept in balance.

Presets: autothink.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory, by_group
from pipelines.rlvr.scoring import verify

SMALLEST_DEVIATION = 1e-6
PAID = {(True, True): 1.0, (True, False): 0.0, (False, True): 2.0, (False, False): -1.0}
"""(thinks, correct) → reward."""
TOWARDS = {(True, True): 0.0, (True, False): -1.0, (False, True): 1.0, (False, False): -2.0}
"""What it moves to as its mode takes over the batch."""


@method(
    paper="2505.10832",
    title="Learning When to Think: Shaping Adaptive Reasoning in R1-Style Models via Multi-Stage RL (AutoThink)",
    checked="official code, 3 cases",
    crosses_groups="in the stage balance, the share of thinking rows is that of all rows that are scored together",
)
class autothink(Reward):
    """Think and correct 1, think and incorrect 0, direct and correct 2, direct and incorrect -1; an unclosed thinking block 0.

    A row thinks if there is text between `<think>` (which the prompt may have opened) and `</think>`. The three stages, in order:

    - `balance`: where the share p of one mode among the rows is over `gamma`, its rows move by clip(`slope` (p - gamma), 0, 1) of the
      way to 0 / -1 (thinking, correct / incorrect) or 1 / -2 (direct).
    - `reward`: nothing more.
    - `shorten`: in a group, correct rows get exp(-alpha z) - 1 more and incorrect ones 1 - exp(-beta z), with z their length against the
      group's rows of the same correctness, in standard deviations (ddof 1).
    """

    label = "autothink"

    def __init__(
        self,
        *,
        stage: Literal["balance", "reward", "shorten"] = "reward",
        tag: Annotated[str, Field(min_length=1, max_length=50)] = "think",
        gamma: Annotated[float, Field(ge=0, le=1)] = 0.5,
        slope: Annotated[float, Field(ge=0)] = 2.0,
        alpha: Annotated[float, Field(ge=0, le=1)] = 0.05,
        beta: Annotated[float, Field(ge=0, le=1)] = 0.05,
    ) -> None:
        self.stage, self.tag = stage, tag
        self.gamma, self.slope, self.alpha, self.beta = gamma, slope, alpha, beta

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        judged = [row for row in rows if row.correct is not None]
        modes = {id(row): thinks(row.text, self.tag) for row in judged}
        answered = [row for row in judged if modes[id(row)] is not None]
        paid = {id(row): PAID[bool(modes[id(row)]), bool(row.correct)] for row in answered}
        if self.stage == "balance":
            paid = self._balanced(answered, modes, paid)
        elif self.stage == "shorten":
            for members in by_group(answered).values():
                for correct in (True, False):
                    self._shorten([row for row in members if row.correct is correct], paid, correct)
        for row in judged:
            row.score = paid.get(id(row), 0.0)
            row.components = row.components | {"thinks": float(bool(modes[id(row)]))}

    def _balanced(
        self, rows: Sequence[Trajectory], modes: Mapping[int, bool | None], paid: Mapping[int, float]
    ) -> dict[int, float]:
        share = sum(bool(modes[id(row)]) for row in rows) / max(1, len(rows))
        result = dict(paid)
        for row in rows:
            mode = bool(modes[id(row)])
            own = share if mode else 1 - share
            moved = min(max(self.slope * (own - self.gamma), 0.0), 1.0)
            result[id(row)] = (1 - moved) * paid[id(row)] + moved * TOWARDS[mode, bool(row.correct)]
        return result

    def _shorten(self, rows: Sequence[Trajectory], paid: dict[int, float], correct: bool) -> None:
        """Add the length term of one group's rows of one correctness, in place."""
        if len(rows) < 2:
            return
        lengths = [len(row.sampled()) for row in rows]
        mean = math.fsum(lengths) / len(lengths)
        deviation = math.sqrt(math.fsum((n - mean) ** 2 for n in lengths) / (len(lengths) - 1))
        for row, length in zip(rows, lengths, strict=True):
            z = (length - mean) / max(deviation, SMALLEST_DEVIATION)
            paid[id(row)] += math.exp(-self.alpha * z) - 1 if correct else 1 - math.exp(-self.beta * z)


def thinks(text: str, tag: str = "think") -> bool | None:
    """Whether a completion thinks; None where its block of thoughts has no end.

    >>> thinks("<think>2 and 2</think> 4"), thinks("so 4</think> 4"), thinks("<think> </think> 4"), thinks("4"), thinks("<think>2 and")
    (True, True, False, False, None)
    """
    before, end, _ = text.partition(f"</{tag}>")
    if not end:
        return None if f"<{tag}>" in text else False
    return bool(re.sub(rf"^\s*<{re.escape(tag)}>", "", before).strip())
