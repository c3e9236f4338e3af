"""The axes of a sweep, its trials, and its leaderboard."""

from __future__ import annotations

import json

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import RecipeError, UserError
from tasks import sweep
from tasks.sweep import START, Cell, Outcome


@pytest.fixture
def path(tmp_path):
    return str(toys.recipe(tmp_path))


def test_axes_and_seeds_make_a_grid_of_pipeline_runs(path):
    read = sweep.read(
        path, ["rlvr.advantage=grpo,rloo", "rlvr.steps=3", "rlvr.optimizer.learning_rate=1e-4,1e-3"], None, "2"
    )
    assert list(read.variants) == [
        f"advantage={a}, learning_rate={rate}" for a in ("grpo", "rloo") for rate in ("1e-4", "1e-3")
    ]
    cells = read.cells()
    assert len(cells) == 8 and [c.seed for c in cells] == [0] * 4 + [1] * 4, "seed by seed"
    recipes = [cell.recipe(path) for cell in cells]
    assert {(r.rlvr.advantage["kind"], r.rlvr.optimizer.learning_rate, r.rlvr.seed) for r in recipes} == {
        (a, rate, seed) for a in ("grpo", "rloo") for rate in (1e-4, 1e-3) for seed in (0, 1)
    }
    assert {(r.seed, r.rlvr.steps, r.tracking.experiment, *r.evaluate.checkpoints) for r in recipes} == {
        (0, 3, "toy-sweep", "rlvr")
    }


def test_the_start_is_scored_once_and_nothing_is_trained_for_it(path):
    start = sweep.read(path, seeds="5").start()
    assert start.variant == START and start.only == ("curate", "sft", "evaluate")
    assert start.recipe(path).evaluate.checkpoints == ["sft"]


def test_presets_are_an_axis(path):
    read = sweep.read(path, presets="dapo,rloo")
    kinds = {cell.variant: cell.recipe(path).presets for cell in read.cells()}
    assert kinds == {"dapo": ["dapo"], "rloo": ["rloo"]}


def test_all_presets_leaves_out_what_does_not_fit_with_the_reason(path):
    read = sweep.read(path, presets="all")
    assert {"grpo", "dapo"} <= set(read.variants) and read.left_out and not set(read.variants) & set(read.left_out)
    assert all(read.left_out.values()) and "left out" in read.describe()


def test_without_rl_the_seeds_are_the_recipe_s(tmp_path):
    path = str(toys.recipe(tmp_path, rlvr=None, evaluate={"checkpoints": ["sft"]}))
    read = sweep.read(path, ["sft.optimizer.learning_rate=1e-3,2e-3"], seeds="4,9")
    assert read.start() is None
    assert {cell.recipe(path).seed for cell in read.cells()} == {4, 9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": ["rlvr.steps"]}, "write it as field=value"),
        ({"sets": ["rlvr.steps=1,,2"]}, "between two commas is empty"),
        ({"sets": ["rlvr.steps=1,1"]}, "named twice"),
        ({"sets": ["rlvr.advantage=grpo,nosuch"]}, "nosuch"),
        ({"sets": ["rlvr.stepz=1,2"]}, "stepz"),
        ({"presets": "dapo,dapo"}, "dapo twice"),
        ({"presets": "dapo,"}, "a name is empty"),
        ({"presets": "dopa"}, "Did you mean"),
        ({"seeds": "0"}, "at least 1"),
        ({"seeds": "three"}, "how many"),
        ({"seeds": "1,1"}, "twice"),
        ({"tune": "rlvr.steps=1"}, "one value is no choice"),
        ({"budget": "30"}, "30m, 90s, 2h or 1e6tokens"),
        ({"budget": "-1m"}, "30m, 90s, 2h or 1e6tokens"),
        ({"budget": "1.2.3m"}, "30m, 90s, 2h or 1e6tokens"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_option(path, arguments, message):
    with pytest.raises(UserError, match=message):
        read = sweep.read(path, **arguments)
        sweep.check(read)


def test_a_recipe_without_benchmarks_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="evaluate"):
        sweep.read(str(toys.recipe(tmp_path, evaluate=None)))


def test_a_variant_that_cannot_run_is_named_before_anything_runs(path, home):
    with pytest.raises(UserError, match=r"advantage=gae.*critic"):
        sweep.check(sweep.read(path, ["rlvr.advantage=grpo,gae", "rlvr.providers=[]"]))


@given(
    st.lists(
        st.sampled_from(["1", "1e-4", "[1, 2]", "{kind: gae, lam: 0.9}", "'a, b'", "null"]),
        min_size=1,
        max_size=5,
        unique=True,
    )
)
def test_an_axis_splits_where_its_values_were_joined(values):
    assert sweep.axis(f"a.b={','.join(values)}") == ("a.b", values)


@given(st.integers(1, 40), st.integers(1, 5000))
def test_successive_halving_leaves_one_value(count, steps):
    alive = {str(i): float(i) for i in range(count)}
    plan = sweep.rungs(count, steps)
    for rung in plan:
        assert 1 <= rung <= max(1, steps // 2)
        alive = {value: alive[value] for value in sweep.keep_better_half(alive)}
    assert list(alive) == [str(count - 1)] and plan == sorted(plan)


def test_trials_have_a_seed_of_their_own(path):
    read = sweep.read(path, tune="rlvr.optimizer.learning_rate=1e-4,1e-3", seeds="3")
    (first, second) = read.trials("toy", read.tune.values, 2)
    recipes = [cell.recipe(path) for cell in (first, second)]
    assert [r.rlvr.optimizer.learning_rate for r in recipes] == [1e-4, 1e-3]
    assert {r.rlvr.seed for r in recipes}.isdisjoint(read.seeds) and {r.rlvr.steps for r in recipes} == {2}
    assert first.only == ("curate", "sft", "rlvr")
    final = {c.recipe(path).rlvr.optimizer.learning_rate for c in read.cells({"toy": "1e-3"})}
    assert final == {1e-3}


def test_a_budget_goes_to_every_run(path):
    read = sweep.read(path, ["rlvr.advantage=grpo,rloo"], budget="2m")
    assert {cell.recipe(path).rlvr.budget.seconds for cell in read.cells()} == {120.0}


def outcome(folder, variant, seed, scores, run="r"):
    """A finished run with the files that a leaderboard reads."""
    rlvr, evaluate = folder / f"rlvr-{variant}-{seed}", folder / f"evaluate-{variant}-{seed}"
    (evaluate / "samples" / "rlvr").mkdir(parents=True)
    rlvr.mkdir()
    rows = [{"doc": {"question": q}, "scores": s} for q, s in scores.items()]
    (evaluate / "samples" / "rlvr" / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    numbers = {"steps": 4, "tokens_sampled": 100 + seed}
    (rlvr / "manifest.json").write_text(json.dumps({"seconds": 2.0, "numbers": numbers}))
    stages = {"rlvr": {"artifact": str(rlvr)}, "evaluate": {"artifact": str(evaluate)}}
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
    first, second = sweep.leaderboard(outcomes, "t")
    assert (first["name"], second["name"]) == ("y", "x")
    assert first["by_seed"] == [0.75, 1.0] and first["mean"] == 0.875 and first["gain"] == 0.875
    assert first["seeds"] == [0, 1] and first["runs"] == ["r0", "r1"]
    assert first["cost"] == {"seconds": 2.0, "steps": 4.0, "tokens": 100.5} and second["mean"] == 0.25


def test_runs_without_a_problem_in_common_are_not_ranked(tmp_path):
    outcomes = [outcome(tmp_path, "x", 0, {"a": [1]}), outcome(tmp_path, "y", 0, {"b": [1]})]
    with pytest.raises(UserError, match="in common"):
        sweep.leaderboard(outcomes, "t")


def test_only_common_problems_count(tmp_path):
    outcomes = [outcome(tmp_path, "x", 0, {"a": [1], "b": [0]}), outcome(tmp_path, "y", 0, {"b": [1]})]
    assert [(row["name"], row["mean"]) for row in sweep.leaderboard(outcomes, "t")] == [("y", 1.0), ("x", 0.0)]


def test_a_trial_s_score_is_its_reward_at_the_end(tmp_path):
    def trial(name, rewards):
        report = tmp_path / name / "report"
        report.mkdir(parents=True)
        lines = [{"kind": "metrics", "step": i, "values": {"reward/mean": r}} for i, r in enumerate(rewards)]
        (report / "spool.jsonl").write_text("".join(json.dumps(b) + "\n" for b in [*lines, {"kind": "event"}]))
        return {"stages": {"rlvr": {"artifact": str(tmp_path / name)}}}

    assert sweep.trial_score(trial("up", [0.0] * 6 + [0.5, 0.7])) == pytest.approx(0.6)
    assert sweep.trial_score(trial("gone", [0.5, float("nan")])) == float("-inf")
    assert sweep.trial_score(trial("none", [])) == float("-inf")
