"""The project as a wheel, in an environment of its own: in a folder with files of our packages' names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import hostile_folder
import pytest
import toys

from pipelines.base import user_modules
from pipelines.recipe import shipped
from pipelines.recipe.read import preset_names, read_recipe
from tasks.stages import plan

SOURCES = (*user_modules.PACKAGES, "recipes", "docs")
FILES = ("pyproject.toml", "setup.py", "prefect.yaml", "README.md", "LICENSE", "whetstone_launcher.py")
REWARD = """
import json, sys

def short(completions, **columns):
    files = {module.__file__ for module in [*sys.modules.values()] if getattr(module, "__file__", None)}
    open("modules.json", "w").write(json.dumps(sorted(files)))
    return [-len(str(completion)) / 100 for completion in completions]
"""
"""Notes which files the stage's process has imported."""


def wheel(folder):
    """A wheel of the source tree, built from a copy."""
    for name in SOURCES:
        shutil.copytree(toys.ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(toys.ROOT / name, folder / "source" / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        ".",
    ]
    subprocess.run(build, cwd=folder / "source", check=True)
    shutil.rmtree(folder / "source")
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The scripts of an environment that has the wheel, and the libraries of the running one without the project."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    python = folder / "env" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        str(wheel(folder)),
    ]
    subprocess.run(install, check=True)
    (packages,) = folder.glob("env/lib/python*/site-packages")
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return python.parent


@pytest.fixture
def whetstone(scripts, tmp_path):
    """Runs the command of the wheel in `tmp_path`; returns what it prints."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHONPATH", "MLFLOW_TRACKING", "PREFECT_"))
    }

    def run(*arguments, program="whetstone"):
        done = subprocess.run(
            [str(scripts / program), *arguments], capture_output=True, text=True, cwd=tmp_path, check=False,
            env=environment | {"WHETSTONE_HOME": str(tmp_path / "home")},
        )  # fmt: skip
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


@pytest.mark.slow
def test_what_it_has_to_show(whetstone, scripts, tmp_path):
    installed = str(scripts.parent)
    assert whetstone("--version").startswith("whetstone-rlvr ") and installed in whetstone("--version")
    listed = json.loads(whetstone("recipes", "--json"))
    assert [each["name"] for each in listed] == shipped.names() and all(
        each["file"].startswith(installed) for each in listed
    )
    whetstone("new", "my.yaml", "--from", "gsm8k")
    editors, said, *rest = (tmp_path / "my.yaml").read_text().splitlines()
    schema = Path(editors.partition("$schema=file://")[2])
    assert schema.is_relative_to(installed) and schema.is_file() and "gsm8k" in said
    shown = (shipped.FOLDER / "gsm8k.yaml").read_text().splitlines()[1:]
    assert rest == [line.replace("recipes/gsm8k.yaml", "my.yaml") for line in shown]
    assert f"{len(preset_names())} presets" in whetstone("methods")
    code = "from flows import deploy; from pipelines.base.distribution import install_hint; print(deploy.names(), install_hint('gguf'))"
    told = whetstone("-c", code, program="python")
    assert "post-training/nightly" in told and 'pip install "gguf>=' in told


API = """
import whetstone_rlvr as whetstone
plan = whetstone.plan("recipes/quickstart.yaml")
print(whetstone.__file__, plan.ok, *plan.stages, whetstone.verify([{"completion": "7", "answer": "7"}], "number").status[0])
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_python_api_in_a_folder_with_such_files(whetstone, scripts, tmp_path):
    (hostile_folder.make(tmp_path) / "script.py").write_text(API)
    for name in ("yaml.py", "queue.py"):
        (tmp_path / name).unlink()
    told = whetstone("script.py", program="python")
    assert told.startswith(str(scripts.parent)) and told.endswith("True curate sft rlvr evaluate correct\n")


@pytest.mark.slow
@pytest.mark.long
def test_a_run_in_a_folder_with_such_files(whetstone, scripts, tmp_path, monkeypatch):
    """A preset and a reward function of one's own; nothing of the source tree is imported, which reuses what the wheel has made."""
    folder = hostile_folder.make(tmp_path)
    (folder / "own_rewards.py").write_text(REWARD)
    more = {"presets": ["rloo"], "rlvr": {"reward_functions": ["own_rewards:short"], "steps": 2}, "sft": {"steps": 3}}
    recipe = toys.recipe(folder, **more)
    whetstone("run", str(recipe), "--until", "rlvr")
    files = json.loads((folder / "modules.json").read_text())
    environment = f"{sys.prefix}{os.sep}"
    ours = [f for f in files if f.startswith(f"{toys.ROOT}{os.sep}") and not f.startswith(environment)]
    assert ours == [] and str(folder / "own_rewards.py") in files
    assert any(f.startswith(str(scripts.parent)) and f.endswith("pipelines/rlvr/train.py") for f in files)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WHETSTONE_HOME", str(folder / "home"))
    assert {p.stage: p.action for p in plan(read_recipe(recipe))} == {
        "curate": "reuse", "sft": "reuse", "rlvr": "reuse", "evaluate": "run",
    }  # fmt: skip
