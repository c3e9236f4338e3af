"""Every verifier has a test of its own, passes it, and a broken one is refused."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.verifiers import VERIFIERS, Verdict
from pipelines.verifiers import _self_test as self_test


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_passes_its_own_test(name):
    assert {example.kind for example in self_test.EXAMPLES[name]} == set(self_test.KINDS)
    self_test.require(name)


def test_a_verifier_that_pays_junk_is_refused(monkeypatch):
    generous = Verdict(1.0, "correct")
    monkeypatch.setattr(self_test, "verify_many", lambda rows: [generous] * len(rows))
    with pytest.raises(self_test.VerifierError, match="exact fails its own test: it calls the junk"):
        self_test.require.__wrapped__("exact")


def test_a_hedged_choice_with_a_is_several():
    for text in ("The answer is A or B.", "The answer is either A or B.", "It could be A or B"):
        assert verifiers.verify("choice", text, "B", {}).status == "incorrect"
