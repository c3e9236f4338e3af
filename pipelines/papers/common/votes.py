"""What several answers agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def vote(answers: Sequence[str]) -> str | None:
    """The most frequent answer that is not empty; "" where nobody answered, None where several tie.

    >>> vote(["4", "4", "5", "", "4"]), vote(["4", "7"]), vote(["", ""])
    ('4', None, '')
    """
    best = Counter(a for a in answers if a).most_common(2)
    if len(best) > 1 and best[0][1] == best[1][1]:
        return None
    return best[0][0] if best else ""
