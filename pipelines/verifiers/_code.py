"""Where a completion has its program or query; linear in the text."""

from __future__ import annotations

import re

from pipelines.verifiers.in_process import answer_text

_FENCE = re.compile(r"^[ \t]{0,3}(```+|~~~+)[ \t]*([\w+#.-]*)[^\n`]*$")


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks as (language in lower case, contents); one that is never closed goes to the end.

    >>> blocks("a\\n```python\\nx = 1\\n```\\nb\\n~~~\\ny")
    [('python', 'x = 1'), ('', 'y')]
    """
    fenced: list[tuple[str, str]] = []
    fence, language = "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence and match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2]:
            fenced.append((language, "\n".join(lines)))
            fence, lines = "", []
        elif fence:
            lines.append(line)
        elif match:
            fence, language = match[1], match[2].lower()
    if fence:
        fenced.append((language, "\n".join(lines)))
    return fenced


def program(completion: str, languages: tuple[str, ...], wanted: str = "") -> str:
    """The program in a completion: its last fenced block, or all of it (of its `<answer>`) where there is none.

    Args:
        languages: names of a fence that are meant; a fence without a name always is.
        wanted: a pattern; the last block that matches it is preferred.

    >>> program("Use:\\n```python\\ndef f(): pass\\n```\\nfor example\\n```\\nf()\\n```", ("python",), r"def f\\b")
    'def f(): pass'
    """
    text = answer_text(completion)
    fenced = blocks(text)
    if not fenced:
        return text
    meant = [body for language, body in fenced if language in languages or not language]
    preferred = [body for body in meant if wanted and re.search(wanted, body)]
    return (preferred or meant or [""])[-1]
