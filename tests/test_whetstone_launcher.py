"""Our packages are imported by their names whatever the working folder and PYTHONPATH hold."""

from __future__ import annotations

import os
import subprocess
import sys

import hostile_folder
import pytest
import toys

import whetstone_launcher
from pipelines.base import user_modules
from pipelines.base.project import python

COMMAND = [sys.executable, "-c", "import sys; sys.path.remove(''); from whetstone_launcher import command; command()"]
"""What the script `whetstone` does, which has its own folder first on the path."""


def run(command, folder, *path):
    """The outcome of a command in a folder, with these folders in PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "WHETSTONE_HOME": str(folder / "home")}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False, timeout=120
    )


def test_the_lists_of_packages_are_one():
    assert {*whetstone_launcher.PACKAGES} == {*user_modules.PACKAGES, "whetstone_launcher"}
    assert all((toys.ROOT / name).is_dir() for name in user_modules.PACKAGES)


@pytest.mark.parametrize("module", ["pipelines.stage.launch", "pipelines.stage.ahead", "flows.cli.main"])
def test_processes_of_ours_in_a_folder_with_such_files(tmp_path, module):
    done = run(python(module, "--help"), hostile_folder.make(tmp_path))
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr


def test_a_folder_of_pythonpath_is_no_danger_either(tmp_path):
    """PYTHONPATH=. is common; there only names of ours can be defended, not those of libraries."""
    folder = hostile_folder.make(tmp_path)
    for name in ("yaml.py", "queue.py"):
        (folder / name).unlink()
    done = run([*COMMAND, "recipes"], folder, ".", toys.ROOT)
    assert done.returncode == 0 and "quickstart" in done.stdout, done.stderr
    done = run(python("flows.cli.main", "recipes"), folder, ".")
    assert done.returncode == 0 and "quickstart" in done.stdout, done.stderr


API = """
import whetstone_rlvr as whetstone
assert whetstone.recipe("recipes/quickstart.yaml").name == "quickstart"
import tasks, pipelines, evaluation, flows
print(*(module.__file__ for module in (tasks, pipelines, evaluation, flows)), sep="\\n")
"""


@pytest.mark.slow
def test_the_python_api_in_a_folder_with_such_files(tmp_path):
    """A script's folder is searched first, and so is the working folder of a notebook."""
    folder = hostile_folder.make(tmp_path)
    for name in ("yaml.py", "queue.py"):
        (folder / name).unlink()
    (folder / "script.py").write_text(API)
    for command in ([sys.executable, "script.py"], [sys.executable, "-c", API]):
        done = run(command, folder, toys.ROOT)
        assert done.returncode == 0, done.stderr
        assert all(line.startswith(f"{toys.ROOT}{os.sep}") for line in done.stdout.splitlines()), done.stdout


def test_a_module_of_such_a_name_that_was_imported_before(tmp_path):
    (tmp_path / "tasks.py").write_text("")
    done = run([sys.executable, "-c", "import tasks, whetstone_rlvr"], tmp_path, toys.ROOT)
    told = done.stderr.splitlines()[-1]
    assert told.startswith("ImportError: whetstone_rlvr needs its own package tasks") and "my_tasks.py" in told
    assert run([sys.executable, "-c", "import whetstone_rlvr, tasks"], tmp_path, toys.ROOT).returncode == 0


def test_a_module_that_is_not_there_is_said_to_be_missing(tmp_path):
    done = run(python("pipelines.not_there"), tmp_path)
    assert done.returncode == 1 and "pipelines.not_there" in done.stderr


def test_the_finder_leaves_other_modules_alone():
    find = whetstone_launcher.ProjectFinder.find_spec
    assert find("json") is None and find("tests") is None and find("pipelines.base", ["/somewhere"]) is None
    assert find("pipelines").origin == str(toys.ROOT / "pipelines" / "__init__.py")
