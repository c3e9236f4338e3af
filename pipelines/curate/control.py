"""A negative control: answers that cannot be correct must not be scored so."""

from __future__ import annotations

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.verifiers import _self_test as self_test

ROWS = 8
"""Problems of every source that are tried."""
NONSENSE = ("", "xyzzy", "I do not know.", "{}", "nan", "(" * 5)


def check(label: str, problems: list[Problem]) -> None:
    """Test the verifiers, then score nonsense, and other rows' answers, against a source's first problems.

    Another row's answer may happen to be correct, where a problem has several; more than half of them may not.

    Raises:
        VerifierError: a verifier fails its own test.
        DataError: names the source, its verifier and the answer that was paid.
    """
    for name in sorted({p.verifier for p in problems}):
        self_test.require(name)
    problems = [p for p in problems if not verifiers.open_ended(p.verifier, p.answer, p.info)]
    tried = [(p, text) for p in problems for text in NONSENSE if text != p.answer.strip()]
    for problem, text in _correct(tried):
        raise DataError(
            "curate.sources",
            f"{label}: the verifier {problem.verifier} calls {text!r} a correct answer where the data says {problem.answer[:80]!r}",
            "A model would learn to say that; choose another verifier or source.",
        )
    swapped = [
        (p, q.answer) for p in problems for q in problems if " ".join(q.answer.split()) != " ".join(p.answer.split())
    ]
    paid = _correct(swapped)
    if len(swapped) >= ROWS and len(paid) > len(swapped) / 2:
        problem, text = paid[0]
        raise DataError(
            "curate.sources",
            f"{label}: the verifier {problem.verifier} calls the answers of other rows correct, such as {text[:80]!r} for "
            f"{problem.answer[:80]!r}",
            "Choose another verifier or source.",
        )


def _correct(tried: list[tuple[Problem, str]]) -> list[tuple[Problem, str]]:
    verdicts = verifiers.verify_many([(p.verifier, text, p.answer, p.info) for p, text in tried])
    return [pair for pair, verdict in zip(tried, verdicts, strict=True) if verdict.correct]
