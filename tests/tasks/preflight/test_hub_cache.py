"""Models of the hub in its cache on this machine: what is whole is examined before a run, as a folder is."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import toys

from pipelines.contract.model_settings import Fresh, Model
from pipelines.engine import models

ASKS = """
from tasks.preflight import hub_cache
print(hub_cache.downloaded("org/m", None), hub_cache.downloaded("org/m", "v1"), hub_cache.downloaded("not a name", None))
"""
MEMORY = """
import sys
from flows.cli import main as cli
sys.exit(cli.main(["plan", sys.argv[1], "--memory", "--limit", "4", "--only", "sft"]))
"""


@pytest.fixture
def snapshot(tmp_path):
    """A hub cache with a whole model under `main`."""
    cache = tmp_path / "hub" / "models--org--m"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("2" * 40)
    folder = cache / "snapshots" / ("2" * 40)
    tokenizer = models.train_tokenizer("char", 64, ["ab"])
    fresh = Model(fresh=Fresh(architecture="llama", config={**toys.SMALL, "max_position_embeddings": 64}))
    models.save_model(models.fresh_model(fresh, tokenizer, 0), tokenizer, folder, {"stage": "sft"})
    return folder


def python(code, tmp_path, *arguments):
    environment = toys.environment(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1", WHETSTONE_HOME=str(tmp_path / "home"))
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, cwd=toys.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_whole_downloads_alone_are_taken(snapshot, tmp_path):
    done = python(ASKS, tmp_path)
    assert done.stdout.split() == [str(snapshot), "None", "None"], done.stderr[-2000:]
    (snapshot / "model.safetensors").unlink()
    assert python(ASKS, tmp_path).stdout.split() == ["None"] * 3
    shutil.rmtree(tmp_path / "hub")
    assert python(ASKS, tmp_path).stdout.split() == ["None"] * 3


@pytest.mark.slow
@pytest.mark.long
def test_memory_is_planned_after_a_download(snapshot, tmp_path):
    recipe = str(toys.recipe(tmp_path, model={"path": "org/m", "fresh": None}))
    done = python(MEMORY, tmp_path, recipe)
    assert done.returncode == 0 and done.stdout.startswith("sft: at most 0."), done.stdout + done.stderr[-2000:]
    (snapshot / "config.json").unlink()
    assert "plan after a download" in python(MEMORY, tmp_path, recipe).stderr
