"""Kinds of stages of plug-ins: named by a table or by where they are, and refused with the file and the line."""

from __future__ import annotations

import sys

import plugin_toys
import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError, UserError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.stage_kind import core_kinds, kind_of_run, stage_kinds
from tasks import keys, stages

FILE = '''"""A kind."""

from pydantic import Field

from pipelines.contract.fields import Settings
from pipelines.recipe.stage_kind import DATA, Kind, Port


class Cut(Settings):
    """Its fields."""

    most: int = Field(10, ge=1)


class CutKind(Kind):
    """Data with fewer records."""

    name, settings, makes = "cut", Cut, DATA
    ports = {"data": Port((DATA,))}

    def work(self, job, folder):
        return {}


KIND = CutKind()
PARTS = {"stages": {"cut": KIND}}
'''
SETTINGS_LINE, CLASS_LINE = (
    FILE.splitlines().index(line) + 1 for line in ("class Cut(Settings):", "class CutKind(Kind):")
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with plugin_toys.forgotten():
        yield tmp_path


def recipe(folder, text=FILE, plugins=("mine.py",), **fields):
    """A recipe with a stage of the kind between data and SFT."""
    (folder / "mine.py").write_text(text)
    body = yaml.safe_load(toys.recipe(folder).read_text())
    data, sft = (body.pop(kind) for kind in ("curate", "sft"))
    body = {name: value for name, value in body.items() if name not in ("rlvr", "evaluate")}
    named = {"data": {"kind": "curate", **data}, "less": {"kind": "cut", "data": "data", **fields}}
    named["cold"] = {"kind": "sft", "data": "less", **sft}
    (folder / "mine.yaml").write_text(yaml.safe_dump(body | {"plugins": list(plugins), "stages": named}))
    return folder / "mine.yaml"


def test_only_the_recipe_that_names_it_has_it(folder):
    assert "cut" not in stage_kinds()
    read = read_recipe(recipe(folder, most=3))
    check(read)
    assert read.node("less").settings.most == 3 and read.node("cold").sources[0].name == "less"
    assert stage_kinds().keys() == core_kinds().keys() | {"cut"}
    read = read_recipe(recipe(folder, FILE.replace("Field(10", "Field(20")))
    assert read.node("less").settings.most == 20, "the file is read again where it has changed"


@pytest.mark.parametrize("kind", ["./mine.py", "./mine.py:KIND", "mine:KIND"])
def test_a_recipe_says_where_it_is(folder, kind):
    text = FILE.replace('PARTS = {"stages": {"cut": KIND}}\n', "")
    read = read_recipe(recipe(folder, text, [], kind=kind))
    assert read.graph["less"].kind == "cut" and read.plugins == [f"stages={kind}"]
    node = read.node("less")
    assert stages.job_of(node, {"data": type("", (), {"path": "d"})})["plugins"] == [f"stages={kind}"]
    before = keys.stage_key(keys.key_parts(read, "less", {"data": "d"}))
    read = read_recipe(recipe(folder, text.replace("return {}", 'return {"rows": 1}'), [], kind=kind))
    if kind.endswith(".py"):
        assert keys.stage_key(keys.key_parts(read, "less", {"data": "d"})) != before


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"cut", Cut', '"sft", Cut', "cut is called 'sft' by its class. Set name = \"cut\" there, or rename it in PARTS."),
        ('"cut"', '"sft"', "sft has the name sft, and there is a kind of stage sft in the core. Call it otherwise."),
        ('"cut"', '"cut2"', "cut2 has the name 'cut2'. Lower-case letters and underscores are wanted ([a-z][a-z_]{0,39})."),
        ("Cut, DATA", "dict, DATA",
         "cut has no settings. Set settings to a class that inherits from Settings (" "pipelines.contract.fields)."),
        ("Cut, DATA", 'Cut, "rows"', "cut makes 'rows'. Set makes to one of: data, model, samples, scores, "
         "reward_model, masked_model, latent_model."),
        ('{"data": Port', '{"most": Port', "cut has a port most, and a stage has a field of that name. Call the port otherwise."),
        ("def work", "def works", "cut has no work. Define work(self, job, folder) in its class (docs/plugins.md)."),
        ("KIND}}", "CutKind}}", "cut is no kind of stage. An instance of a class that inherits from Kind is wanted (docs/plugins.md)."),
    ],
)  # fmt: skip
def test_a_kind_that_cannot_be_is_refused_with_its_line(folder, old, new, problem):
    text = FILE.replace(old, new)
    assert text != FILE
    with pytest.raises(RecipeError) as caught:
        read_recipe(recipe(folder, text))
    assert str(caught.value) == f"plugins: {folder / 'mine.py'}:{CLASS_LINE}: {problem}"


def test_two_ways_to_one_kind_are_one(folder):
    path = recipe(folder, plugins=[], kind="./mine.py")
    body = yaml.safe_load(path.read_text())
    body["stages"]["more"] = {"kind": "./mine.py:KIND", "data": "less"}
    path.write_text(yaml.safe_dump(body))
    read = read_recipe(path)
    check(read)
    assert {read.graph[name].kind for name in ("less", "more")} == {"cut"}
    (folder / "other.py").write_text(FILE)
    body["stages"]["more"]["kind"] = "./other.py"
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(
        UserError, match=r"more\.kind: .*other\.py:\d+ and \./mine\.py both bring a kind of stage cut\."
    ):
        read_recipe(path)


def test_two_of_one_name_are_refused(folder):
    (folder / "other.py").write_text(FILE)
    with pytest.raises(
        UserError, match=r"plugins: other\.py and mine\.py both bring stages: cut\. Rename one of them\."
    ):
        read_recipe(recipe(folder, plugins=["mine.py", "other.py"]))


def test_an_unknown_field_is_named_with_the_line_of_the_settings(folder):
    with pytest.raises(RecipeError) as caught:
        read_recipe(recipe(folder, moast=3))
    place = f"{folder / 'mine.py'}:{SETTINGS_LINE}"
    assert str(caught.value) == f"less.moast: no such field in cut ({place}). Did you mean 'most'?"


@pytest.mark.parametrize(("method", "asked"), [("check", check), ("reads", lambda read: keys.node_reads(read, "less"))])
def test_an_exception_in_its_code_is_named_with_the_line(folder, method, asked):
    text = FILE.replace("    def work", f"    def {method}(self, node):\n        return node.nothing\n\n    def work")
    line = text.splitlines().index("        return node.nothing") + 1
    read = read_recipe(recipe(folder, text))
    with pytest.raises(
        RecipeError, match=rf"the kind of stage cut fails: AttributeError: .* \(.*mine\.py:{line}\)\. Mend it there\."
    ):
        asked(read)


def test_a_field_may_be_called_as_one_of_the_core_s(folder):
    """Names that mean something in kinds of the core mean nothing here."""
    text = FILE.replace("    most: int", '    sources: list[str] = ["a"]\n    splits: int = 3\n    most: int')
    read = read_recipe(recipe(folder, text, sources=["b"], splits=4))
    check(read)
    assert keys.key_parts(read, "less", {"data": "d"})["chosen"]["cut"] == {"sources": ["b"], "splits": 4}


def test_a_kind_that_has_run_is_known_by_what_it_made():
    assert kind_of_run("cut", "data").makes == "data" and not kind_of_run("cut").rewards
    assert kind_of_run("sft") is core_kinds()["sft"]
