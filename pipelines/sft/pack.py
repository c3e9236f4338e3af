"""Conversations and raw texts to token rows: rendered once, masked to what is trained, packed best-fit."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.base.errors import DataError, ModelError
from pipelines.data.chat import render_answer, render_text, stops
from pipelines.data.control import THINK_END, control, decode_text, encode, encode_text
from pipelines.data.records import TURN_WEIGHTS, Problem, common_length
from pipelines.engine.layout import Layout, best_fit, packed_layouts
from pipelines.recipe.spans import Span
from pipelines.sft.turns import Part, span_parts, turn_parts


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation, or a part of a raw text."""

    tokens: list[int]
    trained_from: int
    """Tokens from here on are trained; those before carry no loss."""
    untrained: tuple[tuple[int, int], ...] = ()
    """(start, end) of what others said after that, or of answers that are not to be learned: no loss either."""
    weight: float = 1.0
    """Of each of its trained tokens in the loss and its denominator."""
    factors: tuple[Part, ...] = ()
    """(start, end, factor of the weight) of tokens that weigh differently; where they overlap, the last one."""
    source: str = ""
    """Of its record."""

    @property
    def trained_count(self) -> int:
        """Tokens with loss."""
        return len(self.tokens) - max(1, self.trained_from) - self.untrained_count

    @property
    def untrained_count(self) -> int:
        """Tokens in `untrained`."""
        return sum(end - start for start, end in self.untrained)

    def mask(self) -> np.ndarray:
        """bool [tokens]: those that are trained."""
        trained = np.arange(len(self.tokens)) >= max(1, self.trained_from)
        for start, end in self.untrained:
            trained[start:end] = False
        return trained

    def token_weights(self) -> np.ndarray:
        """float32 [tokens], whatever is trained of them."""
        weights = np.full(len(self.tokens), self.weight, dtype=np.float32)
        for start, end, factor in self.factors:
            weights[start:end] = self.weight * factor
        return weights

    @property
    def trained_weight(self) -> float:
        """Sum of the weights of the trained tokens: what it adds to the loss's denominator."""
        if not self.factors:
            return self.weight * self.trained_count
        return float(self.token_weights()[self.mask()].sum(dtype=np.float64))


def target(problem: Problem, which: str) -> str:
    """The assistant's text: the solution, or the answer.

    Raises:
        DataError: the record has no solution and the recipe asks for it, or nothing at all to be learned.
    """
    solution = problem.info.get("solution")
    if which == "solution" and not solution:
        raise DataError(
            "sft.target", f"record {problem.uid} ({problem.source}) has no solution; use target: auto or answer."
        )
    text = str(solution) if solution and which != "answer" else problem.answer
    if not text:
        lacks = (
            "no answer, only a solution; use target: auto"
            if solution
            else "neither solution nor answer; send it to another split"
        )
        raise DataError(
            "sft.target",
            f"record {problem.uid} ({problem.source}) has {lacks}. The model would learn to say nothing.",
        )
    return text


def weight(problem: Problem, by_source: dict[str, float], field: str | None) -> float:
    """What the record's tokens count: its source's weight times the number in a field of its info.

    Raises:
        DataError: the field is missing, or holds no number from 0.
    """
    own = 1.0 if field is None else problem.info.get(field)
    if isinstance(own, bool) or not isinstance(own, int | float) or not (math.isfinite(own) and own >= 0):
        raise DataError(
            "sft.weight_from",
            f"record {problem.uid} ({problem.source}) has {own!r:.60} in info.{field}; a number from 0 is wanted",
            "Name a field that every record of the split has.",
        )
    return by_source.get(problem.source, 1.0) * own


def document(problem: Problem, which: str, tokenizer: Any, turns: str = "last", spans: Sequence[Span] = ()) -> Document:
    """Token ids of a conversation, the assistant's turn last.

    Args:
        turns: `last`, `all` to train the assistant's earlier turns too, or `marked` to train those that the record does not mark.
        spans: parts of the trained turns that weigh differently.

    Raises:
        DataError: the record marks more or fewer turns than it has, or has reasoning where the prompt says that there is none.
        ModelError: the template renders the prompt differently once the answer follows it.
    """
    text = target(problem, which)
    tokens, start = render_answer(tokenizer, problem.prompt, text, problem.uid, problem.tools)
    if THINK_END in text and decode_text(tokenizer, tokens[max(0, start - 8) : start]).rstrip().endswith(THINK_END):
        raise DataError(
            "sft.target",
            f"record {problem.uid} ({problem.source}) has reasoning, and the chat template ends every prompt with a closed think block",
            "Leave enable_thinking: false out of model.chat_template_kwargs, or the reasoning out of the data.",
        )
    earlier = [] if turns == "last" else [i for i, m in enumerate(problem.prompt) if m["role"] == "assistant"]
    places = [_turn(problem, i, tokens, tokenizer) for i in earlier] + [(start, len(tokens))]
    marks = problem.info.get(TURN_WEIGHTS) if turns == "marked" else None
    if marks is not None and len(marks) != len(places):
        raise DataError(
            "sft.turns",
            f"record {problem.uid} ({problem.source}) has {len(places)} messages of the assistant and info.{TURN_WEIGHTS} {len(marks)} "
            "weights",
            "Curate it again.",
        )
    trained_from, untrained, parts = turn_parts(places, marks or [1.0] * len(places), len(tokens))
    factors = [part for place in parts for part in span_parts(place, spans, tokens, tokenizer)]
    return Document(tokens, trained_from, untrained, factors=tuple(factors), source=problem.source)


def _turn(problem: Problem, index: int, tokens: list[int], tokenizer: Any) -> tuple[int, int]:
    """Where an earlier message of the assistant is in the conversation, its end token included.

    Raises:
        ModelError: the template renders it differently once others follow it.
    """
    before, earlier_text = problem.prompt[:index], problem.prompt[index]["content"]
    own, start = render_answer(tokenizer, before, earlier_text, problem.uid, problem.tools)
    end = common_length([own, tokens])
    text = tokenizer.decode(own[start:end]).strip()
    if end > start and not stops(tokenizer) & set(own[start:end]):
        raise ModelError(
            "sft.turns",
            "the template writes no end token after earlier answers, so a model would learn not to end them",
            "Use turns: last.",
        )
    if end <= start or not text.startswith(earlier_text.strip()):
        raise ModelError(
            "sft.turns",
            f"the template writes an earlier answer of record {problem.uid} differently once others follow it, so it cannot be trained",
            "Use turns: last.",
        )
    return start, end


def text_documents(problem: Problem, tokenizer: Any, size: int) -> list[Document]:
    """A raw text with its end token, all of it trained, in parts of at most `size` tokens that share none.

    Special tokens that the tokenizer puts around a text (a begin token in many families) are there once, as in pre-training.
    """
    text = str(problem.raw_text)
    # A control token that the text spells stays text; what the tokenizer puts around it is that of any other text.
    spelled = control(tokenizer).spelled.search(text)
    tokens = _around(tokenizer, encode_text(tokenizer, text)) if spelled else list(tokenizer(text)["input_ids"])
    if tokenizer.eos_token_id is not None and tokens[-1:] != [tokenizer.eos_token_id]:
        tokens.append(tokenizer.eos_token_id)
    parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return [Document(part, 0, source=problem.source) for part in parts if len(part) > 1]


def _around(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Token ids between those that the tokenizer puts around a text."""
    framed, bare = (list(tokenizer("a", add_special_tokens=added)["input_ids"]) for added in (True, False))
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
    return framed[:start] + tokens + framed[start + len(bare) :]


def check_assistant_mask(problem: Problem, which: str, tokenizer: Any) -> bool:
    """Compare our mask with the template's own `{% generation %}` mask; False where the template marks none.

    Raises:
        ModelError: they differ in a way that would train on the prompt or drop answer tokens.
    """
    if not re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)):
        return False
    messages = [*problem.prompt, {"role": "assistant", "content": target(problem, which)}]
    conversation = document(problem, which, tokenizer)
    rendered = tokenizer.apply_chat_template(
        messages, return_assistant_tokens_mask=True, return_dict=True, tokenize=True, tools=problem.tools
    )
    # A part that the template has no place for is written otherwise.
    if list(rendered["input_ids"]) != conversation.tokens:
        return False
    own_mask = [0] * conversation.trained_from + [1] * (len(conversation.tokens) - conversation.trained_from)
    template_mask = list(rendered["assistant_masks"])
    (bare,) = encode(tokenizer, [render_text(tokenizer, problem.prompt, problem.tools, generation_prompt=False)])
    header = common_length([tuple(bare), tuple(conversation.tokens[: conversation.trained_from])])
    # the turn's own header
    template_mask[header : conversation.trained_from] = [0] * (conversation.trained_from - header)
    if any(m["role"] == "assistant" for m in problem.prompt):  # earlier turns are context: only the last is trained
        template_mask[: conversation.trained_from] = [0] * conversation.trained_from
    if len(own_mask) != len(template_mask) or any(t and not o for o, t in zip(own_mask, template_mask, strict=True)):
        raise ModelError(
            "model.chat_template",
            f"the template's assistant mask disagrees with the prompt's length on record {problem.uid}.",
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
    members = sorted(i for row in rows for i in row)  # one that a step reads twice is there twice
    return torch.from_numpy(np.concatenate([documents[i].token_weights() for i in members]))


def micro_batches(documents: list[Document], rows: list[list[int]], budget: int) -> Iterator[tuple[Layout, Tensor]]:
    """Forward passes over the rows' documents, about `budget` tokens each: the layout, and the ids of its scored tokens, int64 [M].

    Where a row has several documents, all are packed anew for these passes: rows say what a step trains on, not its layout.
    """
    members = sorted(i for row in rows for i in row)  # one that a step reads twice is there twice
    tokens = [np.array(documents[i].tokens) for i in members]
    mask = [documents[i].mask() for i in members]
    all_tokens = torch.from_numpy(np.concatenate(tokens))
    for layout in packed_layouts(tokens, mask, budget, packing=any(len(row) > 1 for row in rows)):
        yield layout, all_tokens[layout.target]
