"""What is refused before anything runs, what stands in the keys, and the recipe's smoke run."""

from __future__ import annotations

import json
import shutil

import latent_toys
import pytest
import torch
import toys
from safetensors.torch import load_file

from pipelines.base.errors import RecipeError
from pipelines.latent.gate_files import FILE
from pipelines.latent.hybrid import Gates, save_gates
from pipelines.latent.settings import GateSettings
from pipelines.recipe.check import check
from tasks import keys

AFTER = latent_toys.RECIPE["stages"]["rl"] | {"model": "rl"}
"""A stage after the one with gates."""


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
        ({"rl": {"superposed": {"tokens": 1}}}, "superposed.tokens"),
        ({"rl": {"superposed": {"noise": 0}}}, "superposed.noise"),
        ({"more": AFTER | {"latent": False}}, "more.*rl trains gates, which latent: false would drop"),
        ({"more": AFTER | {"superposed": {}}}, "more.*rl trains gates, which superposed would drop"),
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


def gated(begun, tmp_path, width=32):
    """A folder that a stage with gates has left, as a recipe of its own names it."""
    folder = tmp_path / "gated"
    shutil.copytree(begun / "cold" / "out" / "model", folder)
    about = json.loads((folder / "whetstone.json").read_text())
    (folder / "whetstone.json").write_text(json.dumps(about | {"makes": "latent_model"}))
    save_gates(Gates(width, GateSettings(), torch.Generator()), folder)
    return folder


def by_path(begun, folder, **stages):
    """The toy recipe from a folder, without the stages that train a fresh model."""
    read = latent_toys.recipe(
        begun,
        **({"cold": None, "tokens": None, "rl": {"model": None, "twin": None}} | stages),
        model={"path": str(folder)},
    )
    assert read.model.path == str(folder)
    return read


def test_gates_beside_the_recipes_own_model(begun, tmp_path):
    """They are read by a stage with gates, and refused in the plan by one that would drop them."""
    folder = gated(begun, tmp_path)
    read = by_path(begun, folder)
    check(read)
    trainer = latent_toys.trainer(read, "rl", tmp_path / "work", begun, start=None)
    assert torch.equal(trainer.model.gates.decay, load_file(folder / FILE)["decay"])
    own = {"model": None, "twin": None}
    for stages, match in (
        ({"rl": own | {"latent": False}}, r"latent_rl\.latent|rl\.latent.*latent: false would drop"),
        ({"rl": own | {"superposed": {}}}, r"superposed.*trained with gates .*superposed would drop"),
        ({"cold": {}}, r"model\.path.*is a latent_model, which cold, a stage of kind sft, would not read"),
    ):
        with pytest.raises(RecipeError, match=match):
            check(by_path(begun, folder, **stages))


def test_gates_of_another_size_are_refused_in_the_plan(begun, tmp_path):
    with pytest.raises(RecipeError, match=r"latent_gates.* embeddings of 32 values \(they are for 16\)"):
        check(by_path(begun, gated(begun, tmp_path, width=16)))


def test_keys_hold_the_code_and_the_twin_is_no_parent(begun):
    read = latent_toys.recipe(begun)
    assert "pipelines.latent.rl" in keys.node_reads(read, "rl").modules
    assert read.node("rl").parents == ["cold"] and read.node("rl").inputs["twin"] == "tokens"
    assert "fresh" not in keys.node_reads(read, "rl").settings["model"]


SMALL = (
    "data.sources.0.size=200", "model.fresh.config.hidden_size=32", "cold.steps=4",
)  # fmt: skip
SMALLER = ("steps=2", "prompts=2", "group_size=2", "measure.limit=4")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "last", "gates"), [("latent", "latent", 1), ("latent_grpo", "superposed", 0)])
def test_the_recipe_runs(tmp_path, name, last, gates):
    """`whetstone run recipes/NAME.yaml`, smaller: every stage ends, and the last is compared with its twin."""
    every = [*SMALL, *(f"{stage}.{field}" for stage in ("tokens", last) for field in SMALLER)]
    settings = [part for each in every for part in ("--set", each)]
    toys.whetstone("run", str(toys.ROOT / "recipes" / f"{name}.yaml"), *settings, home=tmp_path / "home")
    told = [json.loads(path.read_text()) for path in (tmp_path / "home").glob("runs/latent_rl-*/heldout.json")]
    assert len(told) == 2 and told[0]["questions"] == told[1]["questions"] and len(told[0]["questions"]) == 4
    assert len([*(tmp_path / "home").glob(f"runs/latent_rl-*/model/{FILE}")]) == gates
    models = [
        json.loads(path.read_text()) for path in (tmp_path / "home").glob("runs/latent_rl-*/model/whetstone.json")
    ]
    assert sorted(about.get("makes", "") for about in models) == ["", "latent_model"]
