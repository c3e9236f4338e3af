"""How much of an answer a completion has, by a metric that the row chooses in `info["metric"]`.

em, f1, rouge_l compare texts (after SQuAD's normalisation); sub_em asks whether the answer is in a short text; iou, set_f1
compare sets, ndcg and pair_order ranked lists. A JSON list as the answer is a choice of texts for the first four, and the
items for the others. Correct from `info["threshold"]` (default 1) on.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from pipelines.verifiers._marked import marked, stated
from pipelines.verifiers.verdict import UNPARSABLE, Verdict

MOST_WORDS = 2000
SPARE_WORDS = 8
"""`sub_em`: a text may have so many words more than twice those of the answer."""
_PUNCTUATION = re.compile(r"[^\w\s]|_")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation; without articles, unless there is nothing else.

    >>> words("The  cat's, hat!")
    ['cats', 'hat']
    """
    plain = _PUNCTUATION.sub("", text.lower())
    return _ARTICLES.sub(" ", plain).split() or plain.split()


def em(expected: list[str], predicted: list[str]) -> float:
    """Equal words."""
    return float(expected == predicted)


def sub_em(expected: list[str], predicted: list[str]) -> float:
    """The answer's words in a row, in a text that is not much longer."""
    count = len(expected)
    if not count or len(predicted) > 2 * count + SPARE_WORDS:
        return 0.0
    return float(any(predicted[at : at + count] == expected for at in range(len(predicted) - count + 1)))


def f1(expected: list[str], predicted: list[str]) -> float:
    """Words in common, as SQuAD counts them."""
    return _f1((Counter(expected) & Counter(predicted)).total(), len(expected), len(predicted))


def rouge_l(expected: list[str], predicted: list[str]) -> float:
    """F1 of the longest common subsequence (Lin 2004), by bit-parallel steps (Hyyro 2004).

    >>> rouge_l(["a", "b", "c", "d"], ["a", "c", "x", "d"])
    0.75
    """
    positions: dict[str, int] = {}
    for at, word in enumerate(expected):
        positions[word] = positions.get(word, 0) | 1 << at
    every = (1 << len(expected)) - 1
    row = every
    for word in predicted:
        hit = row & positions.get(word, 0)
        row = ((row + hit) | (row - hit)) & every
    return _f1(len(expected) - row.bit_count(), len(expected), len(predicted))


def iou(expected: list[str], predicted: list[str]) -> float:
    """Items in both over items in either."""
    return len({*expected} & {*predicted}) / len({*expected} | {*predicted}) if expected or predicted else 1.0


def set_f1(expected: list[str], predicted: list[str]) -> float:
    """F1 of two sets."""
    return _f1(len({*expected} & {*predicted}), len({*expected}), len({*predicted}))


def ndcg(expected: list[str], predicted: list[str]) -> float:
    """Discounted gain of the order that is given; the first item of the answer is worth most, repeats and strangers nothing."""
    gains = {item: len(expected) - at for at, item in enumerate(dict.fromkeys(expected))}
    ideal = sum(gain / math.log2(at + 2) for at, gain in enumerate(sorted(gains.values(), reverse=True)))
    seen_items: set[str] = set()
    total = 0.0
    for at, item in enumerate(predicted):
        total += 0.0 if item in seen_items else gains.get(item, 0) / math.log2(at + 2)
        seen_items.add(item)
    return total / ideal if ideal else float(not predicted)


def pair_order(expected: list[str], predicted: list[str]) -> float:
    """The share of pairs in the answer's order; 0 unless the items are the same."""
    if sorted(expected) != sorted(predicted) or len({*expected}) < len(expected):
        return 0.0
    if len(expected) < 2:
        return 1.0
    position = {item: at for at, item in enumerate(predicted)}
    pairs = [(a, b) for i, a in enumerate(expected) for b in expected[i + 1 :]]
    return sum(position[a] < position[b] for a, b in pairs) / len(pairs)


def _f1(common: int, expected: int, predicted: int) -> float:
    return 2 * common / (expected + predicted) if expected + predicted else 1.0


TEXTS: dict[str, Callable[[list[str], list[str]], float]] = {"em": em, "sub_em": sub_em, "f1": f1, "rouge_l": rouge_l}
LISTS: dict[str, Callable[[list[str], list[str]], float]] = {
    "iou": iou, "set_f1": set_f1, "ndcg": ndcg, "pair_order": pair_order,
}  # fmt: skip
MOST_ITEMS = 500


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The metric's value between what the completion marks (or all of it) and the answer.

    Raises:
        ValueError: `info` names no metric that there is, or the answer is empty, or too long.
    """
    metric = str(info.get("metric"))
    if metric not in TEXTS | LISTS:
        raise ValueError(f"metric {metric[:40]!r} is none of {', '.join(TEXTS | LISTS)}")
    threshold = float(info.get("threshold", 1.0))
    if not 0 < threshold <= 1:
        raise ValueError("threshold is over 0 and at most 1")
    text = _answer(completion)
    if metric in TEXTS:
        choices = [words(choice) for choice in _choices(answer)]
        if not choices or not all(choices) or max(map(len, choices)) > MOST_WORDS:
            raise ValueError("the answer is empty or too long")
        predicted = words(text)
        if not predicted or len(predicted) > 4 * MOST_WORDS:
            return UNPARSABLE
        score = max(TEXTS[metric](choice, predicted) for choice in choices)
    else:
        expected, predicted_items = items(answer), items(text)
        if not expected or len(expected) > MOST_ITEMS:
            raise ValueError("the answer has no items, or too many")
        if metric == "pair_order" and len({*expected}) < len(expected):
            raise ValueError("the answer names an item twice, so it has no order of pairs")
        if not predicted_items or len(predicted_items) > 2 * MOST_ITEMS:
            return UNPARSABLE
        score = LISTS[metric](expected, predicted_items)
    return Verdict(score, "correct" if score >= threshold - 1e-9 else "incorrect", {metric: score})


def _answer(completion: str) -> str:
    inner = marked(completion)
    if inner is not None:
        return inner
    statement = stated(completion)
    return statement if statement is not None else completion.strip()


def _choices(answer: str) -> list[str]:
    """Texts of which any will do."""
    if answer.strip().startswith("["):
        try:
            parsed = json.loads(answer)
        except (ValueError, RecursionError):
            return [answer]
        if isinstance(parsed, list) and all(isinstance(item, str | int | float) for item in parsed):
            return [str(item) for item in parsed]
    return [answer]


def items(text: str) -> list[str]:
    """The items of a JSON list, of lines, or of a text with commas; in lower case, without white space around them.

    >>> items('["A", 2]'), items("a, b\\n"), items("1. x\\n2. y")
    (['a', '2'], ['a', 'b'], ['x', 'y'])
    """
    text = text.strip()
    if text.startswith("["):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, list):
            return [" ".join(str(item).lower().split()) for item in parsed[: 2 * MOST_ITEMS + 1]]
    if "\n" in text:
        parts = [re.sub(r"^\s{0,8}(?:[-*•]|\d{1,4}[.)])\s{1,8}", "", line) for line in text.splitlines()]
    else:
        parts = text.strip("[](){}").split(",")
    return [item for part in parts if (item := " ".join(part.lower().strip(" \t'\"`").split()))]
