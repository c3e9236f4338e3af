"""What an editor accepts and underlines."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest
import toys

from pipelines.recipe import shipped, yaml_text
from pipelines.recipe.read import SECTIONS, apply_override
from pipelines.recipe.stage_kind import core_kinds

SCHEMA = json.loads(shipped.SCHEMA.read_text())
RECIPES = sorted((toys.ROOT / "recipes").glob("*.yaml"))
PRESETS = sorted((toys.ROOT / "recipes" / "presets").glob("*.yaml"))
RECIPE = jsonschema.Draft202012Validator(SCHEMA)
PRESET = jsonschema.Draft202012Validator({"$ref": "#/$defs/preset", "$defs": SCHEMA["$defs"]})
BODY = {
    "name": "mine",
    "model": {"path": "org/model"},
    "curate": {"sources": [{"kind": "file", "path": "rows.jsonl"}]},
    "sft": {"steps": 3},
    "rlvr": {"advantage": "grpo", "divergence": {"kind": "k3", "weight": 0.1, "where": "loss"}},
    "evaluate": {"tasks": ["palindromes", {"name": "gsm8k", "limit": 5}]},
}


def changed(*changes: str, body: dict = BODY) -> dict:
    body = deepcopy(body)
    for change in changes:
        apply_override(body, change)
    return body


@pytest.mark.slow
def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipes_are_accepted_and_point_to_it(path):
    assert [e.message for e in RECIPE.iter_errors(yaml_text.load(path))] == []
    first, _ = path.read_text().split("\n", 1)
    assert (path.parent / Path(first.removeprefix(shipped.EDITORS))).resolve() == shipped.SCHEMA.resolve()


def test_presets_are_accepted():
    assert [(p.stem, e.message) for p in PRESETS for e in PRESET.iter_errors(yaml_text.load(p))] == []


def test_typos_of_presets_are_refused():
    for number, path in enumerate(PRESETS):
        body = yaml_text.load(path)
        name = [*body][number % len(body)]
        assert not PRESET.is_valid({f"{key}x" if key == name else key: value for key, value in body.items()}), name


@pytest.mark.parametrize("number", range(3))
def test_a_mistyped_field_of_any_section_is_refused(number):
    for path in RECIPES[number::3]:
        body = yaml_text.load(path)
        stages = [
            stage for stage in body.get("stages", {}).values() if stage["kind"] in core_kinds()
        ]  # not of plug-ins
        sections = [*(body[name] for name in SECTIONS if name in body), *stages]
        for place, section in enumerate([body, sections[len(path.stem) % len(sections)]]):
            name = [*section][(len(path.stem) + place) % len(section)]
            section[f"{name}x"] = section.pop(name)
            assert not RECIPE.is_valid(body), (path, name)
            section[name] = section.pop(f"{name}x")


@pytest.mark.parametrize(
    "change",
    [
        "rlvr.advantage=gigpo", "rlvr.advantage.scale=none", "rlvr.reward=[verifier, {kind: verifier, weight: 0.5, name: again}]",
        "rlvr.reward=[{kind: judge, model: m, weight: {start: 1, end: 0, steps: 9}, gate: {term: x, at_least: 1}}]",
        "rlvr.advantage=my_package.credit:mine", "rlvr.advantage={kind: ./mine.py, eta: 3}", "presets=./mine.yaml", "presets=[dapo]",
        "presets=dapo", "rlvr.divergence=null", "rlvr.shaping=soft_overlong", "rlvr.shaping=[{kind: soft_overlong, buffer: 0.5}]",
        "sft=null", "evaluate.tasks=[some_task_of_lm_eval]", "sft.loss={kind: psft, high: 0.3}", "sft.weights={a: 2}",
        "rlvr.monitors=[{kind: truncation, action: stop, patience: 3}]", "rlvr.sampler={serve: true}", "rlvr.lora={rank: 8}",
        "rlvr.lora=true", "sft.lora=8", "sft.lora=null", "rlvr.lora={use_dora: true, use_rslora: true}",
        "evaluate.search={kind: best_of_n, score: likelihood}", "evaluate.guidance={base: sft, weight: 2}", "rlvr.window=0.5",
        "curate.sources.0={kind: environment, task: frozen_lake, size: 9}", "curate.sources.0.verifier=number",
        "curate.sources.0={kind: reasoning_gym, task: palindrome_generation, size: 9}",
    ],
)  # fmt: skip
def test_what_is_meant(change):
    wrong = jsonschema.exceptions.best_match(RECIPE.iter_errors(changed(change)))
    assert wrong is None, wrong.message


TYPOS = [
    "rlvr.advantage=gigpoo", "rlvr.advantage={kind: grpoo}", "rlvr.advantage.scal=none",
    "rlvr.advantage.scale=nothing", "presets=[dapoo]", "presets=dapoo", "rlvr.reward=[verifierr]",
    "rlvr.reward=[{kind: verifier, wieght: 1}]", "rlvr.reward={kind: judge, model: m, wieght: 1}",
    "rlvr.shaping=[{kind: soft_overlong, bufer: 0.5}]", "rlvr.shaping=[{kind: hire, terms: [noveltyy, novelty]}]",
    "sft.loss=psftt", "rlvr.shaping=soft_overlongg", "rlvr.steps=0", "rlvr.steps=many",
    "rlvr.optimizer.learning_rat=1", "rlvr.optimizer.learning_rate=-1", "rlvr.monitors=[truncationn]",
    "rlvr.monitors=[{kind: truncation, action: halt}]", "rlvr.divergence.were=loss", "rlvr.divergence.where=x",
    "model.pth=x", "evaluate.tasks.1.limt=3", "curate.sources.0.kind=fil", "curate.sources.0.verifier=nmber",
    "curate.near_duplicates.ngram=3", "curate.sources.0={kind: environment, task: frozen_lak, size: 9}",
    "tracking.upload_model=false", "seed=-1", "nme=x", "rlvr.providers=[critc]", "rlvr.sampler={server: true}",
    "rlvr.lora={rank: none}", "rlvr.lora=0", "sft.lora=large", "sft.lora={use_dorra: true}",
    "evaluate.search={kind: best_of_m, score: likelihood}",
]  # fmt: skip


@pytest.mark.parametrize("change", TYPOS)
def test_typos_are_refused(change):
    assert not RECIPE.is_valid(changed(change))


NAMES = [
    "rlvr.advantage=mine",
    "rlvr.shaping=[mine]",
    "curate.sources.0.verifier=mine",
    "sft.loss={kind: mine, scale: 3}",
]


@pytest.mark.parametrize("change", NAMES)
def test_plug_ins_of_a_recipe_may_bring_names(change):
    assert not RECIPE.is_valid(changed(change))
    assert RECIPE.is_valid(changed(change, "plugins=[mine.py]")) and not RECIPE.is_valid(changed(change, "plugins=[]"))
    assert not RECIPE.is_valid(changed(change, "plugins=[mine.py]", "rlvr.stepz=3"))


def test_stages_are_told_apart_by_their_kind():
    body = {k: v for k, v in BODY.items() if k not in SECTIONS}
    body["stages"] = {
        "data": {"kind": "curate", **BODY["curate"]},
        "cold": {"kind": "sft", "data": "data", "model": "base", "steps": 3, "seed": 4},
        "both": {"kind": "merge", "models": ["cold", "base"]},
        "scores": {"kind": "evaluate", "models": "cold", "tasks": ["palindromes"]},
    }
    body["repeat"] = {"rounds": 2, "stages": ["cold"], "start": {"cold": "base"}}
    assert RECIPE.is_valid(body)
    for change in (
        "stages.cold.kind=sftt",
        "stages.cold.advantage=grpo",
        "stages.cold.loss=dfft",
        "stages.data.data=x",
        "repeat.round=3",
    ):
        assert not RECIPE.is_valid(changed(change, body=body)), change


def test_hover_text_is_that_of_the_settings_page():
    share = SCHEMA["$defs"]["Optimizer"]["properties"]["final_share"]
    assert share["description"] == "The learning rate at the end, as a share of its peak." and share["maximum"] == 1
    assert SCHEMA["$defs"]["rlvr.advantage.grpo"]["description"].startswith("DeepSeekMath")
    page = (toys.ROOT / "docs" / "settings.md").read_text()
    fields = {name: about for name, about in SCHEMA["properties"].items() if "description" in about}
    assert len(fields) > 4 and all(about["description"] in page for about in fields.values())


def test_a_model_may_be_behind_a_server():
    """As `whetstone schema` says it today; the shipped one follows with the next `make docs`."""
    from pipelines.recipe.json_schema import recipe_schema

    schema = jsonschema.Draft202012Validator(recipe_schema())

    def accepted(model):
        stages = {"rows": {"kind": "curate", **BODY["curate"]}, "a": {"kind": "sample", "data": "rows", "model": model}}
        return schema.is_valid({"name": "mine", "model": {"path": "org/model"}, "stages": stages})

    assert accepted("rows") and accepted(None) and accepted({"endpoint": "m", "price": {"prompt": 1}})
    assert not accepted({"endpoint": "m", "urll": "x"}) and not accepted({"url": "http://h"}) and not accepted(["m"])
