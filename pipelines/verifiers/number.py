"""The final number of a completion equals the answer."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict, correct_or_incorrect
from pipelines.verifiers._marked import marked, stated

MAX_DIGITS = 400
"""A number with more digits, before or after its exponent is applied, is none."""

_SPACE = "\u00a0\u2007\u2008\u2009\u202f"
_PLAIN = str.maketrans(
    dict.fromkeys(_SPACE, " ") | dict.fromkeys("\u2212\uff0d\ufe63", "-") | {"\u00d7": "*", "\u22c5": "*"}
)
_GROUP = re.compile(rf"(?<=\d)(?:[{_SPACE}]|\\[,;:! ]|\{{,\}})(?=\d{{3}}(?!\d))")
_FRACTION = re.compile(
    r"(- ?)?\\[dtc]?frac[ \t]?(?:\{\s?(-?[\d.,]{1,40})\s?\}\{\s?(-?[\d.,]{1,40})\s?\}|(\d)[ \t]?(\d))"
)
_WRAP = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox|operatorname|left|right|displaystyle)\b\s?")
_TIMES = re.compile(r"\\(?:times|cdot)(?![A-Za-z])")
_BY = re.compile(r"(?<=\d) ?x ?(?=\d)")
_DEGREES = re.compile(r"\^ ?\{? ?\\circ ?\}?")
_STARS = re.compile(r"(?<!\d)\*\*|\*\*(?! ?[\d{(])")
"""Bold type, not a power."""
_UNIT_POWER = re.compile(r"(?<=[A-Za-z°])(?:\}| )?\^ ?\{?[-+]?\d{1,3}\}?")
_INSIDE = re.compile(r"(?:\^ ?[{(]?|_\{?|\\sqrt ?[{(\[]?|√ ?\(?)[-+]?\Z")
"""What stands before a number that is only part of something larger."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3})+,\d+|\d+(?:\.\d+)?|\.\d+)"
_TOKEN = re.compile(
    rf"(?<![\w.^])(?P<sign>[-+])?(?P<money>[$€£¥] ?)?(?P<sign2>-)?(?P<digits>{_DIGITS})"
    r"(?P<comma>,(?:\d{1,2}|\d{4,})(?![\d,]))?"
    r"(?P<e>[eE][-+]?\d{1,6}(?![\w]))?"
    r"(?: ?\* ?10 ?(?:\^|\*\*) ?\{?(?P<ten>[-+]?\d{1,6})\}?)?"
    r"(?P<power> ?(?:\^|\*\*) ?\{?(?P<exponent>[-+]?\d{1,6})\}?)?"
    r"(?P<factorial>!)?"
    r"(?: ?(?:/|÷|:) ?(?P<over>-?\d+(?:\.\d+)?)(?![\d/:]))?"
    r"(?P<percent> ?\\?%| percent\b)?"
)
_JOIN = re.compile(
    r"[\s,;]*(?:(?:or|and|to|through|till|until|vs\.?|versus|oder|bis|~|\.{2,3}|…|–|—|-|±|\+/-|\+|\*|,|;|/|&|\||\?)[\s,;]*)+\Z",
    re.I,
)
_UNIT_JOIN = re.compile(r" ?[^\s\d.]{1,15} (?:or|and|to) (?:about |maybe )?", re.I)
"""Between two quantities: "3 cm or 4 cm"."""
_ROOT = re.compile(r"\\sqrt|√|\\pi\b|π|\\log|\\ln")

Number = tuple[Fraction, bool]
"""A value and whether it was written with a percent sign."""


def final_number(text: str) -> Fraction | None:
    r"""The number that a text gives as its answer; None where it gives none, or several.

    What is marked (`####`, `\boxed{}`, `<answer>`) must hold one number; units, currency and an explanation in brackets
    may stand beside it, and of an equation the last side counts. Else the number after "the answer is", else the last
    number of the text. Alternatives, lists and ranges are no number.

    >>> [str(final_number(t)) for t in ("so 3 + 4 = 7. #### 1,007", r"\boxed{-2.50} or 9", r"\boxed{\frac{3}{2}}", "2.5e3")]
    ['1007', '-5/2', '3/2', '2500']
    >>> [final_number(t) for t in ("none", "3 or 4", "#### 3, 4 or 5", r"\boxed{3-5}", r"\boxed{2\sqrt{2}}")]
    [None, None, None, None, None]
    """
    tokens = _final(text)
    return tokens[0] if tokens else None


def _final(text: str) -> Number | None:
    inner = marked(text)
    if inner is not None:
        return _single(inner)
    statement = stated(text)
    if statement is not None:
        tokens = _first(statement)
        if tokens is not None:
            return tokens
        if _TOKEN.search(_plain(statement)):
            return None
    return _last(text)


def _plain(text: str) -> str:
    text = _GROUP.sub("", text).translate(_PLAIN)
    text = _FRACTION.sub(lambda m: f" {'-' if m[1] else ''}{m[2] or m[4]}/{m[3] or m[5]} ", text)
    text = _STARS.sub(" ", _DEGREES.sub("°", _TIMES.sub("*", _WRAP.sub(" ", text))))
    text = _BY.sub("*", _UNIT_POWER.sub("", text)).replace("\\$", "$")
    return (
        re.sub(r"(?<=\d) (?=\d{3}(?: \d{3})*(?!\d))", "", text) if re.fullmatch(_SPACED, text.strip(" .$-")) else text
    )


_SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")


def _single(text: str) -> Number | None:
    text = _plain(text)
    if "=" in text or "\\approx" in text or "≈" in text:
        text = re.split(r"=|\\approx|≈", text)[-1]
    if _ROOT.search(text):
        return None
    tokens = list(_TOKEN.finditer(text))
    if len(tokens) > 1:  # "18 (since 3 + 4 ...)": an explanation
        head = text.partition("(")[0]
        tokens = list(_TOKEN.finditer(head)) or tokens
        text = head if list(_TOKEN.finditer(head)) else text
    mixed = _mixed(text, tokens)
    if mixed is not None:
        return mixed
    values = {value for match in tokens if (value := _value(match)) is not None}
    if len(values) != 1 or any(_value(m) is None for m in tokens):
        return None
    if len(tokens) == 1 and re.search(r"[*+^/]|\d\s*-", text[: tokens[0].start()] + text[tokens[0].end() :]):
        return None
    return values.pop()


def _mixed(text: str, tokens: list[re.Match[str]]) -> Number | None:
    """A whole number and a proper fraction: 1 1/2."""
    if len(tokens) != 2 or text[tokens[0].end() : tokens[1].start()].strip() or not tokens[1]["over"]:
        return None
    integer, part = _value(tokens[0]), _value(tokens[1])
    if integer is None or part is None or integer[0].denominator != 1 or not 0 < part[0] < 1 or tokens[1]["sign"]:
        return None
    return (integer[0] - part[0] if tokens[0]["sign"] == "-" else integer[0] + part[0]), part[1]


def _first(text: str) -> Number | None:
    text = _plain(text)
    tokens = list(_TOKEN.finditer(text))
    if "=" in text and tokens:
        return _single(text.rstrip(".")) if len(text) < 200 else None
    if not tokens:
        return None
    if len(tokens) > 1:
        if (mixed := _mixed(text[: tokens[1].end()], tokens[:2])) is not None:
            return mixed
        between = text[tokens[0].end() : tokens[1].start()]
        if _JOIN.match(between) or _UNIT_JOIN.fullmatch(between):
            return None
    return _value(tokens[0])


def _last(text: str) -> Number | None:
    text = _plain(text)
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return None
    if len(tokens) > 1:
        if (mixed := _mixed(text[tokens[-2].start() :], [*_TOKEN.finditer(text[tokens[-2].start() :])])) is not None:
            return mixed
        where = tokens[-2].end(), tokens[-1].start()
        if _JOIN.match(text, *where) or _UNIT_JOIN.fullmatch(text, *where):
            return None
    start = tokens[-1].start()
    return None if _INSIDE.search(text[max(0, start - 10) : start]) else _value(tokens[-1])


def _value(match: re.Match[str]) -> Number | None:
    if match["factorial"] or len(match[0]) > MAX_DIGITS:
        return None
    digits = match["digits"]
    value: Fraction | None
    if match["comma"]:
        if "," in digits or "." in digits:
            return None
        value = Fraction(digits + "." + match["comma"][1:])
    elif re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d+", digits):
        value = Fraction(digits.replace(".", "").replace(",", "."))
    elif digits.startswith("0,"):
        value = Fraction(digits.replace(",", ".", 1)) if digits.count(",") == 1 and "." not in digits else None
    else:
        value = Fraction(digits.replace(",", ""))
    if value is None:
        return None
    if match["exponent"]:
        power = int(match["exponent"])
        if abs(power) * len(digits) > MAX_DIGITS or (value == 0 and power < 0):
            return None
        value = value**power
    shift = int((match["e"] or "e0")[1:]) + int(match["ten"] or 0)
    if abs(shift) > MAX_DIGITS:
        return None
    value *= Fraction(10) ** shift
    if match["over"]:
        divisor = Fraction(match["over"])
        if divisor == 0:
            return None
        value /= divisor
    negative = (match["sign"] == "-") != (match["sign2"] == "-")
    return (-value if negative else value), bool(match["percent"])


def exact(text: str) -> Number | None:
    """The value of a text that is one number and nothing else but currency, a final point and percent; else None.

    >>> exact("1,007."), exact("3x"), exact("50%")
    ((Fraction(1007, 1), False), None, (Fraction(50, 1), True))
    """
    match = _TOKEN.fullmatch(_plain(text).strip(" $.")) if len(text) <= MAX_DIGITS else None
    return _value(match) if match else None


def equal(first: Number, other: Number) -> bool:
    """Of equal value; a percentage equals the number before its sign and the share that it is."""
    return first[0] == other[0] or (first[1] != other[1] and (first[0] == other[0] * 100 or first[0] * 100 == other[0]))


def alternatives(text: str) -> bool:
    """Whether the text gives several numbers where it gives its answer: "3, 4 or 5", "3 to 5"."""
    inner = marked(text)
    plain = _plain(inner if inner is not None else stated(text) or text)
    tokens = list(_TOKEN.finditer(plain))
    pairs = (
        pairwise(tokens)
        if inner is not None
        else list(pairwise(tokens))[-1:]
        if stated(text) is None
        else pairwise(tokens[:2])
    )
    return any(
        _OR.fullmatch(plain, a.end(), b.start()) or _UNIT_JOIN.fullmatch(plain, a.end(), b.start()) for a, b in pairs
    )


_OR = re.compile(r"[\s,;$]{0,8}(?:,|or|and|to|~|\.{2,3}|…|–|—)[\s,;$]{0,8}(?:or|and)?[\s,;$]{0,8}", re.I)


def extract_answer(completion: str) -> str:
    """The final number in its shortest form: an integer, a decimal where it is finite, else a fraction."""
    tokens = final_number(completion)
    if tokens is None:
        return ""
    rest = tokens.denominator
    places = 0
    while rest % 10 == 0:
        rest //= 10
        places += 1
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
            places += 1
    if rest != 1 or tokens.denominator == 1:
        return str(tokens)
    text = f"{abs(tokens.numerator) * 10**places // tokens.denominator:0{places + 1}d}"
    return ("-" if tokens < 0 else "") + f"{text[:-places]}.{text[-places:]}".rstrip("0")


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Compared exactly, as fractions: 7, 7.0 and 14/2 are equal. 50 % is both 50 and 0.5.

    Raises:
        ValueError: the gold answer is no number.
    """
    gold = _final(answer)
    if gold is None:
        raise ValueError(f"the answer {answer[:80]!r} is no number")
    tokens = _final(completion)
    if tokens is None:
        return UNPARSABLE if not _TOKEN.search(_plain(completion)) else correct_or_incorrect(False)
    return correct_or_incorrect(equal(tokens, gold))
