"""Preference pairs and labelled answers out of raw rows: TRL's forms, UltraFeedback's, transcripts as HH-RLHF has them."""

from __future__ import annotations

import math
from typing import Any

from pipelines.curate import conversation
from pipelines.curate.cells import Cells, missing
from pipelines.curate.values import RowError, kind, normalise, text_of
from pipelines.data import pairs, steps
from pipelines.data.records import Message
from pipelines.recipe.settings import Source

LABEL = "label"
OTHER_NAMES = {
    "chosen_score": ("score_chosen", "chosen_rating"),
    "rejected_score": ("score_rejected", "rejected_rating"),
}
"""What other data sets call the columns of `pairs.VALUES`."""


def read(cells: Cells, source: Source, asked: list[Message]) -> dict[str, Any]:
    """What `info` holds of a row with the columns `chosen` and `rejected`.

    Where they are conversations and no column holds their prompt, what both begin with becomes the column `prompt`. Answers of several
    turns become `chosen_turns` and `rejected_turns`, and of two prompts the second one `rejected_prompt`.

    Args:
        cells: of the row; may get another prompt.
        source: the row's.
        asked: the prompt that a column holds; [] where none does.

    Raises:
        RowError: the two are no pair.
    """
    pair = _answers(cells, asked) | _parts(cells)
    cells.use(*pairs.TEXTS, *pairs.PARTS)
    if pairs.REJECTED_PROMPT in pair and (source.prompt_template or source.system or "system" in source.columns):
        raise RowError(
            pairs.REJECTED_PROMPT, "`system` and `prompt_template` reach one prompt only", "write both prompts in full"
        )
    if pair["chosen"] == pair["rejected"] and not pair.keys() & set(pairs.PARTS):
        raise RowError("rejected", "it is the chosen text", "a pair has two different texts")
    for name in pairs.VALUES:
        column = next((each for each in (name, *OTHER_NAMES.get(name, ())) if not missing(cells.get(each))), None)
        if column is not None:
            pair[name] = _number(cells[column], column)
            cells.use(column)
    if not 0 < pair.get(pairs.SHARE, 1.0) <= 1:
        raise RowError(pairs.SHARE, "not above 0 and at most 1", "four people of five are 0.8")
    for name in pairs.CRITIQUES:
        if not missing(cells.get(name)):
            pair[name] = normalise(conversation.text_of_answer(cells[name], name, cells))
            cells.use(name)
    user = cells.name(pairs.USER)
    return pair if user is None else pair | {pairs.USER: user}


def labelled(cells: Cells) -> dict[str, Any]:
    """What `info` holds of a row with a completion and a label that is true or false (TRL's unpaired preferences), {} for any other."""
    if missing(cells.get(pairs.COMPLETION)) or not isinstance(cells.get(LABEL), bool):
        return {}
    cells.use(pairs.COMPLETION, LABEL)
    text = conversation.text_of_answer(cells.pop(pairs.COMPLETION), pairs.COMPLETION, cells)
    told = {pairs.COMPLETION: text, pairs.DESIRABLE: cells.pop(LABEL)}
    return told | ({"solution": text} if told[pairs.DESIRABLE] else {})


def stepwise(cells: Cells) -> dict[str, Any]:
    """What `info` holds of a file's row with steps and a label for each (TRL's stepwise supervision), {} for any other.

    Raises:
        RowError: a step has no text, or a label is none.
    """
    texts, labels = cells.get("completions"), cells.get("labels")
    if not texts or not labels:
        return {}
    if not isinstance(texts, list) or not isinstance(labels, list) or len(texts) != len(labels):
        raise RowError("labels", "not a label for each step", "completions and labels are lists of the same length")
    told = [normalise(text_of(text, "completions")) for text in texts]
    if "" in told:
        raise RowError("completions", "a step without text", f"step {told.index('') + 1}")
    refused = [label for label in labels if label is not None and not steps.is_label(label)]
    if refused:
        raise RowError("labels", "not from 0 (incorrect) to 1 (correct)", repr(refused[0])[:40])
    cells.use("completions", "labels")
    return {steps.STEPS: told, steps.LABELS: [None if label is None else float(label) for label in labels]}


def _number(value: Any, column: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RowError(column, "not a number", f"it is {kind(value)}") from None
    if not math.isfinite(number):
        raise RowError(column, "not a finite number")
    return number


def _answers(cells: Cells, asked: list[Message]) -> dict[str, Any]:
    """Both answers, with the turns and the other prompt that stand in the same columns; their own prompt goes to the column `prompt`."""
    talks = [_messages(cells, name) for name in pairs.TEXTS]
    chosen, rejected = talks
    if chosen is None or rejected is None:
        return {name: conversation.text_of_answer(cells[name], name, cells) for name in pairs.TEXTS}
    least = min(len(chosen), len(rejected)) - 1  # both have a last message of their own
    shared = next((i for i in range(least) if chosen[i] != rejected[i]), least)
    start = len(asked)
    if asked and not all(talk[:start] == asked for talk in (chosen, rejected)):
        start = 0
        if any(talk[0]["role"] != "assistant" for talk in (chosen, rejected)):
            if asked[-1] not in chosen[:shared]:
                raise RowError("chosen", "it begins with another prompt than the row's")
            start, cells["prompt"] = shared, chosen[:shared]
    elif not asked:
        start = shared
        if any(talk[shared]["role"] != "assistant" for talk in (chosen, rejected)):
            return _with_prompts(cells, chosen, rejected)
        cells["prompt"] = chosen[:shared]
    pair: dict[str, Any] = {}
    for name, turns, talk in zip(pairs.TEXTS, pairs.TURNS, (chosen, rejected), strict=True):
        pair[name] = talk[-1]["content"]
        if talk[start:-1]:
            pair[turns] = _alternating(talk[start:-1], name)
    return pair


def _with_prompts(cells: Cells, chosen: list[Message], rejected: list[Message]) -> dict[str, Any]:
    """Conversations in which not only the assistant's words differ: each is a prompt with its last answer."""
    cells["prompt"] = chosen[:-1]
    other = {} if chosen[:-1] == rejected[:-1] else {pairs.REJECTED_PROMPT: rejected[:-1]}
    return {"chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"], **other}


def _messages(cells: Cells, name: str) -> list[Message] | None:
    """The conversation of a column whose last message is the assistant's; None where it holds one text."""
    value = conversation.from_json(cells[name])
    if isinstance(value, list):
        messages = conversation.read(value, name, cells).messages
    else:
        messages = conversation.transcript(text_of(value, name))
    if messages and messages[-1]["role"] != "assistant":
        raise RowError(name, "its last message is not the assistant's")
    return messages or None


def _alternating(turns: list[Message], name: str) -> list[Message]:
    if not pairs.alternates(turns):
        raise RowError(name, "not turns", "a message of the assistant's, then the reply to it, and so on")
    return turns


def _parts(cells: Cells) -> dict[str, Any]:
    """What columns of its own make a row a pair of parts of episodes, {} for two answers to one prompt."""
    parts: dict[str, Any] = {}
    for name in (each for each in pairs.PARTS if not missing(cells.get(each))):
        value, is_prompt = cells[name], name == pairs.REJECTED_PROMPT
        value = [{"role": "user", "content": value}] if is_prompt and isinstance(value, str) else value
        if not isinstance(value, list):
            raise RowError(name, "not a list of messages", f"it is {kind(value)}")
        talk = conversation.read(value, name, cells)
        if is_prompt:
            talk.closing()
        parts[name] = talk.messages if is_prompt else _alternating(talk.messages, name)
    return parts
