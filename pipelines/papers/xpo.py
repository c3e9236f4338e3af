"""Exploratory Preference Optimization (XPO).

arXiv 2405.21046. Presets: xpo. Parts: xpo (rollout), xpo (objective).

DPO on pairs of a new answer and one of the model that the run started from, which the policy is moved away from a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import by_group
from pipelines.papers.common.mixture import mixture_answers
from pipelines.papers.common.pairs import spread_pairs
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.ops import group_size

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.contract.scorer import Scorer
    from pipelines.data.records import Trajectory

PAPER = "2405.21046"
TITLE = "Exploratory Preference Optimization: Harnessing Implicit Q*-Approximation for Sample-Efficient RLHF (XPO)"


@method(
    paper=PAPER,
    title=f"{TITLE}: its rollouts",
    checked="third-party code (trl, read)",
    makes=("teacher_forced",),
    forces_rows=True,
    sets_group_size=True,
)
class xpo(Rollout):
    """Single-turn rollouts, and as many answers of the model that the run started from, scored by the same reward.

    The latter are teacher-forced rows of the group: trained, though the policy did not choose them. They are decoded in
    the stage's own process, where a server draws the rollouts too.
    """

    reads_network = True

    def connect(self, scorer: Scorer) -> None:
        """Load the starting model."""
        self.sampler = scorer.mixture(1.0)

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, each group's answers of the starting model behind its own."""
        own = by_group(answers(requests, context))
        others = by_group(mixture_answers(requests, context, self.sampler))
        groups = [request.group for request in requests]
        return [row for group in groups for row in (*own.get(group, []), *others.get(group, []))]


@method(
    paper=PAPER,
    title=TITLE,
    checked="third-party code (trl), 4 cases (pairs of equal rewards have no DPO loss)",
    batch_coupled=True,
    ratio_level="sequence",
    not_reinforce="it compares rewards instead of reading an advantage",
)
def xpo_objective(
    logp: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    teacher_forced: PerToken,
    reward: PerRow,
    group: PerRow,
    in_loss: PerRow,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
    alpha: Annotated[float, Field(ge=0)] = 1e-5,
    loss: Literal["sigmoid", "ipo"] = "sigmoid",
) -> PerToken:
    """Mean over pairs of a policy's and a reference's answer of a DPO loss, plus alpha times the log-probability of the reference's.

        -log sigmoid(beta (s_w - s_l)) + alpha sum_t logp(reference's answer),   s = sum_t (logp - logp_ref)

    The second term is the optimism: of the policies that explain the preferences, it asks for one that does not repeat what the starting
    model says already. `ipo`: (s_w - s_l - 1 / (2 beta))^2. `alpha` 0 is DPO against the starting model's answers. TRL also trains a pair
    of equal rewards, the policy's answer as the better one; here such a pair has the second term alone, because a verifier gives 0 and 1.
    Use `loss_aggregation: row_mean`, which makes the loss the mean over the groups.

    Take it over `online_dpo` where the policy's pairs have become too alike to compare, and what scores them is good enough to explore
    against.

    >>> import torch
    >>> s, r, yes = torch.tensor([[-1.0], [-2.0]]), torch.tensor([1.0, 0.0]), torch.ones(2).bool()
    >>> told = xpo_objective(s, s * 2, yes[:, None], ~yes[:, None] | (r == 0)[:, None], r, torch.zeros(2).long(), yes, alpha=0.5)
    >>> round(told.mean().item(), 6)  # -log sigmoid(0.1 (1 - 2)) + 0.5 (-2)
    -0.255603
    """
    from_start = teacher_forced.any(1) & in_loss
    own = in_loss & ~from_start
    better, worse = (
        ((group[:, None] == group) & (reward[:, None] > reward) & ((own[:, None] & from_start) | (from_start[:, None] & own)))
        .nonzero(as_tuple=True)
    )  # fmt: skip
    log_ratio = ((logp - logp_ref) * mask).sum(1)
    lead = log_ratio[better] - log_ratio[worse]
    value = -F.logsigmoid(beta * lead) if loss == "sigmoid" else (lead - 1 / (2 * beta)) ** 2
    per_row = spread_pairs(value, better, worse, group, in_loss)
    share = group_size(group, in_loss) / group_size(group, from_start).clamp(min=1)
    optimism = alpha * share * torch.where(from_start, (logp * mask).sum(1), torch.zeros_like(per_row))
    return (per_row + optimism)[:, None].to(logp.dtype) * mask
