"""Nash Learning from Human Feedback (Nash-MD).

arXiv 2312.00886. Presets: nash_md. Parts: nash_md (rollout), nash_md (advantage).

Answers of the policy are compared with answers of a geometric mixture of the policy and the model that the run started from.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase
from pipelines.contract.method import Rollout
from pipelines.papers.common.mixture import mixture_answers
from pipelines.rlvr.common.answers import answers

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.contract.scorer import Scorer
    from pipelines.data.records import Trajectory

PAPER, TITLE = "2312.00886", "Nash Learning from Human Feedback (Nash-MD)"
COLUMNS = {
    "rival_reward": Column(
        "B",
        "float32",
        Phase.FILTER,
        "a rollout with an answer of another policy",
        "Score of the answer that the row is compared with; NaN where it has none.",
        fill=nan,
        row=lambda t: t.extras.get("rival_reward", nan),
        part=True,
        hint="Draw answers of the mixture too: rollout: nash_md.",
    ),
}


@method(
    paper=PAPER,
    title=f"{TITLE}: its rollouts",
    checked="third-party code (trl, read)",
    makes=("rival_reward",),
)
class nash_md(Rollout):
    """Single-turn rollouts, and for each an answer of the mixture policy^(1 - mixture) start^mixture, scored by the same reward.

    Once it is scored the mixture's answer leaves the draw: its score is the column `rival_reward` of the row that it is compared with, and
    it is in no statistic and no loss. `mixture` 0 is self-play, 1 plays against the starting model. The mixture is decoded in the
    stage's own process, where a server draws the rollouts too, and holds a copy of the starting model.
    """

    asks_policy = True
    reads_network = True

    def __init__(self, *, mixture: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
        self.mixture = mixture
        self.scores: list[float] = []

    def connect(self, scorer: Scorer) -> None:
        """Load the starting model."""
        self.sampler = scorer.mixture(self.mixture)

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, the mixture's answers in the same order behind all of them."""
        own = answers(requests, context)
        rivals = mixture_answers(requests, context, self.sampler)
        for row in rivals:
            row.extras = {"rival": True}
        return own + rivals

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The rows that train, each with the score of the answer that has its place in the group."""
        scores: dict[int, list[float]] = {}
        for row in rows:
            if "rival" in row.extras:
                scores.setdefault(row.group, []).append(nan if row.score is None else row.score)
        own = [row for row in rows if "rival" not in row.extras]
        self.scores += [score for of_group in scores.values() for score in of_group if score == score]
        waiting = {group: iter(of_group) for group, of_group in scores.items()}
        for row in own:
            row.extras = {"rival_reward": next(waiting[row.group], nan) if row.group in waiting else nan}
        return own

    def metrics(self) -> dict[str, float]:
        """Mean score of the mixture's answers."""
        scores, self.scores = self.scores, []
        return {"rival_reward": sum(scores) / len(scores)} if scores else {}


@method(
    paper=PAPER,
    title=TITLE,
    checked="third-party code (trl), 3 cases",
    couples="row",
    group_of_one="is compared with an answer of the mixture",
    zero_variance_groups="learns",
)
def nash_md_advantage(reward: PerRow, rival_reward: PerRow, scored: PerRow) -> PerRow:
    """sigmoid(r - r_rival) - 1/2: the chance that the answer is preferred to the mixture's, less the chance of a tie.

    Under a Bradley-Terry reward model that is the probability of the preference. Rows without a rival that has a score get 0. The preset
    sums it over the tokens, and adds the KL to the starting model, whose weight `divergence.weight` is TRL's beta.

    Take it where preferences may be circular or the reward model is trusted for comparisons only: the policy learns to win against
    what is near it, and does not run after the reward's largest values. Where a verifier says 0 or 1, `rloo` or `grpo` learn more from
    the same rows.

    >>> import torch
    >>> r, yes = torch.tensor([2.0, 0.0, 1.0]), torch.ones(3).bool()
    >>> [round(v, 6) for v in nash_md_advantage(r, torch.tensor([0.0, 0.0, float("nan")]), yes).tolist()]
    [0.380797, 0.0, 0.0]
    """
    compared = scored & rival_reward.isfinite()
    return torch.where(compared, torch.sigmoid(reward - rival_reward.nan_to_num()) - 0.5, torch.zeros_like(reward))
