r"""Mathematical equality through math-verify: fractions, sets, intervals, units of LaTeX.

The library is given the marked answer alone, its own time limits (signals) are off, and what cannot be read in reasonable
time is refused before: deep nesting, towers of powers, large factorials, binomials and bounds.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, correct_or_incorrect, number
from pipelines.verifiers._marked import marked, stated

for _name in ("parser", "grader"):  # warns that the limits are off, which they are on purpose
    logging.getLogger(f"math_verify.{_name}").setLevel(logging.CRITICAL)

TAIL = 4000
"""Characters of a completion without marks that are searched, from its end."""
MAX_ANSWER = 2000
"""Characters of an answer; a longer one is not parsed, which takes the parser seconds."""
MAX_PARENTHESES, MAX_BRACES = 8, 16
"""Deeper ones take the parser seconds."""

_BIG = r"(?:\d[\d,]{4,}|\d{1,10}\s?(?:\^|\*\*)|\d{1,10}\s?\\cdot|10\s?\\times)"
_HEAVY = re.compile(
    r"(?:\^|\*\*)\s?\{?\s?\(?-?\d[\d,]{4,}"  # an exponent of five digits
    r"|\d\s?\}?\s?(?:\^|\*\*)\s?[{(]?\s?-?\d{1,9}\s?(?:\^|\*\*)\s?[{(]?\s?-?\d{1,9}\s?(?:\^|\*\*)"  # three powers
    r"|\d\s?(?:\^|\*\*)\s?[{(]?\s?-?\d{2,9}\s?(?:\^|\*\*)\s?[{(]?\s?\d"  # 10^{10^{...}}
    r"|\d\s?(?:\^|\*\*)\s?[{(]?\s?[4-9]\s?(?:\^|\*\*)\s?[{(]?\s?(?:[6-9]|\d\d)"
    r"|\d{4,}\s?\}?\)?\s?!|!\s?[)}]{0,4}\s?!|!\s?[)}]{0,4}\s?(?:\^|\*\*)\s?\{?\d{3}"  # 5000!, (5!)!
    r"|(?:\^|\*\*)\s?\{?\s?\(?\s?\d{1,9}\s?!"  # 2^{50!}
    r"|binom\s?\{\s?" + _BIG + r"|\{\s?" + _BIG + r"[^{}]{0,20}\\choose"
    r"|\\(?:sum|prod)[^$]{0,60}\^\s?\{?\s?" + _BIG + r"|\d{1500,}"
)
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad|[\u00a0\u2007\u2009\u202f]|~")
_UNIT = re.compile(r"(?<=[\d}])\s?\\(?:text|mathrm|textrm|mbox)\s?\{\s?[^{}\d]{0,40}\}(?:\^\s?\{?-?\d\}?)?$")
_WORD_UNIT = re.compile(r"(?<=\d)\s[A-Za-z]{2,20}(?:\s[A-Za-z]{2,20}){0,2}(?:\^\{?\d\}?)?$")
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf)\s?\{([^{}]*)\}")
_BASE = re.compile(r"([0-9A-Fa-f]{1,200})\s?_\s?\{?\s?(?:\\text\s?\{)?\s?(\d{1,2})\s?\}{0,2}")
_RELATION = r"\s?(<=|<|\\leq?(?![a-z])|≤)\s?"
_CHAIN = re.compile(rf"([^<≤=,]{{1,60}}?){_RELATION}[a-zA-Z]{_RELATION}([^<≤=,]{{1,60}})")


def heavy(text: str) -> bool:
    r"""Whether an expression would take the parser too long; linear in the text.

    >>> heavy(r"10^{10^{10}}"), heavy(r"\binom{10^9}{5\cdot10^8}"), heavy("50!!"), heavy(r"2^{2^{5}} + \frac{n!}{3!}")
    (True, True, True, False)
    """
    depth, braces = 0, 0
    for character in text:
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "{":
            braces += 1
        elif character == "}":
            braces -= 1
        if depth > MAX_PARENTHESES or braces > MAX_BRACES:
            return True
    return _HEAVY.search(text.replace("\\left", "").replace("\\right", "")) is not None


def candidate(completion: str) -> str:
    """The text that is taken for the answer: what is marked, the line after "the answer is", or the completion's end."""
    inner = marked(completion)
    if inner is not None:
        return inner
    tail = completion[-TAIL:]
    statement = stated(tail)
    return statement if statement is not None and len(statement) <= MAX_ANSWER else tail.strip()


def tidy(text: str) -> str:
    r"""Without spacing, dollar signs around it, a final point and a unit behind a number.

    >>> tidy(r"$12\,000 \text{ cm}^2$."), tidy(r"\text{5 cm}"), tidy("1 234 567")
    ('12000', '5', '1234567')
    """
    text = _SPACING.sub(" ", text.strip().rstrip(".").strip())
    if len(text) > 1 and text[0] == text[-1] == "$" and "$" not in text[1:-1].replace("\\$", ""):
        text = text[1:-1].strip().rstrip(".")
    text_match = _TEXT.fullmatch(text)
    if text_match and text_match[1][:1].isdigit():
        text = text_match[1]
    text = _WORD_UNIT.sub("", _UNIT.sub("", text)).strip()
    if re.fullmatch(r"-?\d{1,3}(?: \d{3})+(?:\.\d+)?", text):
        text = text.replace(" ", "")
    chain = _CHAIN.fullmatch(text)
    if chain:
        opening, closing = "(" if chain[2] == "<" else "[", ")" if chain[3] == "<" else "]"
        text = f"{opening}{chain[1].strip()}, {chain[4].strip()}{closing}"
    return text


def known(completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """Verdicts that need no parser: plain numbers, texts that are equal, and what is refused; None for the others."""
    gold = tidy(candidate(answer)) if marked(answer) is not None else tidy(answer)
    if heavy(gold) or len(gold) > MAX_ANSWER:
        return Verdict(None, "verifier_failed", {"error/AnswerTooLarge": 1.0})
    parsed = tidy(candidate(completion))
    if not parsed:
        return UNPARSABLE
    if parsed == gold:
        return correct_or_incorrect(True)
    gold_base, base = _BASE.fullmatch(gold), _BASE.fullmatch(parsed)
    if gold_base and (base or parsed == gold_base[1]):
        return correct_or_incorrect(base is None or base.groups() == gold_base.groups())
    if base and number.exact(gold) is not None:
        return correct_or_incorrect(gold == base[1])
    gold_value, value = number.exact(gold), number.exact(parsed)
    if gold_value is not None and value is not None:
        return correct_or_incorrect(number.equal(gold_value, value))
    if gold_value is not None and number.alternatives(completion[-TAIL:]):
        return correct_or_incorrect(False)
    if heavy(parsed) or _too_long(completion, parsed):
        return UNPARSABLE
    if _is_set(gold) != _is_set(parsed) and (_is_set(gold) or _is_set(parsed)):
        other = parsed if _is_set(gold) else gold
        if other[:1] in "([" or "," not in other:
            return correct_or_incorrect(False)
    return None


def _too_long(completion: str, parsed: str) -> bool:
    """Whether the marked answer is; what is not marked has been cut already."""
    return len(parsed) > MAX_ANSWER and marked(completion) is not None


def _is_set(text: str) -> bool:
    text = text.replace("\\left", "").replace("\\right", "")
    return text.startswith("\\{") and text.endswith("\\}")


_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    if "$" in text or "\\boxed" in text or len(_WORDS.findall(text)) > 1:
        return tuple(parse(text, parsing_timeout=None))
    return tuple(parse(f"${text}$", parsing_timeout=None) or parse(text, parsing_timeout=None))


def _parsed_answer(completion: str) -> tuple[Any, ...]:
    """The completion's expression; a word without any mark is prose, not a product of letters."""
    text = tidy(candidate(completion))
    if marked(completion) is None and _WORDS.search(text) and not re.search(r"[$\\\d]", text):
        return ()
    return _parsed(text)


def extract_answer(completion: str) -> str:
    """The last marked or final expression, as the parser writes it."""
    text = tidy(candidate(completion))
    if not text or heavy(text) or _too_long(completion, text):
        return ""
    if number.exact(text) is not None:
        return number.extract_answer(text)
    parsed = _parsed_answer(completion)
    return str(parsed[0]) if parsed else ""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The marked (`<answer>`, `\\boxed{}`, `####`) or final expression of the completion equals the answer.

    Raises:
        ValueError: the gold answer cannot be parsed.
    """
    verdict = known(completion, answer, info)
    if verdict is not None:
        return verdict
    from math_verify import verify as equal

    gold = _parsed(tidy(candidate(answer)) if marked(answer) is not None else tidy(answer))
    if not gold:
        raise ValueError(f"the answer {answer[:80]!r} is not a mathematical expression")
    parsed = _parsed_answer(completion)
    if not parsed:
        return UNPARSABLE
    return correct_or_incorrect(bool(equal(list(gold), list(parsed), timeout_seconds=None)))


def warm(detail: str) -> None:
    """Import the parser and build its patterns."""
    verify("$\\frac{x}{2}$", "x", {})
