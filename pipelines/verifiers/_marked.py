"""Where a completion marks its answer; every function is linear in the text."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)[ \t]{0,8}\{")
_BETWEEN = re.compile(
    r"(?:[\s,;$&.()/|*]|(?<![A-Za-z\\])[A-Za-z](?:_\{?\w{1,3}\}?)?\s?=|\\q?quad(?![a-z])|\\[,;:!\\]|\b(?:or|and|oder|else|either|maybe|perhaps|possibly|also|alternatively)\b"
    r"|\\text\s?\{\s?(?:or|and)\s?\})*"
)
"""Between marks that are one answer."""
WIDEST = 80
_LIKE = r"(?=[-$\\(*]{0,3}\d|\\|[$*(]{0,3}(?-i:[A-HJ-Z])(?![A-Za-z']))"
"""The beginning of something that could be an answer."""
_OR_AFTER = re.compile(
    rf"[\s$*.,;)\]]{{0,8}}(?:or|alternatively|maybe|perhaps|possibly|otherwise)\b[ ,:]{{0,3}}"
    rf"(?:(?:it is|it's|maybe|perhaps|possibly|else|also|even|just)[ ,]{{1,2}}){{0,3}}{_LIKE}([^\n]{{1,40}})",
    re.I,
)
_OR_BEFORE = re.compile(
    r"(?:^|(?<=\s))([^\s,]{0,20}(?:\d|(?<![^\s$(*])[A-Z])[^\s\w]{0,4}),?\sor(?: else| maybe| perhaps| possibly)?[\s$*]{1,4}\Z"
)
_HEADING = re.compile(
    r"[ *]*(?:(?:the|final|step \d{1,3}|steps?|answers?|solution|result|conclusion|explanation|summary|calculation|check)\b[ :*.-]*)+",
    re.I,
)
_LINE = re.compile(r"#{4,}\s*((?:(?!####)[^\n])*)")
_TAG = re.compile(r"</?answer>")
_TAKEN_BACK = re.compile(
    r"\b(?:wait|actually|correction|sorry|scratch that|on second thought|hmm|let me re\w{1,12}|i was wrong"
    r"|that(?:'s| is) (?:wrong|incorrect|not right)"
    r"|(?<=[.?!] )or (?:maybe|perhaps|possibly))\b",
    re.I,
)
_SAYS = re.compile(r"\banswer(?:[ \t]{1,8}[a-z]{1,12}){0,3}[ \t]{0,8}(?:is\b|:|=)[ \t]{0,8}:?", re.I)


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Start, end and contents of every outermost `\boxed{...}`; empty contents where the braces are not balanced.

    >>> boxes(r"\boxed{\frac{1}{2}} or \boxed {3}")
    [(0, 19, '\\frac{1}{2}'), (23, 33, '3')]
    """
    marks: list[tuple[int, int, str]] = []
    at = 0
    while match := _BOX.search(text, at):
        end = _closing(text, match.end())
        if end is None:
            marks.append((match.start(), len(text), ""))  # cut off: whatever it holds is no answer
            break
        marks.append((match.start(), end, text[match.end() : end - 1].strip()))
        at = end
    return marks


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for at in range(start, len(text)):
        if text[at] == "{" and text[at - 1] != "\\":
            depth += 1
        elif text[at] == "}" and text[at - 1] != "\\":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def marked(text: str) -> str | None:
    r"""What the text marks as its answer: the mark that comes last of `<answer>`, `\boxed{}` and `####`; None without any.

    Marks that are joined ("\boxed{3} or \boxed{4}", tags in a row) are one answer, "3, 4", and so is an alternative beside
    a mark ("\boxed{3} or 4"). A box inside the tags is the answer. A heading with `####` is no mark.

    >>> marked("#### 3 \n"), marked(r"\boxed{3} or \boxed{4}"), marked(r"<answer>\boxed{5}</answer>"), marked("4")
    ('3', '3, 4', '5', None)
    >>> marked(r"\boxed{3}, or maybe 4."), marked("#### 3\n#### 4"), marked("#### Answer\n5")
    ('3, 4.', '3, 4', None)
    """
    kinds = [boxes(text), _tags(text), _lines(text)]
    marks = max(kinds, key=lambda listed: listed[-1][0] if listed else -1)
    if not marks:
        return None
    parts = [marks[-1][2]]
    at = len(marks) - 1
    while at and marks[at][0] - marks[at - 1][1] <= WIDEST and _BETWEEN.fullmatch(text, marks[at - 1][1], marks[at][0]):
        at -= 1
        parts.append(marks[at][2])
    parts.reverse()
    before = _OR_BEFORE.search(text, max(0, marks[at][0] - WIDEST), marks[at][0])
    after = _OR_AFTER.match(text, marks[-1][1])
    return ", ".join(dict.fromkeys([*([before[1]] if before else []), *parts, *([after[1]] if after else [])]))


def _tags(text: str) -> list[tuple[int, int, str]]:
    """Start, end and contents of every `<answer>`; one that is never closed goes to the next, or to the end."""
    marks = []
    tags = [*_TAG.finditer(text)]
    for at, tag in enumerate(tags):
        if tag[0] == "<answer>":
            stop = tags[at + 1].start() if at + 1 < len(tags) else len(text)
            end = tags[at + 1].end() if at + 1 < len(tags) and tags[at + 1][0] == "</answer>" else stop
            marks.append((tag.start(), end, text[tag.end() : stop].strip()))
    return marks


def _lines(text: str) -> list[tuple[int, int, str]]:
    """Start, end and rest of every line with `####`, without headings that something follows."""
    lines = [(m.start(), m.end(), m[1].strip()) for m in _LINE.finditer(text)]
    return [line for line in lines if not (_HEADING.fullmatch(line[2][:WIDEST]) and text[line[1] : line[1] + 1])]


def stated(text: str) -> str | None:
    """The rest of the line after the last "answer is" or "answer:"; None where there is none.

    >>> stated("The final answer is: 7.\\nBye"), stated("7")
    ('7.', None)
    """
    end = -1
    for match in _SAYS.finditer(text):
        end = match.end()
    if end < 0:
        return None
    rest = text[end:].lstrip().partition("\n")[0].strip()
    return rest or None


def taken_back(text: str) -> str | None:
    """What follows the last "wait" or "actually" after the last "answer is"; None where nothing takes it back.

    >>> taken_back("The answer is 5. Wait, it is 6."), taken_back("Wait. The answer is 5.")
    (', it is 6.', None)
    """
    end = at = -1
    for match in _SAYS.finditer(text):
        end = match.end()
    for match in _TAKEN_BACK.finditer(text, end) if end >= 0 else ():
        at = match.end()
    return text[at:] if at >= 0 else None
