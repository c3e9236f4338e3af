"""GRSP: segments of the reasoning, and what many short ones cost."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from provider_toys import provider_context

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.papers.grsp import confidence_starts, grsp, keyword_starts, segments, weighted_z_scores
from pipelines.rlvr.common.scored_rows import tokens_before

WORDS = ["<pad>", "I", " think", " wai", "t", ".", " But", " so", " robot", "</thi", "nk>", " 4", " now", "<eos>"]


def shaped(reward, rows, **settings):
    """The reward of rows of one group, given the lengths of their segments."""
    width = max(sum(lengths) for lengths in rows)
    segment = torch.tensor(
        [
            [k for k, length in enumerate(lengths) for _ in range(length)] + [-1] * (width - sum(lengths))
            for lengths in rows
        ]
    )
    r = torch.tensor(reward)
    return grsp(**settings)(r, torch.zeros(len(r)).long(), torch.ones(len(r)).bool(), segment >= 0, segment).tolist()


def test_the_sheet_s_counts():
    counts = torch.tensor([[10, 4, 1], [4, 4, 2], [20, 2, 0], [6, 6, 1]])
    z = weighted_z_scores(counts, torch.zeros(4).long(), torch.ones(4).bool(), torch.tensor([4.0, 2, 1]).double() / 7)
    expected = torch.tensor([1.0, 1.035416, -0.032089, 0.996673], dtype=torch.float64)
    torch.testing.assert_close(torch.tensor([1.0, 1, 0, 1]) - 0.1 * z, expected, atol=1e-6, rtol=0)


def test_lengths_are_sorted_into_clusters_and_the_bound_belongs_to_the_shorter():
    """By hand: the rows have 2, 0 and 1 short segments, and 0, 1 and 1 long ones."""
    made = shaped([1.0, 1.0, 0.0], [[3, 3], [4], [3, 9]], bounds=[3], weights=[3, 1])
    short = [(n - 1) / (2 / 3) ** 0.5 for n in (2, 0, 1)]
    long = [(n - 2 / 3) / (2 / 9) ** 0.5 for n in (0, 1, 1)]
    expected = [r - 0.1 * (0.75 * a + 0.25 * b) for r, a, b in zip([1, 1, 0], short, long, strict=True)]
    assert made == pytest.approx(expected, abs=1e-6)


def test_without_bounds_they_are_the_group_s_terciles():
    rows = [[1, 1, 5], [2, 9, 9], [1, 2, 5]]  # lengths 1 1 1 2 2 5 5 9 9: terciles 5/3 and 5
    assert shaped([1.0, 1, 1], rows) == pytest.approx(shaped([1.0, 1, 1], rows, bounds=[1.7, 5.0]), abs=1e-7)


def test_rows_of_many_and_few_segments_and_other_numbers_of_clusters():
    rows = [[1, 1, 1, 5], [7], [2, 9]]  # lengths 1 1 1 2 5 7 9: the median is 2
    assert shaped([1.0, 1, 1], rows, weights=[2, 1]) == pytest.approx(
        shaped([1.0, 1, 1], rows, weights=[2, 1], bounds=[2])
    )
    counts = [4, 1, 2]
    deviation = (14 / 9) ** 0.5
    expected = [1 - 0.1 * (n - 7 / 3) / deviation for n in counts]
    assert shaped([1.0, 1, 1], rows, weights=[5]) == pytest.approx(expected, abs=1e-6)


def test_tokens_outside_the_mask_or_the_reasoning_have_no_length():
    segment = torch.tensor([[0, 0, 0, -1, -1], [0, 0, 1, 1, 1]])
    mask = torch.tensor([[False, True, True, True, True], [True, True, False, False, True]])
    r, group = torch.ones(2), torch.zeros(2).long()
    made = grsp(weights=[3, 1], bounds=[2])(r, group, r.bool(), mask, segment)
    # lengths 2 and 2, 1: one short segment and two
    assert made.tolist() == pytest.approx([1 + 0.075, 1 - 0.075])


def test_one_more_short_segment_costs_more_than_one_more_long_one():
    short, long = shaped([1.0, 1, 1, 1], [[1, 1], [9], [9, 1], [9, 1]], bounds=[2, 5])[:2]
    assert short < 1 and short < long


def test_a_correct_answer_stays_above_an_incorrect_one():
    made = shaped([0.0, 1.0], [[9], [1] * 30], strength=100)
    assert made == pytest.approx([0.45, 0.55])


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_mean_penalty_of_a_group_is_0(rows):
    made = shaped([0.5] * len(rows), rows, cap=1e6, strength=1.0)
    assert sum(made) / len(rows) == pytest.approx(0.5, abs=1e-5)
    assert shaped([0.5] * 3, [rows[0]] * 3) == [0.5] * 3
    assert shaped([0.5], rows[:1]) == [0.5]


def test_only_the_scored_rows_and_trained_tokens_of_the_group_count():
    segment = torch.tensor([[0, 1, 2], [0, 0, 0], [0, 1, 2], [0, 1, 2]])
    mask = torch.ones(4, 3).bool()
    mask[3, 2] = False
    reward = torch.tensor([1.0, 1, 7, 1])
    scored = torch.tensor([True, True, False, True])
    made = grsp(bounds=[1, 2])(reward, torch.tensor([0, 0, 0, 1]), scored, mask, segment)
    assert made[2] == 7 and made[3] == 1
    torch.testing.assert_close(made[:2], 1 + 0.1 * torch.tensor([-4 / 7 + 1 / 7, 4 / 7 - 1 / 7]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"bounds": [3]}, "2 lengths"), ({"bounds": [5, 3]}, "in order"), ({"weights": [0, 0]}, "add up to 0")],
)
def test_clusters_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(RecipeError, match=message):
        bind("rlvr.shaping", {"kind": "grsp", **settings})


class Words:
    """A tokenizer as far as decoding asks for one."""

    chat_template = ""
    added_tokens_decoder: ClassVar[dict] = {}
    all_special_tokens: ClassVar[list] = []
    all_special_ids: ClassVar[list] = []

    def __len__(self):
        return len(WORDS)

    def decode(self, ids, **_):
        return "".join(WORDS[i] for i in ids if i < 13)

    def batch_decode(self, rows, **_):
        return [self.decode(row) for row in rows]


def filled(tmp_path, rows, logp=None, **settings):
    """The column of rows of token ids; the first token of each is its prompt."""
    provider = segments(**settings)
    scorer = SimpleNamespace(tokenizer=Words)
    provider.setup(dataclasses.replace(provider_context(tmp_path), scorer=scorer))
    tokens = torch.tensor(rows)
    mask = (tokens > 0) & (torch.arange(tokens.shape[1]) > 0)
    columns = {"mask": mask, "problem": torch.zeros(len(rows)).long(), "logp_old": logp}
    provider.fill(tokens, columns)
    return columns["segment"].tolist()


def test_segments_begin_with_keywords_and_end_with_the_reasoning(tmp_path):
    rows = [[6, 1, 2, 3, 4, 5, 6, 8, 9, 10, 7, 11], [6, 7, 8, 5, 12, 13, 0, 0, 0, 0, 0, 0]]
    assert filled(tmp_path, rows) == [
        [-1, 0, 0, 1, 1, 1, 2, 2, -1, -1, -1, -1],
        [-1, 1, 1, 1, 2, 2, -1, -1, -1, -1, -1, -1],
    ]
    assert filled(tmp_path, rows[:1], keywords=["robot"], tag="none")[0] == [-1, *[0] * 6, 1, 1, 1, 1, 1]


def test_segments_by_confidence_need_no_text(tmp_path):
    logp = torch.tensor([[0.0, -2.0, -0.1, -3.0, -0.2, -0.1, -0.3, -0.1]])
    row = [[1, 1, 2, 2, 1, 1, 2, 2]]
    assert filled(tmp_path, row, logp, by="confidence", radius=1) == [[-1, 0, 0, 1, 1, 1, 2, 2]]
    assert filled(tmp_path, row, logp, by="confidence", radius=4) == [[-1, 0, 0, 1, 1, 1, 1, 1]]


def test_words_inside_words_are_no_keywords(tmp_path):
    provider = segments(keywords=["so", "so far"])
    assert keyword_starts([" so", "ap ", "SO", " far", ", so"], provider.pattern) == [2, 4]
    assert tokens_before([], "</think>") is None and keyword_starts([], provider.pattern) == []


@given(st.lists(st.floats(-5, 0), max_size=30), st.integers(1, 6))
def test_minima_are_further_apart_than_the_radius(logp, radius):
    starts = confidence_starts(logp, radius)
    assert 0 not in starts
    assert all(b - a > radius for a, b in pairwise(starts))
    assert confidence_starts([-1.0] * len(logp), radius) == []
