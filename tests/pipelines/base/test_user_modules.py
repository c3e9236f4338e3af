"""Modules that a recipe names: found in the working folder after everything else; a name that is taken is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import hostile_folder
import pytest
import toys

from pipelines.base import user_modules
from pipelines.base.user_modules import NameTaken, import_named, is_there, name_clash


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, which later tests do not search."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in (getattr(module, "__file__", None) or str(getattr(module, "__path__", ""))):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "name", "told"),
    [
        (
            "tasks.py",
            "tasks",
            "tasks is a package of the project's. Rename it to my_tasks.py or the like, and write my_tasks",
        ),
        ("pipelines/mine/__init__.py", "pipelines.mine", "pipelines of the working folder cannot be imported"),
        ("evaluation/rewards.py", "evaluation.rewards", "write my_evaluation.rewards"),
        ("flows.py", "flows", "flows is a package of the project's"),
        ("json.py", "json", "json is a module of Python's own"),
        ("numpy.py", "numpy", "numpy/__init__.py has that name"),
        ("yaml/rewards.py", "yaml.rewards", "yaml/__init__.py has that name"),
    ],
)
def test_a_name_that_is_taken(folder, file, name, told):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("here = True\n")
    assert told in name_clash(name)
    with pytest.raises(NameTaken):
        import_named(name)
    with pytest.raises(NameTaken):
        is_there(name)


@pytest.mark.parametrize("file", ["own_rewards.py", "own_package/__init__.py", "own_namespace/inner.py"])
def test_a_name_that_is_free(folder, file):
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text("here = True\n")
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert name_clash(name) == "" and is_there(name) and import_named(name).here
    assert sys.path[-1] == str(folder), "the working folder comes last"


def test_the_working_folder_is_searched_for_what_is_nowhere_else_only(folder):
    (folder / "tasks.py").write_text("raise SystemExit")
    import_named("json")
    import_named("pipelines.base.errors")
    assert name_clash("tasks.store") == "" and str(folder) not in sys.path
    assert not is_there("not_there_either") and str(folder) in sys.path
    with pytest.raises(ModuleNotFoundError):
        import_named("not_there_either")


def test_the_projects_own_folder_is_no_clash(monkeypatch):
    monkeypatch.chdir(toys.ROOT)
    assert not any(map(name_clash, [*user_modules.PACKAGES, "tests.toys", "benchmarks", "pipelines.rlvr.scoring"]))


def test_a_folder_of_pythonpath_comes_where_it_is(tmp_path):
    """Where the user has put the working folder first, its module is the one that is imported, and that is no clash."""
    (tmp_path / "xxhash.py").write_text("here = True\n")
    code = "from pipelines.base.user_modules import *; print(repr(name_clash('xxhash')), import_named('xxhash').here)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", str(toys.ROOT)])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
    )
    assert done.stdout.split() == ["''", "True"]


def test_reward_functions_tools_and_plug_ins_refuse_it_alike(folder):
    from pipelines.base import plugins
    from pipelines.base.errors import UserError
    from pipelines.base.user_functions import load_function
    from pipelines.tools.function import tools

    hostile_folder.make(folder)
    for load in (
        lambda: load_function("tasks:reward", "rlvr.reward_functions"),
        lambda: tools(path="tasks:reward"),
        lambda: plugins.activate(["tasks"]),
    ):
        with pytest.raises(UserError, match=r"tasks\.py of the working folder .* Rename it to my_tasks\.py"):
            load()
    assert load_function("own_rewards:short", "rlvr.reward_functions")(["abc"]) == [-0.03]
