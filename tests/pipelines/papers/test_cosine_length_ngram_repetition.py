"""Repeated n-grams, by hand."""

from __future__ import annotations

import pytest
import torch

from pipelines.contract.catalogue import bind


def charge(tokens, mask=None, n=2):
    token = torch.tensor(tokens)
    mask = token > 0 if mask is None else torch.tensor(mask)
    return bind("rlvr.shaping", {"kind": "ngram_repetition", "n": n})(
        {"reward": torch.zeros(len(token)), "mask": mask, "token": token}
    ).tolist()


def test_the_share_of_repeated_grams():
    """[1, 1, 1]: two equal pairs, so one of two repeats; [1, 2]: one pair; [3]: none; the empty row: none."""
    assert charge([[1, 1, 1], [1, 2, 0], [3, 0, 0], [0, 0, 0]]) == pytest.approx([-0.5, 0, 0, 0])
    assert charge([[1, 1, 1, 1]]) == pytest.approx([-2 / 3])


def test_grams_of_different_rows_are_different_and_masked_tokens_are_left_out():
    """Without the masked 9s the first row reads 1, 2, 1, 2: the pair 1, 2 repeats."""
    assert charge([[1, 2, 9, 1, 2], [1, 2, 0, 0, 0]], [[1, 1, 0, 1, 1], [1, 1, 0, 0, 0]]) == pytest.approx([-1 / 3, 0])


def test_columns_as_wide_as_a_gram_have_one_and_narrower_ones_none():
    assert charge([[1, 1]], n=2) == [0.0] and charge([[1, 1]], n=3) == [0.0]
    assert charge([[1, 1]], n=1) == [-0.5]
