"""Answers from masks: each step shows the tokens that the network is surest of (LLaDA's low-confidence remasking)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pipelines.diffusion.network import Logits
from pipelines.diffusion.settings import Unmasking
from pipelines.engine.prompts import Prompts

Step = Callable[[int, Tensor, Tensor], Tensor]
"""(step from 0, tokens int64 [B, G] after it, the same with a guess at every mask) → int64 [B], the row that each goes on from."""


def per_step(masked: Tensor, steps: int) -> Tensor:
    """How many tokens each step shows, as evenly as can be, the first steps more; int64 [B, steps].

    Args:
        masked: bool [B, G], what there is to be shown.

    >>> per_step(torch.tensor([[True] * 7 + [False]]), 3).tolist()
    [[3, 2, 2]]
    """
    number = masked.sum(1, keepdim=True)
    return number // steps + (torch.arange(steps, device=masked.device) < number % steps)


def gumbel(logits: Tensor, noise: Tensor, temperature: float) -> Tensor:
    """Scores whose largest is a draw of the softmax at a temperature: exp(logits) / (-log noise) ^ temperature, float64.

    In float64 as LLaDA has it, since single precision draws likely tokens too often (2409.02908).

    Args:
        logits: [..., V].
        noise: float64 in [0, 1), of the same shape; not read at temperature 0.
    """
    if temperature == 0:
        return logits.double()
    return logits.double().exp() / (-torch.log(noise)) ** temperature


def uniform(draws: Sequence[torch.Generator], *shape: int, device: torch.device) -> Tensor:
    """Uniform numbers of each row's own generator, float64 [B, *shape]: a row draws the same whatever stands beside it."""
    return torch.stack([torch.rand(shape, generator=draw, dtype=torch.float64) for draw in draws]).to(device)


@torch.no_grad()
def unmask(
    logits: Logits,
    prompts: Prompts,
    answers: Tensor,
    mask: int,
    settings: Unmasking,
    draws: Sequence[torch.Generator],
    after_step: Step | None = None,
) -> Tensor:
    """Fill the masks of answers step by step; int64 [B, G]. What is shown from the start stays (inpainting).

    Args:
        answers: int64 [B, G], masks where tokens are wanted.
        mask: id of the mask.
        draws: a generator on the CPU for each row.
        after_step: chooses which rows go on (particles).
    """
    answers, length = answers.clone(), answers.shape[1]
    width = prompts.tokens.shape[1]
    blocks = settings.blocks(length)
    of_block = settings.steps // len(blocks)
    for number, block in enumerate(blocks):
        inside = torch.zeros(length, dtype=torch.bool, device=answers.device)
        inside[block] = True
        shown_now = per_step((answers == mask) & inside, of_block)
        for step in range(of_block):
            open_places = answers == mask
            scores = logits(*prompts.followed_by(answers))[:, width:]
            guess, sureness = _guess(scores, settings, draws)
            filled = torch.where(open_places, guess, answers)
            sureness = sureness.masked_fill(~(open_places & inside), float("-inf"))
            order = sureness.argsort(dim=1, descending=True, stable=True)
            place = torch.empty_like(order).scatter_(
                1, order, torch.arange(length, device=order.device).expand_as(order)
            )
            answers = torch.where(place < shown_now[:, step, None], filled, answers)
            if after_step is not None:
                kept = after_step(number * of_block + step, answers, filled)
                answers, shown_now = answers[kept], shown_now[kept]
    return answers


def _guess(scores: Tensor, settings: Unmasking, draws: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
    """A token for each place, int64 [B, G], and how sure of it the network is (or a random number), float64 [B, G]."""
    noise = scores
    if settings.temperature > 0:
        noise = uniform(draws, *scores.shape[1:], device=scores.device)
    guess = gumbel(scores, noise, settings.temperature).argmax(-1)
    if settings.remasking == "random":
        return guess, uniform(draws, scores.shape[1], device=scores.device)
    return guess, scores.double().softmax(-1).gather(-1, guess.unsqueeze(-1)).squeeze(-1)


def until_end(answers: Tensor, ends: set[int]) -> Tensor:
    """bool [B, G]: the tokens up to the first end token, that token included.

    >>> until_end(torch.tensor([[5, 9, 5, 9], [5, 5, 5, 5]]), {9}).tolist()
    [[True, True, False, False], [True, True, True, True]]
    """
    ended = torch.isin(answers, torch.tensor(sorted(ends), device=answers.device)).long()
    return ended.cumsum(1) - ended == 0
