"""The quickstart's keys hold what its stages read: its verifier and its methods, and nothing of the others."""

from __future__ import annotations

import shutil

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.keys import source
from tasks.keys.syntax import definitions

ALL = {"curate", "sft", "rlvr", "evaluate"}
QUICKSTART = {
    "pipelines/papers/ragen/sokoban.py": set(),
    "pipelines/environments/frozen_lake.py": set(),
    "pipelines/verifiers/sql.py": set(),
    "pipelines/verifiers/number.py": set(),
    "pipelines/search/particles.py": set(),
    "pipelines/recipe/settings.py": set(),
    "pipelines/recipe/search.py": set(),
    "pipelines/recipe/read.py": set(),
    "pipelines/papers/__init__.py": set(),
    "pipelines/papers/calibrl.py": set(),
    "pipelines/rlvr/advantage/rloo.py": set(),
    "pipelines/judges/endpoint.py": set(),
    "pipelines/verifiers/reasoning_gym.py": {"curate", "rlvr", "evaluate"},
    "pipelines/rlvr/advantage/grpo.py": {"rlvr"},
    "pipelines/rlvr/loss_aggregation/fixed_length.py": {"rlvr"},
    "pipelines/engine/sampler.py": {"rlvr", "evaluate"},
    "pipelines/base/files.py": ALL,
}
"""A line more in this file → stages that run again."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for package in ("pipelines", "evaluation"):
        shutil.copytree(toys.ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def quickstart(root):
    recipe = read_recipe(toys.ROOT / "recipes/quickstart.yaml")
    return {s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"}, root=root)) for s in recipe.stage_names()}


@pytest.fixture(scope="module")
def unedited(tree):
    return quickstart(tree)


@pytest.mark.parametrize("name", QUICKSTART)
def test_an_edit_reruns_what_reads_the_file(tree, unedited, name):
    path = tree / name
    text = path.read_text()
    path.write_text(text + "\nSPARE = 1\n")
    try:
        after = quickstart(tree)
    finally:
        path.write_text(text)
    assert {stage for stage in after if after[stage] != unedited[stage]} == QUICKSTART[name]


READER = b'''
from typing import TYPE_CHECKING, Annotated
from pipelines.recipe.other import other, unused
import pipelines.engine.late
if TYPE_CHECKING:
    from pipelines.engine import typed
Kind = Annotated[str, 1]
LIMIT, SIZE = 1, 2
def helper(x): return other(x) + LIMIT
class Base(Settings):
    spare: int = 1
class Section(Base):
    """Text."""
    kind: Kind = "a"
    @model_validator(mode="after")
    def _check(self): return unused(self)
    def size(self): return helper(self.kind)
register(Section)
'''


def test_of_a_class_of_settings_its_methods_count():
    defined = definitions(READER, "pipelines.recipe", {"Base", "Section"})
    section = defined["Section"]
    assert "size" in section.code and "_check" not in section.code and "Text" not in section.code
    assert section.uses >= {"helper", "Base"} and "Kind" not in section.uses and "unused" not in section.uses
    assert defined["Base"].code == "" and "Settings" in defined["Base"].uses
    assert defined["helper"].uses >= {"other", "LIMIT"} and "pipelines.recipe.other.other" in defined["other"].imports
    assert defined["LIMIT"].code == defined["SIZE"].code != "" and "register" in defined[""].code
    assert "typed" not in defined
    dataclass = definitions(READER, "pipelines.recipe", set())
    assert "kind" in dataclass["Section"].code and "_check" in dataclass["Section"].code


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from pipelines.recipe.settings import Task", {"Task"}),
        ("from pipelines.recipe import settings", {"Task", "MOST_ROLLOUTS"}),
        ("import pipelines.recipe.settings", {"Task", "MOST_ROLLOUTS"}),
        ("if TYPE_CHECKING:\n    from pipelines.recipe.settings import Task", set()),
    ],
)
def test_a_module_of_the_reader_counts_as_far_as_it_is_imported(tmp_path, line, names):
    (tmp_path / "pipelines/recipe").mkdir(parents=True)
    (tmp_path / "pipelines/user.py").write_text(line + "\n")
    settings = tmp_path / "pipelines/recipe/settings.py"
    text = "MOST_ROLLOUTS = 1\nclass Task(Settings):\n    name: str = 'a'\n    def size(self): return 1\n"
    edits = {"MOST_ROLLOUTS": ("= 1", "= 2"), "Task": ("return 1", "return 2"), "name": ("'a'", "'b'")}

    def reached(of):
        settings.write_text(of)
        return source.reach(["pipelines.user"], tmp_path)

    before = reached(text)
    assert {name for name, edit in edits.items() if reached(text.replace(*edit)) != before} == names
