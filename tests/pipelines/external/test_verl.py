"""What verl is started with, composed by Hydra with verl's own configuration: `VERL_PYTHON` names a Python that has verl and hydra-core."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import toys
import yaml

from pipelines.external.run import Stage
from pipelines.external.settings import External
from pipelines.stage.report import Report

COMPOSES = """
import importlib.util, json, os, sys
from hydra import compose, initialize_config_dir
folder = os.path.join(importlib.util.find_spec("verl").submodule_search_locations[0], "trainer", "config")
with initialize_config_dir(folder, version_base=None):
    c = compose("ppo_trainer", overrides=[o for o in sys.argv[1:] if not o.startswith("hydra.")])
    compose("ppo_trainer", overrides=sys.argv[1:], return_hydra_config=True)
print(json.dumps([c.data.train_files, c.data.seed, c.actor_rollout_ref.model.path, c.reward.custom_reward_function.name,
                  list(c.actor_rollout_ref.actor.checkpoint.save_contents), c.actor_rollout_ref.rollout.n]))
"""


@pytest.mark.long
@pytest.mark.skipif("VERL_PYTHON" not in os.environ, reason="VERL_PYTHON names no Python with verl")
def test_its_own_configuration_takes_what_it_is_told(tmp_path):
    recipe = yaml.safe_load((toys.ROOT / "recipes" / "external_verl.yaml").read_text())
    settings = External(trainer="verl", config=recipe["stages"]["rl"]["config"])
    stage = Stage(settings, {"seed": 3, "inputs": {}}, "/models/base", tmp_path, Report(tmp_path))
    overrides = stage.command(stage.values(1))[3:]
    command = [os.environ["VERL_PYTHON"], "-c", COMPOSES, *overrides]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    saved = ["model", "optimizer", "extra", "hf_model"]
    assert json.loads(told.stdout) == [
        str(Path(tmp_path) / "trainer/train.parquet"), 3, "/models/base", "compute_score", saved, 8
    ]  # fmt: skip
