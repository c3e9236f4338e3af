"""Monte-Carlo values of states, worked by hand from a script."""

from __future__ import annotations

import math

from scripted import context, request

from pipelines.contract.catalogue import bind
from pipelines.papers.spo import cuts

CERTAIN = math.exp(-0.25)
"""Of log-probs -0.1, -0.2, -0.3, ... the third is the first unsure one."""


def run(script, requests, *, max_tokens=8, **settings):
    part = bind("rlvr.rollout", {"kind": "chain", "certain": CERTAIN, **settings}).fn
    ctx = context(script, max_tokens=max_tokens)
    return part.run(requests, ctx), ctx.sampler.calls


def values(row):
    return {at: v for at, v in enumerate(row.mc_value) if v == v}


def test_values_by_hand():
    """The answer "abcdef" after the prompt "pq" and the hint "h": cuts before tokens 2, 4 and 6, three continuations each."""

    def script(prefix, number):
        if prefix == "pqh":
            return "abcdef"
        answer = prefix[3:]
        return {"ab": ["cd", "x", "cd"], "abcd": ["", "y", ""], "abcdef": ["", "", ""]}[answer][number % 3]

    rows, calls = run(script, [request("pq", 1, hint="h", answer="habcd")], interval=2, probes=3)
    assert calls[1].prefixes == ["pqhab"] * 3 + ["pqhabcd"] * 3 + ["pqhabcdef"] * 3
    assert [len(call.prefixes) for call in calls] == [1, 9]
    # the verifier reads the hint too; a continuation that says nothing leaves the prefix as the answer
    assert values(rows[0]) == {5: 2 / 3, 7: 2 / 3, 9: 0.0}
    assert len(rows[0].mc_value) == len(rows[0].tokens) == 10


def test_a_continuation_has_the_tokens_that_the_row_had_left():
    """Of a limit of 6 four tokens are left after the first two, so "cdefgh" counts as "cdef"."""
    for hint in ("", "hh"):
        rows, _ = run(
            lambda prefix, n: "abzzzz" if prefix.startswith("p") and "a" not in prefix else "cdefgh",
            [request("p", 1, hint=hint, answer=f"{hint}abcdef")],
            max_tokens=6,
            interval=9,
            probes=1,
        )
        assert values(rows[0]) == {1 + len(hint) + 2: 1.0}


def test_every_row_of_two_problems_has_its_own_states():
    """One of them is too sure of itself to have any."""

    def script(prefix, number):
        if len(prefix) == 1:
            return "ab" if prefix == "p" else "x"
        return "ok"

    rows, calls = run(script, [request("p", 2, answer="abok"), request("q", 1, group=1)], interval=1, probes=2)
    assert [row.group for row in rows] == [0, 0, 1] and len(calls[1].prefixes) == 4
    assert [values(row) for row in rows] == [{3: 1.0}, {3: 1.0}, {}]


def test_a_token_of_exactly_the_certain_probability_is_sure():
    assert cuts([math.log(0.9)], 0.9, 1) == [] and cuts([math.log(0.9) - 1e-9], 0.9, 1) == [0]
