"""A failed rollout is paid for how much its code is like a successful one's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory, by_group
from pipelines.rlvr.reward._turns import add_to_turns, calls_of, scored_with_turns


@method(
    paper="2511.14846",
    title="Empowering Multi-Turn Tool-Integrated Reasoning with Group Turn Policy Optimization (GTPO)",
    checked="reconstructed (similarity measure and cap are ours)",
)
class gtpo_turn(Reward):
    """Adds to the last turn of an incorrect row `cap` x the best similarity of its calls' arguments to those of a correct row of its group,
    and subtracts `penalty` from every turn whose calls are malformed.

    The similarity is difflib's ratio, in [0, 1]. A group without a success gets nothing; a cap below the reward of a success keeps a
    success ranked above it.
    """

    pays_turns = reads_calls = True

    def __init__(
        self, *, cap: Annotated[float, Field(ge=0, lt=1)] = 0.5, penalty: Annotated[float, Field(ge=0)] = 0.1
    ) -> None:
        self.cap, self.penalty = cap, penalty

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        for members in by_group(scored_with_turns("gtpo_turn", rows, problems)).values():
            successes = {code_of(row) for row in members if row.correct} - {""}
            for row in members:
                turns = calls_of(row)
                malformed = [any(call["outcome"] == "malformed" for call in calls) for calls in turns]
                add_to_turns(row, "format", [-self.penalty * bad for bad in malformed])
                if turns and not row.correct:
                    best = max((similarity(code_of(row), code) for code in sorted(successes)), default=0.0)
                    add_to_turns(row, "similarity", [*[0.0] * (len(turns) - 1), self.cap * best])


def code_of(row: Trajectory) -> str:
    """The arguments of a row's calls, a line each."""
    values = [call["arguments"].values() for calls in calls_of(row) for call in calls]
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for each in values for value in each)


def similarity(code: str, other: str) -> float:
    """difflib's ratio; 0 for a row without code.

    >>> similarity("12 * 31", "12 * 31"), similarity("", "12 * 31")
    (1.0, 0.0)
    """
    return SequenceMatcher(None, code, other, autojunk=False).ratio() if code else 0.0
