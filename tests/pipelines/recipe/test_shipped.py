"""Recipes that come with the project: listed, found from any folder, copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import toys

from pipelines.base.errors import UserError
from pipelines.recipe import shipped
from pipelines.recipe.read import read_recipe


def test_every_recipe_says_what_it_is():
    assert shipped.names() == sorted(p.stem for p in (toys.ROOT / "recipes").glob("*.yaml"))
    assert all(
        20 < len(shipped.header(name)) < 1500 and "whetstone run" not in shipped.header(name)
        for name in ("sql", "gsm8k")
    )
    assert all(shipped.header(name) for name in shipped.names())


def test_they_are_found_from_any_folder_and_ones_own_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_recipe("recipes/quickstart.yaml").name == "quickstart"
    for path in (
        "quickstart.yaml",
        "other/quickstart.yaml",
        "recipes/not_there.yaml",
        str(tmp_path / "recipes" / "quickstart.yaml"),
    ):
        assert shipped.find(path) == Path(path)
    (tmp_path / "recipes").mkdir()
    toys.recipe(tmp_path).rename(tmp_path / "recipes" / "quickstart.yaml")
    assert read_recipe("recipes/quickstart.yaml").name == "toy"


def test_a_copy_is_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "search"):
        shipped.copy(name, Path(f"{name}.yaml"))
        editors, first, *rest = (tmp_path / f"{name}.yaml").read_text().splitlines()
        assert editors == f"# yaml-language-server: $schema={shipped.SCHEMA.as_uri()}" and shipped.SCHEMA.is_file()
        assert first.startswith(f"# A copy of the recipe {name} of whetstone-rlvr")
        assert not any("yaml-language-server" in line for line in rest)
        assert read_recipe(f"{name}.yaml") == read_recipe(shipped.FOLDER / f"{name}.yaml")


@pytest.mark.parametrize(
    ("to", "told"),
    [("there.yml", "there already"), ("my.txt", r"Call it my.txt\.yaml"), ("no/my.yml", "in a folder that exists")],
)
def test_a_new_file_is_yaml_and_nobodys(tmp_path, to, told):
    shipped.create(tmp_path / "there.yml", "name: é\n")
    with pytest.raises(UserError, match=told):
        shipped.create(tmp_path / to, "name: b\n")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("there.yml", "name: é\n")]


@pytest.mark.parametrize(
    ("name", "to", "told"),
    [
        ("gsm9k", "my.yaml", "Did you mean 'gsm8k'"), ("gsm8k", "there.yaml", "there already"), ("gsm8k", "my", "Call it my.yaml"),
        ("gsm8k", "no/my.yaml", "in a folder that exists"), ("presets/dapo", "my.yaml", "no such recipe"),
    ],
)  # fmt: skip
def test_what_cannot_be_copied(tmp_path, monkeypatch, name, to, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.yaml").write_text("mine")
    with pytest.raises(UserError, match=told):
        shipped.copy(name, Path(to))
    assert [p.name for p in tmp_path.iterdir()] == ["there.yaml"] and (tmp_path / "there.yaml").read_text() == "mine"
