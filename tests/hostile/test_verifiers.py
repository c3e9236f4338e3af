"""Texts made to hang, kill or fool a verifier: a verdict comes, in time, and never `correct`."""

from __future__ import annotations

import time

import pytest

from pipelines import verifiers
from pipelines.verifiers import verify_here
from pipelines.verifiers.pool import Limits, Pool, Request

pytestmark = pytest.mark.hostile


REFUSED = [
    "10^{10^{10}}",
    "\\binom{10^9}{5\\cdot10^8}",
    "7^{123456789}",
    "((((((((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))))))))",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{1}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}}",
    "50!!",
    "((10!)!)!",
    "100000!",
    "\\sum_{i=1}^{10^9} i",
    "\\sum_{n=1}^{1000000000}\\frac{1}{n}",
    "\\prod_{k=1}^{99999999} k",
    "9^{9^{9^{9}}}",
    "9**9**9",
    "2^{100!}",
    "x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{x^{2}}}}}}}}}}}}}}}}}}}}",
    "\\binom{999999}{333333}",
    "2^2^2^2^2^2",
    "12345678901234567890!",
    "123456789^{9999}",
    "0.1^{9999}",
    "C(10^9, 10^8)",
    "{10^9 \\choose 5}",
]

SLOW = ["(x+1)^{5000}", r"\int_0^1 x^{x^{x}} dx", "(x+y+z)^{300}", r"\int e^{x^2}\sin(x^3) dx"]
LONG = ["9" * 10_000, "1+" * 5000 + "1", r"\frac{1}{" * 30 + "2" + "}" * 30, "[" * 30 + "1" + "]" * 30]
FORMS = ["$%s$", r"\boxed{%s}", "<answer>%s</answer>"]


@pytest.mark.parametrize("text", [*REFUSED, *LONG], ids=lambda t: t[:20])
def test_refused_at_once(text):
    verifiers.verify("math", "x", "y", {})  # the pool runs
    rows = [("math", form % text, "42", {}) for form in FORMS] + [("math", "42", text, {})]
    began = time.monotonic()
    found = verifiers.verify_many(rows)
    assert time.monotonic() - began < 5
    assert not any(v.correct for v in found)


@pytest.mark.parametrize("text", [SLOW[0], *(pytest.param(text, marks=pytest.mark.slow) for text in SLOW[1:])])
def test_ended_in_time(text):
    verifiers.verify("math", "x", "y", {})
    began = time.monotonic()
    found = verifiers.verify_many([("math", rf"\boxed{{{text}}}", "42", {}), ("math", "42", text, {})])
    assert time.monotonic() - began < 20
    assert not any(v.correct for v in found)


REPEATED = [
    " ", "\t\n", "<answer>", "\\boxed{", "\\boxed{1} or ", "answer is ", "answer ", "answer    \t  ", "#### ", "1 ", "1,", "1 or ",
    "1/", "1.", "9", "-", "(", ")", "}", "10^", "$ ", "A ", "B or ", "B, ", "choice the ", "1 234 ", "\\frac{1}", "1e", "**",
]  # fmt: skip


@pytest.mark.parametrize("text", REPEATED, ids=repr)
@pytest.mark.parametrize("name, answer", [("number", "7"), ("choice", "B"), ("exact", "x")])
def test_time_is_linear(name, answer, text):
    def seconds() -> float:
        began = time.process_time()
        verify_here(name, text * 20_000, answer, {})
        return time.process_time() - began

    # A collection of the garbage of all tests so far can take a second of the first attempt.
    assert any(seconds() < 1.5 for _ in range(2)), "25,000 unclosed tags once took five seconds"


@pytest.mark.slow
@pytest.mark.long
def test_a_thousand_bombs_among_ten_thousand_rows():
    """Handed to the pool directly, past the checks that refuse most of them; the budget is 60 s + 0.02 s a row."""
    pool = Pool(limits=Limits(quick_s=0.1))
    try:
        rows = [Request("verify", "math", f"\\boxed{{{i}x}}", f"{i}x", {}) for i in range(10_000)]
        for i in range(0, 10_000, 10):
            rows[i] = Request("verify", "regex", "a" * (60 + i % 7) + f"b{i}", "(a+)+", {})
        began = time.monotonic()
        found = pool.run(rows)
        assert time.monotonic() - began < 60 + 0.02 * len(rows) + 10
        assert {v.status for v in found[::10]} == {"timed_out"}
        assert {v.status for i, v in enumerate(found) if i % 10} == {"correct"}
    finally:
        pool.close()
