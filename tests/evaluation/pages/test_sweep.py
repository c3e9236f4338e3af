"""A sweep's page: the leaderboard, and a curve for every variant beside the split."""

from __future__ import annotations

import pytest

from evaluation.pages import sweep


def row(name, mean):
    return {"name": name, "mean": mean, "low": mean - 0.1, "high": mean + 0.1}


def body(**shares):
    rows = [row(name.replace("_", ", "), 0.5 + share / 10) for name, share in shares.items()]
    named = {name.replace("_", ", "): share for name, share in shares.items()}
    return {"recipe": "toy<", "task": "t", "confidence": 0.95, "leaderboard": rows, "shares": named}


def test_a_curve_for_each_variant_beside_the_split():
    made = body(**{"grpo_75 % SFT": 0.75, "grpo_25 % SFT": 0.25, "rloo_25 % SFT": 0.25})
    first, second = sweep.curves(made)
    assert (first.name, list(first.x), list(first.low)) == ("grpo", [25, 75], pytest.approx([0.425, 0.475]))
    assert (second.name, list(second.x)) == ("rloo", [25])
    text = sweep.page(made, [{"rank": "1", "variant": "grpo, 75 % SFT"}])
    assert "% of the budget spent on SFT" in text and "toy&lt;" in text and "<polygon" in text


def test_without_a_split_there_is_the_leaderboard_alone():
    text = sweep.page(body() | {"shares": {}}, [{"rank": "1", "variant": "x"}])
    assert "<svg" not in text and "Leaderboard" in text


def test_the_split_alone_is_named_after_the_recipe():
    (line,) = sweep.curves(body(**{"25 % SFT": 0.25, "50 % SFT": 0.5}))
    assert line.name == "toy<" and list(line.x) == [25, 50]
