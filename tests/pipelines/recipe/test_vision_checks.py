"""What has no way for images yet is refused by name, for models that see and for no others."""

from __future__ import annotations

import pytest
import toys
import vision_models

from pipelines.base.errors import RecipeError
from pipelines.contract.model_settings import Model
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.vision_checks import sees


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["sft.processes=2"], r"sft\.processes"),
        (["rlvr.processes=2"], r"rlvr\.processes"),
        (["rlvr.sampler.serve=true", "rlvr.lora={rank: 4}"], r"rlvr\.lora"),
    ],
)
def test_a_model_that_sees_is_refused_what_has_no_way_for_images(tmp_path, overrides, field):
    with pytest.raises(RecipeError, match=field + ".*vision tower"):
        check(read_recipe(vision_models.recipe(tmp_path), overrides))


def test_an_image_fits_into_the_context(tmp_path):
    with pytest.raises(RecipeError, match="an image takes 4 tokens, and a conversation has at most 4"):
        check(read_recipe(vision_models.recipe(tmp_path), ["model.fresh.config.max_position_embeddings=4"]))


def test_a_model_that_reads_text_is_not(tmp_path):
    check(read_recipe(toys.recipe(tmp_path), ["sft.processes=2"]))
    check(read_recipe(vision_models.recipe(tmp_path)))
    check(read_recipe(vision_models.recipe(tmp_path), ["rlvr.sampler.serve=true"]))


def test_a_folder_sees_where_it_has_a_tower_and_its_processor(tmp_path):
    folder = vision_models.make("llava", tmp_path / "llava")
    assert sees(Model(path=str(folder)))
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).unlink()
    assert not sees(Model(path=str(folder)))
    assert not sees(Model(path="owner/name"))


def test_patches_divide_the_image():
    with pytest.raises(ValueError, match="is not divided by patch_size 7"):
        Model(fresh={"vision": {"image_size": 32, "patch_size": 7}})
