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
from pipelines.verifiers._characters import ascii_forms
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
_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad|[\u00a0\u2007\u2009\u202f]|~")
_NO_UNIT = r"(?!\s?(?:hundred|thousand|million|billion|trillion|dozen|per ?cent|squared|cubed|factorial|or|and|to)\b)"
_UNIT = re.compile(
    rf"(?<=[\d}}i])\s?\\(?:text|mathrm|textrm|mbox)\s?\{{\s?{_NO_UNIT}[^{{}}\d]{{0,40}}\}}(?:\^\s?\{{?-?\d\}}?)?$"
)
_WORD_UNIT = re.compile(rf"(?<=\d)\s{_NO_UNIT}[A-Za-z]{{2,20}}(?:\s[A-Za-z]{{2,20}}){{0,2}}(?:\^\{{?\d\}}?)?$")
_SYMBOLS = str.maketrans(
    {
        "∞": "\\infty ",
        "π": "\\pi ",
        "∅": "\\emptyset ",
        "∪": "\\cup ",
        "∩": "\\cap ",
        "×": "\\times ",
        "·": "\\cdot ",
        "±": "\\pm ",
        "≥": "\\geq ",
    }
)
_RADICAL = re.compile(r"√\s?(?:(\d{1,40}|[a-z])|\(([^()]{1,80})\))")
_BOLD = re.compile(r"(?<![\w)}*])\*\*([^*]{1,200})\*\*(?![\w({*])")
_LISTED = re.compile(r"-?\d{1,20}(?:,-?\d{1,2})+")
"""A gold answer that may be a list or have a decimal comma."""
_INLINE = re.compile(r"(?<!\\)\\\(([^$]{1,400}?)(?<!\\)\\\)")
"""LaTeX's own form of dollar signs."""
_UPRIGHT = re.compile(r"\\(?:mathrm|text)\s?\{([ei])\}")
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf)\s?\{([^{}]*)\}")
_BASE = re.compile(r"([0-9A-Fa-f]{1,200})\s?_\s?\{?\s?(?:\\text\s?\{)?\s?(\d{1,2})\s?\}{0,2}")
_INDEXED = re.compile(
    r"(?<![\^\w.])(\d[\d.,]{0,40})"
    r"((?:\$?\s?\\?_+\s?(?:\d{1,20}|\\?[a-z]{0,10}\s?\{\s?(?:\\text\s?\{)?[^{}]{0,20}\}{1,2})|\\?_+[A-Za-z](?![A-Za-z])){1,5})[\s.,$)}]{0,8}\Z"
)
"""A number with an index at the end of a text: of a base, or of something that is no number."""
_TEN = re.compile(r"\\?_\s?\{?\s?(?:\\text\s?\{)?\s?(?:10|ten)\s?\}{0,2}")
_RELATION = r"\s?(<=|<|\\leq?(?![a-z])|≤)\s?"
_BOUND = r"((?:\\(?:[dt]?frac|sqrt|pi)|[-+\d\s./{}()])+)"
_BELOW = re.compile(rf"[a-zA-Z]{_RELATION}{_BOUND}|{_BOUND}\s?(>=|>|\\geq?(?![a-z])|≥)\s?[a-zA-Z]")
_ABOVE = re.compile(rf"[a-zA-Z]\s?(>=|>|\\geq?(?![a-z])|≥)\s?{_BOUND}|{_BOUND}{_RELATION}[a-zA-Z]")
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
    completion = ascii_forms(completion)
    inner = marked(completion)
    if inner is not None:
        return inner
    tail = completion[-TAIL:]
    statement = stated(tail)
    return statement if statement is not None and len(statement) <= MAX_ANSWER else tail.strip()


def tidy(text: str) -> str:
    r"""Without spacing, dollar signs around it, a final point and a unit after a number.

    >>> tidy(r"$12\,000 \text{ cm}^2$."), tidy(r"\text{5 cm}"), tidy("1 234 567")
    ('12000', '5', '1234567')
    """
    text = ascii_forms(text).replace(",\\!", ",").replace("{,}", ",").replace("\\$", "$")
    text = _INLINE.sub(r"$\1$", _BOLD.sub(r"\1", text))
    text = re.sub(r"\$(?=\d)(?=[^$]*\Z)", "", text)
    text = (
        _RADICAL.sub(lambda m: f"\\sqrt{{{m[1] or m[2]}}}", text)
        .translate(_SYMBOLS)
        .replace("\\varnothing", "\\emptyset")
    )
    text = _UPRIGHT.sub(r"\1", _SPACING.sub(" ", text.strip().rstrip(".").strip()))
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
        return f"{opening}{chain[1].strip()}, {chain[4].strip()}{closing}"
    if below := _BELOW.fullmatch(text):
        return f"(-\\infty, {(below[2] or below[3]).strip()}{')' if (below[1] or below[4]) in '<>' else ']'}"
    if above := _ABOVE.fullmatch(text):
        return f"{'(' if (above[1] or above[4]) in '<>' else '['}{(above[2] or above[3]).strip()}, \\infty)"
    return "\\emptyset" if re.fullmatch(r"\\\{\s?\\\}", text) else text


def known(completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """Verdicts that need no parser: plain numbers, texts that are equal, and what is refused; None for the others."""
    gold = tidy(candidate(answer)) if marked(answer) is not None else tidy(answer)
    if heavy(gold) or len(gold) > MAX_ANSWER:
        return Verdict(None, "verifier_failed", {"error/AnswerTooLarge": 1.0})
    parsed = tidy(candidate(completion))
    if not parsed or _too_long(completion, parsed):
        return UNPARSABLE
    if parsed == gold or (_LISTED.fullmatch(gold) and re.sub(r",\s{1,3}", ",", parsed) == gold):
        return correct_or_incorrect(True)
    if _denied(completion) and not _denied(gold):
        return correct_or_incorrect(False)
    gold_base, base = _BASE.fullmatch(gold), _BASE.fullmatch(parsed)
    if gold_base and (base or parsed == gold_base[1]):
        return correct_or_incorrect(base is None or base.groups() == gold_base.groups())
    gold_value, value = number.exact(gold), number.exact(parsed)
    if gold_value is not None and (indexed := _INDEXED.search(parsed)):
        numeral = number.exact(indexed[1])
        if numeral is not None and number.equal(gold_value, numeral):  # the parser would drop the index
            return correct_or_incorrect(bool(_TEN.fullmatch(indexed[2].strip("$ "))))
    if gold_value is not None and value is not None:
        return correct_or_incorrect(number.equal(gold_value, value))
    if marked(completion) is not None and len(_WORDS.findall(parsed)) < 2 and _more_parts(gold, parsed):
        values = [number.exact(part) for part in _parts(parsed)]
        return correct_or_incorrect(
            gold_value is not None and all(v is not None and number.equal(v, gold_value) for v in values)
        )
    if gold_value is not None and number.alternatives(completion[-TAIL:]):
        return correct_or_incorrect(False)
    if "=" in gold and "=" not in parsed and not _DEFINITION.fullmatch(gold):
        return correct_or_incorrect(False)
    if heavy(parsed):
        return UNPARSABLE
    if _is_set(gold) != _is_set(parsed) and (_is_set(gold) or _is_set(parsed)):
        other = parsed if _is_set(gold) else gold
        if other[:1] in "([" or "," not in other:
            return correct_or_incorrect(False)
    return None


def _too_long(completion: str, parsed: str) -> bool:
    """Whether the marked answer is; what is not marked has been cut already."""
    return len(parsed) > MAX_ANSWER and marked(completion) is not None


def _denied(completion: str) -> bool:
    """Whether the completion says what the answer is not."""
    inner = marked(completion)
    text = inner if inner is not None else stated(completion[-TAIL:]) or completion[-TAIL:].strip()
    return bool(_NOT_THIS.match(text) or (inner is None and _NOT_LAST.search(_INLINE.sub(r"$\1$", text))))


_NOT_THIS = re.compile(
    r"[\s$]{0,4}(?:\\text\s?\{\s?)?(?:not|neither|never|anything but|other than)\b(?! (?:defined|possible|real|continuous))",
    re.I,
)
_NOT_LAST = re.compile(
    r"(?:is|are|was) ?(?:not|n't) -?\d[\d.,]{0,40}[\s!]{0,4}\Z"
    r"|(?:\bnot|n't|\bnever) (?:equal to |be )?\$[^$]{1,200}\$[\s.!]{0,4}\Z|\$ (?:is|was) (?:not|wrong|incorrect|false)\b[^$]{0,80}\Z",
    re.I,
)
_DEFINITION = re.compile(r"\s*\\?[A-Za-z]{1,10}(?:_\{?\w{1,10}\}?|'|\([^()]{1,10}\))?\s*=[^=]*|\s*\([^()]*\)\s*=[^=]*")
"""A name for what is asked, before the answer itself."""


def _parts(text: str) -> list[str]:
    """The items of a list that is in no brackets; the comma of 12,345 separates none."""
    text = text.removeprefix("\\{").removesuffix("\\}") if _is_set(text) else text
    parts, depth, start = [], 0, 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        if match[0] in "([{":
            depth += 1
        elif match[0] in ")]}":
            depth -= 1
        elif depth <= 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [part.strip() for part in [*parts, text[start:]]]


_BRACKET_OR_COMMA = re.compile(r"[()\[\]{}]|(?<!\d),|,(?!\d{3}(?!\d))")


def _more_parts(gold: str, parsed: str) -> bool:
    """Whether a list is given where one thing is wanted."""
    return len(_parts(parsed)) > 1 and len(_parts(gold)) == 1 and not re.search(r"\\pm|\bor\b|\band\b|[;&]", gold)


def _is_set(text: str) -> bool:
    text = text.replace("\\left", "").replace("\\right", "")
    return text.startswith("\\{") and text.endswith("\\}")


_WORDS = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_SENTENCE = re.compile(r"(?:[A-Za-z]{2,20},? ){0,3}(?:is|are|es|ist|est)\b:? ", re.I)
"""The beginning of a sentence of short words, which would be read as a product of letters."""


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import parse

    if "$" in text or "\\boxed" in text or len(_WORDS.findall(text)) > 1 or _SENTENCE.match(text):
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
    if not equal(list(gold), list(parsed), timeout_seconds=None):
        return correct_or_incorrect(False)
    rounded = number.exact(tidy(candidate(completion))) is not None and getattr(gold[0], "is_rational", None) is False
    return correct_or_incorrect(not rounded)  # the library compares six digits


def warm(detail: str) -> None:
    """Import the parser and build its patterns."""
    verify("$\\frac{x}{2}$", "x", {})
