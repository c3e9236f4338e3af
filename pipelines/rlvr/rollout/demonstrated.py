"""One answer a rollout, and the record's own solution beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method
from pipelines.data.records import Role, Stop, Trajectory, by_group
from pipelines.rlvr.rollout._answers import answers, solution_tokens

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context


@method(paper="folklore", title="Single-turn rollouts with a demonstration", checked="closed form")
class demonstrated:
    """Every group gets one more row: the solution (or answer) of its record, ended and scored like any other answer.

    Its tokens are given: trained, though not chosen by the policy, with the trainer's own log-probabilities as the old ones.
    What becomes of the row, advantage, objective and `filter` decide.
    """

    makes = ("teacher_forced",)

    def run(self, asked: list[Asked], context: Context) -> list[Trajectory]:
        """All rollouts of the problems, each group with its demonstration at the end."""
        rows = by_group(answers(asked, context))
        return [row for one in asked for row in (*rows.get(one.group, []), _demonstration(one, context))]


def _demonstration(one: Asked, context: Context) -> Trajectory:
    said = [*solution_tokens(one, context), int(context.tokenizer.eos_token_id)]
    zero = [0.0] * (len(one.prompt) + len(said))
    return Trajectory(
        uid=one.problem.uid,
        group=one.group,
        tokens=[*one.prompt, *said],
        role=[int(Role.PROMPT)] * len(one.prompt) + [int(Role.TEACHER_FORCED)] * len(said),
        logp_old=zero,
        entropy_old=list(zero) if context.entropy else None,
        max_tokens=context.sampling.max_tokens,
        stop=Stop.END,
        version=context.version,
        text=context.decode(said),
    )
