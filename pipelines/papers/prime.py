"""Process Reinforcement through Implicit Rewards.

arXiv 2502.01456. Presets: lm_reward, prime. Parts: implicit_prm (providers), prime (advantage).

An implicit process reward model that learns from outcomes while the policy trains.

Outcome and process rewards, each against a leave-one-out baseline of its own.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.engine import adamw
from pipelines.engine.policy import Policy
from pipelines.rlvr.ops import group_size, group_sum, row_mean, whiten


@method(
    paper="2502.01456",
    title="Process Reinforcement through Implicit Rewards (PRIME)",
    checked="official code (read; the cross-entropy objective)",
    makes=("process_reward",),
)
class implicit_prm(Provider):
    r"""A language model phi, started from the policy, whose log-ratio to the starting policy is a reward per token.

        r_t = beta (log phi(y_t) - log ref(y_t)),    loss = BCE(sigmoid(sum_t r_t), outcome)

    The outcome is the verifier's 0 or 1 (a score above 1/2 counts as 1). With `update_first` the model learns from the step's outcomes
    before it scores them, as in the released code; otherwise it scores first. It does not learn from unscored rows.
    """

    reads_network = True

    def __init__(
        self,
        *,
        beta: Annotated[float, Field(gt=0)] = 0.05,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-6,
        max_grad_norm: Annotated[float, Field(gt=0)] = 10.0,
        update_first: bool = True,
    ) -> None:
        self.beta, self.learning_rate, self.max_grad_norm = beta, learning_rate, max_grad_norm
        self.update_first = update_first

    def setup(self, context: ProviderContext) -> None:
        """Copy the policy twice: the model that learns, and what it is compared with."""
        self.passes = context.passes

        def scorer(trained: bool) -> Policy:
            model = copy.deepcopy(context.policy.model).requires_grad_(trained)
            return Policy(model, context.rlvr.sampling, dtype=context.model.dtype)

        self.model, self.reference = scorer(True), scorer(False)
        self.optimizer = adamw.make(self.model.model.parameters(), lr=self.learning_rate, weight_decay=0.0)
        self.metrics: dict[str, float] = {}

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`process_reward` [B, T]."""
        with torch.no_grad():
            reference = self._score(self.reference, tokens, columns["mask"])
        self.metrics = self._learn(tokens, columns, reference) if self.update_first else {}
        with torch.no_grad():
            columns["process_reward"] = self.beta * (self._score(self.model, tokens, columns["mask"]) - reference)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Learn from the outcomes, unless that has happened before scoring."""
        if self.update_first:
            return self.metrics
        with torch.no_grad():
            reference = self._score(self.reference, tokens, columns["mask"])
        return self._learn(tokens, columns, reference)

    def _score(self, policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.passes.per_token(lambda layout, ids: policy.score(layout, ids)[0], tokens, mask)

    def _learn(self, tokens: Tensor, columns: dict[str, Any], reference: Tensor) -> dict[str, float]:
        """One step on the binary cross-entropy of the rows' summed rewards.

        The sum couples a row's tokens, which a layout may have in several passes, so its derivative is taken first:
        d loss / d log phi(y_t) = beta (sigmoid(s) - outcome) / rows, the same for each token of the row.
        """
        mask = columns["mask"] & columns["scored"][:, None]
        rows = mask.any(1).nonzero().squeeze(1)
        if not len(rows):
            return {}
        with torch.no_grad():
            logp = self._score(self.model, tokens, mask)
        outcome = (columns["raw_reward"] > 0.5).float()
        score = self.beta * ((logp - reference) * mask).sum(1)
        slope = (self.beta * (score.sigmoid() - outcome) / len(rows))[:, None].expand_as(mask).flatten()
        for layout in self.passes.layouts(tokens, mask, rows):
            values, _ = self.model.score(layout, tokens.flatten()[layout.target])
            (values * slope[layout.target].to(values.device)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score[rows], outcome[rows])
        accuracy = ((score[rows] > 0) == (outcome[rows] > 0.5)).float().mean()
        return {"prm/loss": float(loss), "prm/accuracy": float(accuracy), "prm/grad_norm": float(norm)}

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer of the model that learns; the reference is the starting policy."""
        return {"model": self.model.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.model.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


@method(
    paper="2502.01456",
    title="Process Reinforcement through Implicit Rewards (PRIME)",
    checked="official code (read; verl's recipe/prime)",
    crosses_groups="whitens over all tokens of the batch by design",
)
def prime(
    reward: PerRow,
    process_reward: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    outcome_weight: Annotated[float, Field(ge=0)] = 5.0,
    process_weight: Annotated[float, Field(ge=0)] = 5.0,
) -> PerToken:
    """Return-to-go of both rewards less their baselines, whitened over the batch's tokens (ddof 1). With n rows in a group:

        p_t = n/(n-1) r_t - 1/(n-1) sum_rows mean_t r_t     (process reward of a token)
        o   = n/(n-1) (R - mean R), on the row's last token  (outcome)
        A_t = whiten(sum_{s >= t} process_weight p_s + outcome_weight o)

    The process baseline is a mean over tokens first and over rows then, so long rows do not outweigh short ones. A row alone
    in its group has nothing to be compared with: both terms are 0 (the released code divides by zero there).

    >>> import torch
    >>> r = torch.tensor([[0.0, 0.2, 0.4], [0.0, 0.0, 0.0]]); m = torch.tensor([[0, 1, 1], [0, 1, 0]]).bool()
    >>> row, group = torch.ones(2).bool(), torch.zeros(2).long()
    >>> prime(torch.tensor([1.0, 0.0]), r, group, row, m, outcome_weight=1.0, process_weight=1.0)[m].tolist()
    [0.6075, 0.5467, -1.1542]
    """
    mask = mask & scored[:, None]
    n = group_size(group, scored)
    own_factor = torch.where(n > 1, n / (n - 1).clamp(min=1), 0.0)
    others_factor = torch.where(n > 1, 1 / (n - 1).clamp(min=1), 0.0)
    process = process_reward.double() * mask
    baseline = others_factor * group_sum(row_mean(process, mask) * mask.any(1), group)
    centred = (own_factor[:, None] * process - baseline[:, None]) * mask
    outcome = own_factor * reward.double() - others_factor * group_sum(reward.double() * scored, group)
    to_go = centred.flip(1).cumsum(1).flip(1)
    return whiten((process_weight * to_go + outcome_weight * outcome[:, None]) * mask, mask).float()
