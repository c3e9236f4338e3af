"""The hint curve of SEELE, and its rounds by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import context, parts, request

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role
from pipelines.papers.seele import accuracy, fit, inverse, next_share

SOLUTION = "abcdefghij"


@given(st.floats(0.5, 50), st.floats(-1.5, 0.5), st.floats(0, 0.4), st.floats(0.45, 0.95))
def test_the_hint_curve_and_its_inverse(slope, shift, guess, target):
    p = inverse(target, slope, shift, guess)
    assert abs(float(accuracy(p, slope, shift, guess)) - target) < 1e-6
    assert inverse(target, slope, shift + 0.1, guess) < p, "a stronger policy needs less"
    assert inverse(0.3, slope, shift, 0.35) == 0


@given(st.lists(st.tuples(st.floats(0, 0.9), st.floats(0, 1)), min_size=1, max_size=4))
def test_a_hint_never_tells_everything(tried):
    assert 0 <= next_share(tried, 0.5, 0.9) <= 0.9


def test_where_guessing_alone_reaches_the_target_no_hint_is_needed():
    assert inverse(0.3, 10.0, -0.5, 0.3) == 0.0


def test_three_shares_fit_a_guess_rate_and_two_do_not():
    _, _, guess = fit([(0.1, 0.4), (0.4, 0.4), (0.9, 1.0)])
    assert guess == pytest.approx(0.4, abs=0.02)
    slope, shift, guess = fit([(0.3, 0.2), (0.3, 0.3), (0.7, 0.9)])
    assert guess == 0.0
    assert accuracy(0.3, slope, shift, 0.0) == pytest.approx(0.25, abs=1e-3), "equal shares count with their mean"
    assert accuracy(0.7, slope, shift, 0.0) == pytest.approx(0.9, abs=1e-3)


def test_constant_outcomes_need_no_fit():
    assert next_share([(0.1, 0.0)], 0.5, 0.9) == 0.9, "a fit to one share would stop before it"
    assert next_share([(0.8, 1.0), (0.2, 1.0)], 0.5, 0.9) == 0.1
    assert 0 < next_share([(0.8, 1.0), (0.2, 0.5)], 0.5, 0.9) < 0.9


def hints_of(rows):
    return [next((text for role, text in parts(row) if role == Role.TEACHER_FORCED), "") for row in rows]


def run(part, script, requests):
    rows = part.on_rollouts(part.run(requests, context(script)))
    assert [row.group for row in rows] == sorted(row.group for row in rows)
    return rows


def test_rounds_by_hand():
    """Five rollouts in two rounds are 2 and 3. All correct: the share is halved; all incorrect: it stays at its largest."""
    part = bind("rlvr.rollout", {"kind": "seele", "rounds": 2}).fn
    requests = [
        request("p", 5, group=0, solution=SOLUTION, answer=SOLUTION),
        request("q", 5, group=1, solution=SOLUTION),
    ]
    rows = run(part, lambda prefix, n: SOLUTION[len(prefix) - 1 :] if prefix[0] == "p" else "no", requests)
    assert hints_of(rows[:5]) == [SOLUTION[:9]] * 2 + [SOLUTION[:4]] * 3, "0.9 and 0.45 of ten tokens"
    assert hints_of(rows[5:]) == [SOLUTION[:9]] * 5
    assert part.shares == {f"{0:032x}": pytest.approx(0.225), f"{1:032x}": pytest.approx(0.9)}
    rows = run(part, lambda prefix, n: "no", requests[:1])
    assert hints_of(rows) == [SOLUTION[:2]] * 2 + [SOLUTION[:9]] * 3, "a later visit begins where the one before ended"


def test_the_whole_solution_is_never_shown():
    part = bind("rlvr.rollout", {"kind": "seele", "rounds": 1}).fn
    part.load_state_dict({"shares": {f"{0:032x}": 1.0}})
    assert hints_of(run(part, lambda prefix, n: "no", [request("p", 1, solution=SOLUTION)])) == [SOLUTION[:9]]


def test_a_solution_of_one_token_or_none_gives_no_hint():
    part = bind("rlvr.rollout", {"kind": "seele", "rounds": 1}).fn
    requests = [request("p", 1, answer="a"), request("q", 1, group=1, answer="")]
    assert hints_of(run(part, lambda prefix, n: "no", requests)) == ["", ""]
    assert part.shares == {f"{0:032x}": 0.0, f"{1:032x}": 0.0}


def test_a_round_that_nobody_could_score_leaves_the_share():
    part = bind("rlvr.rollout", {"kind": "seele", "rounds": 2}).fn
    rows = run(part, lambda prefix, n: "", [request("p", 2, solution=SOLUTION)])
    assert hints_of(rows) == [SOLUTION[:9]] * 2 and part.shares == {f"{0:032x}": 0.9}
