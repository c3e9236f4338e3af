"""Pairs as token ids, and the columns of some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipelines.data.chat import end_of_turn, render_answer, render_prompt, with_system_prompt
from pipelines.data.pairs import CRITIQUES, Pair
from pipelines.engine.answers import Answers
from pipelines.engine.critiques import critique_prompt
from pipelines.errors import DataError


@dataclass(frozen=True, slots=True)
class Critiques:
    """Where the critiques of a pair are."""

    starts: tuple[int, int]
    """Index of the first token of the chosen and of the rejected answer's critique."""
    answers: tuple[int, int]
    """Tokens of the two answers."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A pair's two conversations."""

    pair: Pair
    chosen: list[int]
    rejected: list[int]
    start: int
    """Index of the answers' first token."""
    critiques: Critiques | None = None
    """Where each answer is followed by a critique, with which its conversation ends."""

    @property
    def size(self) -> int:
        """Tokens of both."""
        return len(self.chosen) + len(self.rejected)

    @property
    def longest(self) -> int:
        """Tokens of the longer one."""
        return max(len(self.chosen), len(self.rejected))

    def with_critiques(self, chosen: list[int], rejected: list[int]) -> Tokens:
        """The pair with these tokens behind its two conversations."""
        return replace(self, chosen=[*self.chosen, *chosen], rejected=[*self.rejected, *rejected])

    @property
    def starts(self) -> tuple[int, int]:
        """Index in each conversation of the first token of its last message, an answer or a critique."""
        return (self.start, self.start) if self.critiques is None else self.critiques.starts

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the two answers."""
        if self.critiques is not None:
            return self.critiques.answers
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


def critique_tokens(
    pair: Pair,
    tokenizer: Any,
    system: str | None,
    tools: list[dict[str, Any]] | None,
    instruction: str,
    *,
    written: bool,
) -> Tokens:
    """Render a pair whose answers are each followed by the request for a critique, and by the record's with `written`.

    Neither critique's context holds the other answer. A critique ends with the token that ends a turn, as a sampled one does.

    Raises:
        DataError: `written`, and the pair has no critiques.
        ModelError: as `tokens_of`.
    """
    if written and pair.critiques is None:
        raise DataError(
            f"record {pair.uid} has no critiques (info.{CRITIQUES[0]} and info.{CRITIQUES[1]}). Curate pairs with columns of these "
            "names, or let the starting model write them: reward_model.critique.source: own."
        )
    plain = tokens_of(pair, tokenizer, system, tools)
    prompt = with_system_prompt(pair.prompt, system)
    end = end_of_turn(tokenizer) or tokenizer.eos_token
    sides = []
    for place, text in enumerate((pair.chosen, pair.rejected)):
        ids = render_prompt(tokenizer, critique_prompt(prompt, text, instruction), tools)
        told = pair.critiques[place] + end if written and pair.critiques is not None else ""
        sides.append((ids + tokenizer(told, add_special_tokens=False)["input_ids"], len(ids)))
    (chosen, first), (rejected, second) = sides
    return Tokens(pair, chosen, rejected, plain.start, Critiques((first, second), plain.lengths))


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
    return Answers.of(rows, [pair.starts[side] for side in (0, 1) for pair in pairs], pad)


def data_columns(pairs: Sequence[Tokens], indices: Sequence[int]) -> dict[str, Tensor]:
    """The columns that the data give, of some pairs.

    Args:
        indices: places of the pairs in the split.
    """
    chosen, rejected = zip(*(pair.lengths for pair in pairs), strict=True)
    margins = [pair.pair.score_margin for pair in pairs]
    critiques = [(len(p.chosen) - p.starts[0], len(p.rejected) - p.starts[1]) for p in pairs if p.critiques is not None]
    lengths = torch.tensor(critiques, dtype=torch.float32).reshape(-1, 2).unbind(1)
    return {
        **(
            dict(zip(("chosen_critique_length", "rejected_critique_length"), lengths, strict=True)) if critiques else {}
        ),
        "pair": torch.tensor(list(indices)),
        "chosen_length": torch.tensor(chosen, dtype=torch.float32),
        "rejected_length": torch.tensor(rejected, dtype=torch.float32),
        "margin": torch.tensor([margin or 0.0 for margin in margins]),
    }
