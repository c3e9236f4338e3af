"""Accelerating RL for LLM Reasoning with Optimal Advantage Regression (A*-PO).

arXiv 2505.20686. Presets: a_star_po. Parts: a_star (advantage), a_star_po (objective).

Reward against the value of the best policy, which the starting policy's answers tell.

The log-ratio to the starting policy is regressed to it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Method
from pipelines.rlvr.ops import row_mean

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext


@method(
    paper="2505.20686",
    title="Accelerating RL for LLM Reasoning with Optimal Advantage Regression (A*-PO's value)",
    checked="third-party code (TRL, read)",
    group_of_one="is compared with the starting policy's answers",
    zero_variance_groups="learns",
)
class a_star(Method):
    """Reward minus V*(x) = beta log mean exp(r / beta) over `samples` answers of the starting policy, drawn once, before the first step.

    V* is the value of the policy that maximises reward - beta KL: with a large beta the mean of the rewards, with a small one the largest.
    So a group of one is enough in every step. Rows of a problem whose drawn answers all have reward 0 leave the loss with `unsolved: false`
    (the paper's filter of unsolvable problems, which its released script leaves off); rows of a problem of which no drawn answer could be
    scored always do. The scores are those of the reward, without shaping.
    """

    def __init__(
        self,
        *,
        beta: Annotated[float, Field(gt=0)] = 0.5,
        samples: Annotated[int, Field(ge=1)] = 8,
        unsolved: bool = True,
    ) -> None:
        self.beta, self.samples, self.unsolved = beta, samples, unsolved
        self.scores: dict[str, list[float]] = {}

    def setup(self, context: SetupContext) -> None:
        """Score answers of the starting policy."""
        for row in context.rollouts(list(range(context.problems)), self.samples):
            if row.score is not None:
                self.scores.setdefault(str(int(row.uid[:15], 16)), []).append(float(row.score))

    def __call__(self, reward: PerRow, problem: PerRow, scored: PerRow, mask: PerToken) -> tuple[PerToken, PerToken]:
        """The advantage and the share of each token that stays in the loss, both [B, T].

        >>> part = a_star(beta=0.5); part.scores = {"7": [1.0, 0.0]}; one = torch.ones(1, 1).bool()
        >>> [round(float(x), 5) for x in part(torch.tensor([1.0]), torch.tensor([7]), one[0], one)]  # V* = 0.5 log((e^2 + 1) / 2)
        [0.28311, 1.0]
        """
        value = torch.zeros(len(reward), dtype=torch.float64)
        known, solved = scored.clone(), torch.ones_like(scored)
        for problem_id in problem[scored].unique().tolist():
            scores = self.scores.get(str(problem_id))
            if not scores:
                known[problem == problem_id] = False
                continue
            rewards = torch.tensor(scores, dtype=torch.float64) / self.beta
            value[problem == problem_id] = self.beta * (rewards.logsumexp(0) - math.log(len(scores)))
            solved[problem == problem_id] &= self.unsolved or any(scores)
        inside = mask & known[:, None]
        return torch.where(inside, (reward - value).float()[:, None], 0.0), (inside & solved[:, None]).float()

    def state_dict(self) -> dict[str, Any]:
        """The starting policy's scores by problem."""
        return {"scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.scores = {k: list(v) for k, v in state["scores"].items()}


@method(
    paper="2505.20686",
    title="Accelerating RL for LLM Reasoning with Optimal Advantage Regression (A*-PO)",
    checked="official code, 4 cases",
    not_reinforce="it regresses the row's log-ratio to the starting policy",
)
def a_star_po(
    logp: PerToken,
    logp_ref: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(gt=0)] = 1e-3,
) -> PerToken:
    """Squared distance of a row's implicit reward from its advantage.

        l = (beta sum_t (logp - logp_ref) - A)^2

    With `advantage: a_star` it is 0 where the policy is pi_ref exp((r - V*) / beta), the maximum of reward - beta KL, so `divergence` stays
    null. No ratio and no clip: rows may be stale. A row's tokens share their mean advantage, and each holds the row's loss: use
    `loss_aggregation: row_mean`. For one answer a problem in each step, after one round of answers of the starting policy to all.

    >>> import torch
    >>> m = torch.ones(1, 2).bool()
    >>> a_star_po(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -2.0]]), torch.tensor([[0.5, 0.5]]), m, beta=0.1).tolist()
    [[0.16, 0.16]]
    """
    implicit = beta * ((logp - logp_ref) * mask).sum(1)
    return (implicit - row_mean(advantage, mask)).square()[:, None] * mask
