"""The words every method speaks: one name, one tensor, one shape.

A method asks for columns by naming them as positional parameters, so this file is the glossary of
the whole catalogue. Letters: B rows (one trajectory each), T token positions, S turns.
Position t holds the log-probability of token t given tokens before t, so column 0 is never trained.
Masks are bool, ids int64, numbers float32. This file imports no torch: reading a recipe stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

PerRow = Annotated[Tensor, "B"]
PerToken = Annotated[Tensor, "B T"]
PerTurn = Annotated[Tensor, "B S"]
Numbers = Annotated[Tensor, "B K"]


@dataclass(kw_only=True)
class Batch:
    """Everything known about one optimizer step before the policy is run again."""

    reward: PerRow
    """float32, after shaping; 0 where the row is unscored (such rows have `scored` False)."""
    group: PerRow
    """int64, rows with equal values may share a baseline."""
    mask: PerToken
    """bool, True on tokens the policy chose and is trained on."""
    token: PerToken
    """int64, token ids; 0 past the row's end."""
    logp_old: PerToken
    """float32, log-probability reported by the sampler when it chose the token; 0 elsewhere."""
    teacher_forced: PerToken
    """bool, trained tokens that the policy did not choose; part of `mask`. Their `logp_old` is the trainer's own."""
    problem: PerRow
    """int64, rows with equal values answer the same problem, in whatever step or run."""
    on_policy: PerRow
    """bool, sampled in this step."""
    task: PerRow
    """int64, rows with equal values come from the same source of the data."""
    scored: PerRow
    """bool, the row enters group and batch statistics."""
    in_loss: PerRow
    """bool, the row enters the loss and its denominator."""
    correct: PerRow
    """float32, 1 where the verifier said right, 0 where wrong or unscored; frozen, never shaped."""
    raw_reward: PerRow
    """float32, the verifier's score before shaping."""
    length: PerRow
    """float32, tokens the policy chose in the row."""
    truncated: PerRow
    """bool, the row ended at the token limit."""
    max_tokens: PerRow
    """float32, the token limit the row was sampled under."""
    step: int
    """Optimizer-step index, from 0."""
    total_steps: int
    """Steps of the whole run, for schedules."""
    logp_start: PerToken | None = None
    """float32, the trainer's own number before the first update; differs from the sampler's by engine."""
    logp_sampler: PerToken | None = None
    """float32, what the sampler reported, where `rlvr.old_logp: trainer` puts the trainer's number into `logp_old`."""
    turn: PerToken | None = None
    """int64, index of the turn that produced the token, -1 outside turns."""
    turn_reward: PerTurn | None = None
    """float32, reward paid at the end of each turn, 0 past the last one."""
    turn_state: PerTurn | None = None
    """int64, equal values mean the policy saw the same state; -1 past the last turn."""
    logp_ref: PerToken | None = None
    """float32, log-probability under the frozen reference policy."""
    value: PerToken | None = None
    """float32, critic estimate before the token is chosen."""
    node: PerToken | None = None
    """int64, tree node that produced the token; rows that share a prefix share its nodes, groups never do."""
    mc_value: PerToken | None = None
    """float32, mean score of fresh continuations from before the token, NaN where none was drawn."""
    hidden_stats: Numbers | None = None
    """float32, statistics of each row's hidden states, as `column_options` asks for them (`HiddenStatistics`)."""
    token_penalty: PerToken | None = None
    """float32, what a divergence in the reward charges each token; `reward` is the row's with their sum taken off."""
    loss_share: PerToken | None = None
    """float32, how much of a token the loss and its denominators count: 1, or 0 where a method left it out, or 1 / k where
    k rows hold copies of it that count as one. 0 outside `mask`."""
    entropy_old: PerToken | None = None
    """float32, nats, entropy of the sampling distribution at the token, detached."""


MADE_LATER = ("advantage", "weight", "logp", "entropy", "entropy_top_p", "update")
"""Columns that exist only after a slot or the forward pass made them: `advantage` [B, T] float32,
`weight` [B, T] float32 from reduce, `logp` [B, T] float32 with gradient, `entropy` [B, T] float32 with gradient,
`entropy_top_p` [B, T] the same over the most probable tokens only (how much of the mass, `column_options` says),
`update` [B] int64: rows above 0 train in further updates behind the step's own."""
COLUMNS = frozenset([f.name for f in fields(Batch)]) | frozenset(MADE_LATER)
