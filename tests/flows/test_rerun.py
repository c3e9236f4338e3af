"""A run of MLflow's repeated where nothing of it lies: its recipe and its earlier stages come from the store."""

from __future__ import annotations

import json

import pytest
import toys

from pipelines.errors import RecipeError
from pipelines.stage.files import read_json


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run whose project folder is gone but for the store: (folder, store, summary)."""
    folder = tmp_path_factory.mktemp("rerun")
    recipe = toys.recipe(folder, rlvr={"steps": 2, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8}})
    toys.whetstone(
        "run", str(recipe), "--until", "rlvr", "--summary", str(folder / "s.json"), home=folder / "home", timeout=900
    )
    (folder / "home" / "runs").rename(folder / "elsewhere")
    recipe.unlink()
    return folder, f"sqlite:///{folder / 'home' / 'mlflow.db'}", json.loads((folder / "s.json").read_text())


def rerun(ran, home, *more, check=True):
    folder, store, summary = ran
    arguments = ["rerun", summary["parent_run_id"][:10], *more, "--summary", str(folder / "again.json")]
    done = toys.whetstone(*arguments, home=folder / home, check=check, timeout=900, MLFLOW_TRACKING_URI=store)
    return done, json.loads((folder / "again.json").read_text()) if done.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_one_stage_with_a_change(ran):
    folder, _, before = ran
    _, summary = rerun(ran, "other", "--only", "rlvr", "--set", "rlvr.advantage=rloo")
    assert {n: s["status"] for n, s in summary["stages"].items()} == {"rlvr": "ran"}
    for stage in ("curate", "sft"):
        (fetched,) = (folder / "other" / "runs").glob(f"{stage}-*")
        key = before["stages"][stage]["key"]
        assert fetched.name == f"{stage}-{key}"
        original = folder / "elsewhere" / fetched.name
        assert read_json(fetched / "manifest.json")["digest"] == read_json(original / "manifest.json")["digest"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_without_a_change_every_stage_comes_from_the_store(ran):
    _, summary = rerun(ran, "third", "--until", "rlvr")
    assert {s["status"] for s in summary["stages"].values()} == {"reused"}
    assert {n: s["key"] for n, s in summary["stages"].items()} == {n: s["key"] for n, s in ran[2]["stages"].items()}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_that_is_not_there(ran):
    folder, store, _ = ran
    done = toys.whetstone("rerun", "zzzz", home=folder / "other", check=False, MLFLOW_TRACKING_URI=store)
    assert done.returncode == 2 and "no pipeline run" in done.stderr


def test_a_preset_would_change_nothing(home):
    from flows import rerun as command

    with pytest.raises(RecipeError, match=r"rlvr\.advantage"):
        command.recipe_of("0" * 32, ["presets=[dapo]"])
