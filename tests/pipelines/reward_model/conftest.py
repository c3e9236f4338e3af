"""Curated pairs, a small model, and the stage's trainer on them."""

from __future__ import annotations

import functools

import pytest
import reward_pairs


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """Curated pairs and a random model of their tokenizer, in `data` and `model`."""
    folder = tmp_path_factory.mktemp("reward_model")
    return reward_pairs.begin(folder, reward_pairs.pairs_file(folder))


@pytest.fixture
def trainer(begun):
    """(work folder, changed settings) → a trainer."""
    return functools.partial(reward_pairs.trainer, begun)
