"""A value network."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.fields import Function
from pipelines.contract.provider import ProviderContext
from pipelines.engine.critic import zero_head
from pipelines.rlvr.algorithm import returns, term_returns
from pipelines.rlvr.common.heuristic import FIELD, Heuristic
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.ops_turns import turn_starts, turns_to_tokens
from pipelines.rlvr.turn_values import turn_advantages, turn_values
from pipelines.rlvr.value_heads import Mapped, ValueHeads

AVERAGING = 0.1
"""The paper's beta_reg, in its experiments."""


def squared_error(value: Tensor, target: Tensor, before: Tensor | None = None, clip: float | None = None) -> Tensor:
    """(v - R)^2, in the shape of the inputs; with `clip` the larger of it and of the error of v kept within `clip` of `before`.

    >>> squared_error(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.0]), torch.zeros(2), 0.5).tolist()
    [2.25, 1.0]
    """
    error = (value - target).square()
    if before is None or clip is None:
        return error
    kept = before + (value - before).clamp(-clip, clip)
    return torch.maximum(error, (kept - target).square())


@method(
    paper="1506.02438",
    title="High-Dimensional Continuous Control Using Generalized Advantage Estimation (value function)",
    checked="closed form",
    makes=("value",),
)
class critic(LearnedHead):
    """The policy's body, copied at the start, with a zero-initialised scalar head; fitted after the policy's updates.

    The target of each token is the return-to-go of what the advantage is paid (`immediate_reward`), with `discount` for each token, which
    must be the advantage's: unbiased, whatever lambda the policy uses. Rows whose outcome is not known (cut off, where the advantage
    bootstraps them) are left out.

    `at: turns` fits the first token of each turn alone, one value a turn (ERA, 2510.12693), to what `advantage: turn_gae` with the same
    `discount` and `lam` adds to the value there: the lambda return of the turns still to come. The turn's other tokens have that value too,
    so an advantage over tokens reads only values that were fitted.

    In the first `warm_up` steps of the run it is fitted while the policy is not updated, as in ERA (its `critic_warmup: 3` is 2, as its
    steps count from 1). With `heuristic` those steps fit that function's value of each state instead of returns, so the policy starts with
    knowledge that the later fits, to returns again, correct where it is wrong: as in Q-shaping (2410.01458, reconstructed from its
    abstract), here of states and by a function, `FILE.py:NAME` or `package.module:NAME`, with a reward function's signature, whose
    `completions` are the text after the prompt so far, including an environment's messages. It is called before every fitted token: with
    `at: turns` once a turn. A state for which it returns None is not fitted.

    `heads` (term of the reward → `identity`, `log` or `loglin`) gives every named term of a reward that is a sum a value head of its own,
    fitted in a space of its own (Orchestrated Value Mapping, 2203.07171) to what the term still pays: a term that was paid at a turn is
    nothing to come after it. `value` is their sum, with one more head for the rest of the reward. A logarithm resolves small returns
    beside large ones; it takes no sign, so such a term has one head for the part above 0 and one for the part below. A head's target lies
    `averaging` of the way from its value to the return, before it is mapped (the paper's beta_reg). Its heads are fitted to returns
    instead of bootstrapped maxima, by squares instead of Huber's loss.

    `value_clip` bounds how far a fit moves a value from the one that the step's advantages were made with: the error is the larger of
    v's and of v's clipped to that distance (PPO's value clipping; verl takes 0.5, TRL 0.2). It works from the second pass of `epochs` on,
    where v has moved.

    Raises:
        RecipeError: `lam` without `at: turns`, `discount` or `value_clip` with `heads`, `averaging` without `heads`, `heads` with
            `at: turns` or `heuristic`, `heuristic` without `warm_up`, or a function that cannot be imported.
    """

    def __init__(
        self,
        *,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-5,
        epochs: Annotated[int, Field(ge=1)] = 1,
        at: Literal["tokens", "turns"] = "tokens",
        discount: Annotated[float, Field(ge=0, le=1)] = 1.0,
        lam: Annotated[float, Field(ge=0, le=1)] = 1.0,
        warm_up: Annotated[int, Field(ge=0)] = 0,
        heuristic: Function | None = None,
        heads: Annotated[dict[str, Mapped], Field(min_length=1, max_length=64)] | None = None,
        averaging: Annotated[float, Field(gt=0, le=1)] = AVERAGING,
        value_clip: Annotated[float, Field(gt=0)] | None = None,
    ) -> None:
        if at == "tokens" and lam != 1.0:
            raise RecipeError("rlvr.providers.critic", "lam belongs to at: turns", "Set that, or leave it out.")
        if heads is not None and discount != 1.0:
            raise RecipeError(
                "rlvr.providers.critic", "heads are fitted to undiscounted returns", "Leave discount out."
            )
        self.learning_rate, self.epochs, self.at, self.discount, self.lam = learning_rate, epochs, at, discount, lam
        if heuristic is not None and not warm_up:
            raise RecipeError(
                FIELD, "warm_up steps fit the critic to it, and there are none", "Set warm_up: 5, or leave it out."
            )
        if heads is None and averaging != AVERAGING:
            raise RecipeError("rlvr.providers", "averaging belongs to heads", "Set those, or leave it out.")
        if heads is not None and (at == "turns" or heuristic is not None):
            raise RecipeError(
                "rlvr.providers.heads",
                "they are fitted to returns at tokens",
                "Leave them out, or at: turns and heuristic.",
            )
        if heads is not None and value_clip is not None:
            raise RecipeError(
                "rlvr.providers.value_clip",
                "the column has the sum of the heads, not each one's value",
                "Leave it out.",
            )
        self.value_clip = value_clip
        self.heads, self.averaging, self.reward_terms = heads, averaging, tuple(heads or ())
        self.reads = ("turn", "turn_reward") if at == "turns" else ("reward_terms",) if heads else ()
        self.fitted_to = {"at": at, "discount": discount, "lam": lam}
        self.warm_up, self.heuristic = warm_up, Heuristic(heuristic) if heuristic is not None else None

    def setup(self, context: ProviderContext) -> None:
        """Copy the body."""
        self.outcome_tokens = context.outcome_tokens
        if self.heuristic is not None:
            self.heuristic.setup(context)
        self.value_heads = ValueHeads(self.heads, context.reward_terms) if self.heads else None
        count = len(self.value_heads) if self.value_heads else 1
        self.build(context, lambda width: zero_head(width, count))

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`value` [B, T]."""
        mask = columns["mask"]
        count = len(self.value_heads) if self.value_heads else 1
        value = self.passes.per_token(lambda layout, ids: self.network(layout), tokens, mask, values=count)
        if self.value_heads:
            value = self.value_heads.total(value) * mask
        if self.at == "turns":
            turn = columns["turn"]
            value = turns_to_tokens(turn_values(value, turn, mask, columns["turn_reward"].shape[1]), turn) * mask
        columns["value"] = value

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Regress the values on the rewards still to come, or in the warm-up on the heuristic."""
        mask, target = self._targets(columns)
        if self.heuristic is not None and columns["step"] < self.warm_up:
            target = self.heuristic.values(tokens, columns, mask).flatten()
            mask = target.isfinite().view(mask.shape)
        total = 0.0
        for _ in range(self.epochs if mask.any() else 0):
            total = 0.0
            for layout in self.passes.layouts(tokens, mask, mask.any(1).nonzero().squeeze(1)):
                predicted, wanted = self.network(layout), target[layout.target].to(self.network.device)
                if self.value_heads:
                    wanted = self.value_heads.targets(predicted, wanted, self.averaging)
                before = (
                    columns["value"].flatten()[layout.target].to(predicted) if self.value_clip is not None else None
                )
                loss = 0.5 * squared_error(predicted, wanted, before, self.value_clip).sum() / mask.sum()
                loss.backward()
                total += float(loss.detach())
            self.learn()
        mean = float(columns["value"][mask].mean()) if mask.any() else 0.0
        return {"critic/loss": total, "critic/value_mean": mean}

    def _targets(self, columns: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """(bool [B, T], the tokens that are fitted; float32 [B * T], what to; with heads [B * T, H])."""
        mask = self.outcome_tokens(columns)
        if self.at == "tokens":
            total = returns(columns, self.discount)
            goals = self.value_heads.goals(total, term_returns(columns)) if self.value_heads else total
            return mask, goals.flatten(0, 1)
        advantages, values = turn_advantages(
            columns["reward"], columns["turn_reward"], columns["value"], columns["turn"], mask, columns["token_penalty"],
            discount=self.discount, lam=self.lam,
        )  # fmt: skip
        starts = turn_starts(columns["turn"], mask)
        return starts, turns_to_tokens(advantages + values, columns["turn"]).flatten()
