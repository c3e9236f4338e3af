"""The official functions' values, the network of three tables that they were computed with, and a toy recipe."""

from __future__ import annotations

import json
from pathlib import Path

import plugin_toys
import pytest
import torch
from diffusion_toys import recipe, trainer

from pipelines.curate.run import run as curate
from pipelines.stage.report import Report


@pytest.fixture(scope="session")
def official():
    return json.loads((Path(__file__).parent / "official.json").read_text())


@pytest.fixture(scope="session")
def tables(official):
    """Logits of a sum of what stands at a place, its neighbours and the mean over the row; padding counts as a token of its own."""
    own, near, mean = (torch.tensor(official[name], dtype=torch.float64) for name in ("own", "near", "all"))

    def logits(tokens, attended):
        one = torch.nn.functional.one_hot(tokens, official["vocabulary"]).double()
        left = torch.nn.functional.pad(one, (0, 0, 1, 0))[:, :-1]
        right = torch.nn.functional.pad(one, (0, 0, 0, 1))[:, 1:]
        said = one @ own + (left - 0.5 * right) @ near + one.mean(1, keepdim=True) @ mean
        said[..., official["mask"]] = float("-inf")
        return said

    return logits


@pytest.fixture(scope="session")
def begun(tmp_path_factory):
    """Curated data, and a model that has seen a little supervised training."""
    folder = tmp_path_factory.mktemp("diffusion")
    rows = [{"prompt": f"first {a}{b}", "answer": a} for a in "abcdefgh" for b in "abcdefgh"]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with plugin_toys.forgotten():  # a fixture of a session outlives what tests name
        read = recipe(folder)
        curate(read.node("data").settings, read.model, out=folder / "data", report=Report(folder / "w"), seed=0)
        trainer(read, "cold", folder / "cold", folder).run()
    return folder
