"""The gold answer and the worked solution of a raw row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pipelines.curate import conversation
from pipelines.curate.cells import Cells, missing
from pipelines.curate.offered import without_filled
from pipelines.curate.values import RowError, normalise, plain, scalar_text, text_of
from pipelines.data.records import Message
from pipelines.recipe.settings import Source

OUTPUT = "output"
"""Alpaca's column of answers, which verifiers can compare with in some data sets and which is only to be learned in others."""
ANSWERS = ("answer", "ground_truth", "target", "final_answer", "expected_answer", "label", OUTPUT, "Answer", "answers")
SOLUTIONS = ("solution", "completion", "response", "rationale", "generated_solution", "Solution")
CHATS = ("completion", "response", OUTPUT)
"""Columns of answers to be learned, of rows that need no gold answer; so is the last message of a conversation."""
WITHOUT = ("instructions", "staged")
"""Verifiers that need no answer."""
LISTS = ("overlap", "grades", "retrieval", "tool_calls", "verdicts")
"""Verifiers whose answers are JSON lists."""
NO_ANSWER = "the row has no answer"
"""Reason of a row that is none for want of an answer."""
_BOXED = re.compile(r"\\boxed\s*\{")
_GSM8K = "####"


@dataclass(slots=True)
class Gold:
    """What a row says is correct."""

    answer: str = ""
    """Empty where it only has an answer to be learned."""
    solution: str | None = None
    turns: tuple[Message, ...] = ()
    """Of a solution of several messages those before the last."""
    mark: float | None = None
    """What the solution's message says that it counts in training."""
    verifier: str | None = None
    """The one that the answer's form asks for."""
    needs_none: bool = False
    """The verifier reads nothing of an answer."""
    doubtful: bool = False
    """The answer may be none: it is only to be learned where it does not verify itself."""


def read(row: Cells, source: Source, last: conversation.Talk, verifier: str | None, *, answered: bool = True) -> Gold:
    """Gold answer and worked solution.

    Args:
        last: the assistant's messages at the end of the row's conversation.
        verifier: that the source or the row names.
        answered: the source's rows have answers, so that one without is none; else it is a prompt alone, or one with a solution.

    Raises:
        RowError: there is no answer, or several of which none is said to count.
    """
    gold = solution(row, source, last)
    column = row.column(source, "answer", ANSWERS)
    value, reward_model = row.pick(source, "answer", ANSWERS), row.get("reward_model")
    if value is None and isinstance(reward_model, dict):
        value = reward_model.get("ground_truth")
        row.use("reward_model")
        row.drop("reward_model", (k for k in reward_model if k not in ("ground_truth", "style")))
    if value is None and gold.solution is not None:
        value = boxed(gold.solution)
        needs_none = _is_chat(row, last) or not answered
        if value is None and needs_none and may_lack_answer(row, source, verifier):
            if not gold.solution.strip():
                raise RowError("answer", NO_ANSWER, "the assistant's last message, or the completion, is empty")
            return gold
    text, gold.verifier = _text(value, row, verifier)
    if column == OUTPUT and gold.solution is None and "answer" not in source.columns:
        gold.solution, gold.doubtful = text, verifier is None
    if not text and verifier in WITHOUT:
        gold.needs_none = True
        return gold
    if not text and not answered and may_lack_answer(row, source, verifier):
        return gold
    if not text:
        raise RowError("answer", NO_ANSWER, _lack(row, source, verifier))
    _split(gold, text, source, isinstance(value, str))
    if (calls := conversation.call_texts(gold.answer)) and "tool_calls" in (verifier, gold.verifier):
        gold.solution = gold.solution or calls
    return gold


def _split(gold: Gold, text: str, source: Source, is_text: bool) -> None:
    """Take the answer out of a text that also holds its working."""
    how, working = source.answer_from, gold.solution
    worked = text.split(_GSM8K, 1)[1].strip() if _GSM8K in text else ""
    if how == "gsm8k" or (how is None and is_text and worked):
        if not worked:
            raise RowError("answer", "no '#### value' line (answer_from: gsm8k)")
        working, text, gold.doubtful = working or text, worked.replace(",", "").strip(), False
    elif how == "boxed" or (how is None and _BOXED.search(text)):
        inner = boxed(text)
        if inner is None:
            raise RowError("answer", r"no \boxed{} (answer_from: boxed)")
        working, text, gold.doubtful = working or text, inner, False
    if not text:
        raise RowError("answer", NO_ANSWER, "nothing is left of it")
    gold.answer, gold.solution = text, normalise(working) if working is not None else None


def _is_chat(row: Cells, last: conversation.Talk) -> bool:
    """Whether the row has an answer of the kind that is only to be learned."""
    return bool(last.messages) or any(not missing(row.get(name)) for name in CHATS)


def may_lack_answer(row: Cells, source: Source, verifier: str | None, columns: tuple[str, ...] = ANSWERS) -> bool:
    """Whether nothing asks for a gold answer: no verifier is named, and no column that could have one."""
    return verifier is None and "answer" not in source.columns and not any(n in row for n in columns if n != OUTPUT)


def _lack(row: Cells, source: Source, verifier: str | None) -> str:
    """What is meant to hold the answer that a row lacks."""
    column = source.columns.get("answer") or next((name for name in ANSWERS if name in row), None)
    if column is not None:
        return f"its column {column!r} is empty"
    if verifier is not None:
        return f"{verifier} compares with one: name its column, `columns: {{answer: COLUMN}}`"
    return f"name its column, `columns: {{answer: COLUMN}}`; it has {', '.join(map(str, row))[:200]}"


def _text(value: Any, row: Cells, verifier: str | None) -> tuple[str, str | None]:
    """An answer as text, and the verifier that its form asks for.

    Raises:
        RowError: several answers, of which nothing says which count, or a value that is no answer.
    """
    if isinstance(value, str) and value.lstrip().startswith("[") and conversation.call_texts(value):
        return normalise(value), "tool_calls"
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # as SQuAD writes them
        row.drop("answers", (key for key in value if key != "text"))
        value = list(dict.fromkeys(each for each in value["text"] if isinstance(each, str)))
    if not isinstance(value, list):
        return "" if value is None else normalise(scalar_text(value, "answer")), None
    values = [each for each in value if each is not None]
    if values and all(conversation.is_call(each) for each in values):
        calls = [{**each, "arguments": without_filled(each["name"], each["arguments"], row)} for each in values]
        return json.dumps(plain(calls, "answer"), ensure_ascii=False), "tool_calls"
    if verifier in LISTS and len(values) > 1:
        return json.dumps(plain(values, "answer"), ensure_ascii=False), None
    texts = list(dict.fromkeys(normalise(scalar_text(each, "answer")) for each in values))
    if len(texts) > 1:
        fix = "`verifier: overlap` with a column `metric` (em) takes a list of which any counts; or name a column with one answer"
        raise RowError("answer", "several answers", fix)
    return texts[0] if texts else "", None


def solution(row: Cells, source: Source, last: conversation.Talk) -> Gold:
    """The worked solution: a column of its own, or the assistant's last message."""
    column = row.column(source, "solution", SOLUTIONS)
    value = row.pick(source, "solution", SOLUTIONS)
    if missing(value):
        if not last.messages:
            return Gold()
        if len(last.messages) > 1:
            row.lost.add("messages: answers before the last one")
        return Gold(solution=last.messages[-1]["content"], mark=last.marks[-1])
    value = conversation.from_json(value)
    if isinstance(value, list):
        if not isinstance(value[-1], dict):
            raise RowError("solution", "not text or messages", "it holds no messages")
        talk = conversation.read(value, "solution", row)
        if talk.messages[-1]["role"] != "assistant":
            raise RowError("solution", "its last message is not the assistant's")
        gold = Gold(solution=talk.messages[-1]["content"], turns=tuple(talk.messages[:-1]), mark=talk.marks[-1])
    else:
        gold = Gold(solution=text_of(value, "solution"))
    if last.messages and last.messages[-1]["content"] != normalise(gold.solution or ""):
        row.lost.add(f"the conversation's last answer (the solution is the column {column})")
    return gold


def boxed(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}`, braces balanced; None where there is none.

    >>> boxed(r"so \boxed{\frac{1}{2}} holds")
    '\\frac{1}{2}'
    """
    openings = list(_BOXED.finditer(text))
    if not openings:
        return None
    depth, start = 1, openings[-1].end()
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
    return None
