"""Multiple choice as data sets write it: MMLU's index, MMLU-Pro's letter, ARC's labels, MedQA's letters as keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from pipelines.curate.cells import Cells, missing
from pipelines.curate.values import RowError, normalise, parse_json, scalar_text

COLUMNS = ("choices", "options", "endings")
ANSWERS = ("answer", "answerKey", "answer_index", "answer_idx", "label", "target", "correct", "Answer")
"""Columns that say which choice is correct; where several do, they must agree."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKED = re.compile(r"\(?([A-Za-z])[).:]\s*(\S.*)", re.S)


@dataclass(frozen=True, slots=True)
class Choices:
    """What a row lets choose from."""

    column: str
    labels: list[str]
    """What the row calls them; letters where it calls them nothing."""
    texts: list[str]
    numeric: bool
    """Whether the row holds them as numbers."""

    def question(self, text: str) -> str:
        r"""The question with the choices below it, unless it shows them itself.

        >>> Choices("choices", ["0", "1"], ["sun", "moon"], False).question("Larger?")
        'Larger?\nA. sun\nB. moon'
        """
        lines = list(zip(LETTERS, self.texts, strict=False))
        if all(re.search(rf"\b{letter}[).:]\s*{re.escape(choice)}", text) for letter, choice in lines):
            return text
        return "\n".join([text, *(f"{letter}. {choice}" for letter, choice in lines)])

    def place(self, value: Any, column: str) -> int:
        """The place, from 0, of the choice that a cell names: an integer is a place, a text a label, a choice's text or a place.

        Raises:
            RowError: it is none of the choices, or could be two of them.
        """
        label_or_text = normalise(scalar_text(value, column))
        bare = label_or_text.strip("()[].: ").upper()
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        by_label = [i for i, label in enumerate(self.labels) if label.upper() == bare]
        by_text = [i for i, text in enumerate(self.texts) if text == label_or_text and (self.numeric or not is_integer)]
        positions = set(by_label + by_text)
        if bare.isdecimal() and not by_label and len(bare) < 3 and int(bare) < len(self.texts):
            positions.add(int(bare))
        if len(positions) != 1:
            fault = "it could be two of the choices" if positions else "it is none of the choices"
            raise RowError(
                column, fault, f"{label_or_text[:40]!r} of {', '.join(self.labels)[:80]} in the column {self.column!r}"
            )
        return positions.pop()


def _is_choices(value: Any) -> bool:
    return bool(value) and (isinstance(value, list | dict) or (isinstance(value, str) and value.lstrip()[:1] in "[{"))


def read(cells: Cells) -> Choices | None:
    """The choices of a row; None where it has none.

    Raises:
        RowError: what should be choices is none, or there are too many.
    """
    column = next((name for name in COLUMNS if _is_choices(cells.get(name))), None)
    if column is None:
        return _lettered(cells)
    value: Any = parse_json(cells[column], column) if isinstance(cells[column], str) else cells[column]
    labels: list[Any] = []
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        labels, value = value.get("label") or [], value["text"]
    elif isinstance(value, dict):
        value = {key: text for key, text in value.items() if text is not None}  # Arrow fills what other rows have
        labels, value = list(value), list(value.values())
    elif all(isinstance(each, dict) and {"label", "text"} <= each.keys() for each in value):
        labels, value = [each["label"] for each in value], [each["text"] for each in value]
    texts = [normalise(scalar_text(text, column)) for text in value]
    if not labels:
        marked = [_MARKED.fullmatch(text) for text in texts[: len(LETTERS)]]
        if all(match and match[1].upper() == letter for match, letter in zip(marked, LETTERS, strict=False)):
            texts = [match[2] for match in marked if match]
    labels = [normalise(scalar_text(label, column)) for label in labels] or list(LETTERS[: len(texts)])
    if not 1 < len(texts) <= len(LETTERS) or len({*labels}) < len(texts) or len({*texts}) < len(texts):
        raise RowError(column, "not two to twenty-six different choices", f"{len(texts)} texts, {len(labels)} labels")
    cells.use(column)
    numeric = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    return Choices(column, labels, texts, numeric)


def _lettered(cells: Cells) -> Choices | None:
    """Choices in columns of their own, A, B, ... (C-Eval, CMMLU), where a column says one of these letters; None where there are none.

    Raises:
        RowError: two of them are equal.
    """
    labels = list(takewhile(lambda letter: not missing(cells.get(letter)), LETTERS))
    if len(labels) < 2 or not any(str(cells.get(name)).strip().upper() in labels for name in ANSWERS):
        return None
    texts = [normalise(scalar_text(cells[letter], letter)) for letter in labels]
    if len({*texts}) < len(texts):
        raise RowError("A", "not two to twenty-six different choices", f"{len(texts)} texts, {len(labels)} labels")
    for letter in labels:
        cells.use(letter)
    return Choices("A", labels, texts, False)


def correct(cells: Cells, choices: Choices, columns: tuple[str, ...]) -> int | None:
    """The place of the correct choice, from 0; None where none of the columns says it.

    Raises:
        RowError: it is none of the choices, could be two of them, or columns contradict each other.
    """
    positions: dict[int, str] = {}
    for column in columns:
        if missing(cells.get(column)):
            continue
        position = choices.place(cells[column], column)
        if positions and position not in positions:
            raise RowError(
                column, "another choice than the answer's", f"{column} and {next(iter(positions.values()))} differ"
            )
        positions[position] = column
        cells.use(column)
    return next(iter(positions), None)
