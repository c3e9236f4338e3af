"""A rubric refined where the best answers tie: the sheet's values, and what holds for every judge."""

from __future__ import annotations

import re

import judge_server
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.records import Problem
from pipelines.judges.endpoint import Reply
from pipelines.judges.questions import Criterion, weighted
from pipelines.judges.refining import Candidates, Rubrics, refine

LETTERS = "abcdef"


def problem(number):
    return Problem(
        uid=str(number), prompt=[{"role": "user", "content": "?"}], answer="", verifier="exact", source="s", licence="l"
    )


class Judge:
    """Sees letters; writes about a pair the criteria of `writes`, or of the letters that one of the two lacks."""

    def __init__(self, writes=None, unread=""):
        self.writes, self.unread, self.asked, self.proposed = writes, unread, 0, 0

    def ask(self, conversations):
        return [Reply(self.reply({"messages": c})) for c in conversations]

    def reply(self, body):
        system = body["messages"][0]["content"]
        if "further criteria" in system:
            self.proposed += 1
            first, second = judge_server.pair(body)
            letters = self.writes if self.writes is not None else sorted(set(first) ^ set(second))
            return "\n".join(f"Criterion (weight 2): It has {letter}." for letter in letters)
        self.asked += 1
        text = judge_server.parts(body)[3]
        letter = re.search(r"It has (.)\.", system)[1]
        return "hm" if self.unread and self.unread in text else f"Met: {'yes' if letter in text else 'no'}"


def rubric(**weights):
    return [Criterion(criterion=f"It has {letter}.", weight=weight) for letter, weight in weights.items()]


def of(judge, *answers, own=None):
    shared = rubric(a=3, b=2, c=1)
    candidates = [Candidates(problem(i), list(texts)) for i, texts in enumerate(answers)]
    return Rubrics(judge, candidates, own or [shared] * len(answers))


def test_the_sheet_s_values():
    assert weighted(rubric(a=3, b=2, c=1), [True, False, True]) == 4 / 6
    assert weighted(rubric(a=3, b=2, c=1), [True, False, False]) == 0.5
    rubrics = of(Judge(), ["abcd", "abc", "a"])
    assert rubrics.points() == [[1.0, 1.0, 0.5]] and rubrics.separated() == (0.0, 1)
    assert refine(rubrics, shared=True) == [(1, 1)]
    assert rubrics.points()[0][:2] == [1.0, 0.75] and rubrics.separated() == (1.0, 1)
    assert rubrics.of[0][3] == Criterion(criterion="It has d.", weight=2)


def test_what_tells_nothing_apart_is_not_added_and_a_pair_is_asked_about_once():
    judge = Judge(writes="az")
    rubrics = of(judge, ["abcd", "abce", "abcf"])
    assert refine(rubrics, shared=True, rounds=9) == [(1, 0)] * 3, "each of the three pairs that tie"
    assert len(rubrics.of[0]) == 3 and judge.proposed == 3
    known = Judge(writes="d")
    rubrics = of(known, ["abcd", "abc"])
    rubrics.of[0].extend(rubric(d=0.0))
    assert refine(rubrics, shared=True)[0] == (1, 0), "it stands there already"


def test_own_rubrics_and_limits():
    own = [rubric(a=1), rubric(b=1)]
    rubrics = of(Judge(), ["ac", "a"], ["bd", "b"], own=own)
    refine(rubrics, shared=False)
    assert [[c.criterion[-2] for c in each] for each in own] == [["a", "c"], ["b", "d"]]
    rubrics = of(Judge(), ["abcd", "abc"], ["abce", "abc"], ["abcf", "abc"])
    refine(rubrics, shared=True, most=2)
    assert len(rubrics.of[0]) == 5 and rubrics.separated()[0] == 2 / 3


def test_an_answer_that_cannot_be_judged_has_no_points():
    rubrics = of(Judge(unread="d"), ["abcd", "abc", "a"], ["abcd", "a"])
    assert rubrics.points() == [[None, 1.0, 0.5], [None, 0.5]] and rubrics.separated() == (1.0, 1)


@given(
    st.lists(
        st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=2, max_size=2, unique_by=frozenset),
        min_size=1,
        max_size=4,
    )
)
def test_an_able_judge_tells_every_pair_apart(answers):
    """Own rubrics of two answers: what is added speaks for one of them, so a tie cannot last."""
    own = [rubric(a=3.0) for _ in answers]
    rubrics = of(Judge(), *answers, own=own)
    before, count = rubrics.separated()
    refine(rubrics, shared=False, rounds=20, most=20)
    after, still = rubrics.separated()
    assert count == still == len(answers) and after == 1.0 >= before
    assert all(1 <= c.weight <= 3 for each in own for c in each)


@given(st.text(LETTERS, max_size=4), st.text(LETTERS, max_size=4))
def test_a_criterion_that_both_meet_changes_no_order(first, second):
    common = {"z": 2.0}
    judge = Judge()
    plain, more = (of(judge, [first + "z", second + "z"], own=[rubric(a=3, b=2, **extra)]) for extra in ({}, common))
    (a, b), (c, d) = plain.points()[0], more.points()[0]
    assert (a > b, a < b) == (c > d, c < d)
