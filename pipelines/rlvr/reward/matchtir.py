"""Calls are paid for how well they match reference calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.reward._turns import add_to_turns, calls_of, scored_with_turns
from pipelines.verifiers.tool_matching import Matching, rewards, set_f1


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
                answer = row.text.rpartition(" | ")[2]
                verdict = (row.turn_components or [{}])[-1].get("answer", 0.0)
                difference = set_f1(answer, problem.answer) - verdict
                add_to_turns(row, "f1", [*[0.0] * (len(turns) - 1), difference])
