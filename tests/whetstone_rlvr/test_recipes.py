"""Recipes from files, dicts and typed objects are the same recipe, whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toys
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipelines.recipe import shipped
from pipelines.recipe.read import apply_override, preset_names, read_recipe
from whetstone_rlvr import Recipe, UserError, recipe, recipes
from whetstone_rlvr.settings import Curate, Fresh, Model, Rlvr, Source, Tokenizer

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
    | st.sampled_from(["no", "1e-5", "2026-01-02", "null", "~", "- a", "{", "a: b", "#", "1:30", "0x10"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner, max_size=3),
)  # fmt: skip


def typed(**more):
    """A small recipe built in code."""
    sources = [Source(kind="reasoning_gym", task="palindrome_generation", size=800)]
    curate = Curate(sources=sources, splits={"train": 0.9, "heldout": 0.1})
    model = Model(fresh=Fresh(config={"hidden_size": 32}), tokenizer=Tokenizer(kind="char"))
    return Recipe(name="typed", model=model, curate=curate, **more)


@pytest.mark.parametrize("name", shipped.names())
@pytest.mark.few(18)
def test_a_recipe_that_was_read_stays_what_it_is(name):
    path = shipped.FOLDER / f"{name}.yaml"
    read = read_recipe(path)
    assert recipe(path) == recipe(str(path)) == recipe(read) == recipe(recipe(read)) == read
    assert recipe(yaml.safe_load(path.read_text())) == read
    assert recipe(read, set={"seed": 77}) == read_recipe(path, ["seed=77"])


@pytest.mark.parametrize("name", preset_names()[::7])
def test_presets_of_objects_are_applied(name, tmp_path):
    body = {"presets": [name], "rlvr": {"steps": 3}}
    path = toys.recipe(tmp_path, **body)
    written = yaml.safe_load(path.read_text())
    read = read_recipe(path)
    assert recipe(Recipe.model_validate(written)) == recipe(written) == recipe(read) == read


def test_typed_objects_are_the_fields_that_were_set():
    built = typed(rlvr=Rlvr(steps=3), presets=["rloo"])
    assert recipe(built).rlvr.advantage == {"kind": "rloo"} and recipe(built).rlvr.steps == 3
    assert recipe(built, set={"rlvr.advantage": "grpo"}).rlvr.advantage == {"kind": "grpo"}
    body = {"name": "typed", "model": built.model, "curate": built.curate, "rlvr": {"steps": 3}, "presets": ["rloo"]}
    assert recipe(body) == recipe(built)
    named = {"data": {"kind": "curate", "sources": built.curate.sources, "splits": {"train": 1.0}}}
    assert recipe({"name": "typed", "model": built.model, "stages": named}).stage_names() == ["data"]


@given(value=VALUES)
def test_a_change_arrives_as_it_is(value):
    (text,) = recipes.changes({"curate.sources.0.config.x": value})
    body = {"curate": {"sources": [{"config": {}}]}}
    apply_override(body, text)
    arrived = body["curate"]["sources"][0]["config"]["x"]
    assert arrived == value and json.dumps(arrived) == json.dumps(value)


def test_changes_as_the_command_line_has_them():
    built = typed(rlvr=Rlvr())
    assert recipe(built, set=["rlvr.steps=3", "seed=2"]) == recipe(built, set={"rlvr.steps": 3, "seed": 2})
    assert recipe(built, set="rlvr.steps=3").rlvr.steps == 3
    assert recipe(built, set={"model": Model(path=str(Path("a/b")))}).model.path == "a/b"


@pytest.mark.parametrize(
    ("source", "set", "field", "words"),
    [
        ({"name": "x"}, None, "model", "required"),
        ({"name": "x", "modle": {}}, None, "modle", "Did you mean 'model'?"),
        ({"name": "x", "seed": float("nan")}, None, "source", "plain values"),
        ({"name": "x", "seed": object()}, None, "source", "plain values"),
        (["name"], None, "source", "got list"),
        (None, None, "source", "got NoneType"),
        ("nowhere.yaml", None, "nowhere.yaml", "no such file"),
        ("recipes/quickstart.yaml", {"rlvr.stepz": 3}, "rlvr.stepz", "Did you mean 'steps'?"),
        ("recipes/quickstart.yaml", {"rlvr.steps": {1, 2}}, "rlvr.steps", "plain values"),
        ("recipes/quickstart.yaml", ["rlvr.steps"], "set=rlvr.steps", "field=value"),
        ("recipes/quickstart.yaml", {"rlvr": {}}, "set=rlvr={}", "empty section"),
        ("recipes/quickstart.yaml", {"curate.sources.9.size": 3}, "set=curate.sources.9.size", "not an entry"),
    ],
)
def test_what_cannot_be_is_a_user_error(source, set, field, words):
    with pytest.raises(UserError) as error:
        recipe(source, set=set)
    assert field in [problem.field for problem in error.value.problems] and words in str(error.value)


def test_one_that_came_from_no_file_is_written_where_commands_read_it(home):
    reading = recipes.read(typed(rlvr=Rlvr(steps=3)), {"seed": 5})
    saved = reading.saved()
    assert saved == reading.saved() and Path(saved).is_relative_to(home)
    assert read_recipe(saved, reading.overrides) == reading.recipe and reading.recipe.seed == 5
    assert recipes.read("recipes/quickstart.yaml").saved() == "recipes/quickstart.yaml"
