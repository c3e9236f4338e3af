"""Recipes: what is read, what is refused, and that the message names the field and the way out."""

from __future__ import annotations

import importlib.util
import re

import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_preset, read_recipe
from pipelines.recipe.training import Lora

RECIPES = sorted((toys.ROOT / "recipes").glob("*.yaml"))
RELEASED = {
    "ares": {"objective": {"low": 0.2, "high": 0.3, "dual": 3.0}},
    "matchtir": {"objective": {"low": 0.2, "high": 0.2, "dual": 3.0}, "loss_aggregation": "row_mean"},
    "rlfr": {"advantage": "group_norm", "loss_aggregation": "row_mean"},
    "safesearch": {"divergence": {"kind": "k1", "where": "reward", "weight": 0.01}},
    "steptool": {
        "divergence": {"kind": "adaptive_k1", "where": "reward", "weight": 0.3, "target": 6.0, "horizon": 10000}
    },
}
"""What the code of these papers runs with."""
PRESETS = sorted(p.stem for p in (toys.ROOT / "recipes" / "presets").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_binds(path):
    recipe = read_recipe(path)
    sources = [source for node in recipe.nodes() for source in getattr(node.settings, "sources", [])]
    missing = [s.path for s in sources if s.kind == "file" and not list(toys.ROOT.glob(str(s.path)))]
    if missing:
        pytest.skip(f"{path.name} reads {missing[0]}, which is not here")
    package = (recipe.model.path or "").partition("package:")[2]
    if package and importlib.util.find_spec(package) is None:  # all but the package is checked
        with pytest.raises(RecipeError, match=f"package {package} is not installed"):
            check(recipe)
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": "owner/name"})})
    check(recipe)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_binds(preset, tmp_path):
    given = [f"presets=[{preset}]"]
    text = (toys.ROOT / "recipes" / "presets" / f"{preset}.yaml").read_text()
    if kinds := re.findall(r"kind: (\w+), path: ./FOLDER", text):  # the preset says that it needs them
        listed = ", ".join(f"{{kind: {kind}, path: ./somewhere}}" for kind in kinds)
        given.append(f"rlvr.providers=[{listed}]")
    task = "worked_sums"  # is played or answered
    if "environments with players" in text:
        task = "tic_tac_toe"
    elif "rollout: {kind: hindsight," in text:
        task = "frozen_lake"  # says what a lost episode did reach
    source = {"kind": "environment", "task": task, "size": 9}
    check(read_recipe(toys.recipe(tmp_path, curate={"sources": [source]}), given))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rlvr.lerning=3", ["rlvr.lerning", "no such field"]),
        ("rlvr.group_sise=3", ["rlvr.group_sise", "Did you mean 'group_size'"]),
        ("rlvr.optimizer.learning_rat=3", ["rlvr.optimizer.learning_rat", "Did you mean 'learning_rate'"]),
        ("rlvr.steps=many", ["rlvr.steps", "integer"]),
        ("rlvr.steps=0", ["rlvr.steps", "greater than or equal to 1"]),
        ("rlvr.advantage=grppo", ["rlvr.advantage", "grppo", "Did you mean 'grpo'"]),
        ("rlvr.advantage=[grpo]", ["rlvr.advantage", "the name of a method is wanted"]),
        ("rlvr.advantage.scal=none", ["rlvr.advantage.scal", "Did you mean 'scale'", "Settings of grpo"]),
        ("rlvr.objective.low=-1", ["rlvr.objective.low", "greater than 0"]),
        ("rlvr.divergence=k1", ["rlvr.divergence", "k1 in the loss", "reward"]),
        ("rlvr.group_size=1", ["rlvr.group_size", "nothing to compare"]),
        ("rlvr.sampling.temperature=0", ["rlvr.sampling.temperature", "greedy"]),
        ("rlvr.filter=mixed rlvr.advantage=rl_zvp", ["rlvr.filter", "mixed removes", "rl_zvp learns"]),
        ("rlvr.split=trian", ["rlvr.split", "Did you mean 'train'"]),
        ("sft.epochs=1", ["sft", "epochs", "steps"]),
        ("model.path=./nowhere", ["model", "not both"]),
        ("presets=[grppo]", ["presets", "Did you mean 'grpo'"]),
        ("curate.splits={train: 0.5}", ["curate", "add up to 1"]),
        ("curate.sources.0.verifier=exakt", ["curate.sources.0.verifier", "Did you mean 'exact'"]),
        ("curate.sources.0.size=-1", ["curate.sources.0.size"]),
        ("curate.sources.7.size=1", ["not an entry of a list of 1"]),
        ("evaluate.tasks=[]", ["evaluate.tasks", "at least 1"]),
    ],
)
def test_bad_input_names_the_field_and_the_way_out(override, words, tmp_path):
    with pytest.raises(RecipeError) as caught:
        check(read_recipe(toys.recipe(tmp_path), re.split(r" (?=rlvr)", override)))
    for word in words:
        assert word in str(caught.value)


def test_missing_file_is_named(tmp_path):
    source = [{"kind": "file", "path": str(tmp_path / "none.jsonl")}]
    with pytest.raises(RecipeError, match=r"curate\.sources\.0\.path: no file"):
        check(read_recipe(toys.recipe(tmp_path, curate={"sources": source})))
    with pytest.raises(RecipeError, match="no such file"):
        read_recipe(tmp_path / "none.yaml")


def test_model_folder_without_tokenizer(tmp_path):
    (tmp_path / "model").mkdir()
    path = toys.recipe(tmp_path, model=None)
    body = yaml.safe_load(path.read_text()) | {"model": {"path": str(tmp_path / "model")}}
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(RecipeError, match=r"model\.path: .* has no config\.json"):
        check(read_recipe(path))
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match="has no tokenizer"):
        check(read_recipe(path))


def test_presets_left_to_right_then_recipe_then_set(tmp_path):
    path = toys.recipe(tmp_path)
    recipe = read_recipe(path, ["presets=[dapo, rloo]", "rlvr.loss_aggregation=row_mean"])
    assert recipe.rlvr.filter == {"kind": "mixed"}
    assert recipe.rlvr.advantage == {"kind": "rloo"}
    assert recipe.rlvr.loss_aggregation == {"kind": "row_mean"}
    assert recipe.rlvr.prompts == 4


@pytest.mark.parametrize("section", ["curate", "sft", "rlvr", "evaluate", "model"])
def test_an_empty_section_does_not_take_back_what_the_recipe_says(section, tmp_path):
    with pytest.raises(RecipeError, match=rf"--set {section}=\{{\}}: .*{section}\.FIELD=VALUE.*{section}=null"):
        read_recipe(toys.recipe(tmp_path), [f"{section}={{}}"])


def test_what_an_empty_section_may_stand_for(tmp_path):
    """Defaults where the recipe says nothing, and settings inside a section; null leaves the stage out."""
    path = toys.recipe(tmp_path)
    read = read_recipe(path, ["tracking={}", "rlvr.lora={}"])
    assert read.rlvr.lora is not None and read.rlvr.steps == 4
    assert [node.name for node in read_recipe(path, ["rlvr=null"]).nodes()] == ["curate", "sft", "evaluate"]
    assert read_recipe(path, ["rlvr=null", "rlvr={}"]).rlvr.steps == 100, "nothing is left to take back"


@pytest.mark.parametrize(
    ("short", "long"),
    [("true", "{}"), ("true", "{rank: 16, alpha: 32}"), ("16", "{rank: 16}"), ("4", "{rank: 4, use_dora: false}"), ("false", "null")],
)  # fmt: skip
@pytest.mark.parametrize("section", ["sft", "rlvr"])
def test_lora_in_short_is_lora_in_full(tmp_path, section, short, long):
    path = toys.recipe(tmp_path)
    one, two = (read_recipe(path, [f"{section}.lora={value}"]) for value in (short, long))
    assert one == two
    assert (getattr(one, section).lora is None) == (short == "false")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["sft.lora=true", "sft.lora.alpha=4"], {"alpha": 4}), (["sft.lora=8", "sft.lora.alpha=4"], {"rank": 8, "alpha": 4}),
        (["sft.lora=false", "sft.lora.rank=4"], {"rank": 4}), (["sft.lora={rank: 8}", "sft.lora=2"], {"rank": 2}),
        (["sft.lora.use_dora=true", "sft.lora.use_rslora=true"], {"use_dora": True, "use_rslora": True}),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_of_lora_beside_its_short_form(tmp_path, changes, expected):
    assert read_recipe(toys.recipe(tmp_path), changes).sft.lora == Lora(**expected)


def test_a_field_of_a_server_beside_its_short_form(tmp_path):
    read = read_recipe(toys.recipe(tmp_path), ["rlvr.sampler={serve: true}", "rlvr.sampler.serve.count=2"])
    assert read.rlvr.sampler.serve.count == 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("0", "sft.lora.rank: Input should be greater"), ("-4", "sft.lora.rank"), ("16.5", "sft.lora: expected a section"),
        ("all", "sft.lora: expected a section"), ("[16]", "sft.lora: expected a section"), ("{use_dora: 3}", "sft.lora.use_dora"),
    ],
)  # fmt: skip
def test_what_lora_cannot_be(tmp_path, value, said):
    with pytest.raises(RecipeError, match=said):
        read_recipe(toys.recipe(tmp_path), [f"sft.lora={value}"])


def test_the_recipe_beats_its_presets(tmp_path):
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(path.read_text())
    body["rlvr"]["filter"] = "all_rows"
    path.write_text(yaml.safe_dump(body | {"presets": ["dapo"]}))
    recipe = read_recipe(path)
    assert recipe.rlvr.filter == {"kind": "all_rows"}
    assert recipe.rlvr.loss_aggregation == read_recipe(toys.recipe(tmp_path), ["presets=dapo"]).rlvr.loss_aggregation


def test_a_slot_is_replaced_whole(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path), ["presets=[dapo]", "rlvr.objective=reinforce"])
    assert recipe.rlvr.objective == {"kind": "reinforce"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rlvr.reward_functions=[r.py]", "functions.0: write it as ./my_file.py:function or package.module:function (got 'r.py')."),
        ("rlvr.sampler={url: localhost, weights: w}", "write an address such as http://localhost:8000 (got 'localhost')."),
        ("rlvr.sampler={url: 'http://host:port', weights: w}", "such as http://localhost:8000 (got 'http://host:port')."),
        ("rlvr.sampler={url: 'http://[::1', weights: w}", "such as http://localhost:8000 (got 'http://[::1')."),
    ],
)  # fmt: skip
def test_patterns_are_told_in_words(change, said, tmp_path):
    with pytest.raises(RecipeError, match=re.escape(said)):
        read_recipe(toys.recipe(tmp_path), [change])


def test_capitals_and_hyphens_are_near(tmp_path):
    with pytest.raises(RecipeError, match="Did you mean 'dr_grpo'"):
        read_recipe(toys.recipe(tmp_path), ["presets=[Dr-GRPO]"])


@pytest.mark.parametrize("preset", RELEASED)
def test_a_preset_has_the_released_settings(preset):
    fields = read_preset(preset)
    for slot, wanted in RELEASED[preset].items():
        given = fields[slot]
        assert given == wanted if isinstance(wanted, str) else wanted.items() <= given.items()
