"""What a plan says of a stage that another trainer does, and what its key holds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.external import installed
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.keys import stage_key

STAGE = {
    "python": sys.executable,
    "command": ["{python}", "train.py", "{config}"],
    "package": "pydantic",
    "result": "*",
}


def recipe(folder: Path, **changes):
    return read_recipe(toys.external(folder, **STAGE | changes))


def key(folder: Path, digest: str = "a", **changes) -> str:
    return stage_key(keys.key_parts(recipe(folder, **changes), "rl", {"data": digest, "model": "b"}))


def problems(folder: Path, **changes) -> list[str]:
    node = recipe(folder, **changes).node("rl")
    return [str(problem) for problem in node.kind.problems(node)]


def test_its_key_holds_what_decides_on_the_model_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    (tmp_path / "c.toml").write_text("lr = 1")
    first = key(tmp_path, config="c.toml")
    same = {"retries": 3, "hang_limit_s": 5, "time_limit_s": 9, "steps": 7}
    assert key(tmp_path, config="c.toml", **same) == first
    others = [
        key(tmp_path, "c", config="c.toml"),
        key(tmp_path, config="c.toml", version="2"),
        key(tmp_path, config={"lr": 1}),
    ]
    (tmp_path / "c.toml").write_text("lr = 2")
    others.append(key(tmp_path, config="c.toml"))
    (tmp_path / "c.toml").write_text("lr = 1")
    (tmp_path / "train.py").write_text("print()")
    others.append(key(tmp_path, config="c.toml"))
    assert len({first, *others}) == 6


def test_its_key_holds_the_verifiers_of_the_data_and_the_trainers_version(tmp_path, monkeypatch):
    parts = keys.key_parts(recipe(tmp_path), "rl", {"data": "a", "model": "b"})
    assert "pipelines.verifiers.reasoning_gym" in parts["source"] and "pipelines.verifiers.sql" not in parts["source"]
    assert "pipelines.external.generic" in parts["source"] and "pipelines.external.verl" not in parts["source"]
    version = parts["chosen"]["external"]["version"]
    assert version == installed.version(sys.executable, "pydantic") != installed.ABSENT
    monkeypatch.setattr(installed, "version", lambda *asked: "other")
    assert key(tmp_path) != stage_key(parts)


@pytest.fixture
def environment(tmp_path):
    """A Python with a package `tuner`, and what installs another version of it: from an index, from a repository, or from a checkout."""
    python, about = tmp_path / "python", tmp_path / "site" / "tuner-1.0.dist-info"
    about.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={about.parent} exec {sys.executable} "$@"\n')  # without -I
    python.chmod(0o755)

    def install(number: str, **origin):
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tuner\nVersion: {number}\n")
        (about / "direct_url.json").write_text(json.dumps(origin))
        installed.version.cache_clear()
        return {"python": str(python), "package": "tuner"}

    yield install
    installed.version.cache_clear()


def told(before: dict, after: dict) -> list[str]:
    return keys.difference(*(json.loads(json.dumps(parts, default=str)) for parts in (before, after)))


def test_another_version_of_the_trainer_and_another_byte_of_its_file_are_another_key(
    tmp_path, monkeypatch, environment
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("lr = 1")

    def parts(number: str):
        return keys.key_parts(
            recipe(tmp_path, config="c.toml", **environment(number)), "rl", {"data": "a", "model": "b"}
        )

    first = parts("1.0")
    assert told(first, parts("1.0")) == []
    assert told(first, parts("1.1")) == ["external.version changed 1.0 → 1.1"]
    (tmp_path / "c.toml").write_text("lr = 1 ")
    assert told(first, parts("1.0")) == ["c.toml changed"]


def test_the_commit_of_a_trainer_that_is_no_release_is_in_its_version(tmp_path, environment):
    def version(**origin) -> str:
        fields = environment("1.0", **origin)
        return installed.version(fields["python"], fields["package"])

    assert version(url="https://x.y/tuner", vcs_info={"vcs": "git", "commit_id": "a" * 40}) == f"1.0 at {'a' * 12}"
    folder = tmp_path / "check out"
    checkout = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    folder.mkdir()
    assert version(**checkout) == "1.0", "no repository"
    (folder / "tuner.py").write_text("a")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    clean = version(**checkout)
    assert clean.startswith("1.0 at ") and "changed" not in clean
    (folder / "tuner.py").write_text("b")
    dirty = version(**checkout)
    (folder / "tuner.py").write_text("c")
    assert dirty.startswith(f"{clean} changed ") and version(**checkout) not in (clean, dirty)
    subprocess.run([*git, "commit", "-q", "-a", "-m", "second"], check=True)
    assert version(**checkout) not in (clean, dirty) and "changed" not in version(**checkout)


def test_the_version_is_asked_of_the_trainers_python(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert installed.version(str(python), "pydantic") == installed.version(sys.executable, "pydantic")
    assert installed.version(str(python), "no-such-package") == installed.ABSENT
    assert installed.version(str(tmp_path / "gone"), "pydantic") == installed.ABSENT


def test_a_plan_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problems(tmp_path) == []
    assert "rl.python: there is no program /gone/python" in problems(tmp_path, python="/gone/python")[0]
    assert "rl.command: there is no program torchrunner" in problems(tmp_path, command=["torchrunner"])[0]
    assert "the package no-such is not installed" in problems(tmp_path, package="no-such")[0]
    assert problems(tmp_path, package="no-such", version="sha256:1") == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (told,) = problems(tmp_path, metrics={"kind": "tensorboard"})
    assert told.startswith("rl.metrics.kind: it needs the package tensorboard")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "rl.config: there is no file c.yaml" in problems(tmp_path, config="c.yaml")[0]
    (tmp_path / "c.yaml").write_text("a: [")
    assert "c.yaml cannot be read" in problems(tmp_path, config="c.yaml")[0]
    (tmp_path / "c.yaml").write_text("a: '{trian_file}'")
    (told,) = problems(tmp_path, config="c.yaml")
    assert "rl.config: there is no placeholder {trian_file}. Did you mean 'train_file'?" in told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overrides": ["x={modle}"]}, "rl.overrides: there is no placeholder {modle}"),
        ({"command": ["run", "{checkpoint}"]}, "rl.command: there is no placeholder {checkpoint}"),
        ({"columns": {"question": "promt"}}, "rl.columns.question: a row has no 'promt'"),
        ({"split": "gone"}, "rl.split: data makes no split called 'gone'"),
        ({"heldout": "train"}, "rl.heldout"),
        ({"model": "base"}, "must be trained before"),
        (
            {"trainer": "verl", "config": "c.toml"},
            "rl.config: c.toml is in no form that verl reads. Give a .yaml file.",
        ),
    ],
)
def test_what_cannot_run_is_refused(tmp_path, changes, words):
    with pytest.raises(RecipeError) as error:
        check(recipe(tmp_path, **changes))
    assert words in str(error.value)


def test_a_template_of_the_recipe_that_the_trainer_would_not_see_is_refused():
    path = toys.ROOT / "recipes" / "external_verl.yaml"
    with pytest.raises(RecipeError, match=r"model\.chat_template: an external trainer is told"):
        check(read_recipe(path, ["model.chat_template=template.jinja"]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": None}, "has none of its own"),
        ({"package": None}, "needs version or package"),
        ({"result": None}, "needs the glob"),
        ({"trainer": "verl", "columns": {"a": "text"}}, "only trainer: generic reads them"),
    ],
)
def test_a_generic_trainer_says_everything(tmp_path, changes, words):
    with pytest.raises(RecipeError, match=words):
        recipe(tmp_path, **changes)


@pytest.mark.parametrize("name", ["verl", "prime_rl"])
def test_the_recipes_say_what_is_not_installed(name):
    read = read_recipe(toys.ROOT / "recipes" / f"external_{name}.yaml", ["rl.python=/gone/python"])
    check(read)
    node = read.node("rl")
    assert [problem.field for problem in node.kind.problems(node)] == ["rl.python"]
    assert json.dumps(keys.key_parts(read, "rl", {"data": "a"})["chosen"]["external"]["version"]) == '"absent"'
