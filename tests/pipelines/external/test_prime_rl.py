"""prime-rl's own classes read its configuration, and `verifiers` loads the taskset: `PRIME_RL_PYTHON` names a Python that has
prime-rl-configs, verifiers and pyarrow."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
import toys
import yaml

from pipelines import verifiers
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.external.run import Stage
from pipelines.external.settings import External
from pipelines.stage.report import Report

READS = """
import asyncio, json, sys, tomllib, types
from prime_rl.configs.rl import RLConfig
from verifiers.v1.utils.loaders import load_taskset
config = RLConfig.model_validate(tomllib.load(open(sys.argv[1], "rb")))
taskset = config.orchestrator.train.source[0].env.taskset
tasks = list(load_taskset(taskset))
async def scores(text):
    return [await task.verified(types.SimpleNamespace(last_reply=text)) for task in tasks]
print(json.dumps([str(config.run_dir), config.trainer.model.name, tasks[0].data.prompt[0].content, asyncio.run(scores("so 2"))]))
"""


@pytest.mark.long
@pytest.mark.skipif("PRIME_RL_PYTHON" not in os.environ, reason="PRIME_RL_PYTHON names no Python with prime-rl-configs")
def test_its_own_classes_take_what_it_is_told(tmp_path):
    recipe = yaml.safe_load((toys.ROOT / "recipes" / "external_prime_rl.yaml").read_text())
    (tmp_path / "data").mkdir()
    writer = dataset.Writer(tmp_path / "data" / "train.parquet")
    prompt = [{"role": "user", "content": "1 + 1"}]
    for number, answer in enumerate(("2", "3")):
        row = {"verifier": "number", "source": "sums", "licence": "none", "uid": f"{number:032x}"}
        writer.add(Problem(prompt=prompt, answer=answer, **row))
    writer.close()
    settings = External(trainer="prime_rl", config=recipe["stages"]["rl"]["config"])
    job = {"seed": 3, "inputs": {"data": str(tmp_path / "data")}}
    stage = Stage(settings, job, "/models/base", tmp_path, Report(tmp_path))
    stage.prepare()
    file = stage.command(stage.values(1))[4]
    paths = [str(stage.folder), os.environ.get("PRIME_RL_PATH", "")]
    told = subprocess.run(
        [os.environ["PRIME_RL_PYTHON"], "-c", READS, file], capture_output=True, text=True, check=False,
        env=toys.environment(PYTHONPATH=os.pathsep.join(filter(None, paths))),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    folder, model, text, scores = json.loads(told.stdout.splitlines()[-1])
    assert (folder, model, text) == (f"{stage.output}/run", "/models/base", "1 + 1")
    assert scores == [verifiers.verify("number", "so 2", answer, {}).score for answer in ("2", "3")]
