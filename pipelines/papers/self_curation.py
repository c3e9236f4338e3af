"""Only problems whose greedy answer by the present policy is not correct.

Presets: self_curation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.rollout import Allocation
from pipelines.rlvr.common.passes_over_data import Passes

ASSISTED = {
    "mc_value": "draws continuations beside the answer",
    "node": "makes branches of it",
    "step_potential": "probes its steps",
    "teacher_forced": "puts solutions, hints or rewrites among the answers",
}
"""Column → what a rollout that makes it does in addition to asking the policy for an answer."""


def _asks_the_policy_alone(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """A greedy answer is the present policy's own, and whole."""
    rollout, window = bound["rollout"], node.settings.window
    if rollout.fn.reads_samples:
        raise RecipeError(
            part.slot,
            f"{part.name} asks what the present policy answers, and the rollout {rollout.name} draws nothing",
            "Choose another curriculum, or keep hard problems by curate.difficulty.",
        )
    helped = {column for each in (rollout, *rollout.fn.parts()) for column in each.card.makes} & ASSISTED.keys()
    if helped:
        raise RecipeError(
            part.slot,
            f"{part.name} asks for one answer to each problem by the recipe's own rollout, and rollout: {rollout.name} "
            f"{ASSISTED[min(helped)]}",
            "Use rollout: single_turn or multi_turn, or curriculum: uniform.",
        )
    if window is not None:
        raise RecipeError(
            "rlvr.window",
            f"{window:g}: curriculum: {part.name} asks for whole answers before it proposes, and a window cuts them",
            "Leave one of the two out.",
        )


@method(
    paper="2510.02230",
    title="The Reasoning Boundary Paradox: How Reinforcement Learning Constrains Language Models (SELF, its filter)",
    checked="official code (the rule; steps without a problem, see below)",
    check=_asks_the_policy_alone,
)
class self_curation(Passes):
    """Trains on those of a shuffled pass's next problems that the policy does not answer correctly at temperature 0.

    Each gets one greedy rollout, by the recipe's own prompting, rollout and reward, and groups are sampled for those that failed or were
    not scored. So a step trains on `prompts` problems at most; greedy rollouts count in `rlvr.budget`, and `tried/correct` is the share
    that was left out. Where nothing is left, the step makes no update and the learning-rate schedule does not advance (the released code
    takes further problems within the step: `sampling_schedule: dynamic` does so until a step is full).

    The method's other half, a forward KL, is not in the released code; `replay: dph_rl` with `divergence: dph_rl` is one, on stored correct
    answers of the starting policy.

    >>> from pipelines.contract.rollout import GroupOutcome
    >>> part = self_curation(); part.start(4, 0)
    >>> part.try_out = lambda problems, rollouts, temperature: [GroupOutcome(p, 1, 1 - p % 2) for p in problems]
    >>> sorted((a.problem, a.rollouts) for a in part.propose(4, 8))  # 16 rollouts and 4 greedy ones instead of 32
    [(1, 8), (3, 8)]
    """

    tries_out = True

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """Those of the next `count` problems that are not solved, with as many rollouts each."""
        outcomes = self.try_out(self.next_problems(count), 1, 0.0)
        return [
            Allocation(outcome.problem, rollouts) for outcome in outcomes if outcome.correct < max(1, outcome.scored)
        ]
