"""Answers that another sampler than the policy's draws, as rows that train."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.rlvr.common.answers import answers, teacher_forced

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest, Sampler
    from pipelines.data.records import Trajectory


def mixture_answers(requests: list[RolloutRequest], context: RolloutContext, sampler: Sampler) -> list[Trajectory]:
    """`request.rollouts` answers to each prompt, in order, as teacher-forced rows.

    Args:
        sampler: `Scorer.mixture`.
    """
    unbounded = replace(context, sampler=sampler, window=None)
    repeated = [request for request in requests for _ in range(request.rollouts)]
    rows = []
    for request, drawn in zip(repeated, answers(requests, unbounded), strict=True):
        prompt = [*request.prompt, *request.hint]
        rows.append(teacher_forced(request, prompt, drawn.tokens[len(prompt) :], drawn.stop, context))
        rows[-1].text = drawn.text
    return rows
