"""Edits of a program, as a policy writes them: blocks of what to look for and what to put in its place. Linear in the text."""

from __future__ import annotations

SEARCH, MIDDLE, REPLACE = "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE"


def edits(text: str) -> list[tuple[str, str]]:
    """The complete blocks of a text as (search, replace), without blanks at their ends.

    >>> edits("So:\\n<<<<<<< SEARCH\\nx = 1\\n=======\\nx = 2\\n>>>>>>> REPLACE\\n<<<<<<< SEARCH\\ny")
    [('x = 1', 'x = 2')]
    """
    blocks: list[tuple[str, str]] = []
    _, opened, rest = text.partition(SEARCH)
    while opened:
        search, divided, rest = rest.partition(MIDDLE)
        replace, closed, rest = rest.partition(REPLACE)
        if not (divided and closed):
            break
        blocks.append((search.rstrip(), replace.rstrip()))
        _, opened, rest = rest.partition(SEARCH)
    return blocks


def edited(program: str, blocks: list[tuple[str, str]]) -> str:
    """The program after the edits, one after the other: the first lines that equal a block's search are replaced.

    A block whose lines are not there changes nothing.

    >>> edited("a\\nb\\na", [("a", "c\\nd"), ("a", "e"), ("f", "g")])
    'c\\nd\\nb\\ne'
    """
    lines = program.split("\n")
    for search, replace in blocks:
        wanted = search.split("\n")
        for position in range(len(lines) - len(wanted) + 1):
            if lines[position : position + len(wanted)] == wanted:
                lines[position : position + len(wanted)] = replace.split("\n")
                break
    return "\n".join(lines)


def essence(program: str) -> str:
    """What makes a program another one: its lines without blanks at their ends, empty ones and comments of their own left out.

    >>> essence("# why\\nx = 1  \\n\\n") == essence("x = 1"), essence("x = 1") == essence(" x = 1")
    (True, False)
    """
    lines = [line.rstrip() for line in program.split("\n")]
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
