"""Which of a user's pairs a latent is inferred from, and their hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.engine.distribution import generator
from pipelines.engine.user_latent import UserLatent, draw, kl
from pipelines.reward_model.pack import Tokens


@dataclass(frozen=True, eq=False)
class Context:
    """What the latents of P pairs are inferred from."""

    hidden: Tensor
    """Of the context pairs' answers, float32 [P, N, 2, width], without gradient."""
    present: Tensor
    """Which of them there are, bool [P, N]."""
    noise: Tensor
    """float32 [P, size]; 0 where the posterior's mean is wanted."""

    def of(self, places: Sequence[int]) -> Context:
        """That of some of the pairs."""
        rows = list(places)
        return Context(self.hidden[rows], self.present[rows], self.noise[rows])

    def to(self, device: torch.device) -> Context:
        """The same on a device."""
        return Context(self.hidden.to(device), self.present.to(device), self.noise.to(device))

    def latents(self, encoder: UserLatent) -> tuple[Tensor, Tensor]:
        """z [P, size] and the KL of its posterior [P], with gradient to the encoder."""
        mean, log_variance = encoder.posterior(self.hidden, self.present)
        return draw(mean, log_variance, self.noise) * self.present.any(1, keepdim=True), kl(mean, log_variance)


class UserPairs:
    """The pairs by their users.

    A pair's context is drawn from the training pairs of its user, never itself; of a user without training pairs from their other
    held-out ones.

    Args:
        count: pairs of a context, at most.
        embed: pairs → hidden states [P, 2, width] at the ends of their answers, without gradient.
    """

    def __init__(
        self,
        train: Sequence[Tokens],
        heldout: Sequence[Tokens],
        *,
        count: int,
        seed: int,
        embed: Callable[[list[Tokens]], Tensor],
    ) -> None:
        self.count, self.seed, self.embed = count, seed, embed
        self.of_user: dict[str, list[Tokens]] = {}
        for pair in train:
            if pair.pair.user is not None:
                self.of_user.setdefault(pair.pair.user, []).append(pair)
        self.trained = sorted(self.of_user)
        """Users with training pairs."""
        for pair in heldout:
            if pair.pair.user is not None and pair.pair.user not in self.trained:
                self.of_user.setdefault(pair.pair.user, []).append(pair)

    def context(self, batch: Sequence[Tokens], size: int, *, step: int | None) -> Context:
        """Contexts of the batch's pairs.

        Args:
            size: of the latent.
            step: of training, whose draws these are; None for the posterior's mean and always the same pairs.
        """
        users = [each.pair.user if each.pair.user in self.of_user else None for each in batch]
        draws = {user: self._order(user, step) for user in users if user is not None}
        chosen = [
            [] if user is None else [pair for pair in draws[user] if pair is not each][: self.count]
            for each, user in zip(batch, users, strict=True)
        ]
        noise = torch.zeros(len(batch), size)
        if step is not None:
            noise = torch.randn(len(batch), size, generator=self._generator(step, "noise"))
        return self._embedded(chosen, noise)

    def of_users(self, size: int) -> Context:
        """A context of each trained user, without noise."""
        return self._embedded(
            [self._order(user, None)[: self.count] for user in self.trained], torch.zeros(len(self.trained), size)
        )

    def _order(self, user: str, step: int | None) -> list[Tokens]:
        """The first pairs of the user in an order of the step, one more than a context has: a pair is not in its own."""
        pairs = self.of_user[user]
        positions = torch.randperm(len(pairs), generator=self._generator(-1 if step is None else step, user))
        return [pairs[position] for position in positions[: self.count + 1].tolist()]

    def _generator(self, step: int, name: str) -> torch.Generator:
        return generator(torch.device("cpu"), self.seed, step, f"users {name}")

    def _embedded(self, chosen: list[list[Tokens]], noise: Tensor) -> Context:
        index: dict[int, int] = {}
        distinct: list[Tokens] = []
        for pair in (pair for pairs in chosen for pair in pairs):
            if id(pair) not in index:
                index[id(pair)] = len(distinct)
                distinct.append(pair)
        width = max(1, *(len(pairs) for pairs in chosen), 1)
        positions = torch.zeros(len(chosen), width, dtype=torch.int64)
        present = torch.zeros(len(chosen), width, dtype=torch.bool)
        for row, pairs in enumerate(chosen):
            present[row, : len(pairs)] = True
            positions[row, : len(pairs)] = torch.tensor([index[id(pair)] for pair in pairs], dtype=torch.int64)
        hidden = self.embed(distinct) if distinct else self.embed([])
        if not distinct:
            hidden = hidden.new_zeros(1, *hidden.shape[1:])
        return Context(hidden[positions], present, noise)
