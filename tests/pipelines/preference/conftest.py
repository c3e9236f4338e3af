"""Prepared pairs and labelled answers, and trainers on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pair_toys import SETTINGS, labelled, prepare, rows

from pipelines.contract.model_settings import Model
from pipelines.preference.run import Trainer
from pipelines.preference.settings import Preference
from pipelines.stage.report import Report


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("pairs"), rows(120))


@pytest.fixture(scope="session")
def labels(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("labels"), labelled(120))


@pytest.fixture
def trainer(tmp_path):
    """Makes a trainer on prepared data, in a work folder of the test."""

    def make(begun: Path, name: str = "a", dtype: str = "float32", **changes) -> Trainer:
        work = tmp_path / name
        (work / "out").mkdir(parents=True, exist_ok=True)
        model = str(begun / "model")
        return Trainer(
            Preference.model_validate(SETTINGS | changes), Model(path=model, dtype=dtype), start=model, data=begun / "data",
            out=work / "out", work=work, report=Report(work, committed=True), seed=0,
        )  # fmt: skip

    return make
