"""How pages are rendered: templates of one folder, with every value made visible and escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_WORD = 34
"""Characters of a word that a table never breaks: the name of an artifact or a field."""
ONE_LINE = 24
"""Characters of a cell that is one line: a score with its interval."""


def render(template: str, **values: Any) -> str:
    """A whole document that loads nothing; no script runs in it but the page's own, whatever the values hold."""
    return environment().get_template(template).render(**values)


@cache
def environment() -> Environment:
    """The templates, the stylesheet and the script."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    )  # fmt: skip
    script = Markup((TEMPLATES / "page.js").read_text())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    jinja.globals |= {"style": Markup((TEMPLATES / "page.css").read_text()), "script": script, "script_digest": digest}
    jinja.filters |= {"words": words}
    return jinja


def visible(value: object) -> str:
    """Text in which characters that steer a terminal, reorder a line or are no text at all are replaced.

    >>> visible("a\\x1b[2Jb\\u202ec")
    'a�[2Jb�c'
    """
    return re.sub(r"[^\t\n\r\x20-\x7e\xa0-\U0010ffff]|[\ud800-\udfff\u202a-\u202e\u2066-\u2069]", "�", str(value))


def words(cell: object) -> str:
    """The class of a cell: `short` is one line, `words` breaks between words, and only a cell with a `long` word breaks anywhere, so
    that pages keep their width.

    >>> words("12.0 % [8.1, 17.2]"), words("a run of the nightly recipe"), words("x" * 35)
    ('short', 'words', 'long')
    """
    text = str(cell)
    return "short" if len(text) <= ONE_LINE else "words" if max(map(len, text.split())) <= LONGEST_WORD else "long"
