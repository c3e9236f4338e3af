"""Headings of Markdown pages."""

from __future__ import annotations

import re


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it.

    >>> slug("Rewards of several terms"), slug("RLVR's `slots`, twice")
    ('rewards-of-several-terms', 'rlvrs-slots-twice')
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
