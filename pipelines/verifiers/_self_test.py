"""A test that each verifier passes before a run may use it, on the rows of `_examples.py`.

It asks of the libraries installed here what the test suite asked of the pinned ones.
"""

from __future__ import annotations

from functools import cache

from pipelines.base.errors import UserError
from pipelines.verifiers import verify_many
from pipelines.verifiers._examples import examples_of


class VerifierError(UserError):
    """A verifier fails its own test here."""


@cache
def require(name: str) -> None:
    """Run a verifier on its examples; a plug-in need not bring any.

    Raises:
        VerifierError: one comes out otherwise than it must.
    """
    examples = examples_of(name)
    verdicts = verify_many([(name, e.completion, e.answer, e.info) for e in examples])
    for example, verdict in zip(examples, verdicts, strict=True):
        if verdict.correct is not (example.kind == "gold"):
            raise VerifierError(
                f"the verifier {name} fails its own test: it calls the {example.kind} example {verdict.status} "
                f"{dict(verdict.components) or ''}",
                fix="Install the versions of constraints.txt, or choose another verifier.",
            )
