"""ThinkDial's reward by mode: the sheet's example, and what holds for all rows."""

from __future__ import annotations

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.thinkdial import mode_of, thinkdial


def problem(effort=None, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    return Problem(
        uid="a" * 32, prompt=[*messages, {"role": "user", "content": "?"}], answer="7", verifier="number", source="s",
        licence="l", info={"effort": effort} if effort else {},
    )  # fmt: skip


def scores(asked, rows, **settings):
    made = []
    for correct, length, leaks in rows:
        roles = [0] + [3] * length
        text = "<think>wait</think> " + ("wait, " if leaks else "") + ("7" if correct else "8")
        about = {"uid": asked.uid, "group": 0, "max_tokens": 2000, "stop": Stop.END, "version": 0, "text": text}
        made.append(Trajectory(tokens=roles, role=roles, logp_old=[0.0] * len(roles), **about))
    thinkdial(**settings).score(made, {asked.uid: asked})
    return [row.score for row in made]


EXAMPLE = [(1, 400, 0), (1, 800, 0), (0, 300, 0), (1, 1200, 1)]


@pytest.mark.parametrize(
    ("effort", "wanted"),
    [
        ("high", [1.5, 1.5, 0.5, 0.5]),
        ("medium", [1.694444, 1.472222, 0.5, 0.25]),
        ("low", [1.888889, 1.444444, 0.5, 0.0]),
    ],
)
def test_the_sheet_s_example(effort, wanted):
    assert scores(problem(effort), EXAMPLE) == pytest.approx(wanted, abs=1e-6)
    assert scores(problem(system=f"Be brief. Reasoning effort: {effort.title()}."), EXAMPLE) == pytest.approx(
        wanted, abs=1e-6
    )


def test_problems_without_a_known_mode_have_no_length_term():
    assert mode_of(problem()) is None and mode_of(problem(system="An effortless day")) is None
    assert scores(problem(), EXAMPLE) == scores(problem("extreme"), EXAMPLE) == [1.5, 1.5, 0.5, 0.5]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.booleans()), min_size=1, max_size=10))
def test_incorrect_rows_never_gain_by_length_and_a_leak_costs_one(rows):
    paid = scores(problem("low"), rows)
    lengths = [n for _, n, _ in rows]
    for (correct, n, leaks), score in zip(rows, paid, strict=True):
        length_term = score - correct + (0.5 if leaks else -0.5)
        assert -0.5 - 1e-9 <= length_term <= (0.5 if correct else 0.0) + 1e-9
        if correct and n == min(lengths) < max(lengths):
            assert length_term == pytest.approx(0.5)
    without = scores(problem("low"), [(correct, n, False) for correct, n, _ in rows])
    for (_, _, leaks), before, after in zip(rows, without, paid, strict=True):
        assert before - after == pytest.approx(1.0 if leaks else 0.0)


def test_it_trains(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[thinkdial]", "rlvr.steps=2")
    assert made.run()["steps"] == 2
    assert all("reward_component/leak" in values for _, values in toys.history(tmp_path / "work"))
