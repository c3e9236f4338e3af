"""Conversations to token rows: rendered once, masked to the assistant's tokens, packed best-fit."""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipelines.data.chat import render_prompt
from pipelines.data.records import Problem
from pipelines.engine.policy import packed_attention
from pipelines.errors import DataError, ModelError


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation."""

    tokens: list[int]
    trained_from: int
    """Tokens from here on are the assistant's; those before carry no loss."""


def target(problem: Problem, which: str) -> str:
    """What the assistant should say.

    Raises:
        DataError: the record has no solution and the recipe asks for it.
    """
    solution = problem.info.get("solution")
    if which == "solution" and not solution:
        raise DataError(
            f"sft.target: record {problem.uid} ({problem.source}) has no solution; use target: auto or answer."
        )
    return str(solution) if solution and which != "answer" else problem.answer


def document(problem: Problem, which: str, tokenizer: Any) -> Document:
    """Token ids of a conversation, the assistant's turn last.

    Raises:
        ModelError: the template renders the prompt differently once the answer follows it.
    """
    prompt = render_prompt(tokenizer, problem.prompt)
    messages = [*problem.prompt, {"role": "assistant", "content": target(problem, which)}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokens[: len(prompt)] != prompt:
        raise ModelError(
            f"model.chat_template: the prompt of record {problem.uid} is not a prefix of its conversation, so the loss "
            "could not be limited to the answer. Use a template whose generation prompt starts the assistant's turn."
        )
    return Document(tokens, len(prompt))


def check_assistant_mask(problem: Problem, which: str, tokenizer: Any) -> bool:
    """Compare our mask with the template's own `{% generation %}` mask; False where the template marks none.

    Raises:
        ModelError: they differ in a way that would train on the prompt or drop answer tokens.
    """
    if "generation" not in str(tokenizer.chat_template) or "{% generation" not in str(tokenizer.chat_template):
        return False
    messages = [*problem.prompt, {"role": "assistant", "content": target(problem, which)}]
    made = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True, tokenize=True)
    doc = document(problem, which, tokenizer)
    ours = [0] * doc.trained_from + [1] * (len(doc.tokens) - doc.trained_from)
    theirs = list(made["assistant_masks"])
    if any(m["role"] == "assistant" for m in problem.prompt):  # earlier turns are context: only the last is trained
        theirs[: doc.trained_from] = [0] * doc.trained_from
    if len(ours) != len(theirs) or any(t and not o for o, t in zip(ours, theirs, strict=True)):
        raise ModelError(
            f"model.chat_template: the template's assistant mask disagrees with the prompt's length on record {problem.uid}."
        )
    return True


def best_fit(lengths: list[int], size: int) -> list[list[int]]:
    """Rows of at most `size` tokens: longest first, each into the fullest row that still has room.

    >>> best_fit([5, 3, 4, 2, 2], 8)
    [[0, 1], [2, 3, 4]]
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        at = bisect.bisect_left(room, (lengths[i], -1))
        if at < len(room):
            left, row = room.pop(at)
        else:
            left, row = size, len(rows)
            rows.append([])
        rows[row].append(i)
        bisect.insort(room, (left - lengths[i], row))
    return rows


WINDOW = 4096
"""Documents packed together; shuffled before, so that rows do not sort the data by length."""


def epoch_rows(documents: list[Document], size: int, packing: bool, seed: int, epoch: int) -> list[list[int]]:
    """Rows of document numbers for one pass over the data, in an order that depends on seed and epoch only."""
    draw = random.Random(f"{seed} {epoch}")
    order = list(range(len(documents)))
    draw.shuffle(order)
    rows: list[list[int]] = []
    for start in range(0, len(order), WINDOW):
        part = order[start : start + WINDOW]
        if packing:
            packed = best_fit([len(documents[i].tokens) for i in part], size)
            rows += [[part[i] for i in row] for row in packed]
        else:
            rows += [[i] for i in part]
    draw.shuffle(rows)
    return rows


@dataclass
class Rows:
    """Tensors of a micro-batch."""

    tokens: Tensor
    """int64 [B, T]."""
    mask: Tensor
    """bool [B, T], tokens that carry loss."""
    positions: Tensor
    """int64 [B, T], from 0 in every document."""
    attention: Tensor | None
    """bool [B, 1, T, T], or None where every row is one document."""


def collate(documents: list[Document], rows: list[list[int]], pad: int, device: torch.device) -> Rows:
    """Rows of documents as tensors, as wide as the fullest row."""
    width = max(sum(len(documents[i].tokens) for i in row) for row in rows)
    tokens = torch.full((len(rows), width), pad, dtype=torch.int64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    positions = torch.zeros(len(rows), width, dtype=torch.int64)
    owner = torch.full((len(rows), width), -1, dtype=torch.int64)
    for r, row in enumerate(rows):
        at = 0
        for i in row:
            doc = documents[i]
            n = len(doc.tokens)
            tokens[r, at : at + n] = torch.tensor(doc.tokens)
            mask[r, at + doc.trained_from : at + n] = True
            positions[r, at : at + n] = torch.arange(n)
            owner[r, at : at + n] = i
            at += n
    mask[:, 0] = False
    packed = any(len(row) > 1 for row in rows)
    attention = packed_attention(owner).to(device) if packed else None
    return Rows(tokens.to(device), mask.to(device), positions.to(device), attention)


def micro_batches(documents: list[Document], rows: list[list[int]], budget: int) -> list[list[list[int]]]:
    """Rows of similar length together, each part at most `budget` tokens with its padding (or one row)."""
    widths = [sum(len(documents[i].tokens) for i in row) for row in rows]
    parts: list[list[list[int]]] = []
    widest = 0
    for r in sorted(range(len(rows)), key=lambda r: -widths[r]):
        if not parts or widest * (len(parts[-1]) + 1) > budget:
            parts.append([])
            widest = widths[r]
        parts[-1].append(rows[r])
    return parts
