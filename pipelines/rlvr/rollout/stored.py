"""Rollouts that a sample stage drew before: learning without sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.errors import DataError

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest, StoredCompletion

BEFORE_THE_RUN = -1
"""Version of weights that are none of the run's own."""


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (offline rollouts)",
    checked="closed form",
    own_group_size=True,
)
class stored(Rollout):
    """The completions that the stage `samples` holds of each problem, up to `group_size` of them, scored by this stage's own reward.

    Their log-probabilities and entropies are those of the draw, so any objective with a ratio corrects for the weights that drew them.
    They are no on-policy rows. `shortest` prefers those with the fewest tokens, `drawn` keeps the order of the draws.
    """

    reads_samples: ClassVar[bool] = True

    def __init__(self, *, order: Literal["drawn", "shortest"] = "drawn") -> None:
        self.order = order

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The stored rows of every problem, in order.

        Raises:
            DataError: a prompt differs from that of the samples, or a method reads entropies that the samples do not have.
        """
        rows = []
        for request in requests:
            completions = list(context.stored(request.problem.uid))
            if self.order == "shortest":
                completions.sort(key=lambda completion: len(completion["completion_ids"]))
            rows += [_trajectory(request, completion, context) for completion in completions[: request.rollouts]]
        return rows


def _trajectory(request: RolloutRequest, completion: StoredCompletion, context: RolloutContext) -> Trajectory:
    prompt, drawn = [*request.prompt, *request.hint], completion["completion_ids"]
    if list(completion["prompt_ids"]) != prompt:
        raise DataError(
            f"rlvr.samples: problem {request.problem.uid} has another prompt here than where its completions were drawn. Use the same "
            "system prompt and template, and prompting: plain."
        )
    entropy = completion["entropy"]
    if context.entropy and entropy is None:
        raise DataError("rlvr.samples: a method reads entropies, and samples that a server drew have none.")
    before = [0.0] * len(prompt)
    return Trajectory(
        uid=request.problem.uid,
        group=request.group,
        tokens=[*prompt, *drawn],
        role=[int(Role.PROMPT)] * len(prompt) + [int(Role.POLICY)] * len(drawn),
        logp_old=before + list(completion["logp"]),
        entropy_old=before + list(entropy) if context.entropy else None,
        max_tokens=context.sampling.max_tokens,
        stop=Stop[completion["stop"].upper()],
        version=BEFORE_THE_RUN,
        text=completion["text"],
    )
