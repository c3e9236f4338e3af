r"""Mathematical equality: fractions, roots, letters, lists, sets, intervals, equations, matrices, units.

The marked answer, or the last formula of a text, is read whole (`_formula.py`) and compared with the gold answer by value
(`_equality.py`). What cannot be read whole is correct only where the gold answer has the same text.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from pipelines.verifiers import number
from pipelines.verifiers._characters import ascii_forms
from pipelines.verifiers._equality import same
from pipelines.verifiers._formula import FUNCTIONS, Unread, read
from pipelines.verifiers._marked import marked, stated
from pipelines.verifiers._tree import Formula
from pipelines.verifiers._units import SCALES
from pipelines.verifiers._values import NoValue, exact
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect, failed

TAIL = 4000
"""Characters of a completion without marks that are searched, from its end."""
MAX_ANSWER = 2000
"""Characters of an answer; a longer one is not read."""

_SPACING = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])|[\u00a0\u2007\u2009\u202f]|(?<!\\)~")
_GROUPED = re.compile(r"(?<=\d)(?:,\\!|\{,\}(?:\\!)?|\\[,;:! ]|[\u00a0\u2007\u2009\u202f'’]) ?(?=\d{3}(?!\d))")
_SPACED = re.compile(r"(?<![\d.] )(?<![\d.])\d{1,3}(?: \d{3})+(?!\d| \d)")
_POINT = re.compile(r"(?<![.\s])\s*\.\s*\Z")
_METRES = re.compile(r"(?<=\d) m(?= ?(?:\^ ?\{?[23]|/ ?s\b))")
_COLOUR = re.compile(
    r"\\textcolor\s?\{[^{}]{0,40}\}|\\color\s?(?:\{[^{}]{0,40}\}|[a-z]{1,20})|\\(?:boxed|fbox)(?=\s?\{)|\\(?:mathrm|text)(?=\{\s?\\)"
)
_BOLD = re.compile(r"(?<![\w)}*])\*\*([^*]{1,200})\*\*(?![\w({*])")
_INLINE = re.compile(
    r"(?<!\\)\\\(((?:[^$]|\\\$){1,1000}?)(?<!\\)\\\)|(?<!\\)\\\[((?:[^$]|\\\$){1,1000}?)(?<!\\)\\\]", re.S
)
"""LaTeX's own forms of dollar signs."""
_MONEY = re.compile(r"(?<!\\)\$(?=\d)(?=[^$]*\Z)")
_ENVIRONMENT = re.compile(r"(?<!\\)(\$\$?)((?:[^$\\]|\\.){1,1000})\1", re.S)
_REPEATED = re.compile(
    r"(?<![\d.])(\d{0,20})\.(\d{0,20})(?:\\(?:overline|bar)\s?(?:\{(\d{1,40})\}|(\d))|\((\d{1,40})\)"
    r"|\\dot\s?\{?(\d)\}?(?:(\d{0,38})\\dot\s?\{?(\d)\}?)?)"
)
_GOES_ON = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{2,40}?)(?:\.{3}|…|\\l?dots)")
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|then)\b,? ?)?(?:(?:[A-Za-z]{1,20},? ){0,4}(?:is|are|be|equals|becomes|get|gets|have|es|ist|est)\b:? |"
    r"(?:so|thus|hence|therefore)\b,? |(?:final |correct )?(?:answer|result|solution)s?:? )",
    re.I,
)
"""The beginning of a sentence that ends with an answer."""
_BAD_LEAD = re.compile(
    r"\b(?:not|never|n't|than|least|most|above|below|under|over|about|approximately|half|twice|minus|negative|between|from|to|except|neither|nor"
    r"|within|times|of|without|plus|every|any|like|isn't|aren't|wasn't)[\s:]*\Z",
    re.I,
)
_BECAUSE = re.compile(
    r"\s*(?:[(.;:!?*\"')]|$|,(?! ?(?:or|and|maybe|perhaps)\b)"
    r"|(?:because|since|as|for|due|given|where|when|which|by|after|in|on|at)\b)",
    re.I,
)
_BETWEEN = re.compile(r"\s*(?:,|;|and|or|,\s*and|,\s*or|as well as)?\s*")
_BASE = re.compile(r"([0-9A-Fa-f]{1,200})\s?_\s?\{?\s?(?:\\text\s?\{)?\s?(\d{1,2})\s?\}{0,2}")
_SAME_TEXT = (
    (
        re.compile(
            r"\\(?:left|right|displaystyle|big|Big|bigg|Bigg|limits|!|,|;|:|quad|qquad)(?![A-Za-z])|(?<!\\)\\ |[\s$]"
        ),
        "",
    ),
    (re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|mbox|operatorname)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\(?:l|c)?dots|\.{3}|…"), "…"),
)


def _same_text(text: str) -> str:
    """A text without what only sets it."""
    for pattern, replacement in _SAME_TEXT:
        text = pattern.sub(replacement, text)
    return text


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
    r"""Without spacing, dollar signs around it and a final point; digits in groups and repeating decimals as plain ones.

    >>> tidy(r"$12\,000 \text{ cm}^2$."), tidy(r"\text{5 cm}"), tidy("1 234 567"), tidy(r"0.\overline{3}")
    ('12000 \\text{ cm}^2', '5 cm', '1234567', '{\\frac{1}{3}}')
    """
    text = _GROUPED.sub("", re.sub(r"\.{4}\s*\Z", "...", ascii_forms(text)))
    text = _INLINE.sub(lambda m: f"${m[1] or m[2]}$", _BOLD.sub(r"\1", number.EMPHASIS.sub(r"\2", text)))
    text = _MONEY.sub(r"\\$", _COLOUR.sub("", text))
    text = _METRES.sub(" meter", _SPACING.sub(" ", _POINT.sub("", text.strip())).strip())
    if len(text) > 1 and text[0] == text[-1] == "$" and "$" not in text[1:-1].replace("\\$", ""):
        text = _POINT.sub("", text[1:-1].strip())
    inner = re.fullmatch(r"\\(?:text|mathrm|textrm|mbox|textbf|mathbf)\s?\{([^{}]*)\}", text)
    if inner and inner[1][:1].isdigit():
        text = inner[1]
    text = _SPACED.sub(lambda m: m[0].replace(" ", ""), text)
    return _GOES_ON.sub(_going_on, _REPEATED.sub(_repeating, text)).strip()


def _repeating(match: re.Match[str]) -> str:
    integer, fixed = match[1] or "0", match[2]
    period = match[3] or match[4] or match[5] or match[6] + (match[7] or "") + (match[8] or "")
    value = Fraction(int(integer + fixed + period) - int(integer + fixed), 10 ** len(fixed) * (10 ** len(period) - 1))
    return f"{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}"


def _going_on(match: re.Match[str]) -> str:
    """Decimals that are repeated at their end before an ellipsis; others stay as they are."""
    digits = match[2]
    for length in range(1, len(digits) // 2 + 1):
        least = 3 if length == 1 else 2
        if len(digits) >= least * length and digits.endswith(digits[-length:] * least):
            fixed = digits
            while fixed.endswith(digits[-length:]):
                fixed = fixed[:-length]
            value = _REPEATED.fullmatch(f"{match[1]}.{fixed}({digits[-length:]})")
            return _repeating(value) if value else match[0]
    return match[0]


def _expression(text: str, *, complete: bool) -> str | None:
    """The formula in a tidy text: all of it, or what its dollar signs hold; None where the words around it change it.

    Args:
        text: a mark's, or a completion's end.
        complete: whether the text has to be the answer.
    """
    environments = list(_ENVIRONMENT.finditer(text))
    if not environments:
        lead = _LEAD.match(text)
        return text[lead.end() :] if lead and not _BAD_LEAD.search(lead[0]) else text
    first = len(environments) - 1
    while first and _BETWEEN.fullmatch(text, environments[first - 1].end(), environments[first].start()):
        first -= 1
    before, after = text[: environments[first].start()], text[environments[-1].end() :]
    if _BAD_LEAD.search(before) or (complete and first):
        return None
    joined = _POINT.sub("", environments[first][2])
    for previous, following in zip(environments[first:], environments[first + 1 :], strict=False):
        joined += (text[previous.end() : following.start()].strip() or ",") + " " + following[2]
    after = after.removeprefix("**")
    if _BECAUSE.match(after):
        return joined
    words = re.match(r"\s*([^.,;:!?()\n]*)", after)
    phrase = words[1].strip() if words else after
    if (
        not complete
        and len(phrase.split()) > 4
        and phrase.split()[0].lower() not in SCALES
        and not _NOT_UNIT.match(phrase)
    ):
        return joined
    return f"{joined} {phrase}" if phrase.startswith(("%", "\\%", "°")) else f"{joined} \\text{{{phrase}}}"


_NOT_UNIT = re.compile(r"(?:or|and|is|are|was|not|to|plus|minus|times|squared|cubed|percent|more|less)\b", re.I)


@lru_cache(maxsize=4096)
def _formulas(text: str) -> tuple[Formula, ...]:
    """What a text may be read as; empty where it is no formula."""
    formulas: list[Formula] = []
    for tight in (False, True) if "/" in text or "\\div" in text else (False,):
        try:
            formula = read(text, tight=tight)
        except (Unread, RecursionError):
            continue
        if formula not in formulas:
            formulas.append(formula)
    return tuple(formulas)


def _gold(answer: str) -> str:
    return tidy(candidate(answer)) if marked(answer) is not None else tidy(answer)


def _gold_formulas(gold: str) -> tuple[Formula, ...]:
    """Of a gold answer a decimal comma is none: 1,2 and 0,5 are lists."""
    expression = _expression(re.sub(r"(?<![\d,])0,(?=\d)", "0, ", gold), complete=True)
    return () if expression is None else _formulas(expression)


def _answer_formulas(completion: str, parsed: str) -> tuple[Formula, ...]:
    """The completion's formula; where nothing is marked or stated and nothing can be read, the last number of its prose."""
    complete = marked(completion) is not None
    expression = _expression(parsed, complete=complete)
    if expression is None:
        return ()
    words = _LONG_WORD.findall(expression)
    if not complete and words and not re.search(r"[$\\\d]", parsed) and not {*FUNCTIONS, "infinity"}.issuperset(words):
        return ()  # a word without any mark is prose
    clause = _CLAUSE.split(expression, maxsplit=1)[0] if not complete and "$" not in parsed else expression
    formulas = _formulas(_without_reason(expression)) or _formulas(clause)
    formal = complete or re.search(r"[$\\]", parsed) is not None or stated(completion[-TAIL:]) is not None
    if formulas or formal or len(_WORD.findall(parsed)) < PROSE:
        return formulas
    value = number.final_number(completion[-TAIL:])
    return () if value is None else (("num", value),)


PROSE = 3
"""Words from which on a text is a sentence."""
_WORD = re.compile(r"[A-Za-z]{2,}")
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")
_CLAUSE = re.compile(
    r"[.!?;] |\n|,? (?:because|since|as|so|which|where|given|due|when|after|by)\b|, (?=[a-z]{2})(?!or\b|and\b|maybe\b|perhaps\b|possibly\b)"
)
"""Where an explanation begins."""
_REASON = re.compile(
    r"(?<=[\d}\w]) \((?:because|since|as|for|from|i\.e\.|that is)\b[^()]*(?:\([^()]*\)[^()]*)*\)\Z", re.I
)


def _without_reason(text: str) -> str:
    return _REASON.sub("", text)


def known(completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """Verdicts that need no reading: texts that are equal, what is denied or too long; None for the others."""
    gold = _gold(answer)
    if len(gold) > MAX_ANSWER:
        return failed("AnswerTooLarge")
    parsed = tidy(candidate(completion))
    if not parsed or _too_long(completion, parsed):
        return UNPARSABLE
    if gold and (parsed == gold or _same_text(parsed) == _same_text(gold)):
        return correct_or_incorrect(True)
    if _denied(completion) and not _denied(gold):
        return correct_or_incorrect(False)
    gold_base, base = _BASE.fullmatch(gold), _BASE.fullmatch(parsed)
    if gold_base and (base or parsed == gold_base[1]):
        return correct_or_incorrect(base is None or base.groups() == gold_base.groups())
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


def extract_answer(completion: str) -> str:
    """The last marked or final expression, without what only sets it; a number in its shortest form."""
    text = tidy(candidate(completion))
    if not text or _too_long(completion, text):
        return ""
    formulas = _answer_formulas(completion, text)
    if not formulas:
        return ""
    value = _rational(formulas[0])
    if value is not None:
        return number.shortest(value)
    return " ".join((_expression(text, complete=marked(completion) is not None) or "").split())


def _rational(formula: Formula) -> Fraction | None:
    """The value of a formula that is a rational number of few digits."""
    try:
        value = exact(formula)
    except (NoValue, RecursionError):
        return None
    small = value is not None and max(abs(value.numerator), value.denominator) < 10**number.MAX_DIGITS
    return value if small else None


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The marked (`<answer>`, `\\boxed{}`, `####`) or final expression of the completion equals the answer.

    Raises:
        ValueError: the gold answer is empty.
    """
    verdict = known(completion, answer, info)
    if verdict is not None:
        return verdict
    gold, parsed = _gold(answer), tidy(candidate(completion))
    wanted, answers = _gold_formulas(gold), _answer_formulas(completion, parsed)
    base = _BASE.fullmatch(gold)
    if base and _expression(parsed, complete=False) == base[1]:
        return correct_or_incorrect(True)
    if not _same_text(gold):
        raise ValueError(f"the answer {answer[:80]!r} is not a mathematical expression")
    if not wanted:
        return correct_or_incorrect(_words(gold) == _words(_expression(parsed, complete=True) or ""))
    if not answers:
        return UNPARSABLE
    try:
        return correct_or_incorrect(any(same(gold_formula, other) for gold_formula in wanted for other in answers))
    except RecursionError:
        return UNPARSABLE


def _words(text: str) -> str:
    """A text whose case and brackets around it do not count."""
    return _same_text(text).casefold().strip("().\"'*")


def warm(detail: str) -> None:
    """Compare once, which loads the numbers' library."""
    verify("$\\frac{x}{2}$", "x", {})
