"""The axes of a sweep, its trials, and its leaderboard."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError, UserError
from tasks.preflight import probe
from tasks.sweep import plan as sweep
from tasks.sweep.plan import START


@pytest.fixture
def path(tmp_path):
    return str(toys.recipe(tmp_path))


def test_values_that_are_shown_alike_are_two_variants(path):
    long = [f"{{kind: gae, lam: 0.9, discount: {d}}}" for d in ("0.990000001", "0.990000002")]
    read = sweep.read(path, [f"rlvr.advantage={','.join(long)}"])
    assert [len(set(each)) for each in (read.variants, read.variants.values())] == [2, 2]


def test_axes_and_seeds_make_a_grid_of_pipeline_runs(path):
    read = sweep.read(
        path, ["rlvr.advantage=grpo,rloo", "rlvr.steps=3", "rlvr.optimizer.learning_rate=1e-4,1e-3"], None, "2"
    )
    assert list(read.variants) == [
        f"rlvr.advantage {a} · rlvr.lr {rate}" for a in ("grpo", "rloo") for rate in ("1e-4", "1e-3")
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


def test_a_field_that_the_recipe_sets_over_its_presets_is_named(path):
    """Sixteen updates a step were one for every preset, and no line said so."""
    read = sweep.read(path, ["rlvr.mini_batches=1"], presets="dapo,rloo,gspo")
    assert read.overruled == {"rlvr.mini_batches": ["dapo", "gspo"]}
    assert "own rlvr.mini_batches stands in place of what dapo, gspo would set" in read.describe()
    alone = sweep.read(str(toys.ROOT / "recipes" / "bakeoff.yaml"), presets="dapo,rloo,gspo")
    assert alone.overruled == {}


@pytest.mark.slow
def test_all_presets_leaves_out_what_does_not_fit_with_the_reason(path):
    read = sweep.read(path, presets="all")
    assert {"grpo", "dapo"} <= set(read.variants) and read.left_out and not set(read.variants) & set(read.left_out)
    assert all(read.left_out.values()) and "left out" in read.describe()


def test_without_rl_the_seeds_are_the_recipe_s(tmp_path):
    path = str(toys.recipe(tmp_path, rlvr=None, evaluate={"checkpoints": ["sft"]}))
    read = sweep.read(path, ["sft.optimizer.learning_rate=1e-3,2e-3"], seeds="4,9")
    assert read.start() is None
    assert {cell.recipe(path).seed for cell in read.cells()} == {4, 9}
    with pytest.raises(UserError, match="--presets: this recipe has no RLVR stage"):
        sweep.read(path, presets="dapo")


def test_presets_of_which_none_fits_are_refused(path, monkeypatch):
    monkeypatch.setattr(sweep, "preset_names", lambda: ["activevln"])
    with pytest.raises(UserError, match=r"--presets all: no preset fits this recipe\. activevln: rlvr\.rollout"):
        sweep.read(path, presets="all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sets": ["rlvr.steps"]}, "write it as field=value"),
        ({"sets": ["rlvr.steps=1,,2"]}, "between two commas is empty"),
        ({"sets": ["rlvr.steps=1,1"]}, "named twice"),
        (
            {"sets": ["rlvr.optimizer.learning_rate=1e-4,3e-4,0.0001"]},
            r"^--set: '.*lr 1e-4' and '.*lr 0\.0001' are one and the same recipe",
        ),
        ({"sets": ["rlvr.advantage=grpo,{kind: grpo}"]}, "one and the same recipe"),
        ({"sets": ["rlvr.advantage={kind: gae, lam: 1},{kind: gae, lam: 1.0}"]}, "one and the same recipe"),
        (
            {"tune": "rlvr.optimizer.learning_rate=1e-4,1.0e-4"},
            r"^--tune: 'toy · rlvr.lr 1e-4' and 'toy · rlvr.lr 1\.0e-4' are",
        ),
        pytest.param(
            {"sets": ["rlvr.advantage=grpo,nosuch"]}, "nosuch", marks=[pytest.mark.slow, pytest.mark.long]
        ),  # asks another process, as `test_a_variant_that_cannot_run_is_named_before_anything_runs` does
        ({"sets": ["rlvr.stepz=1,2"]}, "stepz"),
        ({"presets": "dapo,dapo"}, "dapo twice"),
        ({"presets": "dapo,"}, "a name is empty"),
        ({"presets": "dopa"}, "Did you mean"),
        ({"seeds": "0"}, "at least 1"),
        ({"seeds": "three"}, "how many"),
        ({"seeds": "1,1"}, "twice"),
        ({"tune": "rlvr.steps=1"}, "one value is no choice"),
        ({"tune": "rlvr.steps=2,4"}, "--tune rlvr.steps: the sweep sets this field a second time"),
        ({"tune": "rlvr.optimizer.learning_rate=1e-4,-1"}, "learning_rate"),
        ({"sets": ["rlvr.advantage=grpo,rloo"], "tune": "rlvr.advantage=grpo,rloo"}, "a second time"),
        ({"sets": ["rlvr.seed=1,2"]}, "--set rlvr.seed: the sweep sets this field a second time.*--seeds"),
        ({"sets": ["evaluate.checkpoints=[base],[sft]"]}, "a second time"),
        ({"sets": ["rlvr.steps=1,2", "rlvr.steps=3,4"]}, "a second time"),
        ({"sets": ["sft.steps=1,2"], "split": "0.5", "budget": "1e6tokens"}, "a second time"),
        ({"tune_full": True}, "--tune-full"),
        ({"budget": "30"}, "30m, 90s, 2h or 1e6tokens"),
        ({"budget": "-1m"}, "30m, 90s, 2h or 1e6tokens"),
        ({"budget": "1.2.3m"}, "30m, 90s, 2h or 1e6tokens"),
    ],
)
@pytest.mark.few(12)
def test_what_cannot_be_read_is_refused_by_its_option(path, arguments, message):
    with pytest.raises(UserError, match=message):
        read = sweep.read(path, **arguments)
        sweep.check(read)


def test_a_recipe_without_benchmarks_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="evaluate"):
        sweep.read(str(toys.recipe(tmp_path, evaluate=None)))


@pytest.mark.slow
def test_a_variant_that_cannot_run_is_named_before_anything_runs(path, home, monkeypatch):
    """One process answers what the variants ask, and what two of them ask is asked once."""
    asked = []
    real = probe.Asking.__init__
    monkeypatch.setattr(
        probe.Asking, "__init__", lambda self, questions: (asked.append(questions), real(self, questions))[1]
    )
    with pytest.raises(UserError, match=r"advantage gae.*critic"):
        sweep.check(sweep.read(path, ["rlvr.advantage=grpo,gae", "rlvr.providers=[]"]))
    (questions,) = [each for each in asked if each]
    assert len({json.dumps(q, sort_keys=True) for q in questions}) == len(questions) > 2


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
    assert read.tune.rounds(80) == [40] and replace(read.tune, full=True).rounds(80) == [80]
    assert first.only == ("curate", "sft", "rlvr")
    final = {c.recipe(path).rlvr.optimizer.learning_rate for c in read.cells({"toy": "1e-3"})}
    assert final == {1e-3}


def test_a_budget_goes_to_every_run(path):
    read = sweep.read(path, ["rlvr.advantage=grpo,rloo"], budget="2m")
    assert {cell.recipe(path).rlvr.budget.seconds for cell in read.cells()} == {120.0}


def test_a_model_of_an_external_trainer_is_ranked(tmp_path):
    path = str(toys.external(tmp_path, **toys.FAKE_TRAINER, steps=3))
    read = sweep.read(path, ["rl.config.shift=0.01,0.02"], None, "2")
    assert read.last == "rl" and len(read.cells()) == 4
    assert [list(cell.recipe(path).node("scores").named("models")) for cell in read.cells()] == [["rl"]] * 4
    with pytest.raises(RecipeError, match=r"rl\.steps: --tune makes runs that are counted in steps"):
        sweep.read(path, ["rl.retries=0,1"], None, "1", tune="rl.config.shift=0.1,0.2")
