"""Rows out of a sample stage, shared by the rollouts that read one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.base.errors import DataError
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.data.samples import EPISODE, observations
from pipelines.environments import key_number

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest, StoredCompletion

BEFORE_THE_RUN = -1
"""Version of weights that are none of the run's own."""


def stored_rows(request: RolloutRequest, context: RolloutContext, *, shortest: bool) -> list[Trajectory]:
    """Up to `request.rollouts` stored completions of the problem, as they were drawn.

    Args:
        shortest: those with the fewest tokens, instead of the first that were drawn.

    Raises:
        DataError: a prompt differs from that of the samples, or a method reads entropies that the samples do not have.
    """
    completions = list(context.stored(request.problem.uid))
    if shortest:
        completions.sort(key=lambda completion: len(completion["completion_ids"]))
    return [_trajectory(request, completion, context) for completion in completions[: request.rollouts]]


def stored_episodes(request: RolloutRequest, context: RolloutContext) -> list[Trajectory]:
    """Up to `request.rollouts` stored episodes of the problem, as they were played and scored.

    Raises:
        DataError: as `stored_rows`.
    """
    rows = []
    for completion in list(context.stored(request.problem.uid))[: request.rollouts]:
        row = _trajectory(request, completion, context)
        start, told = len(row.tokens) - len(completion["completion_ids"]), json.loads(completion[EPISODE])
        turns = told["turns"]
        role = [*row.role[:start], *[int(Role.ENVIRONMENT)] * (len(row.tokens) - start)]
        turn = [-1] * len(row.tokens)
        for number, (begin, end) in enumerate(own["span"] for own in turns):
            role[start + begin : start + end] = [int(Role.POLICY)] * (end - begin)
            turn[start + begin : start + end] = [number] * (end - begin)
        rows.append(
            replace(
                row,
                role=role,
                turn=turn,
                turn_state=[key_number(own["state"]) for own in turns],
                turn_reward=[float(own["reward"]) for own in turns],
                turn_observation=observations(told),
                score=completion["score"],
                correct=completion["correct"],
                status=completion["status"],
                components=json.loads(completion["components"]),
            )
        )
    return rows


def _trajectory(request: RolloutRequest, completion: StoredCompletion, context: RolloutContext) -> Trajectory:
    prompt, drawn = [*request.prompt, *request.hint], completion["completion_ids"]
    if list(completion["prompt_ids"]) != prompt:
        raise DataError(
            "rlvr.samples",
            f"problem {request.problem.uid} has another prompt here than where its completions were drawn",
            "Use the same system prompt and template, and prompting: plain.",
        )
    entropy = completion["entropy"]
    if context.entropy and entropy is None:
        raise DataError("rlvr.samples", "a method reads entropies, and samples that a server drew have none.")
    before = [0.0] * len(prompt)
    return Trajectory(
        uid=request.problem.uid,
        group=request.group,
        tokens=[*prompt, *drawn],
        role=[int(Role.PROMPT)] * len(prompt) + [int(Role.POLICY)] * len(drawn),
        logp_old=before + list(completion["logp"]),
        entropy_old=before + list(entropy) if context.entropy else None,
        max_tokens=completion["max_tokens"],
        stop=Stop[completion["stop"].upper()],
        version=BEFORE_THE_RUN,
        text=completion["text"],
    )
