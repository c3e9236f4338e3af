"""Planted bugs (`tests/planted_bugs`): the line that each changes is in its file once, and its tests exist."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.lint.tree import ROOT


def stale(bugs: Mapping[str, Any]) -> Iterator[str]:
    """Bugs that can no longer be planted as they are written."""
    from planted import check_line

    for name, bug in bugs.items():
        try:
            check_line(bug)
        except (AssertionError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else f"its line is not in {bug[0]} exactly once"
            yield f"tests/planted_bugs: {name}: {reason}"


def check() -> Iterator[str]:
    """Every planted bug."""
    sys.path.insert(0, str(ROOT / "tests"))
    from planted_bugs import PLANTED

    yield from stale(PLANTED)
