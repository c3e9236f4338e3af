"""Verifiable problems out of plain text: sentences in order, a masked span, the sentence that follows.

After "SSL4RL: Revisiting Self-supervised Learning as Intrinsic Reward for Visual-Language Reasoning" (2510.16416), whose tasks are made
of images; these are their counterparts for text, and ours. The text is its own gold answer, so nobody labels anything. A curate source
chooses one by `self_supervised`. No preset uses it.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

SENTENCES = 4
"""Sentences of a problem."""
SPAN = 3
"""Words that are masked."""
LEAST_WORDS = 4
"""Shorter sentences are joined to the one before: they fit anywhere."""
LETTERS = "ABCD"
_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z0-9])")

ProblemColumns = dict[str, Any] | None
"""The columns of a problem; None where the passage does not make one."""


def sentences(text: str) -> list[str]:
    """Split where a sentence ends and the next begins with a capital or a digit; short ones go to the one before.

    >>> sentences("The cat sat on it. Really? Yes, it did so. Then it was gone.")
    ['The cat sat on it. Really?', 'Yes, it did so.', 'Then it was gone.']
    """
    parts: list[str] = []
    for part in (" ".join(piece.split()) for piece in _END.split(text)):
        if parts and len(part.split()) < LEAST_WORDS:
            parts[-1] += f" {part}"
        elif part:
            parts.append(part)
    return parts


def _shuffled(passage: list[str], others: list[str], draw: random.Random) -> ProblemColumns:
    del others
    if len(set(passage)) < len(passage):
        return None
    positions = list(range(len(passage)))
    while positions == sorted(positions):
        draw.shuffle(positions)
    shown = "\n".join(f"{LETTERS[i]}. {passage[position]}" for i, position in enumerate(positions))
    order = [LETTERS[positions.index(position)] for position in range(len(passage))]
    question = f"Put these sentences in the order in which they were written. Answer with the letters, separated by commas.\n{shown}"
    return {
        "question": question, "answer": json.dumps(order), "verifier": "overlap", "info": {"metric": "pair_order"},
    }  # fmt: skip


def _masked(passage: list[str], others: list[str], draw: random.Random) -> ProblemColumns:
    words = " ".join(passage).split()
    elsewhere = " ".join(others).split()
    at = draw.randrange(len(words) - SPAN)
    gold = " ".join(words[at : at + SPAN])
    spans = {" ".join(elsewhere[i : i + SPAN]) for i in range(len(elsewhere) - SPAN + 1)} - {gold}
    masked = " ".join([*words[:at], "____", *words[at + SPAN :]])
    return _choice(f"Which words are missing at ____?\n{masked}", gold, spans, draw)


def _followed(passage: list[str], others: list[str], draw: random.Random) -> ProblemColumns:
    *before, gold = passage
    return _choice(f"Which sentence comes next?\n{' '.join(before)}", gold, set(others) - set(passage), draw)


def _choice(question: str, gold: str, distractors: set[str], draw: random.Random) -> ProblemColumns:
    if len(distractors) < len(LETTERS) - 1:
        return None
    options = [gold, *draw.sample(sorted(distractors), len(LETTERS) - 1)]
    draw.shuffle(options)
    shown = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True))
    return {
        "question": f"{question}\nAnswer with a letter.\n{shown}",
        "answer": LETTERS[options.index(gold)],
        "verifier": "choice",
    }


def _problems(name: str, make: Callable[..., ProblemColumns], text: str, seed: int) -> Iterator[dict[str, Any]]:
    """A problem for each passage of `SENTENCES` sentences, in order; what is drawn depends on the seed and on the passage alone."""
    listed = sentences(text)
    for start in range(0, len(listed) - SENTENCES + 1, SENTENCES):
        passage, others = listed[start : start + SENTENCES], listed[:start] + listed[start + SENTENCES :]
        hashed = hashlib.sha256(json.dumps([seed, name, passage]).encode()).digest()
        problem = make(passage, others, random.Random(hashed))
        if problem is not None:
            yield problem


def sentence_order(text: str, seed: int) -> Iterator[dict[str, Any]]:
    """Shuffled sentences; the score is the share of pairs in their right order, and all of them are correct."""
    return _problems("sentence_order", _shuffled, text, seed)


def masked_span(text: str, seed: int) -> Iterator[dict[str, Any]]:
    """Words that are missing, among spans of the same length from elsewhere in the text."""
    return _problems("masked_span", _masked, text, seed)


def next_sentence(text: str, seed: int) -> Iterator[dict[str, Any]]:
    """The sentence that follows, among others of the text."""
    return _problems("next_sentence", _followed, text, seed)
