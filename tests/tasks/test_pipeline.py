"""Which stages a run touches, and whose artifacts it hands to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe
from tasks.pipeline import Selection, model_folder, needed_before
from tasks.stages import Planned, StageResult, inputs_of
from tasks.store.artifacts import Artifact

FOUR = ["curate", "sft", "rlvr", "evaluate"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return read_recipe(toys.recipe(tmp_path_factory.mktemp("recipe")))


@pytest.mark.parametrize(
    ("selection", "stages"),
    [
        (Selection(), FOUR),
        (Selection(start="rlvr"), ["rlvr", "evaluate"]),
        (Selection(until="sft"), ["curate", "sft"]),
        (Selection(start="sft", until="rlvr"), ["sft", "rlvr"]),
        (Selection(only=("evaluate", "sft")), ["sft", "evaluate"]),
        (Selection(start="sft", only=("curate", "rlvr")), ["rlvr"]),
    ],
)
def test_a_selection_keeps_the_order_and_both_ends(recipe, selection, stages):
    assert selection.of(recipe) == stages


@pytest.mark.parametrize("selection", [Selection(start="evaluate", until="sft"), Selection(start="nosuch")])
def test_a_selection_of_nothing_is_refused(recipe, selection):
    with pytest.raises(RecipeError):
        selection.of(recipe)


def test_every_stage_reads_its_predecessors(recipe):
    assert {s: set(inputs_of(recipe, s).values()) for s in FOUR} == {
        "curate": set(), "sft": {"curate"}, "rlvr": {"curate", "sft"}, "evaluate": {"sft", "rlvr"},
    }  # fmt: skip


def artifact(stage):
    return Artifact(stage, "k", Path(f"/runs/{stage}"), "d")


def planned(made):
    return [
        Planned(s, "reuse" if s in made else "run", "why", artifact=artifact(s) if s in made else None) for s in FOUR
    ]


def test_artifacts_of_earlier_stages_are_handed_on(recipe):
    found = needed_before(recipe, ["rlvr", "evaluate"], planned({"curate", "sft"}))
    assert {name: a.path.name for name, a in found.items()} == {"curate": "curate", "sft": "sft"}
    with pytest.raises(RecipeError, match="rlvr needs sft, which has not been made"):
        needed_before(recipe, ["rlvr"], planned({"curate"}))


def test_the_newest_checkpoint_is_the_result():
    results = {s: StageResult(s, "ran", artifact(s), "", 1.0) for s in ("curate", "sft", "rlvr")}
    assert model_folder(results) == Path("/runs/rlvr/model")
    del results["rlvr"]
    assert model_folder(results) == Path("/runs/sft/model")
