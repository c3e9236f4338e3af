"""Examples in docstrings, whose numbers need to agree in the decimals that are shown."""

from __future__ import annotations

import doctest
import re

NUMBER = re.compile(r"[-+]?\d+(?:\.(\d+))?(?:e[-+]?\d+)?")


class NumberChecker(doctest.OutputChecker):
    """Compares text exactly and numbers with a decimal point to the decimals that the example shows, as pytest does.

    >>> checker = NumberChecker()
    >>> checker.check_output("[0.33, 1]", "[0.3333, 1]", 0), checker.check_output("[0.35, 1]", "[0.3333, 1]", 0)
    (True, False)
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Whether an example's output is what it says."""
        if super().check_output(want, got, optionflags):
            return True
        wanted, shown = list(NUMBER.finditer(want)), list(NUMBER.finditer(got))
        if len(wanted) != len(shown) or NUMBER.sub("#", want).split() != NUMBER.sub("#", got).split():
            return False
        return all(_close(each, other) for each, other in zip(wanted, shown, strict=True))


def _close(wanted: re.Match[str], shown: re.Match[str]) -> bool:
    decimals = wanted[1]
    if decimals is None:
        return wanted[0] == shown[0]
    return abs(float(wanted[0]) - float(shown[0])) < 10.0 ** -len(decimals)
