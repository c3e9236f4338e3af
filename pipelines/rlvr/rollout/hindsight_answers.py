"""Single answers, and the wrong ones once more as demonstrations of the problem that they do solve."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines import verifiers
from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import Trajectory
from pipelines.rlvr.rollout._answers import answers, teacher_forced
from pipelines.rlvr.rollout._groups import Groups
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(
    paper="1906.05838",
    title="Goal-conditioned Imitation Learning (its relabelled answers)",
    checked="reconstructed (the idea; the paper relabels the goals of robots)",
    makes=("teacher_forced",),
    forces_rows=True,
    relabels=True,
    requires=(("prompting", "plain"), ("reward", "verifier")),
    reduces_to="most 0 is single_turn",
    scores_rows=True,
)
class hindsight_answers(Rollout):
    """As `hindsight`, for answers: 3 * 4 + 2 does not make 20 but does make 14, so it is a correct answer to the problem that asks for 14.

    The verifier determines which problem an incorrect answer solves (`relabel` of its module; reasoning_gym has it for countdown). The
    answer's tokens follow that problem's prompt, teacher-forced, in a group of their own, verified against that problem; at most `most` a
    problem. `credit: hindsight` weights them.
    """

    def __init__(self, *, most: Annotated[int, Field(ge=0, le=100_000)] = 100_000) -> None:
        self.most = most

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, then the relabelled ones."""
        rows = answers(requests, context)
        problems = {request.problem.uid: request.problem for request in requests}
        verify(rows, problems, on_timeout=context.on_timeout)
        groups, relabelled = Groups(requests, context), []
        counts: dict[int, int] = {}
        for row in rows:
            if row.score is not None:
                row.components = {**row.components, "reached": float(bool(row.correct))}
            if row.status != "incorrect" or counts.get(row.group, 0) >= self.most:
                continue
            request = groups.origin(row)
            problem = verifiers.relabel(request.problem, row.text)
            if problem is None:
                continue
            counts[row.group] = counts.get(row.group, 0) + 1
            [prompt] = context.render([problem.prompt], [problem.tools])
            asked = replace(request, problem=problem, group=groups.next(row))
            again = teacher_forced(asked, prompt, row.tokens[len(request.prompt) :], row.stop, context)
            verify([again], {problem.uid: problem}, on_timeout=context.on_timeout)
            again.components = {**again.components, "hindsight": 1.0}
            again.prompt = problem.prompt
            relabelled.append(again)
        return rows + [row for row in relabelled if row.correct]
