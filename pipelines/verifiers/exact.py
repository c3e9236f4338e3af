"""The whole completion equals the answer, after trimming."""

from __future__ import annotations

from typing import Any

from pipelines.verifiers.verdict import Verdict, correct_or_incorrect


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """White space at the ends is ignored; runs of it count as one space.

    >>> verify(" ab  c ", "ab c", {}).score
    1.0
    """
    return correct_or_incorrect(" ".join(completion.split()) == " ".join(answer.split()))
