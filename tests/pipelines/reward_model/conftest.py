"""Curated pairs, a small model, and the stage's trainer on them."""

from __future__ import annotations

import pytest
import toys
from reward_pairs import PAIR_RECIPE, SETTINGS, pairs_file

from pipelines.curate.run import run as curate
from pipelines.engine import models
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Model
from pipelines.reward_model.run import Trainer
from pipelines.reward_model.settings import RewardModel
from pipelines.stage.report import Report


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """Curated pairs and a random model of their tokenizer, in `data` and `model`."""
    folder = tmp_path_factory.mktemp("reward_model")
    recipe = read_recipe(toys.recipe(folder, curate=PAIR_RECIPE | {"sources": [pairs_file(folder)]}))
    (folder / "data").mkdir()
    curate(recipe.curate, recipe.model, out=folder / "data", report=Report(folder / "w"), seed=0)
    tokenizer = models.load_tokenizer(folder / "data" / "tokenizer", recipe.model)
    models.save_model(models.fresh_model(recipe.model, tokenizer, 0), tokenizer, folder / "model", {"stage": "sft"})
    return folder


@pytest.fixture
def trainer(begun):
    """(work folder, changed settings) → a trainer."""

    def make(work, **changes):
        (work / "out").mkdir(parents=True, exist_ok=True)
        model = str(begun / "model")
        return Trainer(
            RewardModel.model_validate(SETTINGS | changes), Model(path=model), data=begun / "data", out=work / "out",
            work=work, report=Report(work, committed=True), seed=3, start=model,
        )  # fmt: skip

    return make
