"""Surplus problems of one step in the next."""

from __future__ import annotations

from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import DrawnProblem


def part(**settings):
    return bind("rlvr.sampling_schedule", {"kind": "dynamic_carry", **settings}).fn


def drawn(letters):
    """A problem of two groups for each letter; capital ones have something to train."""
    return [
        DrawnProblem([answer(letter * 32, 2 * i + g, letter) for g in (1, 0, 1)], letter.isupper())
        for i, letter in enumerate(letters)
    ]


def steps(schedule, *draws, prompts=2):
    """What each step trains on; draws are lists of letters, one string a step with its draws apart by blanks."""
    out = []
    for words in draws:
        left = words.split()
        out.append("".join(p.rows[0].text for p in schedule.collect(lambda left=left: drawn(left.pop(0)), prompts)))
        assert not left, "every draw of the step was needed"
    return out


def test_surplus_comes_first_and_a_full_step_draws_nothing():
    schedule = part()
    assert steps(schedule, "ABCD", "", "EFG") == ["AB", "CD", "EF"]
    assert [age for age, _ in schedule.carried] == [0]


def test_age_is_counted_in_steps_and_the_oldest_go_first():
    """A carried problem that still finds no place is a step older; at `max_age` it is let go."""
    assert steps(part(max_age=1), "ABCDEFG", "", "HI") == ["AB", "CD", "HI"]
    assert steps(part(max_age=2), "ABCDEFG", "", "", "HI") == ["AB", "CD", "EF", "HI"]
    assert steps(part(max_age=3), "ABCDEFG", "", "", "H") == ["AB", "CD", "EF", "GH"]
    schedule = part(max_age=2)
    steps(schedule, "ABCDE", "", prompts=2)
    assert [age for age, _ in schedule.carried] == [1]
    assert steps(part(max_age=0), "ABC", "DE") == ["AB", "DE"]


def test_exactly_enough_is_enough():
    assert steps(part(), "AB", "aB C") == ["AB", "BC"]


def test_carried_groups_are_negative_and_apart():
    """Rows of a problem that were compared still are, and with nobody else's; a restart keeps them."""
    schedule = part()
    steps(schedule, "ABCD")
    again = part()
    again.load_state_dict(schedule.state_dict())
    for carrying in (schedule, again):
        groups = [[row.group for row in problem.rows] for _, problem in carrying.carried]
        assert groups == [[-2, -1, -2], [-4, -3, -4]]
        assert all(problem.trains for _, problem in carrying.carried)
