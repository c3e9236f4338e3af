"""Pairs as token ids, and the columns of some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.data.chat import render_answer, with_system_prompt
from pipelines.data.pairs import Pair
from pipelines.engine.reward_model import Answers


@dataclass(frozen=True, slots=True)
class Tokens:
    """A pair's two conversations."""

    pair: Pair
    chosen: list[int]
    rejected: list[int]
    start: int
    """Index of the answers' first token."""

    @property
    def size(self) -> int:
        """Tokens of both."""
        return len(self.chosen) + len(self.rejected)

    @property
    def longest(self) -> int:
        """Tokens of the longer one."""
        return max(len(self.chosen), len(self.rejected))

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the two answers."""
        return len(self.chosen) - self.start, len(self.rejected) - self.start


def tokens_of(pair: Pair, tokenizer: Any, system: str | None, tools: list[dict[str, Any]] | None = None) -> Tokens:
    """Render a pair.

    Args:
        system: what the model that is started from was trained with.
        tools: that the prompt offers.

    Raises:
        ModelError: the template renders the prompt differently once an answer follows it.
    """
    prompt = with_system_prompt(pair.prompt, system)
    chosen, start = render_answer(tokenizer, prompt, pair.chosen, pair.uid, tools, ended=not pair.chosen_cut)
    rejected, _ = render_answer(tokenizer, prompt, pair.rejected, pair.uid, tools, ended=not pair.rejected_cut)
    return Tokens(pair, chosen, rejected, start)


def chunks(pairs: Sequence[Tokens], budget: int) -> Iterator[list[int]]:
    """Indices of pairs whose passes are computed together, at most `budget` tokens (one pair at least), in order."""
    part: list[int] = []
    size = 0
    for i, pair in enumerate(pairs):
        if part and size + pair.size > budget:
            yield part
            part, size = [], 0
        part.append(i)
        size += pair.size
    if part:
        yield part


def answers(pairs: Sequence[Tokens], pad: int) -> Answers:
    """The chosen answers, then the rejected ones."""
    rows = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    return Answers.of(rows, [pair.start for pair in pairs] * 2, pad)


def data_columns(pairs: Sequence[Tokens], indices: Sequence[int]) -> dict[str, Tensor]:
    """The columns that the data give, of some pairs.

    Args:
        indices: places of the pairs in the split.
    """
    chosen, rejected = zip(*(pair.lengths for pair in pairs), strict=True)
    margins = [pair.pair.score_margin for pair in pairs]
    return {
        "pair": torch.tensor(list(indices)),
        "chosen_length": torch.tensor(chosen, dtype=torch.float32),
        "rejected_length": torch.tensor(rejected, dtype=torch.float32),
        "margin": torch.tensor([margin or 0.0 for margin in margins]),
    }
