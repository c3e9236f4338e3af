"""What is refused before anything runs, what stands in the keys, and the recipe's smoke run."""

from __future__ import annotations

import json

import latent_toys
import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from tasks import keys


@pytest.mark.parametrize(
    ("stages", "match"),
    [
        ({"rl": {"advantage": "gae"}}, r"latent_rl.advantage|rl.advantage.*gae reads .*Use one that reads rewards"),
        ({"rl": {"lora": True}}, "lora.*the gates are trained beside the whole model"),
        ({"rl": {"processes": 2}}, "processes.*one process"),
        ({"rl": {"optimizer": {"kind": "muon"}}}, "optimizer.kind.*learning rates of their own"),
        ({"rl": {"gates": {"r_min": 0.9, "r_max": 0.8}}}, "gates.*set r_min to r_max or less"),
        ({"rl": {"gates": {"r_max": 1.0}}}, "gates.r_max"),
        ({"rl": {"answer_start": ""}}, "answer_start"),
        ({"rl": {"sampling": {"temperature": 0}}}, "set it above 0"),
        ({"rl": {"sampling": {"max_tokens": 48}}}, "set it below max_length"),
        ({"rl": {"heldout": None}}, "measure asks questions"),
        ({"rl": {"heldout": "train"}}, "nothing would be held out"),
        ({"rl": {"answer_start": "="}}, "twin.*answers other questions, or in another way: answer_start"),
        ({"rl": {"measure": None}}, "twin.*measure"),
        ({"rl": {"model": "data"}}, "makes data, and model or latent_model is wanted"),
        ({"rl": {"twin": "cold"}}, "makes model, and latent_model is wanted"),
        ({"scores": {"kind": "evaluate", "models": ["rl"], "tasks": ["palindromes"]}}, "makes latent_model, and model is wanted"),
        ({"later": {"kind": "sft", "data": "data", "model": "rl", "steps": 1}}, "makes latent_model, and model is wanted"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(begun, stages, match):
    with pytest.raises(RecipeError, match=match):
        check(latent_toys.recipe(begun, **stages))


def test_a_fresh_model_is_trained_before_its_answers_are_paid(begun):
    read = latent_toys.recipe(begun, cold=None, tokens={"model": None}, rl={"model": None})
    with pytest.raises(RecipeError, match="fresh"):
        check(read)


def test_keys_hold_the_code_and_the_twin_is_no_parent(begun):
    read = latent_toys.recipe(begun)
    assert "pipelines.latent.rl" in keys.node_reads(read, "rl").modules
    assert read.node("rl").parents == ["cold"] and read.node("rl").inputs["twin"] == "tokens"
    assert "fresh" not in keys.node_reads(read, "rl").settings["model"]


SMALL = (
    "data.sources.0.size=200", "model.fresh.config.hidden_size=32", "cold.steps=4",
    *(f"{stage}.{field}" for stage in ("tokens", "latent") for field in ("steps=2", "prompts=2", "group_size=2", "measure.limit=4")),
)  # fmt: skip


@pytest.mark.slow
def test_the_recipe_runs(tmp_path):
    """`whetstone run recipes/latent.yaml`, smaller: every stage ends, and the last is compared with its twin."""
    settings = [part for each in SMALL for part in ("--set", each)]
    toys.whetstone("run", str(toys.ROOT / "recipes" / "latent.yaml"), *settings, home=tmp_path / "home")
    told = [json.loads(path.read_text()) for path in (tmp_path / "home").glob("runs/latent_rl-*/heldout.json")]
    assert len(told) == 2 and told[0]["questions"] == told[1]["questions"] and len(told[0]["questions"]) == 4
    assert len([*(tmp_path / "home").glob("runs/latent_rl-*/model/latent_gates.safetensors")]) == 1
