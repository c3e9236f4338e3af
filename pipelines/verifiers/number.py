"""The final number of a completion equals the answer."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

from pipelines.verifiers._characters import ascii_forms
from pipelines.verifiers._marked import marked, stated, taken_back
from pipelines.verifiers._units import SCALES
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

MAX_DIGITS = 400
"""A number with more digits, before or after its exponent is applied, is none."""
MOST_NUMBERS = 50
"""A mark with more of them gives none."""

_SPACE = "\u00a0\u2007\u2008\u2009\u200a\u202f"
_PLAIN = str.maketrans(dict.fromkeys(_SPACE, " ") | {"\u00d7": "*"})
_GROUP = re.compile(rf"(?<=\d)(?:[{_SPACE}]|\\[,;:! ]|\{{,\}}(?:\\!)?|,\\!|['\u2019])(?=\d{{3}}(?!\d))")
_PART = r"(?:\{\s?(-?[\d.,]{1,40})\s?\}|(\d))"
_FRACTION = re.compile(rf"(- ?)?\\(?:[dtcs]|nice)?frac[ \t]?{_PART}[ \t]?{_PART}")
_OVER = re.compile(r"\{\s?(-?[\d.]{1,40}) ?\\over(?![A-Za-z]) ?(-?[\d.]{1,40})\s?\}")
_UNIT_PART = r"\{\s?\\(?:text|mathrm|mbox)\s?\{[^{}\d]{1,40}\}(?:\^\{?\d\}?)?\s?\}"
_UNIT_FRACTION = re.compile(rf"\\[dt]?frac\s?{_UNIT_PART}\s?{_UNIT_PART}")
_WRAP = re.compile(
    r"\\(?:text|mathrm|textbf|mathbf|boldsymbol|mathit|underline|mbox|operatorname|left|right|displaystyle)(?![A-Za-z])\s?"
    r"|\\(?:phantom|textcolor)\s?\{[^{}]{0,40}\}|\\color\s?(?:\{[^{}]{0,40}\}|[a-z]{1,20})|</?[a-z]{1,10}>"
)
_TIMES = re.compile(r"\\(?:times|cdot)(?![A-Za-z])|(?<=\d) ?[\u00b7\u2219] ?(?=\d)")
_BY = re.compile(r"(?<=\d) ?x ?(?=\d)")
_DEGREES = re.compile(r"\^ ?\{? ?\\circ ?\}?|\\degree(?![A-Za-z])")
_ARROW = re.compile(r"[-=]>|\u2192|\u21d2|\\(?:implies|(?:long)?[rR]ightarrow|to)(?![A-Za-z])")
_STARS = re.compile(r"(?<!\d)\*\*|\*\*(?! ?[-+]?[\d{(])")
"""Bold type, not a power."""
EMPHASIS = re.compile(r"(?<![\w\\$])(_{1,2})(?=[-$.]?\d)([^_\n]{1,60})\1(?!\w)")
_ITALICS = re.compile(r"(?<![\w\\$])(?<!\d )_{1,2}(?=[-$.]?\d)")
_ANGLED = re.compile(r"(?<![\w<>=])<\s?([-+$€£]?\d[\d.,/]{0,30})\s?>(?![\w<>=])")
"""Angle brackets around a number are a mark; a comparison has one of them."""
_BASE_TEN = re.compile(r"(?<=\d)_\{10\}")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z\u00b0])(?:\}| )?\^ ?\{?[-+]?\d{1,3}\}?")
_PER = re.compile(
    r"(?<=[A-Za-z\u00b0}]) ?/ ?(?=[A-Za-z])|(?<=\d) ?/ ?(?=[A-Za-z]{3})"
    r"|(?<=[A-Za-z]\}) {0,3}[/*] {0,3}(?=\{ ?[A-Za-z])|(?<=[A-Za-z]) {0,3}/ {0,3}(?=\{ ?[A-Za-z])|(?<=\d) ?/ {0,3}(?=\{ ?[A-Za-z]{3})"
)
_SIGN = re.compile(
    r"(\A|[=:]|\b(?:is|get|gets|be|have|has|are|was|equals|becomes|gives|yields)) {0,4}(?:-|negative|minus) {1,2}(?=[$€£¥]?\.?\d)",
    re.I,
)
"""A minus sign or its name with a space before the number."""

_BEFORE = re.compile(
    r"(?:\^ ?[{(]?|\\\{ ?|¬ ?|\\(?:neg|lnot|lim|det|arg|deg|vec|Re|Im|dim|ker|nabla|partial) ?"
    r"|(?<=\w)_\{?|(?:\\infty|∞), ?|-\(|\\[a-z]{0,4}frac ?(?:\{[^{}]{0,20}\})? ?\{"
    r"|\\sqrt ?[{(\[]?|[√∛∜] ?\(?|[±∓≤≥≠]=? ?|(?<=[\w)\]}$]) ?[<>]=? ?|!= ?"
    r"|\\(?:pm|mp|[lg]eq?(?:slant)?|[lg]t|neq?|log|ln|lg|sin|cos|tan|exp|overline|bar|dot|lfloor|lceil|binom|max|min|gcd|sum|prod|int)"
    r"(?:_\{?\w{1,4}\}?)? ?[{(]?|(?<=[A-Za-z])\((?:[A-Za-z] ?= ?)?|\b(?:sqrt|log|ln|sin|cos|tan) ?\(?)[-+]?\Z"
)
"""What stands before a number that is only part of something larger."""
_AFTER = re.compile(
    r"[abijknxyzBGKMT](?![A-Za-z])|(?:bn|mn|mln|tn)\b| [nxyzBKMT](?![\w'.])|\$? ?\\?_+ ?[\d{\\]|\\?_+[A-Za-z](?![A-Za-z])"
    r"|[bB][01]|\(\d| ?\^| ?[π√<>≤≥≠±]| ?/ ?[A-Za-z\\(]|\*[A-Za-z\\(]| \* [a-z]\b"
    r"| ?\\(?!(?:approx|therefore|because|q?quad|begin|end|[hv]space|square|blacksquare|qed|checkmark|circ|euro|pounds|boxed)"
    r"(?![A-Za-z]))[A-Za-z]"
    r"| ?[+*/^] ?[A-Za-z\\√∛(]| ?[-+*/^×÷] {0,3}(?:[.)}\]]{0,2}\Z)| ?[+-] ?\d{0,9}[ijknxyz]\b"
    r"| (?:squared|cubed|factorial|mod|choose)\b(?! [a-z])|,? or (?:more|less|any|anything|another|fewer|higher|lower|something)\b"
    r"| (?:half|halves|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)s)\b|\? {0,2}No\b|, ?[-+]?(?:\\infty|∞)"
)
"""What stands after such a number: a variable, a root, a comparison."""
_NOT = re.compile(
    r"(?:\b(?:can)?not|n['’]t|\bnever|\bneither|\bnor|\bexcept|\banything but|\bother than|\brather than|\binstead of)"
    r"(?: (?:be|is|equal|equals|to|exactly|the|simply|just)){0,3}[ :$}]{1,3}\Z",
    re.I,
)
_IS_NOT = re.compile(
    r"(?: [a-z]{1,15})? (?:(?:is|was|would be)(?:(?:n['’]t| not) (?:the|a|an|right|correct|it|my|our|what)\b"
    r"| (?:wrong|incorrect|false|impossible)\b)"
    r"|(?:can|could)(?:not|n['’]t| not) be\b)",
    re.I,
)
_SEVERAL = re.compile(r"[,;]|\n\s*[A-Za-z]|\\\\|\bor\b|\band\b|\\q?quad")
_COMPARED = re.compile(r"[<>≤≥≠∞±]|!=|\\(?:[lg]eq?(?:slant)?|[lg]t|neq?|infty|[a-z]{0,4}frac|pm|mp|in)(?![A-Za-z])")
_OPERATION = re.compile(r"[*+^/±–—-]|\b(?:plus|minus|times|divided|multiplied|to)\b")

_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,99}(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3}){1,99},\d+|\d{1,3}(?:\.\d{3}){2,99}(?!\d)|\d+(?:\.\d+)?|\.\d+)"
_TOKEN = re.compile(
    rf"(?<![\w.^])(?P<sign>[-+])?(?P<money>[$€£¥₹] ?)?(?P<sign2>-)?(?P<digits>{_DIGITS})(?!\.?\d)"
    r"(?P<comma>,(?:\d{1,2}|\d{4,})(?![\d,]))?"
    r"(?P<e>[eE][-+]?\d{1,6}(?![\w]))?"
    r"(?: ?\* ?10 ?(?:\^|\*\*) ?\{?(?P<ten>[-+]?\d{1,6})\}?)?"
    r"(?P<power> ?(?:\^|\*\*) ?\{?(?P<exponent>[-+]?\d{1,6})\}?)?"
    r"(?P<factorial>!)?"
    r"(?: ?(?:/|÷|:) ?(?P<over>-?\d+(?:\.\d+)?)(?![\d/:]))?"
    rf"(?: {{0,2}}\{{? ?(?P<scale>(?i:{'|'.join(sorted(SCALES, reverse=True))}))\b\}}?)?"
    r"(?P<percent> ?\\?%| per ?cent\b)?"
)
_GAP = re.compile(
    r"(?:[\s,;/&|?$~*+±…–—-]|\.{2,}(?!\.)|\b(?:or|and|to|through|till|until|vs|versus|oder|bis|ou|plus|minus|times|divided by|multiplied by"
    r"|else|maybe|perhaps|possibly|also|either|alternatively)\b\.?|(?<=or )[A-Za-z] ?= ?)+",
    re.I,
)
"""Between the numbers of a list, a range, a sum or alternatives."""
_UNIT_GAP = re.compile(
    r"(?:[^\s\d.]{1,15}(?: [^\s\d.]{1,15}){0,2},? or|[^\s\d.]{1,15},? (?:and|to))(?: (?:about|maybe|perhaps|possibly))?",
    re.I,
)
"""Between two quantities: "3 cm or 4 cm"."""
LONGEST_GAP = 60
_ROOT = re.compile(r"\\sqrt|√|\\pi\b|π|\\log|\\ln|\bpi\b")
_HEDGE = re.compile(r"\(\s?(?:\\text\s?\{\s?)?(?:or|maybe|perhaps|possibly|alternatively|could|might|also)\b", re.I)
Number = tuple[Fraction, bool]
"""A value and whether it was written with a percent sign."""


def final_number(text: str) -> Fraction | None:
    r"""The number that a text gives as its answer; None where it gives none, or several.

    What is marked (`####`, `\boxed{}`, `<answer>`) must hold one number; units, currency and an explanation in brackets
    may stand beside it, and of an equation the last side counts. Else the number after "the answer is", else the last
    number of the text. Alternatives, lists and ranges are no number.

    >>> [str(final_number(t)) for t in ("so 3 + 4 = 7. #### 1,007", r"\boxed{-2.50}, not 9", r"\boxed{\frac{3}{2}}", "2.5e3")]
    ['1007', '-5/2', '3/2', '2500']
    >>> [final_number(t) for t in ("none", "3 or 4", "#### 3, 4 or 5", r"\boxed{3-5}", r"\boxed{2\sqrt{2}}")]
    [None, None, None, None, None]
    """
    tokens = _final(text)
    return tokens[0] if tokens else None


def _final(text: str) -> Number | None:
    text = ascii_forms(text)
    inner = marked(text)
    if inner is not None:
        return _single(inner)
    later = taken_back(text)
    if later is not None and _TOKEN.search(_plain(later)):
        return _last(later)
    statement = stated(text)
    if statement is not None:
        tokens = _first(statement)
        if tokens is not None:
            return tokens
        if _TOKEN.search(_plain(statement)):
            return None
    return _last(text)


def _plain(text: str) -> str:
    text = _ANGLED.sub(r" \1 ", _GROUP.sub("", text).translate(_PLAIN))
    text = _OVER.sub(r" \1/\2 ", _UNIT_FRACTION.sub(" per ", text))
    text = _FRACTION.sub(lambda m: f" {'-' if m[1] else ''}{m[2] or m[3]}/{m[4] or m[5]} ", text)
    text = _STARS.sub(" ", _DEGREES.sub("°", _TIMES.sub("*", _ARROW.sub("=", _WRAP.sub(" ", text)))))
    text = _BY.sub("*", _PER.sub(" per ", _UNIT_POWER.sub("", text))).replace("\\$", "$")
    text = _SIGN.sub(r"\1 -", _BASE_TEN.sub("", _ITALICS.sub("", EMPHASIS.sub(r"\2", text))))
    return _SPACED.sub(lambda m: m[0].replace(" ", ""), text)


_SPACED = re.compile(r"(?<![\w.,])(?<!\d )\d{1,3}(?:(?: \d{3}){2,99}(?! ?\d)|(?: \d{3})(?=(?:[.,]\d+)?[\s.$€£%\\]*\Z))")
"""A number in groups of three: of three groups and more anywhere, of two at the end of a text."""


def _single(text: str) -> Number | None:
    """The one number of a mark."""
    text = _unexplained(_plain(text))
    parts = re.split(r"=|\\approx|≈", text)
    if _COMPARED.search(text) or any(_SEVERAL.search(p) for p in parts[1:-1]) or any(" or " in p for p in parts[:-1]):
        return None
    text = parts[0] if len(parts) == 2 and re.fullmatch(r"[\s$]*[A-Za-z][\s$]*", parts[1]) else parts[-1]
    if _ROOT.search(text) or re.search(r"[+-] ?[a-z]\b", text):
        return None
    tokens = list(islice(_TOKEN.finditer(text), MOST_NUMBERS + 1))
    if len(tokens) > MOST_NUMBERS:
        return None
    tokens = [t for t in tokens if not _negated(text, t)]
    mixed = _mixed(text, tokens)
    if mixed is not None:
        return mixed
    values = [_standalone(text, token) for token in tokens]
    first = values[0] if values else None
    if first is None or any(value is None or not equal(value, first) for value in values):
        return None
    if len(tokens) == 1 and re.search(r"[*+^/]|\d\s*-|-\s*[({]", text[: tokens[0].start()] + text[tokens[0].end() :]):
        return None
    gaps = (text[a.end() : b.start()] for a, b in pairwise(tokens))
    return None if any(_OPERATION.search(gap) for gap in gaps) else first


def _unexplained(text: str) -> str:
    """Without explanations in brackets after a number, "18 (since 3 + 4 ...)"; alternatives in brackets are none."""
    pieces, start, depth, open_at = [], 0, 0, 0
    for at in (m.start() for m in re.finditer(r"[()]", text)):
        if text[at] == "(":
            depth += 1
            open_at = at if depth == 1 else open_at
        elif depth and (depth := depth - 1) == 0:
            inner = text[open_at : at + 1]
            told = re.search(r"[A-Za-z=+*/]", inner) and text[open_at - 1 : open_at] == " " and not _HEDGE.match(inner)
            if told and _TOKEN.search(text[:open_at]):
                pieces.append(text[start:open_at])
                start = at + 1
    return "".join(pieces) + text[start:]


def _mixed(text: str, tokens: list[re.Match[str]]) -> Number | None:
    """A whole number and a proper fraction: 1 1/2, 1 and 1/2."""
    if (
        len(tokens) != 2
        or not tokens[1]["over"]
        or text[tokens[0].end() : tokens[1].start()].strip() not in ("", "and")
    ):
        return None
    integer, part = _value(tokens[0]), _value(tokens[1])
    if integer is None or part is None or integer[0].denominator != 1 or not 0 < part[0] < 1 or tokens[1]["sign"]:
        return None
    return (integer[0] - part[0] if tokens[0]["sign"] == "-" else integer[0] + part[0]), part[1]


def _first(text: str) -> Number | None:
    """The number that a statement begins with, or the last side of its equation."""
    text = _plain(text)
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return None
    joined = len(tokens) > 1 and _joined(text, *tokens[:2])
    equals = text.find("=")
    if equals >= 0 and not re.search(
        r"\(|\.\s|\b(?:because|since|as|for|given|due)\b", text[tokens[0].start() : equals]
    ):
        sentence = re.split(r"\.\s", text, maxsplit=1)[0].rstrip(".")
        return _single(sentence) if len(sentence) < 200 else None
    if len(tokens) > 1 and (mixed := _mixed(text[: tokens[1].end()], tokens[:2])) is not None:
        return mixed
    if len(tokens) > 1 and _negated(text, tokens[0]) and text[tokens[0].end() : tokens[1].start()].strip(" ,") == "but":
        tokens = tokens[1:]
    value = None if _negated(text, tokens[0]) else _standalone(text, tokens[0])
    return _unless_alternatives(text, tokens[0], tokens[1], value) if joined else value


def _last(text: str) -> Number | None:
    """The last number of a text that marks none."""
    text = _plain(text)
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return None
    if len(tokens) > 1 and _negated(text, tokens[-1]) and _ASIDE.fullmatch(text, tokens[-2].end(), tokens[-1].start()):
        tokens.pop()  # "7, not 8"
    if len(tokens) > 1 and (mixed := _mixed(text, tokens[-2:])) is not None:
        return mixed
    value = None if _negated(text, tokens[-1]) else _standalone(text, tokens[-1])
    return (
        _unless_alternatives(text, tokens[-2], tokens[-1], value)
        if len(tokens) > 1 and _joined(text, *tokens[-2:])
        else value
    )


_ASIDE = re.compile(r"[^\n.!?:=]{1,40}")


def _unless_alternatives(text: str, first: re.Match[str], other: re.Match[str], value: Number | None) -> Number | None:
    """The value of either of two joined numbers where both are the same: "7 or 7.0"."""
    values = [_standalone(text, first), _standalone(text, other)]
    if value is None or _OPERATION.search(text, first.end(), other.start()):
        return None
    return value if all(v is not None and equal(v, value) for v in values) else None


def _joined(text: str, first: re.Match[str], other: re.Match[str]) -> bool:
    """Whether two numbers are alternatives, items of a list, or terms of one expression."""
    gap = " ".join(text[first.end() : other.start()].split())
    if not gap.strip(" $") or len(gap) > LONGEST_GAP:
        return False
    return bool(_GAP.fullmatch(gap) or _UNIT_GAP.fullmatch(gap) or _HEDGE.match(gap))


def _negated(text: str, token: re.Match[str]) -> bool:
    """Whether the text says that the number is not it."""
    before = text[max(0, token.start() - 40) : token.start()]
    return bool(_NOT.search(before) or _IS_NOT.match(text, token.end()))


def _standalone(text: str, token: re.Match[str]) -> Number | None:
    """The value of a number that stands for itself."""
    before = text[max(0, token.start() - 30) : token.start()]
    if _BEFORE.search(before) or _AFTER.match(text, token.end()):
        return None
    if (
        token["comma"]
        and re.search(r"(?:[(\[{]|\\langle) ?\Z", before)
        and re.match(r" ?(?:[)\]}]|\\[}r])", text[token.end() : token.end() + 3])
    ):
        return None  # (1,2) is a pair
    return _value(token)


def _value(match: re.Match[str]) -> Number | None:
    if match["factorial"] or len(match[0]) > MAX_DIGITS:
        return None
    digits = match["digits"]
    value: Fraction | None
    if match["comma"]:
        if "," in digits or "." in digits:
            return None
        value = Fraction(digits + "." + match["comma"][1:])
    elif digits.count(".") > 1 or (0 < digits.find(".") < digits.find(",")):
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
    value *= Fraction(10) ** shift * SCALES.get((match["scale"] or "").lower(), 1)
    if match["over"]:
        divisor = Fraction(match["over"])
        if divisor == 0:
            return None
        value /= divisor
    negative = (match["sign"] == "-") != (match["sign2"] == "-")
    return (-value if negative else value), bool(match["percent"])


def exact(text: str) -> Number | None:
    """The value of a text that is one number and nothing else but currency, a final point and percent; else None.

    >>> exact("1,007."), exact("3x"), exact("50%"), exact(".5"), exact("1 1/2")
    ((Fraction(1007, 1), False), None, (Fraction(50, 1), True), (Fraction(1, 2), False), (Fraction(3, 2), False))
    """
    if len(text) > MAX_DIGITS:
        return None
    text = _plain(ascii_forms(text)).strip(" $").rstrip(".").strip(" $")
    if match := _TOKEN.fullmatch(text):
        return _value(match)
    tokens = [*_TOKEN.finditer(text)]
    return _mixed(text, tokens) if len(tokens) == 2 and (tokens[0].start(), tokens[1].end()) == (0, len(text)) else None


def equal(first: Number, other: Number) -> bool:
    """Of equal value; a percentage equals the number before its sign and the share that it is.

    >>> equal((Fraction(50), True), (Fraction(1, 2), False)), equal((Fraction(5), True), (Fraction(500), False))
    (True, False)
    """
    share, value = (first, other) if first[1] else (other, first)
    return first[0] == other[0] or (share[1] and not value[1] and share[0] == value[0] * 100)


def extract_answer(completion: str) -> str:
    """The final number in its shortest form."""
    value = final_number(completion)
    return "" if value is None else shortest(value)


def shortest(value: Fraction) -> str:
    """An integer, a decimal where it is finite, else a fraction.

    >>> shortest(Fraction(3)), shortest(Fraction(-1, 20)), shortest(Fraction(1, 3))
    ('3', '-0.05', '1/3')
    """
    rest = value.denominator
    positions = 0
    while rest % 10 == 0:
        rest //= 10
        positions += 1
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
            positions += 1
    if rest != 1 or value.denominator == 1:
        return str(value)
    text = f"{abs(value.numerator) * 10**positions // value.denominator:0{positions + 1}d}"
    return ("-" if value < 0 else "") + f"{text[:-positions]}.{text[-positions:]}".rstrip("0")


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
        return UNPARSABLE if not _TOKEN.search(_plain(ascii_forms(completion))) else correct_or_incorrect(False)
    return correct_or_incorrect(equal(tokens, gold))
