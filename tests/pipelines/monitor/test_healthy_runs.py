"""No alarm in ten healthy runs of three tasks: the rules are replayed on the metrics that real runs have recorded.

Recorded with the toy models of tests/toys.py: palindromes (four seeds), words spelled backwards and a frozen lake (three seeds each),
60 or 80 steps of 128 or 256 rollouts, all of which gained reward. Rows are steps, columns the metrics that the default rules read.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.contract.monitor import mean
from pipelines.recipe.monitors import DEFAULT_MONITORS, MONITORS_OF_FIXED_DATA, Rollback
from pipelines.stage.monitors import Monitors

RUNS = json.loads((Path(__file__).parent / "healthy_runs.json").read_text())


def steps(run):
    """(step, metrics) of a recorded run; a metric that a step lacks is null there."""
    for number, row in enumerate(run["rows"], 1):
        yield number, {name: value for name, value in zip(run["metrics"], row, strict=True) if value is not None}


def alarms(section, specs, run, change=lambda step, values: values):
    monitors = Monitors(section, specs, Rollback())
    return [
        (alarm.step, alarm.monitor)
        for step, values in steps(run)
        for alarm in monitors.judge(step, change(step, values))
    ]


def of(section):
    return {name: run for name, run in RUNS.items() if run["section"] == section}


@pytest.mark.parametrize("name", sorted(of("rlvr")))
def test_a_healthy_run_raises_no_alarm(name):
    run = RUNS[name]
    rewards = [values["reward/mean"] for _, values in steps(run)]
    assert mean(rewards[-20:]) > mean(rewards[:20]), "it learns"
    assert alarms("rlvr", DEFAULT_MONITORS, run) == []


@pytest.mark.parametrize("name", sorted(set(RUNS) - set(of("rlvr"))))
def test_healthy_training_on_fixed_data_raises_no_alarm(name):
    run = RUNS[name]
    losses = [values["loss/train"] for _, values in steps(run)]
    assert mean(losses[-10:]) < mean(losses[:10]), "it learns"
    assert alarms(run["section"], MONITORS_OF_FIXED_DATA, run) == []


def test_ten_runs_of_three_tasks():
    assert len(of("rlvr")) == 10 and len({name.rpartition("-")[0] for name in of("rlvr")}) == 3


BROKEN = {
    "flat_reward": {"reward/equal_share": 1.0, "reward/correct": 0.0, "reward/mean": 0.0},
    "truncation": {"rollout/truncated_share": 0.94},
    "entropy_collapse": {"rollout/entropy": 0.001, "reward/correct": 0.2},
    "entropy_explosion": {"rollout/entropy": 5.5, "reward/correct": 0.0},
    "length_drift": {"rollout/length_mean": 400.0, "reward/correct": 0.0, "reward/mean": 0.0},
    "instability": {"optimizer/learning_rate": 5.0},
}


@pytest.mark.parametrize("rule", sorted(BROKEN))
@pytest.mark.parametrize("name", sorted(of("rlvr")))
def test_the_same_run_that_breaks_at_step_30_is_told_within_12_steps(name, rule):
    broken = alarms("rlvr", DEFAULT_MONITORS, RUNS[name], lambda step, v: v | BROKEN[rule] if step > 30 else v)
    first = min(step for step, monitor in broken if monitor == rule)
    assert 30 < first <= 42, broken
