"""The network of a reward model in training: a causal LM with scalar heads, and what a pass through it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pipelines.contract.sampling import Sampling
from pipelines.engine.answers import Answers
from pipelines.engine.layout import Layout
from pipelines.engine.models import autocast
from pipelines.engine.policy import Policy, hidden_states
from pipelines.engine.user_latent import UserLatent

Read = TypeVar("Read")
Latents = Callable[[UserLatent], tuple[Tensor, Tensor]]
"""The encoder of users → z of each row, float32 [B, size], and the KL of each posterior, [P]."""


class Scored(NamedTuple):
    """What passes say of B rows; on the CPU, with gradient."""

    rewards: Tensor
    """float32 [B, heads]."""
    logps: Tensor | None = None
    """Log-probabilities (nats) of the rows' answers, [B], where they are asked for."""
    divergence: Tensor | None = None
    """KL of the posterior of each user that rewards depend on, [P]."""
    cosine: Tensor | None = None
    """Between the weights of the first two heads, a scalar; None where there is one head."""


@dataclass(frozen=True, eq=False)
class Places:
    """Tokens within rows at which rewards are read, laid out as tokens that are scored."""

    tokens: Tensor
    """int64 [B, T + 1], padded on the right."""
    mask: Tensor
    """bool [B, T + 1]: a layout's scored token is predicted by the place before it, which is the one that is read."""

    @classmethod
    def of(cls, tokens: Tensor, places: Tensor) -> Places:
        """From token ids, int64 [B, T], and the tokens that are read, bool [B, T]; at least one in each row."""
        read_before = torch.nn.functional.pad(places, (1, 0))
        return cls(torch.nn.functional.pad(tokens, (0, 1)), read_before)


class RewardNetwork(torch.nn.Module):
    """A causal LM, or a peft wrapper of one, with scalar heads over its last hidden state.

    The heads start from the family's own initial distribution, by `seed`. Weights that neither the heads nor the text loss need are
    frozen.

    Args:
        model: its language head stays, for losses on text.
        heads: how many.
        text: whether the language head is trained.
        dtype: as in `Policy`; the heads compute in float32.
        users: size of a latent per user and of its MLPs, where scores depend on one.
    """

    def __init__(
        self,
        model: Any,
        heads: int,
        *,
        seed: int,
        text: bool,
        dtype: str = "float32",
        users: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        policy = Policy(model, Sampling(), dtype=dtype)
        self._policy = [policy]  # in a list: not a sub-module
        width = policy.head.in_features
        spread = getattr(policy.config, "initializer_range", 0.02)
        draw = torch.Generator().manual_seed(seed)
        self.heads = torch.nn.Linear(width, heads, bias=False)
        with torch.no_grad():
            self.heads.weight.copy_(torch.randn(heads, width, generator=draw) * spread)
        self.heads.to(policy.device)
        self.users = None if users is None else UserLatent(width, *users, seed=seed).to(policy.device)
        tied = policy.head.weight is policy.causal.get_input_embeddings().weight
        if not text and not tied:
            policy.head.requires_grad_(False)

    @property
    def policy(self) -> Policy:
        """The language model's side."""
        return self._policy[0]

    def forward(self, layout: Layout, read: Callable[[Tensor], Read]) -> Read:
        """What `read` makes of the hidden states before the layout's scored tokens, [M, width].

        Whatever reads weights of this module does so in here: several processes have them whole during a pass only.
        """
        policy = self.policy
        with autocast(policy.dtype, policy.device):
            hidden = hidden_states(policy.decoder, layout, policy.device, policy.mask_form)
        return read(hidden)

    def check_head(self) -> None:
        """See `Policy.check_head`."""
        self.policy.check_head()

    def read_ends(
        self, answers: Answers, layouts: Iterable[Layout], *, text: bool = False, users: Latents | None = None
    ) -> Scored:
        """Rewards of all rows, float32 [B, heads], by layouts of all of them, a pass each; on the CPU, gradients flow.

        Args:
            text: with the log-probabilities (nats) of the rows' answers, [B].
            users: whose latents the rows' rewards depend on.
        """
        count = len(answers.tokens)
        rewards = torch.zeros(count, self.heads.out_features)
        logps = torch.zeros(count) if text else None
        divergence = cosine = None
        for layout in layouts:
            row, last = answers.where(layout)
            chosen = answers.tokens.flatten()[layout.target[~last]]
            scored: Scored = self(layout, self._reader(row, last, chosen if text else None, users))
            rewards = rewards.index_put((row[last],), scored.rewards, accumulate=True)
            if logps is not None and scored.logps is not None:
                logps = logps.index_add(0, row[~last], scored.logps)
            divergence, cosine = scored.divergence, scored.cosine
        return Scored(rewards, logps, divergence, cosine)

    def _reader(
        self, row: Tensor, last: Tensor, chosen: Tensor | None, users: Latents | None
    ) -> Callable[[Tensor], Scored]:
        """What is read in one pass: rewards at the answers' ends, and the log-probabilities of the chosen tokens."""

        def read(hidden: Tensor) -> Scored:
            ends, divergence, cosine = hidden[last].float(), None, None
            values = self.heads(ends)
            if users is not None and self.users is not None:
                latents, divergence = users(self.users)
                values = values + self.users.gain(ends, latents[row[last]].to(ends.device))[:, None]
                divergence = divergence.cpu()
            logp = None if chosen is None else self.policy.score_hidden(hidden[~last], chosen)[0].cpu()
            if self.heads.out_features > 1:
                first, second = self.heads.weight[:2]
                cosine = torch.nn.functional.cosine_similarity(first, second, dim=0).cpu()
            return Scored(values.cpu(), logp, divergence, cosine)

        return read

    def read_places(self, rows: Places, layouts: Iterable[Layout]) -> Tensor:
        """Rewards at the places of all rows, float32 [M, heads], row by row, by layouts of all of them; on the CPU, gradients flow."""
        number = rows.mask.flatten().cumsum(0) - 1
        rewards = torch.zeros(int(rows.mask.sum()), self.heads.out_features)
        for layout in layouts:
            values: Tensor = self(layout, lambda hidden: self.heads(hidden.float()).cpu())
            rewards = rewards.index_put((number[layout.target],), values, accumulate=True)
        return rewards

    @torch.no_grad()
    def ends(self, answers: Answers, layouts: Iterable[Layout]) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows, int64 [M], and the hidden states at their ends, float32 [M, width] on the CPU, a pass at a time."""
        for layout in layouts:
            row, last = answers.where(layout)
            hidden: Tensor = self(layout, lambda states: states)
            yield row[last], hidden[last].float().cpu()
