"""A multiple-choice letter."""

from __future__ import annotations

import re
from typing import Any

from pipelines.verifiers._characters import ascii_forms
from pipelines.verifiers._marked import boxes, marked, taken_back
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, correct_or_incorrect

_FORMAT = re.compile(r"\\(?:textbf|text|mathbf|mathrm|mbox)\s?|[*_`$\"“”'‘’\\{}]")
_WHOLE_LINE = re.compile(
    r"\s?(?:(?:option|choice|answer)\s?:?\s?)?[(\[]?\s?([A-Za-z])\s?[)\]]?(?=$|[\s.:,;)!-])(.*)", re.S | re.I
)
_BARE = re.compile(r"\s?[(\[]?\s?([A-Za-z])\s?[)\]]?\s?[.,;:!?]?\s?")
_LETTER = r"(?:[(\[][A-Za-z][)\]]|(?-i:[A-Z])(?![\w'’]))"
_HEDGE = re.compile(
    r"\s?(?:(?:[.,;:)(—–-]|\.{3}|…)\s?)?(?:(?:[,;|+]\s?|/|&|\b(?:or|and|either|plus|maybe|possibly|as well as|along with)\b){1,3}\s?"
    r"(?:possibly |maybe |perhaps |also )?(?:option |choice )?"
    r"(?:[(\[][A-Za-z][)\]]|(?-i:A)(?![\w'’]|\s[a-z])|(?-i:[B-HJ-Z])(?![\w'’])|(?<=or )[b-hj-z](?![\w'’])|(?<=/)[a-z](?![\w'’]))"
    r"|(?<=[\s)\]])[(\[]?(?-i:[B-HJ-Z])[)\]]?(?![\w'’]))",
    re.I,
)
_DENIED = re.compile(
    rf"(?:\b(?:can)?not|\b(?:is|was|ca|can|could|does|wo)n'?t|\bnever|\bneither|\bnor|\bexcept|\banything but|\bother than|\brather than"
    rf"|\binstead of)\s(?:be\s)?(?:option |choice |answer )?{_LETTER}"
    rf"|(?:option |choice )?(?:{_LETTER},?\s(?:and |or )?){{1,6}}(?:is|are|was|were|seems?|looks?)\s?(?:both |all |also |clearly )?"
    rf"(?:not|n'?t|wrong|incorrect|false)\b(?:\s(?:correct|right|true|(?:the|an) (?:correct |right |best )?(?:answer|option|choice)))?",
    re.I,
)
"""A letter of which the text says that it is not the answer."""
_THEN = re.compile(r"\b(?:it is|its|should be|must be)\s[(\[]?((?-i:[A-Z]))[)\]]?(?![\w'’])", re.I)
_SAYS = re.compile(
    r"\b(?:answer|choice|option|choose|pick|select|going with|go with)"
    r"(?:\s(?:would|must|should|will|to|this|the|question|letter|be|is|either|option|choice|answer|correct|best|right|seems|appears|looks"
    r"|likely|probably|most|clearly|definitely|indeed|therefore|thus|then|like|here)){0,6}"
    r"\s?(?::|=|-|—|→|⇒)?\s?[(\[]?(?-i:([A-Z])|(?<=[(\[])([a-z])(?=[)\]])|(?<!\bto )([a-z])(?=\s?(?:[.,;:!)\]]|$|\n)))(?![A-Za-z'’])"
    r"(?P<after>[)\]]?)",
    re.I,
)
_IS = re.compile(r"(?:^|(?<=[\s.,:;]))[(\[]?([A-Z])[)\]]?\s(?:is|was)\s(?:the\s)?(?:correct|right|answer|best)\b")
_BRACKETED = re.compile(r"[(\[]([A-Za-z])[)\]]")
_PROSE = re.compile(r"\s(?!(?:because|since|as|is|which|for|due)\b)[a-z]")
_NOT = re.compile(r"(?:\bnot|n't|\bnever) (?:option |choice )?\Z", re.I)
_OTHER = re.compile(r"(?<![A-Za-z'’])[A-Z][)\]]?\s?(?:,|/|&|or|and)\s?(?:or\s)?(?:option |choice )?[(\[]?\Z")
_ALONE = re.compile(r"(?<![\w'’-])([B-HJ-Z])(?![\w'’]|-\w)")
_NOUN = re.compile(
    r"\b(?:plan|(?:pro)?vitamin|hepatitis|influenza|flu|type|grade|class|group|team|tier|side|series|schedule|appendix|exhibit|factor"
    r"|coenzyme|antigen)s?[ -]\Z",
    re.I,
)
_CAPITALISED = re.compile(r"(?<![\w'’])([A-Z][a-z]{1,30}) \Z")
_OPENER = re.compile(
    r".*(?:ly|ing)|so|thus|hence|then|now|also|only|just|maybe|perhaps|yes|no|ok|okay|and|but|or|if|since|because|as|with|for|to|by|is|it|not"
    r"|its|thats|heres|theres|both|either|neither|all|between|choose|chose|pick|picked|select|selected|guess|say|take|use|try|mark|circle"
    r"|enter|write|put|prefer|therefore|answer|option|choice|letter|final|correct|right|best|solution|result|response|conclusion|alternative|item|case|statement"
    r"|sentence|figure|graph|diagram|picture|image|equation|step",
    re.I,
)
"""Words that may begin a sentence before a letter; another capitalised one is the first half of a name."""
_COMPOUND = re.compile(r" (?:vitamins?|cells?|lymphocytes?|movies?|films?|flat|sharp|minor|major)\b", re.I)


def extract_answer(completion: str) -> str:
    """The letter, in upper case; empty where there is none or more than one."""
    return _letter(completion) or ""


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The letter in the last mark (`<answer>`, a box, `####`), after "answer", "option" and the like, or on its own.

    A letter is never taken out of prose: "I", "a", the letters of words and of names ("Plan B", "Hepatitis B") do not count. More
    than one letter where one is asked for is incorrect.

    >>> [verify(t, "B", {}).status for t in ("The answer is (B).", "**B**", "b", "B or C", "I think C", "A lot does not exist")]
    ['correct', 'correct', 'correct', 'incorrect', 'incorrect', 'unparsable']
    """
    letter = _letter(completion)
    if letter is None:
        return UNPARSABLE
    gold = _letter(answer)
    if not gold:
        raise ValueError(f"the answer {answer[:80]!r} is no letter")
    return correct_or_incorrect(letter == gold)


def _letter(text: str) -> str | None:
    """A letter; "" for several; None for none."""
    text = ascii_forms(text)
    inner = marked(text)
    if inner is not None:
        plain = _plain(inner)
        letter = _whole_line(plain, strict=False)
        letter = _stated(plain) if letter is None else letter
        if letter is not None or not _NO_LETTER.search(inner):
            return letter
        return _stated(_plain(_outside(text)))  # a value in a box, and its letter in words
    later = taken_back(text)
    if later is not None:
        plain = _plain(later)
        last = [m[1] for m in _THEN.finditer(plain)]
        if last:
            return last[-1]
    plain = _plain(text)
    for attempt in (_stated, _line):
        letters = attempt(plain)
        if letters is not None:
            return letters
    return _own(plain)


_NO_LETTER = re.compile(r"[\d\\=+]")
"""What a value has and a letter has not."""


def _outside(text: str) -> str:
    """The text without its boxes."""
    pieces, at = [], 0
    for start, end, _ in boxes(text):
        pieces.append(text[at:start])
        at = end
    return " ".join([*pieces, text[at:]])


def _plain(text: str) -> str:
    """Without formatting and denied letters, and with every run of white space in one character (a line end if it holds one)."""
    text = _FORMAT.sub("", text)
    text = "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
    return _DENIED.sub("", text).strip(" ,")


def _whole_line(text: str, *, strict: bool) -> str | None:
    """The text is a letter, with what may follow it: "B", "(b)", "B. Paris", "B) because"."""
    match = _WHOLE_LINE.fullmatch(text)
    if match is None:
        return None
    letter, rest = match[1], match[2]
    if _HEDGE.match(text, match.start(2)):
        return ""
    bare = not rest.strip(" .:)!]")
    bracketed = text.lstrip()[:1] in "([" or rest[:1] in ")].:" or text.strip()[1:2] in ")].:"
    if bare or bracketed or (not strict and letter.isupper() and letter not in "AI"):
        return letter.upper()
    if rest.lstrip()[:1] in "-—" and letter.isupper():
        return letter
    return None


def _stated(text: str) -> str | None:
    last = None
    for match in _SAYS.finditer(text):
        letter = match[1] or match[2] or match[3]
        rest = text[match.end() : match.end() + 40]
        if _COMPOUND.match(rest):
            continue  # "the answer is B vitamins"
        hedged = (
            _HEDGE.match(text, match.end(), match.end() + 40) is not None
            or re.match(r"\? ?(?:no\b|(?-i:[(\[]?[A-Z][)\]]?(?![\w'’])))", rest, re.I) is not None
        )
        if letter in "AI" and not match["after"] and not hedged and _PROSE.match(rest):
            continue  # "the answer is A lot of ..."
        last = "" if hedged else letter.upper()
    for match in _IS.finditer(text):
        last = match[1] if last is None else last
    return last


def _line(text: str) -> str | None:
    lines = text.split("\n")
    bare = {match[1].upper() for line in lines if (match := _BARE.fullmatch(line))}
    if len(bare) > 1:
        return ""
    for line in (lines[-1], lines[0]):
        letters = _whole_line(line, strict=True) if line else None
        if letters is not None:
            return letters
    return None


def _in_name(text: str, letter: re.Match[str]) -> bool:
    """Whether a letter belongs to a name: "Plan B", "Hepatitis B", "B vitamins"."""
    before = text[max(0, letter.start() - 32) : letter.start()]
    capitalised = _CAPITALISED.search(before)
    if _NOUN.search(before) or (capitalised and not _OPENER.fullmatch(capitalised[1])):
        return True
    return _COMPOUND.match(text, letter.end()) is not None


def _own(text: str) -> str | None:
    """Letters in brackets, else capitals that stand alone and are no English word; the last of them."""
    for pattern in (_BRACKETED, _ALONE):  # "A or B": A alone is no letter, but it makes B one of several
        letters = [m for m in pattern.finditer(text) if pattern is _BRACKETED or not _in_name(text, m)]
        if letters:
            if (
                len(letters) > 1
                and _HEDGE.match(text[letters[-2].end() :])
                and letters[-2][1].upper() != letters[-1][1].upper()
            ):
                return ""
            before = text[max(0, letters[-1].start() - 24) : letters[-1].start()]
            return "" if _NOT.search(before) or _OTHER.search(before) else letters[-1][1].upper()
    return None
