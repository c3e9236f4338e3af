"""What the error of a stage that is not here says of the run that is repeated."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.base.files import write_manifest
from pipelines.recipe.read import read_recipe
from tasks import brought, keys
from tasks.environment import records_folder, runs_folder
from tasks.pipeline import needed_before
from tasks.stages import plan
from tasks.store import artifacts

RUN = "a" * 32


@pytest.fixture
def said(home, tmp_path, monkeypatch):
    """The error of a selection, where MLflow holds a run whose curation was made of these parts."""
    recipe = read_recipe(toys.recipe(tmp_path))
    runs_folder().mkdir(parents=True)

    def said(stage: str, listed: bool = True, **changes) -> str:
        parts = keys.key_parts(recipe, "curate", {})
        parts = {name: part | changes.get(name, {}) if isinstance(part, dict) else part for name, part in parts.items()}
        key = keys.stage_key(parts)
        folder = artifacts.folder(records_folder(), "curate", key)
        folder.mkdir(parents=True)
        write_manifest(folder, {"stage": "curate", "key": key, "parts": parts})
        stages = {"curate": {"kind": "curate", "key": key, "run_id": "b" * 32}}
        run = {
            "run_id": RUN,
            "name": "toy",
            "tags": {"mlflow.source.git.commit": "c" * 40},
            "summary": {"stages": stages},
        }
        monkeypatch.setattr(brought, "remote_run", lambda of_run: run if listed and of_run == RUN else None)
        with pytest.raises(RecipeError) as error:
            needed_before(recipe, [stage], plan(recipe), RUN)
        return str(error.value)

    return said


def test_other_code_is_named_with_the_commit_that_has_the_runs(said):
    assert said("sft", source={"pipelines.data.records": "0"}) == (
        "sft needs curate, which has not been made for this recipe (since run aaaaaaaa the code of pipelines.data.records changed). "
        "Include it: --from curate. Or take the code of commit cccccccccccc."
    )


def test_other_settings_and_libraries_are_named_at_the_stage_that_they_change(said):
    text = said("evaluate", versions={"pyarrow": "1.0"}, chosen={"curate": {"near_duplicates": None}})
    assert text.startswith("evaluate needs sft, which has not been made for this recipe (curate: since run aaaaaaaa ")
    assert "pyarrow changed 1.0 → " in text and "curate" in text and text.endswith("Include it: --from curate.")


def test_equal_parts_are_said_to_be_equal(said):
    assert "(it is as in run aaaaaaaa, and MLflow does not hold its files)" in said("sft")


def test_a_run_that_mlflow_does_not_tell_of(said):
    assert "(it has not run before)" in said("sft", listed=False, source={"pipelines.data.records": "0"})
