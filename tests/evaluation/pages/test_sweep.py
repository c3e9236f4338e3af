"""A sweep's page: the leaderboard, and a curve for every variant beside the split."""

from __future__ import annotations

import pytest
from html_pages import check

from evaluation.pages import sweep


def row(name, mean):
    return {
        "name": name,
        "mean": mean,
        "low": mean - 0.1,
        "high": mean + 0.1,
        "rank_low": 1,
        "rank_high": 1,
        "runs": [],
        "seeds": [],
    }


def body(**shares):
    rows = [row(name.replace("_", " · "), 0.5 + share / 10) for name, share in shares.items()]
    named = {name.replace("_", " · "): share for name, share in shares.items()}
    return {"recipe": "toy<", "task": "t", "confidence": 0.95, "leaderboard": rows, "shares": named}


def test_a_curve_for_each_variant_beside_the_split():
    made = body(**{"grpo_75 % SFT": 0.75, "grpo_25 % SFT": 0.25, "rloo_25 % SFT": 0.25})
    first, second = sweep.split_curves(made)
    assert (first.name, list(first.x), list(first.low)) == ("grpo", [25, 75], pytest.approx([0.425, 0.475]))
    assert (second.name, list(second.x)) == ("rloo", [25])
    text = sweep.page(made, [{"rank": "1", "variant": "grpo · 75 % SFT"}])
    assert "% of the budget spent on SFT" in text and "toy&lt;" in text and "opacity: 0.16" in text


def test_without_a_split_there_is_the_leaderboard_alone():
    text = sweep.page(body(x=0.5) | {"shares": {}}, [{"rank": "1", "variant": "x"}])
    assert "<svg" not in text and "Leaderboard" in text


def test_the_page_has_curves_of_all_variants_and_links_to_their_runs():
    made = body(grpo=0.5, rloo=0.25) | {"shares": {}}
    for number, row in enumerate(made["leaderboard"]):
        row |= {"runs": [f"run{number}", f"gone{number}"], "seeds": [0, 1]}
    points = [[(1, 0.1), (2, 0.2)], [(1, 0.3), (2, 0.1)]]
    text = sweep.page(
        made,
        [{"rank": "1"}],
        curves=[{"reward/mean": points}, {}],
        links={"run1": "http://m/#/r?a=1&b"},
        notes=["failed: <x>"],
    )
    check(text)
    assert (
        '<a href="http://m/#/r?a=1&amp;b">run1</a>' in text
        and text.count('<a href="http') == 1
        and "failed: &lt;x&gt;" in text
    )
    assert 'aria-label="reward"' in text and 'aria-label="entropy' not in text


def test_the_checkpoint_that_all_start_from_is_a_row_and_a_line():
    """Its score is at 20 % of the scale from 0.4 to 0.65, in the rows of the variants too; without one nothing is said of it."""
    made = body(grpo=0.5) | {"shares": {}}
    start = {"name": "sft", "mean": 0.45, "low": 0.4, "high": 0.5, "truncated": 0.25, "runs": ["s"], "seeds": [None]}
    score = {"by_seed": [0.55], "best": 1.0, "gain": 0.1, "gain_low": 0.0, "gain_high": 0.2, "cost": {}}
    cells = sweep.cells([made["leaderboard"][0] | score], start)
    assert [(row["rank"], row["variant"], row["score"]) for row in cells] == [
        ("1", "grpo", "55.0 [45.0, 65.0]"), ("–", "start (sft)", "45.0 [40.0, 50.0]"),
    ]  # fmt: skip
    assert (cells[1]["cut"], cells[1]["gain"], cells[1]["seconds"]) == ("25.0 %", "", "")
    text = sweep.page(made | {"start": start}, cells, links={"s": "http://m/#/s"})
    check(text)
    assert text.count("--zero:0.2000") == 2 and "the line is the checkpoint that all start from" in text
    assert '<a href="http://m/#/s">s</a>' in text and text.count("start (sft)") == 4
    assert "the line is" not in sweep.page(made, cells[:1])


def test_the_conclusion_is_one_sentence_by_the_intervals_of_the_ranks():
    made = body(grpo=0.5, rloo=0.25, gspo=0.2)
    first, second, third = made["leaderboard"]
    second["rank_low"] = third["rank_low"] = 2
    assert sweep.conclusion(made) == "grpo is best with 55.0 [45.0, 65.0] % of t, apart from all 2 others at 95 %."
    first["rank_high"] = 2
    second["rank_low"] = 1
    assert sweep.conclusion(made).endswith("no variant stands out at 95 %: rloo may be first as well.")
    second["mean"] = first["mean"]
    assert sweep.conclusion(made).startswith(
        "grpo and one other have the same mean, 55.0 [45.0, 65.0] % of t, and no variant"
    )
    assert "nothing to rank it against" in sweep.conclusion(body(grpo=0.5))


def test_the_split_alone_is_named_after_the_recipe():
    (line,) = sweep.split_curves(body(**{"25 % SFT": 0.25, "50 % SFT": 0.5}))
    assert line.name == "toy<" and list(line.x) == [25, 50]
