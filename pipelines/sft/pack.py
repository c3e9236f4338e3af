"""Conversations to token rows: rendered once, masked to the assistant's tokens, packed best-fit."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.data.chat import render_answer, render_with_tools
from pipelines.data.records import Problem, common_length
from pipelines.engine.layout import Layout, best_fit, packed_layouts
from pipelines.errors import DataError, ModelError


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation."""

    tokens: list[int]
    trained_from: int
    """Tokens from here on are the assistant's; those before carry no loss."""
    untrained: tuple[tuple[int, int], ...] = ()
    """(start, end) of what others said after that, which carries no loss either."""
    weight: float = 1.0
    """Of each of its trained tokens in the loss and its denominator."""

    @property
    def trained_count(self) -> int:
        """Tokens with loss."""
        return len(self.tokens) - max(1, self.trained_from) - self.untrained_count

    @property
    def untrained_count(self) -> int:
        """Tokens in `untrained`."""
        return sum(end - start for start, end in self.untrained)


def target(problem: Problem, which: str) -> str:
    """The assistant's text: the solution, or the answer.

    Raises:
        DataError: the record has no solution and the recipe asks for it.
    """
    solution = problem.info.get("solution")
    if which == "solution" and not solution:
        raise DataError(
            f"sft.target: record {problem.uid} ({problem.source}) has no solution; use target: auto or answer."
        )
    return str(solution) if solution and which != "answer" else problem.answer


def weight(problem: Problem, by_source: dict[str, float], field: str | None) -> float:
    """What the record's tokens count: its source's weight times the number in a field of its info.

    Raises:
        DataError: the field is missing, or holds no number from 0.
    """
    own = 1.0 if field is None else problem.info.get(field)
    if isinstance(own, bool) or not isinstance(own, int | float) or not (math.isfinite(own) and own >= 0):
        raise DataError(
            f"sft.weight_from: record {problem.uid} ({problem.source}) has {own!r:.60} in info.{field}; a number from 0 is wanted. "
            "Name a field that every record of the split has."
        )
    return by_source.get(problem.source, 1.0) * own


def document(problem: Problem, which: str, tokenizer: Any, turns: str = "last") -> Document:
    """Token ids of a conversation, the assistant's turn last.

    Args:
        turns: `last`, or `all` to train the assistant's earlier turns too.

    Raises:
        ModelError: the template renders the prompt differently once the answer follows it.
    """
    tokens, start = render_answer(tokenizer, problem.prompt, target(problem, which), problem.uid, problem.tools)
    earlier = [i for i, m in enumerate(problem.prompt) if m["role"] == "assistant"] if turns == "all" else []
    spans = [_turn(problem, i, tokens, tokenizer) for i in earlier] + [(start, len(tokens))]
    gaps = tuple((end, begin) for (_, end), (begin, _) in pairwise(spans))
    return Document(tokens, spans[0][0], gaps)


def _turn(problem: Problem, index: int, tokens: list[int], tokenizer: Any) -> tuple[int, int]:
    """Where an earlier message of the assistant is in the conversation, its end token included.

    Raises:
        ModelError: the template renders it differently once others follow it.
    """
    before, earlier_text = problem.prompt[:index], problem.prompt[index]["content"]
    own, start = render_answer(tokenizer, before, earlier_text, problem.uid, problem.tools)
    end = common_length([own, tokens])
    text = tokenizer.decode(own[start:end]).strip()
    if end <= start or not text.startswith(earlier_text.strip()):
        raise ModelError(
            f"sft.turns: the template writes an earlier answer of record {problem.uid} differently once others follow it, so "
            "it cannot be trained. Use turns: last."
        )
    return start, end


def check_assistant_mask(problem: Problem, which: str, tokenizer: Any) -> bool:
    """Compare our mask with the template's own `{% generation %}` mask; False where the template marks none.

    Raises:
        ModelError: they differ in a way that would train on the prompt or drop answer tokens.
    """
    if not re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)):
        return False
    messages = [*problem.prompt, {"role": "assistant", "content": target(problem, which)}]
    rendered = tokenizer.apply_chat_template(
        messages, return_assistant_tokens_mask=True, return_dict=True, tokenize=True, tools=problem.tools
    )
    conversation = document(problem, which, tokenizer)
    own_mask = [0] * conversation.trained_from + [1] * (len(conversation.tokens) - conversation.trained_from)
    template_mask = list(rendered["assistant_masks"])
    prompt_text = render_with_tools(tokenizer, problem.prompt, problem.tools, generation_prompt=False)
    bare = tokenizer(prompt_text, add_special_tokens=False)["input_ids"]
    header = common_length([tuple(bare), tuple(conversation.tokens[: conversation.trained_from])])
    template_mask[header : conversation.trained_from] = [0] * (
        conversation.trained_from - header
    )  # the turn's own header
    if any(m["role"] == "assistant" for m in problem.prompt):  # earlier turns are context: only the last is trained
        template_mask[: conversation.trained_from] = [0] * conversation.trained_from
    if len(own_mask) != len(template_mask) or any(t and not o for o, t in zip(own_mask, template_mask, strict=True)):
        raise ModelError(
            f"model.chat_template: the template's assistant mask disagrees with the prompt's length on record {problem.uid}."
        )
    return True


WINDOW = 4096
"""Documents packed together; shuffled before, so that rows do not sort the data by length."""


def epoch_rows(documents: list[Document], size: int, packing: bool, seed: int, epoch: int) -> list[list[int]]:
    """Rows of document indices for one pass over the data, in an order that depends on seed and epoch only."""
    draw = random.Random(f"{seed} {epoch}")
    order = list(range(len(documents)))
    draw.shuffle(order)
    rows: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        part = order[start : start + WINDOW]
        if packing:
            bins = best_fit([len(documents[i].tokens) for i in part], size)
            rows += [[part[i] for i in members] for members in bins]
        else:
            rows += [[i] for i in part]
    draw.shuffle(rows)
    return rows


def token_weights(documents: list[Document], rows: list[list[int]]) -> Tensor:
    """Weight of each token of the rows' documents, float32, where `micro_batches` says which with `layout.target`."""
    members = sorted({i for row in rows for i in row})
    return torch.tensor([w for i in members for w in [documents[i].weight] * len(documents[i].tokens)])


def micro_batches(documents: list[Document], rows: list[list[int]], budget: int) -> Iterator[tuple[Layout, Tensor]]:
    """Forward passes over packed rows, about `budget` tokens each: the layout, and the ids of its scored tokens, int64 [M]."""
    members = sorted({i for row in rows for i in row})
    position_of = {i: at for at, i in enumerate(members)}
    tokens = [np.array(documents[i].tokens) for i in members]
    mask = [np.arange(len(documents[i].tokens)) >= max(1, documents[i].trained_from) for i in members]
    for trained, i in zip(mask, members, strict=True):
        for start, end in documents[i].untrained:
            trained[start:end] = False
    all_tokens = torch.from_numpy(np.concatenate(tokens))
    for layout in packed_layouts(tokens, mask, [[position_of[i] for i in row] for row in rows], budget):
        yield layout, all_tokens[layout.target]
