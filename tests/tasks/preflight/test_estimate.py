"""What a plan says of the time that its stages will take, from manifests as stages write them."""

from __future__ import annotations

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks import environment, keys
from tasks.preflight import estimate
from tasks.store import artifacts


@pytest.fixture
def ran(home, tmp_path):
    """Publishes the artifact of a stage that took so many seconds."""
    path = toys.recipe(tmp_path)

    def ran(stage, seconds, *overrides, path=path):
        recipe = read_recipe(path, list(overrides))
        out = tmp_path / f"out-{stage}-{seconds}"
        out.mkdir()
        environment.runs_folder().mkdir(parents=True, exist_ok=True)
        (out / "x").write_text(str(seconds))
        body = {"parts": {"settings": keys.settings_of(recipe, stage)}, "seconds": seconds}
        artifacts.put(out, environment.runs_folder(), recipe.graph[stage].kind, f"{int(seconds):016x}", body)
        return recipe

    return ran


def test_a_stage_takes_what_its_like_have_taken_by_the_step(ran):
    recipe = ran("sft", 12.0)  # 12 steps
    ran("sft", 48.0, "sft.steps=24", "sft.optimizer.learning_rate=0.1", "seed=4")  # 24 for 12
    ran("sft", 900.0, "sft.max_length=32")
    ran("curate", 7.0)
    told = estimate.durations(recipe, ["curate", "sft", "rlvr"])
    assert list(told) == ["curate", "sft"], "no RLVR has run here"
    assert (told["sft"].seconds, told["sft"].low, told["sft"].high, told["sft"].runs) == (18.0, 12.0, 24.0, 2)
    assert str(told["sft"]) == "about 18 s (2 earlier runs of this size, 12 s to 24 s, by their time of a step)"
    assert str(told["curate"]) == "about 7 s (1 earlier run of this size)"


def test_another_model_is_another_size(ran):
    recipe = ran("sft", 12.0, "model.fresh.config.hidden_size=64")
    other = read_recipe(toys.recipe(environment.home().parent))
    assert list(estimate.durations(recipe, ["sft"])) == ["sft"] and estimate.durations(other, ["sft"]) == {}


def test_what_an_external_trainer_is_told_says_how_long_it_takes(ran, tmp_path):
    path = toys.external(tmp_path, **toys.FAKE_TRAINER)
    recipe = ran("rl", 50.0, "rl.retries=2", path=path)
    assert str(estimate.durations(recipe, ["rl"])["rl"]) == "about 50 s (1 earlier run of this size)"
    for change in ("rl.config.steps=4", "rl.overrides=[x]", "rl.command=[train]"):
        assert estimate.durations(read_recipe(path, [change]), ["rl"]) == {}
