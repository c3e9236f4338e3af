"""Where a completion marks its answer; every function is linear in the text."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)[ \t]{0,8}\{")
_BETWEEN = re.compile(r"[\s,;$&.]{0,8}(?:(?:or|and|oder|\\text\{ ?(?:or|and) ?\})[\s,;$]{0,8})?")
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

    Boxes that are joined ("\boxed{3} or \boxed{4}") are one answer, "3, 4". A box inside the tags is the answer.

    >>> marked("#### 3 \n"), marked(r"\boxed{3} or \boxed{4}"), marked(r"<answer>\boxed{5}</answer>"), marked("4")
    ('3', '3, 4', '5', None)
    """
    tag, line = text.rfind("<answer>"), text.rfind("####")
    framed = boxes(text)
    last = max(tag, line, framed[-1][0] if framed else -1)
    if last < 0:
        return None
    if framed and last == framed[-1][0]:
        parts = [framed[-1][2]]
        for before, after in zip(reversed(framed[:-1]), reversed(framed), strict=False):
            if not _BETWEEN.fullmatch(text, before[1], after[0]):
                break
            parts.append(before[2])
        return ", ".join(dict.fromkeys(reversed(parts)))
    if last == tag:
        return text[tag + 8 :].partition("</answer>")[0].strip()
    return text[line + 4 :].strip().partition("\n")[0].strip()


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
