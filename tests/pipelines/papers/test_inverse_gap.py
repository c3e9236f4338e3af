"""Inverse gap weighting over problems: SquareCB's chances, what is drawn by them, and what a run logs."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.papers.inverse_gap import inverse_gap_weights

ESTIMATES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def curriculum(size=6, seed=0, **settings):
    part = bind("rlvr.curriculum", {"kind": "inverse_gap", **settings}).fn
    part.start(size, seed)
    return part


def test_chances_by_hand():
    """Three problems, spread 2: 1 / (3 + 2 * 0.5), 1 / (3 + 2 * 1), and the rest for the best."""
    assert inverse_gap_weights([0.5, 1.0, 0.0], 2.0) == pytest.approx([0.25, 0.55, 0.2])
    assert inverse_gap_weights([0.3, 0.3, 0.3, 0.3], 100.0) == pytest.approx([0.25] * 4)
    assert inverse_gap_weights([0.7], 5.0) == [1.0]


@given(ESTIMATES, st.floats(0, 1000))
def test_chances_are_a_distribution_that_falls_with_the_gap(estimates, spread):
    chances = inverse_gap_weights(estimates, spread)
    count, best = len(estimates), max(estimates)
    assert sum(chances) == pytest.approx(1) and min(chances) > 0
    assert chances[estimates.index(best)] >= 1 / count - 1e-12
    gaps = sorted((best - estimate, -chance) for estimate, chance in zip(estimates, chances, strict=True))
    if estimates.count(best) == 1:
        assert [-c for _, c in gaps] == pytest.approx(sorted(chances, reverse=True))
    # Foster and Rakhlin, lemma 3: whatever is true, expected regret <= 2 A / spread + spread / 4 * expected squared error
    if spread > 0:
        draw = random.Random(count)
        truth = [draw.random() for _ in estimates]
        regret = max(truth) - sum(p * t for p, t in zip(chances, truth, strict=True))
        error = sum(p * (t - e) ** 2 for p, t, e in zip(chances, truth, estimates, strict=True))
        assert regret <= 2 * count / spread + spread / 4 * error + 1e-9


def test_problems_are_drawn_with_the_chances_that_are_told():
    """The first of a step among all, the second among those left; the chances are those before the draw."""
    first, second = Counter(), Counter()
    part = curriculum(3, scale=2.0, exponent=0.0)
    part.estimates = {"0": 0.5, "1": 1.0, "2": 0.0}
    for _ in range(3000):
        one, two = part.propose(2, 4)
        assert one.propensity == pytest.approx({0: 0.25, 1: 0.55, 2: 0.2}[one.problem]) and one.problem != two.problem
        left = sorted({0, 1, 2} - {one.problem})
        expected = inverse_gap_weights([part.estimates[str(p)] for p in left], 2.0)
        assert two.propensity == pytest.approx(expected[left.index(two.problem)])
        first[one.problem] += 1
        second[one.problem, two.problem] += 1
    assert [first[p] / 3000 for p in range(3)] == pytest.approx([0.25, 0.55, 0.2], abs=0.03)
    assert second[1, 0] / first[1] == pytest.approx(1 - 1 / (2 + 2 * 0.5), abs=0.04)


def test_a_step_draws_each_problem_once_until_there_are_no_more():
    drawn = [a.problem for a in curriculum(4).propose(10, 2)]
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == [0, 1, 2, 3] and len(set(drawn[8:])) == 2


def test_it_comes_to_draw_the_problems_that_are_worth_most():
    """Problem 2 has mixed groups, the others are always solved."""
    part, late = curriculum(8), Counter()
    for step in range(200):
        proposed = part.propose(2, 4)
        part.observe([GroupOutcome(a.problem, 4, 2 if a.problem == 2 else 4) for a in proposed])
        late.update(a.problem for a in proposed if step >= 100)
    assert late[2] > 90 and all(late[p] > 0 for p in range(8))
    assert part.estimates["2"] == pytest.approx(2 / 3, abs=1e-3) and part.estimates["5"] < 0.05


def test_estimates_move_towards_what_groups_are_worth():
    part = curriculum(rate=0.5, start=0.4, utility="correct")
    part.observe([GroupOutcome(1, 4, 1), GroupOutcome(2, 0, 0)])
    part.observe([GroupOutcome(1, 4, 4)])
    assert part.estimates == {"1": pytest.approx(0.5 * (0.5 * (0.4 + 0.25)) + 0.5)}


def test_a_run_logs_the_chances_and_resumes_to_the_same_bytes(tmp_path, start):
    results = []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            return toys.trainer(folder, start, toys.recipe(folder), "presets=[inverse_gap]", "rlvr.steps=3")

        made = build() if name == "straight" else toys.run_stopped(build)
        if name == "straight":
            made.run()
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]
    size = len(made.problems)
    lines = [json.loads(line) for line in (tmp_path / "straight/work/out/report/draws.jsonl").read_text().splitlines()]
    told = [{chance for chances in line["propensities"].values() for chance in chances} for line in lines]
    assert sorted(told[0]) == pytest.approx([1 / size, 1 / (size - 1), 1 / (size - 2), 1 / (size - 3)])
    for line in lines:
        assert {uid: len(r) for uid, r in line["rewards"].items()} == {
            u: len(p) for u, p in line["propensities"].items()
        }
