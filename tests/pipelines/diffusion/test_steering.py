"""Particles: the better go on, nothing happens between choices, and equal scores change no distribution."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.diffusion.sampler import unmask
from pipelines.diffusion.settings import Steering, Unmasking
from pipelines.diffusion.steering import Particles
from pipelines.engine.prompts import Prompts

CPU = torch.device("cpu")


def written(official, tables, particles, count, seed):
    prompts, mask = Prompts.of([[0, 3]] * count, 0, CPU), official["mask"]
    draws = [torch.Generator().manual_seed(1000 * seed + number) for number in range(count)]
    return unmask(tables, prompts, torch.full((count, 4), mask), mask, Unmasking(steps=4), draws, particles.choose)


@pytest.mark.parametrize("potential", ["difference", "max", "sum"])
def test_many_particles_tilt_the_distribution_by_the_score(official, tables, potential):
    """The mean score is that of draws without a choice, weighed by exp(weight score)."""

    def score(answers):
        return (answers == 0).double().mean(1).tolist()

    never = Particles(Steering(particles=2000), 100, score, torch.Generator())
    never.choose = lambda step, answers, guesses: torch.arange(len(answers))
    plain = torch.tensor(score(written(official, tables, never, 2000, 1)), dtype=torch.float64)
    weights = (2 * plain).exp()
    expected = float((weights * plain).sum() / weights.sum())
    settings = Steering(particles=2000, potential=potential, weight=2, every=1)
    steered = score(written(official, tables, Particles(settings, 4, score, torch.Generator().manual_seed(0)), 2000, 2))
    assert sum(steered) / 2000 == pytest.approx(expected, abs=0.03)
    assert expected > float(plain.mean()) + 0.03


def test_between_choices_every_particle_goes_on_from_itself():
    calls = []

    def score(answers):
        calls.append(len(answers))
        return [math.nan, 1.0, 0.0]

    particles = Particles(Steering(particles=3, every=2, weight=1000.0), 4, score, torch.Generator().manual_seed(0))
    answers = torch.zeros(3, 2, dtype=torch.long)
    assert particles.choose(0, answers, answers).tolist() == [0, 1, 2] and calls == []
    assert particles.choose(1, answers, answers).tolist() == [1, 1, 1]
    assert particles.choose(2, answers, answers).tolist() == [0, 1, 2] and calls == [3]
    assert particles.choose(3, answers, answers).tolist() == [1, 1, 1] and particles.scores == [1.0, 1.0, 1.0]
