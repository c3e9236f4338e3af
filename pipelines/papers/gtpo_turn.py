"""Empowering Multi-Turn Tool-Integrated Reasoning with Group Turn Policy Optimization.

arXiv 2511.14846. Presets: gtpo_turn. Parts: gtpo_turn (reward), gtpo_turn (advantage).

A failed rollout is paid for how much its code is like a successful one's.

Returns of turns, standardised within the group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory, by_group
from pipelines.rlvr.common.turn_rewards import add_to_turns, calls_of, scored_with_turns
from pipelines.rlvr.ops import SAME, group_mean, group_std
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens


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


@method(
    paper="2511.14846",
    title="Empowering Multi-Turn Tool-Integrated Reasoning with Group Turn Policy Optimization (GTPO)",
    checked="reconstructed (scope of the statistics assumed; `first` corroborated by a third-party implementation)",
    couples="group",
    reduces_to="one turn per row is grpo",
    group_of_one="its turns are compared with one another",
)
def gtpo_turn_advantage(
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.9,
    statistics: Literal["all_turns", "per_index", "first"] = "all_turns",
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A_s = (R_s - mean) / (std + eps), R_s = r_s + discount R_{s+1}, ddof 1.

    Mean and deviation are of all turns of the group, of its turns with the same index, or of the first turns.

    >>> import torch
    >>> r, k = torch.tensor([[0, 0, 1], [-0.1, 0, 0], [0, -0.1, 0.3]]), torch.tensor([[0, 1, 2], [0, 1, -1], [0, 1, 2]])
    >>> A = gtpo_turn_advantage(r, k, k, torch.zeros(3).long(), torch.ones(3).bool(), k >= 0)
    >>> A[0].tolist(), A[1, :2].tolist()
    ([0.937550, 1.145445, 1.376440], [-1.164502, -0.933508])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_reward, discount)
    group_of_turn = group[:, None].expand_as(turn_state)
    turn_index = torch.arange(turn_reward.shape[1]).expand_as(turn_state)
    cell = (
        pair_index(group_of_turn.flatten(), turn_index.flatten())
        if statistics == "per_index"
        else group_of_turn.flatten()
    )
    counts = (real_turns & (turn_index == 0) if statistics == "first" else real_turns).flatten()
    deviation = group_std(returns.flatten(), cell, counts)
    centred = returns.flatten() - group_mean(returns.flatten(), cell, counts)
    per_turn = torch.where(deviation > SAME, centred / (deviation + eps), 0.0)
    return (turns_to_tokens(per_turn.view_as(returns) * real_turns, turn) * mask).float()
