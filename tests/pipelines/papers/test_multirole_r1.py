"""MultiRole-R1: eight lexical signals of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem, Stop
from pipelines.papers.multirole_r1 import SIGNALS, signals

UID = "a" * 32
PROBLEMS = {UID: Problem(uid=UID, prompt=[], answer="4", verifier="number", source="s", licence="l")}
VARIED = "We put five red apples into the brown basket. Count money of it the careful way. Count the pieces of it slowly today."
REPEATED = "The cat sat. The cat sat. The cat sat."
TEXT = st.lists(st.sampled_from(["the", "cat", "Sat", "of", "4", "it's", ".", "\n", "!", "é"]), max_size=40).map(
    " ".join
)


def scored(texts, spec="multirole_r1"):
    rows = [answer(UID, 0, text) for text in texts]
    bind("rlvr.reward", spec).fn.score(rows, PROBLEMS)
    return rows


def test_the_sheet_s_varied_and_repeated_text():
    varied = [0.782609, 0.896629, 0.122975, 0.666667, 0.766667, 0.305957, 0.954545, 0.555556]
    repeated = [0.333333, 0.5, 0.0, 0.333333, 0.0, 0.043062, 0.375, 0.333333]
    assert signals(VARIED) == pytest.approx(varied, abs=1e-6)
    assert signals(REPEATED) == pytest.approx(repeated, abs=1e-6)
    rows = scored([VARIED, REPEATED])
    assert [row.score for row in rows] == pytest.approx([0.631451, 0.239758], abs=1e-6)
    assert [rows[0].components[name] for name in SIGNALS] == pytest.approx(varied, abs=1e-6)


def test_the_preset_s_composition():
    terms = [{"kind": "verifier", "weight": 0.9}, {"kind": "multirole_r1", "weight": 0.1}]
    rows = scored([f"{VARIED} 4", f"{VARIED} 5"], {"kind": "composite", "terms": terms})
    diversity = scored([f"{VARIED} 4"])[0].score
    assert [row.score for row in rows] == pytest.approx([0.9 + 0.1 * diversity, 0.1 * diversity])
    assert rows[0].components["lexical_diversity"] == pytest.approx(diversity)
    assert [row.correct for row in rows] == [True, False]


def test_weights_are_shares_and_others_count_nothing():
    spec = {"kind": "multirole_r1", "weights": {"bigrams": 3, "openings": 1}}
    assert scored([VARIED], spec)[0].score == pytest.approx(0.75 * 21 / 22 + 0.25 * 2 / 3)


@pytest.mark.parametrize("weights", [{"bigram": 1}, {"bigrams": 0}, {}])
def test_weights_that_say_nothing_are_refused(weights):
    with pytest.raises(RecipeError, match=r"weights: .*Choose from vocabulary"):
        bind("rlvr.reward", {"kind": "multirole_r1", "weights": weights})


@given(TEXT, st.integers(2, 9))
def test_signals_lie_between_0_and_1(text, window):
    assert all(0 <= value <= 1 for value in signals(text, window))


@given(TEXT.filter(lambda text: len(text.split()) > 3))
def test_saying_it_again_lowers_the_mean(text):
    base = signals(VARIED)
    again = signals(f"{VARIED} {VARIED}", window=1000)
    assert sum(again) < sum(base)
    of_words = (0, 1, 5, 6, 7)
    once, thrice = signals(text, 1000), signals(f"{text} . {text} . {text}", 1000)
    assert all(thrice[k] <= once[k] + 1e-9 for k in of_words if once[k] > 0 and k in (0, 7))


def test_edges():
    assert signals("?! ...") == [0.0] * 8
    assert signals("word") == pytest.approx([1, 0, 0, 0, 0, 1, 0, 0])
    assert signals("the cat sat") == pytest.approx([1, 1, 0, 0, 0, 1, 1, 1]), "a sentence alone has no neighbours"
    assert signals("3.5 is it's")[0] == pytest.approx(1.0), (
        "neither a decimal point nor an apostrophe ends a word or sentence"
    )
    assert signals("a. b b b b b b b b b b b b b b b b b b b.")[2] == pytest.approx(0.9), "lengths 1 and 19"
    assert signals("a b c d. a b c d")[2:5] == [0.0, 0.5, 0.0]


def test_words_are_measured_in_windows():
    text = "we all see one " * 50
    assert signals(text, window=4)[0] == 1.0 and signals(text, window=200)[0] == pytest.approx(4 / 200)
    assert signals("a b c d e a a", window=5)[0] == 1.0, "what fills no window is left out"
    assert signals("a b a", window=5)[0] == pytest.approx(2 / 3), "a text shorter than a window is one"


def test_a_row_that_nobody_verified_is_left_alone():
    row = answer(UID, 0, VARIED)
    row.stop = Stop.ERROR
    bind("rlvr.reward", "multirole_r1").fn.score([row], PROBLEMS)
    assert row.score is None and row.components == {}
