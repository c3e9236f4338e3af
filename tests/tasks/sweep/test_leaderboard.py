"""What the runs of a sweep came to: ranks over seeds, costs, trials."""

from __future__ import annotations

import json

import pytest

from pipelines.base.errors import UserError
from tasks.sweep import leaderboard
from tasks.sweep.leaderboard import Outcome
from tasks.sweep.plan import START, Cell


def outcome(folder, variant, seed, scores, run="r"):
    """A finished run with the files that a leaderboard reads."""
    rlvr, evaluate = folder / f"rlvr-{variant}-{seed}", folder / f"evaluate-{variant}-{seed}"
    (evaluate / "samples" / "rlvr").mkdir(parents=True)
    rlvr.mkdir()
    rows = [{"doc": {"question": q}, "scores": s} for q, s in scores.items()]
    (evaluate / "samples" / "rlvr" / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    numbers = {"steps": 4, "tokens_sampled": 100 + seed}
    (rlvr / "manifest.json").write_text(json.dumps({"seconds": 2.0, "numbers": numbers}))
    stages = {
        "rlvr": {"kind": "rlvr", "artifact": str(rlvr)},
        "evaluate": {"kind": "evaluate", "artifact": str(evaluate)},
    }
    return Outcome.of(Cell(variant, seed, ()), {"stages": stages, "parent_run_id": f"{run}{seed}"}, "t")


def test_a_leaderboard_ranks_variants_over_their_seeds(tmp_path):
    good, bad = {"a": [1, 1], "b": [1, 0]}, {"a": [0, 0], "b": [0, 1]}
    outcomes = [
        outcome(tmp_path, START, 0, {"a": [0, 0], "b": [0, 0]}),
        outcome(tmp_path, "x", 0, bad),
        outcome(tmp_path, "y", 0, good),
        outcome(tmp_path, "y", 1, {"a": [1, 1], "b": [1, 1]}),
        Outcome(Cell("x", 1, ()), None, "it fell over"),
    ]
    first, second = leaderboard.leaderboard(outcomes, "t")
    assert (first["name"], second["name"]) == ("y", "x")
    start = leaderboard.start_of(outcomes)
    assert start is not None and leaderboard.start_of(outcomes[1:]) is None
    assert (start["name"], start["mean"], start["runs"]) == ("start", 0.0, ["r0"]) and 0 <= start["low"] <= start[
        "high"
    ] < 1
    assert first["by_seed"] == [0.75, 1.0] and first["mean"] == 0.875 and first["gain"] == 0.875
    assert first["seeds"] == [0, 1] and first["runs"] == ["r0", "r1"]
    assert first["cost"] == {"seconds": 2.0, "steps": 4.0, "tokens": 100.5} and second["mean"] == 0.25


def test_curves_are_of_those_runs_whose_histories_are_here(tmp_path):
    """A run of another machine has none here, and one that failed has no summary."""
    (tmp_path / "report").mkdir()
    points = [{"kind": "metrics", "step": s, "time": 1, "values": {"reward/mean": s / 4, "other": 1.0}} for s in (1, 2)]
    (tmp_path / "report/spool.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    summaries = {
        name: {"stages": {"rlvr": {"kind": "rlvr", "artifact": str(place)}}}
        for name, place in (("a", tmp_path), ("b", tmp_path / "gone"))
    }
    drawn = leaderboard.curves([{"runs": ["a", "b", None]}, {"runs": ["c"]}], summaries)
    assert drawn == [{"reward/mean": [[(1, 0.25), (2, 0.5)]]}, {}]


def test_runs_without_a_problem_in_common_are_not_ranked(tmp_path):
    outcomes = [outcome(tmp_path, "x", 0, {"a": [1]}), outcome(tmp_path, "y", 0, {"b": [1]})]
    with pytest.raises(UserError, match="in common"):
        leaderboard.leaderboard(outcomes, "t")


def test_only_common_problems_count(tmp_path):
    outcomes = [outcome(tmp_path, "x", 0, {"a": [1], "b": [0]}), outcome(tmp_path, "y", 0, {"b": [1]})]
    assert [(row["name"], row["mean"]) for row in leaderboard.leaderboard(outcomes, "t")] == [("y", 1.0), ("x", 0.0)]


def test_columns_of_search_do_not_stand_for_the_model(tmp_path):
    for column, score in (("rlvr-best4", 1), ("rlvr", 0)):
        (tmp_path / "samples" / column).mkdir(parents=True)
        (tmp_path / "samples" / column / "t.jsonl").write_text(
            json.dumps({"doc": {"question": "a"}, "scores": [score]})
        )
    (tmp_path / "results.json").write_text(json.dumps({"evaluation": {"rlvr-best4": {}, "rlvr": {}}}))
    summary = {"stages": {"evaluate": {"kind": "evaluate", "artifact": str(tmp_path)}}}
    assert [own.scores for own in leaderboard.task_answers(summary, "t").values()] == [[0.0]]
    with pytest.raises(UserError, match="has no score for each problem"):
        leaderboard.task_answers(summary, "other")


def test_a_trial_s_score_is_its_reward_at_the_end(tmp_path):
    def trial(name, rewards):
        report = tmp_path / name / "report"
        report.mkdir(parents=True)
        lines = [{"kind": "metrics", "step": i, "values": {"reward/mean": r}} for i, r in enumerate(rewards)]
        (report / "spool.jsonl").write_text("".join(json.dumps(b) + "\n" for b in [*lines, {"kind": "event"}]))
        return {"stages": {"rlvr": {"kind": "rlvr", "artifact": str(tmp_path / name)}}}

    assert leaderboard.trial_score(trial("up", [0.0] * 6 + [0.5, 0.7])) == pytest.approx(0.6)
    assert leaderboard.trial_score(trial("gone", [0.5, float("nan")])) == float("-inf")
    assert leaderboard.trial_score(trial("none", [])) == float("-inf")
