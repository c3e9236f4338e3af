"""Which settings a key holds: those that differ from the first default of their field."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import types
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import toys
from pydantic import BaseModel, Field

from pipelines.contract.fields import Settings, free
from pipelines.recipe.read import read_recipe
from pipelines.recipe.resolve import resolve
from pipelines.recipe.settings import Difficulty, Evaluate, Rlvr
from pipelines.sample.settings import Sample
from tasks import keys
from tasks.keys import sections


class Inner(Settings):
    rate: float = 0.5
    name: str | None = None


class Outer(Settings):
    steps: int
    size: int = 4
    on: bool = True
    whole: int = 1
    threads: int = free(2)
    inner: Inner = Inner()
    listed: list[Inner] = Field([Inner(rate=1.0)])
    maybe: Inner | None = None


def chosen(section: BaseModel) -> dict[str, Any]:
    return sections.chosen(section, resolve(section))


def test_only_what_is_not_the_default_is_in_the_key():
    assert chosen(Outer(steps=4)) == {"steps": 4}
    assert chosen(Outer(steps=4, size=5, threads=9, inner={"rate": 0.25})) == {
        "steps": 4,
        "size": 5,
        "inner": {"rate": 0.25},
    }
    assert chosen(Outer(steps=4, maybe={})) == {"steps": 4, "maybe": {}}, "there, with its defaults"
    assert chosen(Outer(steps=4, listed=[])) == {"steps": 4, "listed": []}
    assert chosen(Outer(steps=4, listed=[{}, {"name": "x"}])) == {"steps": 4, "listed": [{}, {"name": "x"}]}
    assert sections.chosen(Outer(steps=4), {"steps": 4, "size": None, "more": 1}) == {
        "steps": 4,
        "size": None,
        "more": 1,
    }


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        (Sample, {}),
        (Rlvr, {"steps": 1}),
        (Difficulty, {"model": "sft"}),
        (Evaluate, {"tasks": [{"name": "sums"}]}),
    ],
)
def test_that_a_server_draws_is_in_the_key_and_its_address_is_not(section, needed):
    alone, one, other = (
        chosen(section(**needed, **more))
        for more in ({}, *({"sampler": {"url": f"http://{name}:1", "weights": name}} for name in "ab"))
    )
    assert one == other == alone | {"sampler": {}} and "sampler" not in alone


def test_a_first_default_stays_what_it_was(monkeypatch):
    """The default of `size` was 3 once: 3 is left out still, and today's default is in the key."""
    names = [f"{Outer.__module__}.{cls}" for cls in ("Outer", "Inner")]
    monkeypatch.setattr(
        sections, "_recorded", lambda: {names[0]: {"size": 3, "whole": True, "inner": {}}, names[1]: {"rate": 0.1}}
    )
    assert chosen(Outer(steps=4)) == {"steps": 4, "size": 4, "whole": 1, "inner": {"rate": 0.5}}
    assert chosen(Outer(steps=4, size=3, inner={"rate": 0.1})) == {"steps": 4, "whole": 1}


def test_the_record_is_whole():
    assert json.loads(sections.RECORD.read_text()) == sections.first_defaults(), "run `make docs`"


def unions(annotation: Any) -> list[list[type[BaseModel]]]:
    """Of each union of an annotation, the classes that it is one of."""
    parts = get_args(annotation)
    inner = [found for part in parts for found in unions(part)]
    if get_origin(annotation) not in (Union, types.UnionType):
        return inner
    bare = [get_args(part)[0] if get_origin(part) is Annotated else part for part in parts]
    return [*inner, [part for part in bare if isinstance(part, type) and issubclass(part, BaseModel)]]


@pytest.mark.parametrize("cls", sections.sections(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_sections_of_a_union_differ_without_their_defaults(cls):
    for field in cls.model_fields.values():
        for classes in unions(field.annotation):
            assert len(classes) < 2 or all(each.model_fields["kind"].is_required() for each in classes), classes


def test_differences_show_the_values_of_defaults():
    path, changes = toys.ROOT / "recipes/quickstart.yaml", ["sft.optimizer.weight_decay=0.3", "rlvr.steps=9"]
    for stage, words in (
        ("sft", "sft.optimizer.weight_decay changed 0.0 → 0.3"),
        ("rlvr", "rlvr.steps changed 220 → 9"),
    ):
        old, new = (keys.key_parts(read_recipe(path, each), stage, {"data": "d"}) for each in ([], changes))
        assert keys.difference(old, json.loads(json.dumps(new))) == [words]
        assert keys.difference(old, old) == []


SPARE = "    spare: int | None = None\n"
CLASSES = {
    "recipe/settings": ("Curate", "Sft", "Rlvr", "Evaluate", "Tracking", "Task"), "recipe/training": ("Optimizer", "Lora"),
    "recipe/source": ("Source",), "recipe/monitors": ("Rollback",), "contract/model_settings": ("Model", "Fresh"),
}  # fmt: skip
"""Module → classes of settings that the quickstart's stages have."""
ASK = """
import json, sys
from pipelines.recipe.read import read_recipe
from tasks import keys
recipe = read_recipe(sys.argv[1])
print(json.dumps({s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"})) for s in recipe.stage_names()}))
"""


def keys_of(tree, tmp_path):
    """The quickstart's keys, by the code of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "WHETSTONE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", ASK, str(tree / "recipes/quickstart.yaml")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_new_field_reruns_nothing_and_a_changed_default_what_reads_it(tmp_path):
    tree = tmp_path / "tree"
    for package in ("pipelines", "evaluation", "tasks", "recipes"):
        shutil.copytree(toys.ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(toys.ROOT / "pyproject.toml", tree)
    before = keys_of(tree, tmp_path)
    for module, classes in CLASSES.items():
        path = tree / f"pipelines/{module}.py"
        for cls in classes:
            text, count = re.subn(rf"^(class {cls}\(.*\):\n)", rf"\1{SPARE}", path.read_text(), flags=re.M)
            assert count == 1, cls
            path.write_text(text)
    assert keys_of(tree, tmp_path) == before
    for name, old, new, stages in (
        ("settings", "confidence: float = Field(0.95", "confidence: float = Field(0.9", {"evaluate"}),
        ("training", "alpha: float = Field(32", "alpha: float = Field(16", set()),
        ("training", "weight_decay: float = Field(0.0", "weight_decay: float = Field(0.1", {"sft", "rlvr"}),
    ):
        settings = tree / f"pipelines/recipe/{name}.py"
        text = settings.read_text()
        assert text.count(old) == 1, old
        settings.write_text(text.replace(old, new))
        after = keys_of(tree, tmp_path)
        assert {stage for stage in after if after[stage] != before[stage]} == stages
        settings.write_text(text)


IMPORTED = re.compile(r"^from pipelines[\w.]*(?:recipe|settings)[\w.]* import (.+)$", re.M)


def test_the_stages_make_no_section_of_their_own():
    """A default that stages used without the recipe would be in no key: sections come from the job, as they were resolved."""
    modules = {cls: cls.__module__ for cls in sections.sections()}
    names = {cls.__name__ for cls, module in modules.items() if ".recipe." in module or module.endswith("settings")}
    made = re.compile(rf"(?<![\w.])({'|'.join(sorted(names))})(?:\.model_validate|\.model_construct)?\(")
    assert {"Rlvr", "Model", "Source", "Preference"} <= names
    read_jobs = ("__main__.py", "kind.py", "documents.py", "settings.py", "loop.py")
    found = []
    for path in [*toys.ROOT.glob("pipelines/**/*.py"), *toys.ROOT.glob("evaluation/*.py")]:
        text = "\n".join(line for line in path.read_text().splitlines() if ">>>" not in line)
        imported = {name for line in IMPORTED.findall(text) for name in re.findall(r"\w+", line)}
        if path.name not in read_jobs and not {"recipe", "laws"} & {*path.parts}:
            found += [f"{path}: {each[0]}" for each in made.finditer(text) if each[1] in imported]
    assert not found
