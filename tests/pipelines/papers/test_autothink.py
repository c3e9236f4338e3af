"""AutoThink's three stages: the sheet's example, and what holds for all rows."""

from __future__ import annotations

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.autothink import autothink

ASKED = Problem(
    uid="a" * 32, prompt=[{"role": "user", "content": "?"}], answer="7", verifier="number", source="s", licence="l"
)


def row(thinks, correct, length, group=0):
    text = ("<think>so it is</think> " if thinks else "<think></think> ") + ("7" if correct else "8")
    roles = [0] + [3] * length
    return Trajectory(
        uid=ASKED.uid, group=group, tokens=roles, role=roles, logp_old=[0.0] * len(roles), max_tokens=2000, stop=Stop.END,
        version=0, text=text,
    )  # fmt: skip


def scores(stage, rows, **settings):
    autothink(stage=stage, **settings).score(rows, {ASKED.uid: ASKED})
    return [r.score for r in rows]


def example():
    return [row(*values) for values in ((1, 1, 900), (1, 0, 1200), (1, 1, 600), (0, 1, 80))]


def test_the_sheet_s_example():
    assert scores("balance", example()) == pytest.approx([0.5, -0.5, 0.5, 2.0])
    assert scores("reward", example()) == [1.0, 0.0, 1.0, 2.0]
    assert scores("shorten", example()) == pytest.approx([0.956005, 0.0, 0.991201, 2.055305], abs=1e-6)


def test_answers_without_an_end_of_thoughts_get_nothing():
    broken = row(True, True, 3)
    broken.text = "<think>7"
    assert scores("reward", [broken, row(True, True, 3)]) == [0.0, 1.0] and broken.components["thinks"] == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(1, 50)), min_size=1, max_size=12))
def test_balance_moves_the_larger_mode_down_and_order_is_kept(values):
    rows = [row(*each) for each in values]
    share = sum(thinks for thinks, *_ in values) / len(values)
    plain = scores("reward", [row(*each) for each in values])
    moved = scores("balance", rows)
    for (thinks, correct, _), before, after in zip(values, plain, moved, strict=True):
        larger = share > 0.5 if thinks else share < 0.5
        assert after < before if larger else after == before
        bounds = {(True, True): (0, 1), (True, False): (-1, 0), (False, True): (1, 2), (False, False): (-2, -1)}
        low, high = bounds[thinks, correct]
        assert low <= after <= high


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8))
def test_short_correct_rows_and_long_incorrect_ones_get_more(lengths):
    for correct in (True, False):
        paid = scores("shorten", [row(True, correct, n) for n in lengths])
        pairs = [(n, p) for n, p in zip(lengths, paid, strict=True)]
        for n, p in pairs:
            for m, q in pairs:
                assert (p >= q) if (n <= m) == correct or n == m else (p <= q)


@pytest.mark.parametrize("stage", ["balance", "reward", "shorten"])
def test_every_stage_trains(tmp_path, start, stage):
    made = toys.trainer(
        tmp_path, start, toys.recipe(tmp_path), "presets=[autothink]", f"rlvr.reward.stage={stage}", "rlvr.steps=2"
    )
    assert made.run()["steps"] == 2
    metrics = [values for _, values in toys.history(tmp_path / "work")]
    assert all("reward_component/thinks" in values for values in metrics)
