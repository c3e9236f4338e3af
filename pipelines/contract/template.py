"""A judge's question in the recipe's own words, for models that were trained on another form than ours, or on a short one."""

from __future__ import annotations

import string
from collections.abc import Mapping

FIELDS = ("conversation", "prompt", "reference", "low", "high", "instruction", "mark")
"""What every template may have; `prompt` is the conversation's last message, `mark` a line that stands in none of the texts."""


def problem_with(template: str | None, wanted: tuple[str, ...]) -> str | None:
    """Why a template is none, with the fix: it has each of the `wanted` fields and no unknown one.

    >>> problem_with("{prompt} {answer}", ("answer",)), problem_with(None, ("answer",))
    (None, None)
    """
    if template is None:
        return None
    known = (*wanted, *FIELDS)
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError as error:
        return f"{error}. Write {{{{ and }}}} for braces that are no field."
    for _, name, form, conversion in parts:
        if name not in known or form or conversion:
            return f"{{{name}}} is no field. There are {', '.join(f'{{{k}}}' for k in known)}."
    absent = [name for name in wanted if name not in {part[1] for part in parts}]
    return f"without {{{absent[0]}}} every answer would get the same question. Put it in." if absent else None


def fill(template: str, values: Mapping[str, object]) -> str:
    """The question. Texts that are put in are not read as templates again.

    >>> fill("{prompt}: {answer} {{1}}", {"prompt": "2 + 2?", "answer": "{prompt}"})
    '2 + 2?: {prompt} {1}'
    """
    return template.format_map(values)
