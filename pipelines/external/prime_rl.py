"""prime-rl: its `rl` entry point with a TOML file; the rows are a taskset of the package `verifiers` (v1) that is written beside it.

Fields checked against the configuration classes of prime-rl 0.4.0 and verifiers 0.4.0. Its checkpoints are sharded, so the model is what
it last broadcast to the inference server through the file system.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.records import Problem
from pipelines.external.adapter import Adapter, standard_parts, write_form

TASKSET = "whetstone-rows"
"""Its id; the module has underscores."""
TASKSET_CODE = '''"""The curated rows as a taskset of verifiers v1, scored by the verifiers that they name. Written by Whetstone."""

import asyncio

import pyarrow.parquet
import verifiers.v1 as vf
import whetstone_reward


class RowData(vf.TaskData):
    data_source: str
    answer: str
    verifier: str
    info: str


class RowTask(vf.Task[RowData]):
    @vf.reward(weight=1.0)
    async def verified(self, trace: vf.Trace) -> float:
        row = {"verifier": self.data.verifier, "info": self.data.info}
        score = whetstone_reward.compute_score
        verdict = await asyncio.to_thread(score, self.data.data_source, trace.last_reply, self.data.answer, row)
        return verdict["score"]


class RowsConfig(vf.TasksetConfig):
    path: str = ""


class RowsTaskset(vf.Taskset[RowTask, RowsConfig]):
    def load(self) -> list[RowTask]:
        rows = pyarrow.parquet.read_table(self.config.path).to_pylist()
        return [RowTask(RowData(**row), self.config.task) for row in rows]


__all__ = ["RowsTaskset"]
'''


@dataclass(frozen=True)
class PrimeRl(Adapter):
    """prime-rl's `rl`."""

    def row(self, problem: Problem, index: int, columns: Mapping[str, str] | None) -> dict[str, Any]:
        """The fields of the taskset's data."""
        parts = standard_parts(problem, index, json.dumps(problem.info, default=str))
        return {
            "id": parts["uid"], "prompt": problem.prompt, "answer": problem.answer, "data_source": problem.source,
            "verifier": parts["verifier"], "info": parts["info"],
        }  # fmt: skip

    def write_config(self, values: dict[str, Any], path: Path) -> list[str]:
        """The TOML file behind an @, as prime-rl's entry points take it."""
        path = path.with_suffix(".toml")
        write_form(values, path)
        return ["@", str(path)]

    def write_extras(self, folder: Path) -> None:
        """The taskset."""
        (folder / f"{TASKSET.replace('-', '_')}.py").write_text(TASKSET_CODE)


ADAPTER = PrimeRl(
    package="prime-rl",
    suffixes=(".toml",),
    command=("{python}", "-m", "prime_rl.entrypoints.rl"),
    told={
        "model.name": "{model}",
        "output_dir": "{output}",
        "run.name": "run",
        "ckpt": {},
        "weight_broadcast.type": "filesystem",
        "orchestrator.renderer.name": "default",  # a folder's name says nothing of its template
        "orchestrator.train.source": [
            {
                "name": "whetstone",
                "env": {
                    "taskset": {"id": TASKSET, "path": "{train_file}"},
                    "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}},
                },
            }
        ],
    },
    resume_arguments=("--resume",),
    checkpoints="run/checkpoints/step_*",
    result="run/broadcasts/step_*",
    metrics_path="run/metrics.jsonl",
    environment={"PYTHONPATH": "{folder}"},
)
