"""The tree keeps its own rules: generated pages are fresh, flow files hide no module. Sizes and names: scripts/lint."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib

import pytest
import toys

PACKAGES = ("flows", "tasks", "pipelines", "evaluation", "whetstone_rlvr")


@pytest.mark.slow
def test_generated_pages_are_fresh(tmp_path):
    subprocess.run([sys.executable, "-m", "scripts.docs", str(tmp_path)], check=True, cwd=toys.ROOT)
    pages = {page.name for page in tmp_path.iterdir()}
    assert pages >= {"api.md", "methods.md", "columns.md", "systems.md", "settings.md", "recipe.schema.json"}
    assert pages >= {f"coming-from{trainer}.md" for trainer in ("", "-trl", "-open-r1", "-verl", "-axolotl")}
    for page in pages:
        assert (tmp_path / page).read_text() == (toys.ROOT / "docs" / page).read_text(), "run `make docs`"


def test_files_that_packages_carry_are_there():
    """A pattern of `package-data` that matches nothing leaves its file out of the wheel."""
    carried = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package, patterns in carried.items():
        for pattern in patterns:
            assert list(toys.ROOT.joinpath(*package.split(".")).glob(pattern)), f"{package}: {pattern}"


def test_flow_files_hide_no_module():
    for path in (toys.ROOT / "flows").glob("*.py"):
        if path.stem != "__init__":
            assert importlib.util.find_spec(path.stem) is None, path.stem


def test_packages_are_ours():
    for package in PACKAGES:
        assert __import__(package).__file__.startswith(str(toys.ROOT))


@pytest.mark.slow
def test_the_catalogue_needs_no_transformers():
    """It is what `whetstone methods` and the checks of `whetstone plan` wait for."""
    script = (
        "import sys; from flows.cli import catalogue; assert len(catalogue.entries()) > 150; "
        "print([name for name in ('transformers', 'scipy.optimize') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=toys.ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_doctor_and_methods():
    done = toys.whetstone("methods", "grpo", home=toys.ROOT / ".whetstone")
    assert "2402.03300" in done.stdout and "setting scale" in done.stdout
    assert (
        "Did you mean 'grpo'" in toys.whetstone("methods", "grpoo", home=toys.ROOT / ".whetstone", check=False).stderr
    )
    assert "torch" in toys.whetstone("doctor", home=toys.ROOT / ".whetstone").stdout
