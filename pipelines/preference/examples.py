"""Pairs and labelled answers as token ids: the rows of a split, and which of them are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.data import chat, dataset
from pipelines.data.pair_records import Labelled, Pair, labelled_of, pair_of
from pipelines.data.pairs import SHARE, has_pair
from pipelines.data.records import Problem

Tools = list[dict[str, Any]] | None
GOLD = "gold_logp"
"""The column of a loss that reads the record's solution beside the two answers."""
OTHER_PROMPTS = 1000
"""Answers that are looked at, at most, for one to another prompt."""


@dataclass
class Examples:
    """A split. Letters: R answers (rows), N items: pairs, or single answers."""

    tokens: list[list[int]] = field(default_factory=list)
    """R: prompt and answer."""
    start: list[int] = field(default_factory=list)
    """R: the place of the answer's first token, at least 1."""
    items: list[tuple[int, ...]] = field(default_factory=list)
    """N: its answers, (chosen, rejected), with the solution behind them where the loss reads it, or one."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """Column → float32 or bool [N]: scores, margin, labels; of pairs also the share that preferred the chosen answer, NaN where unknown."""
    unrelated: list[int] = field(default_factory=list)
    """N, where the loss reads `kl`: the row with the item's prompt and the answer to another one."""

    def __len__(self) -> int:
        return len(self.items)

    def length(self, row: int) -> int:
        """Tokens of an answer."""
        return len(self.tokens[row]) - self.start[row]

    def size(self, item: int) -> int:
        """Tokens of an item's forward pass at least: its answers after one prompt."""
        rows = self.items[item]
        return self.start[rows[0]] + sum(self.length(row) for row in rows)

    def add(self, tokens: list[int], start: int) -> int:
        """One more row; its number."""
        self.tokens.append(tokens)
        self.start.append(max(1, start))
        return len(self.tokens) - 1


@dataclass(frozen=True, eq=False)
class Answers:
    """Some rows of a split, for a forward pass."""

    tokens: Tensor
    """int64 [B, T], padded on the right."""
    mask: Tensor
    """bool [B, T], the answers' tokens."""

    @classmethod
    def of(cls, examples: Examples, rows: Sequence[int], pad: int) -> Answers:
        """The rows of these numbers."""
        width = max(len(examples.tokens[row]) for row in rows)
        tokens = torch.full((len(rows), width), pad, dtype=torch.int64)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for place, row in enumerate(rows):
            ids = examples.tokens[row]
            tokens[place, : len(ids)] = torch.tensor(ids)
            mask[place, examples.start[row] : len(ids)] = True
        return cls(tokens, mask)


@dataclass
class Reader:
    """Reads splits of a curated folder.

    Args:
        labels: items are single answers with a label; of a pair, the chosen one is desirable.
        wanted: columns that the loss reads.
        system: put in front of every prompt.
        loss: its name, for messages.
    """

    tokenizer: Any
    max_length: int
    labels: bool
    wanted: Sequence[str]
    system: str | None
    loss: str
    progress: Callable[[int, int, str], None]
    event: Callable[..., None]

    def read(self, data: Path, split: str) -> Examples:
        """The split's examples, those with too long or empty answers left out.

        Raises:
            DataError: no such split, a record that holds no pair (or label), one without a score that the loss reads, or nothing fits.
            ModelError: the template renders the prompt differently once the answer follows it.
        """
        problems = dataset.read_split(data, split)
        examples, left_out = Examples(), 0
        columns: dict[str, list[float]] = {}
        for index, problem in enumerate(problems):
            self.progress(index + 1, len(problems), f"tokenising {split}")
            if self.labels and not has_pair(problem):
                left_out += not self._add_labelled(examples, columns, labelled_of(problem), problem.tools)
            else:
                gold = gold_of(problem, self.loss) if GOLD in self.wanted else None
                left_out += not self._add_pair(examples, columns, pair_of(problem), problem.tools, gold)
        if left_out:
            self.event(
                "left out: longer than preference.max_length, or an answer without tokens", split=split, rows=left_out
            )
        if not examples.items:
            raise DataError(
                "preference.max_length",
                f"all {len(problems)} rows of {split} have a prompt and answer of more than {self.max_length} tokens",
                "Raise it, or curate shorter ones.",
            )
        examples.values = {
            name: torch.tensor(value, dtype=torch.bool if name == "desirable" else torch.float32)
            for name, value in columns.items()
        }
        if "kl" in self.wanted:
            self._add_unrelated(examples, split)
        return examples

    def _row(
        self, about: Pair | Labelled, answer: str, tools: Tools, cut: bool = False
    ) -> tuple[list[int], int] | None:
        """Token ids and the answer's place; None where it does not fit."""
        messages = chat.with_system_prompt(about.prompt, self.system)
        tokens, start = chat.render_answer(self.tokenizer, messages, answer, about.uid, tools, ended=not cut)
        return (tokens, start) if max(1, start) < len(tokens) <= self.max_length else None

    def _add_pair(
        self, examples: Examples, columns: dict[str, list[float]], pair: Pair, tools: Tools, gold: str | None
    ) -> bool:
        if pair.part is not None:
            raise DataError(
                "preference.data",
                f"record {pair.uid} is a pair of parts of episodes (info.{pair.part}), and a preference loss compares two answers to one "
                "prompt",
                "Train a stage of kind reward_model on such pairs, or curate whole answers (select: pairs).",
            )
        rows = [
            self._row(pair, pair.chosen, tools, pair.chosen_cut),
            self._row(pair, pair.rejected, tools, pair.rejected_cut),
            *([] if gold is None else [self._row(pair, gold, tools)]),
        ]
        if None in rows:
            return False
        row_numbers = tuple(examples.add(*row) for row in rows if row is not None)
        if self.labels:
            examples.items += [(number,) for number in row_numbers]
            columns.setdefault("desirable", []).extend((True, False))
            return True
        examples.items.append(row_numbers)
        columns.setdefault("margin", []).append(pair.score_margin or 0.0)
        columns.setdefault(SHARE, []).append(math.nan if pair.chosen_share is None else pair.chosen_share)
        for name in ("chosen_score", "rejected_score"):
            score = getattr(pair, name)
            if score is None and name in self.wanted:
                raise DataError(
                    "preference.loss",
                    f"{self.loss} reads {name}, and record {pair.uid} has none",
                    "Curate pairs with the columns chosen_score and rejected_score, or choose a loss without scores.",
                )
            columns.setdefault(name, []).append(0.0 if score is None else score)
        return True

    def _add_labelled(
        self, examples: Examples, columns: dict[str, list[float]], labelled: Labelled, tools: Tools
    ) -> bool:
        row = self._row(labelled, labelled.completion, tools)
        if row is None:
            return False
        examples.items.append((examples.add(*row),))
        columns.setdefault("desirable", []).append(labelled.desirable)
        return True

    def _add_unrelated(self, examples: Examples, split: str) -> None:
        """For each item a row of its prompt with the answer of the item before it that has another prompt.

        Items are taken desirable ones first, as where TRL makes them of pairs, so that the answers are those that are trained.

        Raises:
            DataError: there is one prompt only.
        """
        order = sorted(range(len(examples)), key=lambda item: not bool(examples.values["desirable"][item]))
        rows = [examples.items[item][0] for item in order]
        prompts = [examples.tokens[row][: examples.start[row]] for row in rows]
        unrelated = [0] * len(order)
        for place, item in enumerate(order):
            for back in range(1, min(len(order), OTHER_PROMPTS)):
                if prompts[place - back] != prompts[place]:
                    break
            else:
                raise DataError(
                    "preference.loss",
                    f"{self.loss} compares with answers to other prompts, and {split} has none beside that of {OTHER_PROMPTS} rows in a "
                    "row",
                    "Use data with more prompts, shuffled.",
                )
            other = rows[place - back]
            answer = examples.tokens[other][examples.start[other] :]
            tokens = [*prompts[place], *answer][: self.max_length]
            unrelated[item] = examples.add(tokens, len(prompts[place]))
        examples.unrelated = unrelated


def gold_of(problem: Problem, loss: str) -> str:
    """The record's solution, or its answer where it has none.

    Raises:
        DataError: it has neither.
    """
    gold = problem.info.get("solution") or problem.answer
    if not gold:
        raise DataError(
            "preference.loss",
            f"{loss} reads a solution beside the two answers, and record {problem.uid} ({problem.source}) has none",
            "Curate pairs with a column answer (or columns: {answer: COLUMN}), or choose a loss of two answers.",
        )
    return str(gold)


def passes(examples: Examples, items: Sequence[int], budget: int) -> list[list[int]]:
    """Items by the forward pass that they go through, of similar size together, at most about `budget` tokens each."""
    parts: list[list[int]] = []
    tokens = 0
    for item in sorted(items, key=lambda item: (-examples.size(item), item)):
        size = examples.size(item)
        if not parts or tokens + size > budget:
            parts.append([])
            tokens = 0
        parts[-1].append(item)
        tokens += size
    return parts
