"""FK steering of the sampler (2501.06848): answers to one question are particles, and those with better guesses go on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pipelines.diffusion.settings import Steering
from pipelines.search.particles import Weight, restarted, shares, systematic, weighed


class Particles:
    """The particles of one question; `choose` is what `sampler.unmask` calls after each step.

    Scores on the way are those of the guesses: what the network would write at every mask now. Particles are resampled systematically,
    with less variance than the official code's multinomial draws.

    Args:
        settings: how many, by which potential, how often.
        steps: of the sampler.
        score: answers int64 [K, G] → the score of each; NaN for none.
        point: a generator on the CPU, for which particles go on.
    """

    def __init__(
        self, settings: Steering, steps: int, score: Callable[[Tensor], list[float]], point: torch.Generator
    ) -> None:
        self.settings, self.steps, self.score, self.point = settings, steps, score, point
        self.weights = [Weight() for _ in range(settings.particles)]
        self.scores = [-math.inf] * settings.particles
        """Of the particles as they are, at the last choice; the smallest of all where there is none."""

    def choose(self, step: int, answers: Tensor, guesses: Tensor) -> Tensor:
        """int64 [K], the particle that each goes on from."""
        ended = step + 1 == self.steps
        if not ended and (step + 1) % self.settings.every:
            return torch.arange(len(answers), device=answers.device)
        scores = self.score(guesses)
        potential, weight = self.settings.potential, self.settings.weight
        weighted = [weighed(w, potential, weight, s, ended=ended) for w, s in zip(self.weights, scores, strict=True)]
        point = float(torch.rand((), generator=self.point))
        chosen = systematic(shares([each.log_weight for each in weighted]), point)
        self.weights = [restarted(weighted[i]) for i in chosen]
        self.scores = [-math.inf if math.isnan(scores[i]) else scores[i] for i in chosen]
        return torch.tensor(chosen, device=answers.device)
