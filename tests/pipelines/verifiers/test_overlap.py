"""Metrics of overlap: worked values, bounds, hedging."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.verifiers import overlap


def score(metric, completion, answer, **info):
    return verifiers.verify("overlap", completion, answer, {"metric": metric, **info}).score


@pytest.mark.parametrize(
    "metric, completion, answer, expected",
    [
        ("em", "The Cat!", "cat", 1.0),
        ("em", "a dog", '["cat", "dog"]', 1.0),
        ("em", "cat or dog", '["cat", "dog"]', 0.0),
        ("sub_em", "It is the cat, I think", "cat", 1.0),
        ("sub_em", "cat " + "dog " * 20, "cat", 0.0),
        ("f1", "black cat", "white cat", 0.5),
        ("rouge_l", "the police kill the gunman", "police killed the gunman", 2 * 2 / 6),
        ("iou", "a, b, c", '["b", "c", "d"]', 0.5),
        ("iou", "a, a, a", '["a"]', 1.0),
        ("set_f1", '["a"]', '["a", "b"]', 2 / 3),
        ("ndcg", "1. a\n2. b", '["a", "b"]', 1.0),
        ("ndcg", "b, a", '["a", "b"]', (1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3))),
        ("ndcg", "a, a, a", '["a", "b"]', 2 / (2 + 1 / math.log2(3))),
        ("pair_order", "a, c, b", '["a", "b", "c"]', 2 / 3),
        ("pair_order", "a, b", '["a", "b", "c"]', 0.0),
    ],
)
def test_values(metric, completion, answer, expected):
    assert score(metric, completion, answer) == pytest.approx(expected)
    assert score(metric, f"Well. <answer>{completion}</answer>", answer) == pytest.approx(expected)


def lcs(one, other):
    rows = [[0] * (len(other) + 1)]
    for a in one:
        rows.append([0])
        for j, b in enumerate(other):
            rows[-1].append(rows[-2][j] + 1 if a == b else max(rows[-2][j + 1], rows[-1][j]))
    return rows[-1][-1]


lists = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@given(lists, lists)
def test_rouge_is_the_longest_common_subsequence(one, other):
    assert overlap.rouge_l(one, other) == pytest.approx(2 * lcs(one, other) / (len(one) + len(other)))


@given(lists, lists, st.sampled_from([*overlap.TEXTS.values(), *overlap.LISTS.values()]))
def test_scores_are_bounded_and_the_answer_itself_is_best(one, other, metric):
    assert 0 <= metric(one, other) <= 1
    if len({*one}) == len(one):
        assert metric(one, one) == pytest.approx(1.0)


def test_rows_that_are_no_rows():
    for info, answer in (
        ({}, "a"),
        ({"metric": "x"}, "a"),
        ({"metric": "em"}, ""),
        ({"metric": "em", "threshold": 2}, "a"),
        ({"metric": "pair_order"}, "a, a"),
    ):
        assert verifiers.verify("overlap", "a", answer, info).score is None
    assert verifiers.verify("overlap", "", "a", {"metric": "em"}).status == "unparsable"
    assert verifiers.verify("overlap", "x y", "x z", {"metric": "f1", "threshold": 0.5}).status == "correct"
