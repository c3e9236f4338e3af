"""Hints as long as the unhinted rollouts' failures ask for."""

from __future__ import annotations

import pytest
from scripted import context, parts, request, show

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role

SOLUTION = "abcdefghij"


def hints(shares, **settings):
    """Hints (or "" without one) of the last row of groups whose unhinted rows are correct in the given shares."""
    requests = [
        request(f"p{i}", 4, group=i, answer="ok", **({"solution": SOLUTION} if solution else {}))
        for i, (_, solution) in enumerate(shares)
    ]
    correct = [share for share, _ in shares]

    def script(prefix, number):
        if prefix[2:]:
            return "x"
        share = correct[int(prefix[1])]
        return "" if share is None else "ok" if number % 2 < 2 * share else "no"

    rollout = bind("rlvr.rollout", {"kind": "adhint", "noise": 0.0, **settings}).fn
    ctx = context(script)
    rows = rollout.run(requests, ctx)
    assert [row.group for row in rows] == [i for i in range(len(shares)) for _ in range(4)]
    hinted = ctx.sampler.calls[1].prefixes
    assert len(ctx.sampler.calls) == 2 and len(hinted) == 2 * len(shares)
    for i in range(len(shares)):
        for row in rows[4 * i + 2 : 4 * i + 4]:
            teacher = [t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.TEACHER_FORCED]
            assert parts(row)[0] == (Role.PROMPT, f"p{i}") and show(teacher) == hinted[2 * i][2:]
    return [prefix[2:] for prefix in hinted[::2]]


def test_a_hint_grows_with_the_failures_of_the_unhinted():
    """w = 0.8 D + 0.1 of ten tokens: none where all are correct, 5 at D = 1/2, 9 at D = 1."""
    shares = [(1.0, True), (0.5, True), (0.0, True)]
    assert hints(shares) == ["", SOLUTION[:5], SOLUTION[:9]]


def test_a_hint_never_shows_the_whole_solution():
    assert hints([(0.0, True)], high=0.99) == [SOLUTION[:9]]
    assert hints([(0.0, False)]) == ["o"], "a record without a solution shows its answer"


def test_where_nothing_could_be_scored_the_problem_counts_as_hard():
    assert hints([(None, True)]) == [SOLUTION[:9]]


def test_the_unhinted_rows_come_first_and_share_0_has_no_others():
    rollout = bind("rlvr.rollout", {"kind": "adhint", "share": 0.0}).fn
    rows = rollout.run([request("p", 3, solution=SOLUTION)], context(lambda prefix, number: "ok"))
    assert [parts(row) for row in rows] == [[(Role.PROMPT, "p"), (Role.POLICY, "ok")]] * 3


@pytest.mark.parametrize(
    ("difficulty", "noise", "share"), [(0.0, 0.0, 0.2), (1.0, 0.0, 0.8), (0.5, 0.1, 0.6), (0, -1, 0.2)]
)
def test_the_share_is_linear_in_difficulty_between_its_bounds(difficulty, noise, share):
    part = bind("rlvr.rollout", {"kind": "adhint", "low": 0.2, "high": 0.8}).fn
    assert part.ratio(difficulty, noise) == pytest.approx(share)
