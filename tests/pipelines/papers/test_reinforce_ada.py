"""Reinforce-Ada's rounds: who is asked again, which rows are kept, and what they remember of the others."""

from __future__ import annotations

from itertools import count

import pytest
from scripted import context, request, show

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role


def sampled(right, *, kept=4, **settings):
    """Texts of the kept rows of problems "p0", "p1", ..., whose n-th answer is correct where n is in `right`; the part, and the sampler."""
    part = bind("rlvr.rollout", {"kind": "reinforce_ada", **settings}).fn
    asked = [request(f"p{number}", kept, group=number) for number in range(len(right))]
    numbers = [count() for _ in right]

    def script(prefix, _):
        number = next(numbers[int(prefix[1])])
        return "ok" if number in right[int(prefix[1])] else f"no{number}"

    ctx = context(script)
    rows = part.run(asked, ctx)
    texts = [[] for _ in right]
    for row in rows:
        texts[row.group].append(show([t for t, role in zip(row.tokens, row.role, strict=True) if role == Role.POLICY]))
    return texts, rows, part, ctx.sampler


def test_only_problems_that_lack_answers_are_asked_again_and_half_of_the_rows_are_positive():
    texts, rows, part, sampler = sampled([{0, 1}, {5, 9}], rounds=4)
    assert [len(call.prefixes) for call in sampler.calls] == [8, 4, 4]
    assert [text.count("ok") for text in texts] == [2, 2] and [len(text) for text in texts] == [4, 4]
    assert [row.extras for row in rows[::4]] == [
        {"pool_size": 4.0, "pool_positive": 2.0},
        {"pool_size": 12.0, "pool_positive": 2.0},
    ]
    assert part.metrics() == {"pool": 8.0, "enough": 1.0} and part.metrics() == {}


def test_after_the_last_round_more_of_the_other_kind_fill_the_group():
    texts, rows, part, _ = sampled([set(), {0, 1, 2, 3, 4, 5, 6}], rounds=2)
    assert [text.count("ok") for text in texts] == [0, 3] and [len(text) for text in texts] == [4, 4]
    assert rows[0].extras == {"pool_size": 8.0, "pool_positive": 0.0} and part.metrics()["enough"] == 0.0


@pytest.mark.parametrize(("until", "calls"), [("positive", 1), ("balanced", 3)])
def test_one_positive_answer_may_be_enough(until, calls):
    assert len(sampled([{1}], until=until, rounds=3)[3].calls) == calls


def test_a_round_may_be_larger_than_what_is_kept():
    texts, rows, _, sampler = sampled([{6, 7}], per_round=8)
    assert len(sampler.calls) == 1 and texts[0].count("ok") == 2 and rows[0].extras["pool_size"] == 8.0
