"""A run of the whole chain that the tests of commands share; they read it, and only tests of the chain itself go on with it."""

from __future__ import annotations

import json

import pytest
import toys


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """One complete run of the toy recipe in a project folder of its own."""
    folder = tmp_path_factory.mktemp("chain")
    recipe = toys.recipe(folder)
    done = toys.whetstone("run", str(recipe), "--summary", str(folder / "s.json"), home=folder / "home")
    return folder, recipe, json.loads((folder / "s.json").read_text()), done
