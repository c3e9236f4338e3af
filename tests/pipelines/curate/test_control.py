"""The negative control: a source whose verifier pays nonsense is refused by name."""

from __future__ import annotations

import pytest

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.curate import control
from pipelines.data.records import Problem
from pipelines.verifiers import Verdict, exact


def problems(verifier: str = "exact") -> list[Problem]:
    return [
        Problem(uid=str(i), prompt=[], answer=str(i), verifier=verifier, source="s", licence="l")
        for i in range(control.ROWS)
    ]


@pytest.mark.parametrize("verifier", ["exact", "number", "math"])
def test_good_sources_pass(verifier):
    control.check("mine", problems(verifier))
    control.check("mine", problems(verifier)[:1])
    control.check("mine", [])


@pytest.mark.parametrize(
    "pays, says", [(lambda text: text == "xyzzy", "'xyzzy'"), (lambda text: text.isdigit(), "answers of other rows")]
)
def test_a_verifier_that_pays_nonsense_is_named(monkeypatch, pays, says):
    def verify(completion, answer, info):
        return verifiers.correct_or_incorrect(completion == answer or pays(completion))

    monkeypatch.setattr(exact, "verify", verify)
    with pytest.raises(DataError, match="mine: the verifier exact") as error:
        control.check("mine", problems())
    assert says in str(error.value) and isinstance(verify("1", "1", {}), Verdict)
