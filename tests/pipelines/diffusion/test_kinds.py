"""What is refused before anything runs, and what stands in the keys."""

from __future__ import annotations

import diffusion_toys
import pytest

from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.recipe.check import check
from tasks import keys


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ({"rl": {"advantage": "gae"}}, "gae reads .*which a masked diffusion model has not"),
        ({"rl": {"lora": True}}, "lora"),
        ({"cold": {"processes": 2}}, "one process"),
        ({"cold": {"sampling": {"steps": 3, "block": 2}}}, "no multiple of the 2 blocks"),
        ({"cold": {"sampling": {"block": 3}}}, "does not divide"),
        ({"cold": {"heldout": None}}, "measure asks questions"),
        ({"rl": {"inpainting": {"replaced": 4}}}, "group_size"),
        ({"rl": {"model": "data"}}, "masked_model is wanted"),
        ({"scores": {"kind": "evaluate", "models": ["rl"], "tasks": ["palindromes"]}}, "makes masked_model, and model is wanted"),
        ({"more": {"kind": "sft", "data": "data", "model": "cold", "steps": 1}}, "makes masked_model, and model is wanted"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(begun, stages, match):
    with pytest.raises(RecipeError, match=match):
        check(diffusion_toys.recipe(begun, **stages))


def test_a_fresh_model_is_trained_before_its_answers_are_paid(begun):
    read = diffusion_toys.recipe(begun, cold=None, rl={"model": None})
    with pytest.raises(RecipeError, match="fresh"):
        check(read)


def test_its_folder_is_read_by_stages_of_its_kind_alone(begun):
    """Any other would read it from left to right."""
    folder = begun / "cold" / "out" / "model"
    own = {"cold": None, "rl": {"model": None}}
    check(diffusion_toys.recipe(begun, **own, model={"path": str(folder)}))
    causal = {"more": {"kind": "sft", "data": "data", "steps": 1}}
    with pytest.raises(RecipeError, match="is a masked_model, which more, a stage of kind sft, would not read"):
        check(diffusion_toys.recipe(begun, **own, **causal, model={"path": str(folder)}))
    with pytest.raises(ModelError, match="is a masked_model, which cannot be read here as it was trained"):
        models.load_model(folder, Model(path=str(folder)))


def test_keys_hold_the_code_and_the_model(begun):
    read = diffusion_toys.recipe(begun)
    for name in ("cold", "rl"):
        modules = keys.node_reads(read, name).modules
        assert any(module.startswith("pipelines.diffusion.") for module in modules)
    assert "fresh" in keys.node_reads(read, "cold").settings["model"]
    assert "fresh" not in keys.node_reads(read, "rl").settings["model"]
    assert read.node("rl").parents == ["cold"] and read.node("cold").parents == ["base"]
