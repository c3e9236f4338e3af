"""How likely answers are: the masked loss of training, a Monte-Carlo bound, and the one-step estimate of policy gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from pipelines.diffusion.network import Logits
from pipelines.engine.prompts import Prompts

LEAST_NOISE = 1e-3
"""Of the share that is masked, as LLaDA has it: the loss divides by it."""


def noised(answers: Tensor, mask: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Answers with a share of their tokens masked, a share of its own for each row, uniform in (0, 1].

    Args:
        answers: int64 [B, G].
        mask: id of the mask.
        draw: a generator on the CPU.

    Returns:
        int64 [B, G], and the share float32 [B].
    """
    rows, length = answers.shape
    share = (1 - LEAST_NOISE) * torch.rand(rows, generator=draw) + LEAST_NOISE
    masked = torch.rand(rows, length, generator=draw) < share[:, None]
    return torch.where(masked.to(answers.device), mask, answers), share.to(answers.device)


def token_logp(logits: Logits, prompts: Prompts, shown: Tensor, answers: Tensor) -> Tensor:
    """Log-probability in nats of each token of the answers, each by itself, given what is shown of them; float32 [B, G].

    Args:
        shown: int64 [B, G], the answers with masks.
        answers: int64 [B, G].
    """
    values = logits(*prompts.followed_by(shown))[:, prompts.tokens.shape[1] :]
    return -F.cross_entropy(values.transpose(1, 2), answers, reduction="none")


def masked_loss(logits: Logits, prompts: Prompts, answers: Tensor, shown: Tensor, share: Tensor, mask: int) -> Tensor:
    """LLaDA's supervised loss of each row, in nats per token of the answer, float32 [B].

        l = 1/G sum over masked tokens of -log p(token | prompt, what is not masked) / t;   t uniform, tokens masked with chance t

    Its mean over t bounds -log p(answer | prompt) / G from above. The prompt is never masked.

    Args:
        answers: int64 [B, G].
        shown, share: what `noised` made of them.
        mask: id of the mask.
    """
    logp = token_logp(logits, prompts, shown, answers)
    return -(logp * (shown == mask)).sum(1) / share / answers.shape[1]


def counts(rows: int, length: int, draw: torch.Generator) -> Tensor:
    """How many of `length` tokens each of the rows has masked, spread evenly over 1 to `length` from a random start; int64 [rows].

    >>> counts(4, 8, torch.Generator().manual_seed(0)).tolist()
    [5, 7, 1, 3]
    """
    first = torch.randint(1, length + 1, (), generator=draw)
    spread = torch.linspace(float(first), float(first) + (rows - 1) * (length / rows), steps=rows)
    return (spread.round().long() - 1) % length + 1


def partly_masked(answers: Tensor, mask: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Copies of answers int64 [B, G] with `counts` of their tokens masked, and the share that is masked, float32 [B]."""
    rows, length = answers.shape
    number = counts(rows, length, draw)
    masked = torch.arange(length).repeat(rows, 1) < number[:, None]
    masked = torch.stack([row[torch.randperm(length, generator=draw)] for row in masked])
    return torch.where(masked.to(answers.device), mask, answers), (number / length).to(answers.device)


@torch.no_grad()
def bound(logits: Logits, prompts: Prompts, answer: Tensor, mask: int, draw: torch.Generator, samples: int) -> Tensor:
    """A Monte-Carlo estimate of a lower bound on log p(answer | prompt) in nats, float32 [].

    LLaDA's estimator: a number of tokens is masked instead of each with a chance, which has less variance; numbers are spread evenly over
    the samples.

    Args:
        prompts: one.
        answer: int64 [G].
    """
    answers = answer.expand(samples, -1)
    several = prompts.rows(torch.zeros(samples, dtype=torch.long, device=answer.device))
    shown, share = partly_masked(answers, mask, draw)
    logp = token_logp(logits, several, shown, answers)
    return ((logp * (shown == mask)).sum(1) / share).mean()


def partly_shown(prompts: Prompts, mask: int, chance: float, draw: torch.Generator) -> Prompts:
    """Prompts with each token masked with a chance, as diffu-GRPO shows them to its one-step estimate (2504.12216)."""
    masked = torch.rand(prompts.tokens.shape, generator=draw).to(prompts.tokens.device) < chance
    return Prompts(torch.where(masked & prompts.attended, mask, prompts.tokens), prompts.attended)


def one_step(logits: Logits, prompts: Prompts, answers: Tensor, mask: int) -> tuple[Tensor, Tensor]:
    """diffu-GRPO's estimate of each token's log-probability, all of the answer masked, and the entropy there; float32 [B, G] each.

    The entropy has no gradient.
    """
    shown = torch.full_like(answers, mask)
    log_probs = logits(*prompts.followed_by(shown))[:, prompts.tokens.shape[1] :].log_softmax(-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs.masked_fill(log_probs == float("-inf"), 0.0)).sum(-1)
    return log_probs.gather(-1, answers.unsqueeze(-1)).squeeze(-1), entropy
