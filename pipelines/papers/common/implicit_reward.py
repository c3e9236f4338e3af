"""A language model that learns from outcomes while the policy trains, and whose log-ratio to another one is a reward per token."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.provider import Provider, ProviderContext
from pipelines.engine import adamw
from pipelines.engine.policy import Policy


class ImplicitReward(Provider):
    """r_t = beta (log phi(y_t) - log ref(y_t)), where phi starts as the policy; `process_reward` of the tokens.

    With `update_first` the model learns from the step's outcomes before it scores them; otherwise it scores first.
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

    @abstractmethod
    def reference_logp(self, tokens: Tensor, columns: dict[str, Any]) -> Tensor:
        """log ref of the tokens, float32 [B, T]."""

    @abstractmethod
    def loss(self, sums: Tensor, columns: dict[str, Any]) -> tuple[Tensor, float]:
        """What the model is fitted by, and how often it is right.

        Args:
            sums: [B] the sums of the rows' rewards, 0 for an unscored row; the loss is differentiated by them.
        """

    @abstractmethod
    def teaching(self, columns: dict[str, Any]) -> Tensor:
        """Bool [B], the scored rows that the loss reads."""

    def copy_of(self, context: ProviderContext, *, trained: bool) -> Policy:
        """A copy of the policy as it is now."""
        model = copy.deepcopy(context.policy.model).requires_grad_(trained)
        return Policy(model, context.rlvr.sampling, dtype=context.model.dtype)

    def setup(self, context: ProviderContext) -> None:
        """Copy the policy: the model that learns."""
        self.passes = context.passes
        self.model = self.copy_of(context, trained=True)
        self.optimizer = adamw.make(self.model.model.parameters(), lr=self.learning_rate, weight_decay=0.0)
        self.metrics: dict[str, float] = {}

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`process_reward` [B, T]."""
        with torch.no_grad():
            reference = self.reference_logp(tokens, columns)
        self.metrics = self._learn(tokens, columns, reference) if self.update_first else {}
        with torch.no_grad():
            ratio = self.score(self.model, tokens, columns["mask"]) - reference
            columns["process_reward"] = self.beta * ratio * columns["mask"]

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Learn from the outcomes, unless that has happened before scoring."""
        if self.update_first:
            return self.metrics
        with torch.no_grad():
            reference = self.reference_logp(tokens, columns)
        return self._learn(tokens, columns, reference)

    def score(self, policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities of the tokens in `mask`, [B, T]."""
        return self.passes.per_token(lambda layout, ids: policy.score(layout, ids)[0], tokens, mask)

    def _learn(self, tokens: Tensor, columns: dict[str, Any], reference: Tensor) -> dict[str, float]:
        """One step on the loss of the rows' summed rewards.

        The sum couples a row's tokens, which a layout may have in several passes, so the loss is differentiated by it first:
        d loss / d log phi(y_t) = beta d loss / d sum, the same for each token of the row.
        """
        mask = columns["mask"] & self.teaching(columns)[:, None]
        rows = mask.any(1).nonzero().squeeze(1)
        if not len(rows):
            return {}
        with torch.no_grad():
            logp = self.score(self.model, tokens, mask)
        sums = (self.beta * ((logp - reference) * mask).sum(1)).requires_grad_()
        loss, accuracy = self.loss(sums, columns)
        [by_sum] = torch.autograd.grad(loss, sums)
        slope = (self.beta * by_sum)[:, None].expand_as(mask).flatten()
        for layout in self.passes.layouts(tokens, mask, rows):
            values, _ = self.model.score(layout, tokens.flatten()[layout.target])
            (values * slope[layout.target].to(values.device)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.model.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"prm/loss": float(loss.detach()), "prm/accuracy": accuracy, "prm/grad_norm": float(norm)}

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer of the model that learns."""
        return {"model": self.model.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.model.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
