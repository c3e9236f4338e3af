"""Pairs as token ids, and the columns of some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.data import control
from pipelines.data.chat import end_of_turn, render_answer, render_prompt, with_system_prompt
from pipelines.data.pair_records import Pair
from pipelines.data.pairs import CRITIQUES
from pipelines.engine.answers import Answers
from pipelines.engine.critiques import critique_prompt


class Example(Protocol):
    """What is learned from, as token ids."""

    @property
    def size(self) -> int:
        """Tokens of all its conversations."""

    @property
    def longest(self) -> int:
        """Tokens of its longest conversation."""


@dataclass(frozen=True, slots=True)
class Critiques:
    """Where the critiques of a pair are."""

    starts: tuple[int, int]
    """Index of the first token of the chosen and of the rejected answer's critique."""
    answers: tuple[int, int]
    """Tokens of the two answers."""


Passage = tuple[list[int], int]
"""A conversation that ends with a message of the assistant, and the index of that message's first token."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A pair's two conversations."""

    pair: Pair
    chosen: list[int]
    rejected: list[int]
    start: int
    """Index of the first token of the chosen answer's last message, and of the rejected one's where that has no index of its own."""
    critiques: Critiques | None = None
    """Where each answer is followed by a critique, with which its conversation ends."""
    rejected_start: int | None = None
    earlier: tuple[tuple[Passage, ...], tuple[Passage, ...]] = ((), ())
    """Of answers of several turns, the conversation up to the end of each turn but the last."""

    @property
    def size(self) -> int:
        """Tokens of all conversations."""
        return len(self.chosen) + len(self.rejected) + sum(len(ids) for side in self.earlier for ids, _ in side)

    @property
    def longest(self) -> int:
        """Tokens of the longer one."""
        return max(len(self.chosen), len(self.rejected))

    def with_critiques(self, chosen: list[int], rejected: list[int]) -> Tokens:
        """The pair with these tokens appended to its two conversations."""
        return replace(self, chosen=[*self.chosen, *chosen], rejected=[*self.rejected, *rejected])

    @property
    def starts(self) -> tuple[int, int]:
        """Index in each conversation of the first token of its last message, an answer or a critique."""
        if self.critiques is not None:
            return self.critiques.starts
        return self.start, self.start if self.rejected_start is None else self.rejected_start

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the two answers."""
        if self.critiques is not None:
            return self.critiques.answers
        chosen, rejected = (sum(len(ids) - start for ids, start in side) for side in self.passages)
        return chosen, rejected

    @property
    def passages(self) -> tuple[tuple[Passage, ...], tuple[Passage, ...]]:
        """What is read of the chosen and of the rejected answer: the conversation up to the end of each of its turns."""
        chosen, rejected = self.starts
        return (*self.earlier[0], (self.chosen, chosen)), (*self.earlier[1], (self.rejected, rejected))


def tokens_of(pair: Pair, tokenizer: Any, system: str | None, tools: list[dict[str, Any]] | None = None) -> Tokens:
    """Render a pair; each turn of an answer is a conversation of its own, since a template may drop earlier thoughts.

    Args:
        system: what the model that is started from was trained with.
        tools: that the prompt offers.

    Raises:
        ModelError: the template renders the prompt differently once an answer follows it.
    """
    both = []
    for side in pair.sides:
        spoken = side.spoken()
        both.append(
            [
                render_answer(
                    tokenizer, with_system_prompt(before, system), text, pair.uid, tools,
                    ended=number < len(spoken) or not side.cut,
                )
                for number, (before, text) in enumerate(spoken, 1)
            ]
        )  # fmt: skip
    (*chosen_turns, (chosen, start)), (*rejected_turns, (rejected, other)) = both
    return Tokens(
        pair, chosen, rejected, start, rejected_start=other, earlier=(tuple(chosen_turns), tuple(rejected_turns))
    )


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
        DataError: `written`, and the pair has no critiques; or it is one of parts of episodes.
        ModelError: as `tokens_of`.
    """
    if pair.part is not None:
        raise DataError(
            "reward_model.critique",
            f"record {pair.uid} is a pair of parts of episodes (info.{pair.part}), and a critique is of an answer to a prompt",
            "Leave it out.",
        )
    if written and pair.critiques is None:
        raise DataError(
            "reward_model.critique.source",
            f"record {pair.uid} has no critiques (info.{CRITIQUES[0]} and info.{CRITIQUES[1]})",
            "Curate pairs with columns of these names, or let the starting model write them: source: own.",
        )
    plain = tokens_of(pair, tokenizer, system, tools)
    prompt = with_system_prompt(pair.prompt, system)
    end = end_of_turn(tokenizer) or tokenizer.eos_token
    sides = []
    for place, text in enumerate((pair.chosen, pair.rejected)):
        ids = render_prompt(tokenizer, critique_prompt(prompt, text, instruction), tools)
        told = control.as_text(tokenizer, pair.critiques[place]) + end if written and pair.critiques is not None else ""
        sides.append((ids + control.encode(tokenizer, [told])[0], len(ids)))
    (chosen, first), (rejected, second) = sides
    return Tokens(pair, chosen, rejected, plain.start, Critiques((first, second), plain.lengths))


def chunks(examples: Sequence[Example], budget: int) -> Iterator[list[int]]:
    """Indices of examples whose passes are computed together, at most `budget` tokens (one example at least), in order."""
    part: list[int] = []
    size = 0
    for i, example in enumerate(examples):
        if part and size + example.size > budget:
            yield part
            part, size = [], 0
        part.append(i)
        size += example.size
    if part:
        yield part


def answers(pairs: Sequence[Tokens], pad: int) -> tuple[Answers, Tensor]:
    """The turns of the chosen answers, then those of the rejected ones; and the answer of each, int64, from 0 to 2P - 1."""
    rows = [passage for side in (0, 1) for pair in pairs for passage in pair.passages[side]]
    return Answers.of([ids for ids, _ in rows], [start for _, start in rows], pad), owners(pairs)


def owners(pairs: Sequence[Tokens]) -> Tensor:
    """The answer of each of these rows."""
    sides = [pair.passages[side] for side in (0, 1) for pair in pairs]
    return torch.tensor([number for number, passages in enumerate(sides) for _ in passages])


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
