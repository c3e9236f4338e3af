"""Reasoning effort on a dial: how much length costs depends on the mode that the prompt asks for.

Presets: thinkdial.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import EFFORT, Problem, Trajectory, by_group
from pipelines.rlvr.scoring import verify

_LEAKED = re.compile(r"\b(wait|let me think|actually|alternatively|however)\b", re.IGNORECASE)
_MODE = re.compile(r"\beffort\W+(\w+)", re.IGNORECASE)


@method(
    paper="2508.18773",
    title="ThinkDial: An Open Recipe for Controlling Reasoning Effort in Large Language Models",
    checked="paper (formulas)",
)
class thinkdial(Reward):
    """task + alpha(mode) * R_len + R_leak, task the verifier's score.

    R_len compares lengths in the group: 1/2 - (length - shortest) / (longest - shortest) where correct, at most 0 where incorrect, and 0
    where all are equally long. R_leak is -1/2 where words of reasoning (wait, actually, ...) follow the end of the thoughts, else 1/2. The
    mode is the record's `info.effort`, or the word after "effort" in its system message ("Reasoning effort: low."); a problem without one,
    or whose mode is not in `efforts`, has alpha 0. A group answers one problem, so it never mixes modes. An answer without the end of
    thoughts is searched as a whole.
    """

    label = "thinkdial"
    keeps_score = True

    def __init__(
        self,
        *,
        efforts: dict[str, Annotated[float, Field(ge=0, le=100)]] | None = None,
        leak: Annotated[float, Field(ge=0, le=100)] = 0.5,
        tag: Annotated[str, Field(min_length=1, max_length=50)] = "think",
    ) -> None:
        self.efforts = {"high": 0.0, "medium": 0.5, "low": 1.0} if efforts is None else efforts
        self.leak, self.tag = leak, tag

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        for members in by_group(rows).values():
            judged = [row for row in members if row.score is not None]
            lengths = [len(row.sampled()) for row in judged]
            spread = max(lengths, default=0) - min(lengths, default=0)
            for row, length in zip(judged, lengths, strict=True):
                alpha = self.efforts.get(mode_of(row.asked(problems)) or "", 0.0)
                short = 0.5 - (length - min(lengths)) / spread if spread else 0.0
                leaks = leaked(row.text, self.tag)
                row.score = (row.score or 0.0) + alpha * (short if row.correct else min(0.0, short))
                row.score += -self.leak if leaks else self.leak
                row.components = row.components | {"leak": float(leaks)}


def mode_of(problem: Problem) -> str | None:
    """The effort that a problem asks for, in small letters; None where it asks for none."""
    own = problem.info.get(EFFORT)
    if isinstance(own, str):
        return own.lower()
    system = " ".join(message["content"] for message in problem.prompt if message["role"] == "system")
    asked = _MODE.search(system)
    return asked.group(1).lower() if asked else None


def leaked(text: str, tag: str = "think") -> bool:
    """Whether words of reasoning stand in the answer.

    >>> leaked("<think>wait</think> 4"), leaked("<think>so</think> Wait, 5"), leaked("actually 4"), leaked("waiting")
    (False, True, True, False)
    """
    return _LEAKED.search(text.rpartition(f"</{tag}>")[2]) is not None
