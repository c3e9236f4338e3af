"""ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning Large Language Models.

arXiv 2310.10505. Presets: remax. Parts: remax (rollout), remax (advantage).

Single answers, and the greedy answer of each problem, which is scored and does not train.

Reward against that of the greedy answer.
"""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.method import Rollout
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.common.estimate import returns_to_go

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory

COLUMNS = {
    "greedy_reward": Column(
        "B",
        "float32",
        Phase.FILTER,
        "a rollout with a greedy answer",
        "Score of the greedy answer to the row's problem; NaN where it has none.",
        fill=nan,
        row=lambda t: t.extras.get("greedy_reward", nan),
        part=True,
        hint="Draw greedy answers too: rollout: remax.",
    ),
}


@method(
    paper="2310.10505",
    title="ReMax: A Simple, Effective, and Efficient RL Method for Aligning Large Language Models (its rollouts)",
    checked="third-party code (verl, read)",
    makes=("greedy_reward",),
)
class remax(Rollout):
    """Single-turn rollouts, and for each group one answer at temperature 0, scored by the same reward.

    Once it is scored the greedy answer leaves the draw: its score is the column `greedy_reward` of its group, and it is in no statistic and
    no loss. So a step samples `group_size` + 1 answers a problem. A curriculum that learns from outcomes sees it among the group's.
    """

    def __init__(self) -> None:
        self.scores: list[float] = []

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, each group's greedy answer behind all of them."""
        sampling = context.sampling.model_copy(update={"temperature": 0.0, "adaptive": None})
        greedy = answers([replace(request, rollouts=1) for request in requests], replace(context, sampling=sampling))
        for row in greedy:
            row.extras = {"greedy": True}
        return answers(requests, context) + greedy

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The rows that train, with the greedy answers' scores."""
        greedy = {row.group: row.score for row in rows if "greedy" in row.extras}
        sampled = [row for row in rows if "greedy" not in row.extras]
        for row in sampled:
            score = greedy.get(row.group)
            row.extras = {"greedy_reward": nan if score is None else score}
        self.scores += [score for score in greedy.values() if score is not None]
        return sampled

    def metrics(self) -> dict[str, float]:
        """Mean score of the step's greedy answers."""
        scores, self.scores = self.scores, []
        return {"greedy_reward": sum(scores) / len(scores)} if scores else {}


@method(
    paper="2310.10505",
    title="ReMax: A Simple, Effective, and Efficient RL Method for Aligning Large Language Models",
    checked="third-party code (verl), 5 cases",
    couples="row",
    group_of_one="is compared with the greedy answer",
    zero_variance_groups="learns",
)
def remax_advantage(immediate_reward: PerToken, greedy_reward: PerRow, mask: PerToken, scored: PerRow) -> PerToken:
    """Reward still to come minus the score of the greedy answer to the same problem.

        A_t = sum_{s >= t} r_s - r(greedy)

    The baseline costs one more answer a problem and no critic, and a group of one has it too. What a divergence charges tokens is in the
    sum, not in the baseline. Rows whose greedy answer has no score get 0. Shaping changes the row's reward and not the baseline's.

    >>> import torch
    >>> m = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]).bool(); r = torch.tensor([[-0.1, 1, 0], [0, 0, 0], [1, 0, 0]])
    >>> remax_advantage(r, torch.tensor([0.5, 0.5, float("nan")]), m, m[:, 0]).tolist()
    [[0.4, 0.5, 0.0], [-0.5, -0.5, -0.5], [0.0, 0.0, 0.0]]
    """
    trained = mask & scored[:, None] & greedy_reward.isfinite()[:, None]
    baseline = greedy_reward.nan_to_num()[:, None]
    return ((returns_to_go(immediate_reward, trained, 1.0) - baseline) * trained).float()
