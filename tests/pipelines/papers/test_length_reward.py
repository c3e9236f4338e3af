"""The reward for length alone: by hand, and blind to what is said."""

from __future__ import annotations

import pytest
from scripted import answered

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop

UID = "a" * 32


def test_length_is_all_that_is_paid():
    """Answers of 2, 5, 9 and 21 tokens, their ends included; 5 is the target."""
    rows = [answered(UID, text) for text in ("4", "4444", "44444444", "4" * 20, "lost")]
    rows[-1].stop = Stop.ERROR
    problem = Problem(
        uid=UID, prompt=[{"role": "user", "content": "?"}], answer="4", verifier="number", source="s", licence="l"
    )
    bind("rlvr.reward", {"kind": "length", "target": 5}).fn.score(rows, {UID: problem})
    assert [row.score for row in rows[:-1]] == pytest.approx([0.4, 1.0, 0.2, -2.2]) and rows[-1].score is None
    assert [row.correct for row in rows[:-1]] == [True, False, False, False], "the verifier still says what is right"
    assert (rows[0].components["verifier"], rows[1].components["length"]) == (1.0, 1.0)
