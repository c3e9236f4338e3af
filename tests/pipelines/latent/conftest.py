"""Curated data, a model that has seen a little supervised training, and its twin that reads tokens alone."""

from __future__ import annotations

import json

import latent_toys
import plugin_toys
import pytest

from pipelines.curate.run import run as curate
from pipelines.sft.run import Trainer as Sft
from pipelines.stage.report import Report


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latent")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in latent_toys.ROWS))
    with plugin_toys.forgotten():  # a fixture of a session outlives what tests name
        read = latent_toys.recipe(folder)
        curate(read.node("data").settings, read.model, out=folder / "data", report=Report(folder / "w"), seed=0)
        work = folder / "cold"
        (work / "out").mkdir(parents=True)
        Sft(
            read.node("cold").settings, read.model, data=folder / "data", out=work / "out", work=work,
            report=Report(work, committed=True), seed=0,
        ).run()  # fmt: skip
        latent_toys.trainer(read, "tokens", folder / "tokens", folder).run()
    return folder
