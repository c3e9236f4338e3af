"""Curated data of the toy recipe, once for a module."""

from __future__ import annotations

import pytest
import toys

from pipelines.curate.run import run as curate
from pipelines.recipe.read import read_recipe
from pipelines.stage.report import Report


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    recipe = read_recipe(toys.recipe(folder))
    curate(recipe.curate, recipe.model, out=folder, report=Report(folder / "w"), seed=0)
    return folder
