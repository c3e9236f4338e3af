"""DIVER: what differs from the rest of its group."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.papers.diver import WEIGHTS, bleu, equations, words

UID = "a" * 32
PROBLEMS = {UID: Problem(uid=UID, prompt=[], answer="4", verifier="number", source="s", licence="l")}
PARTS = st.tuples(st.integers(0, 6), st.integers(1, 14), st.integers(0, 3))
"""Where a text of the same few words begins, how long it is, and how many other words follow it."""


def scored(texts, **settings):
    rows = [answer(UID, i // 4, text) for i, text in enumerate(texts)]
    bind("rlvr.reward", {"kind": "diver", **settings}).fn.score(rows, PROBLEMS)
    return [row.score for row in rows], rows


def test_the_sheet_s_equations():
    values, rows = scored(["$a$ $b$ $c$ 4", "$b$ \\(d\\) 4", "$a$ \\[e\\] 5", "5"])
    assert values == pytest.approx([1 / 3 * 0.5, 0.25, 0.0, 0.0])
    assert [row.correct for row in rows] == [True, True, False, False]


def test_the_cap_and_groups_apart():
    values, _ = scored(["$a$ 4", "4", "4", "4", "$a$ 4"], cap=0.25)
    assert values == [0.25, 0.0, 0.0, 0.0, 0.0], "a row alone in its group is compared with nobody"


def test_words_pay_incorrect_rows_nothing():
    text = "we add two and two to get 4"
    values, _ = scored(
        [text, text, "four is what comes of it all : 4", "we add two and two to get 5"], form="words", cap=1.0
    )
    similar = words([text, text, "four is what comes of it all : 4", "we add two and two to get 5"])
    assert values == pytest.approx([*similar[:3], 0.0])
    assert values[2] == 1.0 and 0 < values[0] < 1


@given(st.lists(st.lists(st.sampled_from(["$a$", "$b$", "$c$", "x"]), max_size=4), min_size=2, max_size=5))
def test_order_of_rows_does_not_matter_and_duplicates_have_none(texts):
    joined = [" ".join(text) for text in texts]
    for form in (equations, words):
        forward = form(joined)
        assert form(joined[::-1]) == pytest.approx(forward[::-1])
        assert all(0 <= value <= 1 for value in forward)
    assert equations([*joined, joined[0]])[0] == 0


@given(PARTS, PARTS)
def test_bleu_is_nltk_s(own, other):
    bleu_score = pytest.importorskip("nltk.translate.bleu_score")
    base = ["we", "add", "two", "and", "two", "to", "get", "four", "and", "then", "we", "stop", "here", "now", "ok"]
    candidate, reference = ([*base[start : start + size], *"xyz"[:more]] for start, size, more in (own, other))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = bleu_score.sentence_bleu([reference], candidate, weights=WEIGHTS)
    assert bleu(candidate, reference) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_similarity_is_the_mean_over_others_and_both_directions():
    short, long = "we add two and two to get four", "we add two and two to get four and then we stop"
    a, b = short.split(), long.split()
    both = (bleu(a, b) + bleu(b, a)) / 2
    assert 0 < bleu(a, b) != bleu(b, a) > 0
    assert words([short, long, "x"]) == pytest.approx([1 - both / 2, 1 - both / 2, 1.0])
    assert words([short, long]) == pytest.approx([1 - both, 1 - both]) and words([short]) == [0.0]


def test_two_texts_are_a_group():
    assert equations(["$a$", "$b$"]) == [1.0, 1.0] and equations(["$a$"]) == [0.0]


def test_a_group_that_nobody_verified_is_left_alone():
    row = answer(UID, 0, "4")
    row.stop = Stop.ERROR
    bind("rlvr.reward", "diver").fn.score([row], PROBLEMS)
    assert row.score is None


def test_texts_are_cut():
    assert scored(["$a$ 4", "$b$ 4"], characters=1)[0] == [0.0, 0.0]
