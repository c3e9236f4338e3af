"""DIVER: what differs from the rest of its group."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.rlvr.reward.diver import WEIGHTS, bleu, equations, words

UID = "a" * 32
PROBLEMS = {UID: Problem(uid=UID, prompt=[], answer="4", verifier="number", source="s", licence="l")}
WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


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


@given(WORDS, WORDS)
def test_bleu_is_nltk_s(candidate, reference):
    bleu_score = pytest.importorskip("nltk.translate.bleu_score")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = bleu_score.sentence_bleu([reference], candidate, weights=WEIGHTS)
    assert bleu(candidate, reference) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_texts_are_cut():
    assert scored(["$a$ 4", "$b$ 4"], characters=1)[0] == [0.0, 0.0]
