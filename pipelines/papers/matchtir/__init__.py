"""MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching.

https://github.com/quchangle1/MatchTIR. Presets: matchtir. Parts: matchtir (reward), matchtir (advantage).

Calls are paid for how well they match reference calls.

Advantages of whole trajectories and of their turns, half each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.method import Reward
from pipelines.data.chat import after_thinking
from pipelines.data.records import Problem, Trajectory
from pipelines.papers.matchtir.tool_matching import Matching, rewards, set_f1
from pipelines.rlvr.common.turn_rewards import add_to_turns, calls_of, scored_with_turns
from pipelines.rlvr.ops import group_size, standardised
from pipelines.rlvr.ops_turns import pair_index, returns_to_go, turns_to_tokens
from pipelines.rlvr.turn_values import turn_payments


@method(
    paper="https://github.com/quchangle1/MatchTIR",
    title="MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching",
    checked="official code (`greedy` and `soft`; `optimal` is the paper's assignment, which the code approximates)",
)
class matchtir(Reward):
    """Adds to each turn with calls `weight` x the mean of its calls' matches with `info.reference_calls` (name and arguments).

    The turn that answers keeps the verifier's reward, or with `f1: true` gets the set F1 of its words and the gold answer's. Rows without
    reference calls get nothing for their calls.
    """

    pays_turns = reads_calls = True

    def __init__(
        self,
        *,
        matching: Matching = "optimal",
        weight: Annotated[float, Field(ge=0)] = 1.0,
        f1: bool = False,
    ) -> None:
        self.matching, self.weight, self.f1 = matching, weight, f1

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status, components and the rewards of turns in place."""
        for row in scored_with_turns("matchtir", rows, problems):
            problem = problems[row.uid]
            references = [(call["name"], call["arguments"]) for call in problem.info.get("reference_calls") or ()]
            turns = calls_of(row)
            predicted = [(call["name"], call["arguments"]) for calls in turns for call in calls]
            values = iter(rewards(predicted, references, self.matching))
            of_turns = [[next(values) for _ in calls] for calls in turns]
            paid = [self.weight * sum(turn) / len(turn) if turn else 0.0 for turn in of_turns]
            add_to_turns(row, "matchtir", paid)
            if self.f1 and turns and not turns[-1]:
                answer = after_thinking(row.text.rpartition(" | ")[2])
                verdict = (row.turn_components or [{}])[-1].get("answer", 0.0)
                difference = set_f1(answer, problem.answer) - verdict
                add_to_turns(row, "f1", [*[0.0] * (len(turns) - 1), difference])


@method(
    paper="https://github.com/quchangle1/MatchTIR",
    title="MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching",
    checked="official code (the dual-level advantage)",
    couples="group",
    group_of_one="keeps its return, as does a turn that one rollout alone reached",
)
def matchtir_advantage(
    reward: PerRow,
    turn_reward: PerTurn,
    turn_state: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    token_penalty: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.9,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """A_s = (standardised reward of the row + standardised return of turn s among the group's turns of that index) / 2, ddof 1.

    A divergence in the reward is charged to the turns of its tokens.

    >>> import torch
    >>> r, k = torch.tensor([[0.5, 1, 1], [0, 0.25, 0], [1, 0.8, 0]]), torch.tensor([[0, 1, 2], [0, 1, 2], [0, 1, -1]])
    >>> A = matchtir_advantage(r.sum(1), r, k, k, torch.zeros(3).long(), torch.ones(3).bool(), k >= 0, r * 0)
    >>> A[1].tolist(), A[2, :2].tolist()
    ([-1.110941, -0.986467, -0.903584], [0.285020, 0.013925])
    """
    real_turns = (turn_state >= 0) & scored[:, None]
    returns = returns_to_go(turn_payments(reward, turn_reward, turn, mask, token_penalty), discount)
    turn_index = torch.arange(turn_reward.shape[1]).expand_as(turn_state)
    cell = pair_index(group[:, None].expand_as(turn_state).flatten(), turn_index.flatten())
    of_turn = _standardised(returns.flatten(), cell, real_turns.flatten(), eps).view_as(returns)
    of_row = _standardised(reward.double(), group, scored, eps)
    return (turns_to_tokens((of_turn + of_row[:, None]) / 2 * real_turns, turn) * mask).float()


def _standardised(values: Tensor, group: Tensor, counts: Tensor, eps: float) -> Tensor:
    """Standardised within the group; a value with nothing to compare with stays as it is."""
    return torch.where(group_size(group, counts) > 1, standardised(values, group, counts, eps=eps), values * counts)
