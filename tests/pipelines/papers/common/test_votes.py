"""Votes, by hand."""

from __future__ import annotations

import pytest

from pipelines.papers.common.votes import vote


@pytest.mark.parametrize(
    ("answers", "label"),
    [
        (["4", "4", "5", ""], "4"),
        (["4", "5", "5", "4", "6"], None),
        (["4", "5", "6"], None),
        (["4", "4", "5", "6", "6", "6"], "6"),
        (["", "", "4"], "4"),
        ([""], ""),
        ([], ""),
    ],
)
def test_the_most_frequent_answer_where_there_is_one(answers, label):
    assert vote(answers) == label
