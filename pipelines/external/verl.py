"""verl: `python -m verl.trainer.main_ppo` with Hydra's overrides, or with a configuration of its own that has `defaults`.

Columns as its documentation of data preparation has them; fields checked against the configuration of verl 0.9.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.records import Problem
from pipelines.external.adapter import Adapter, standard_parts, write_form
from pipelines.external.config import leaves

PLAIN = re.compile(r"[A-Za-z_/][\w./-]*")
"""A text that Hydra reads as a text without quotes, `true` and `null` apart."""


@dataclass(frozen=True)
class Verl(Adapter):
    """verl's trainers of `main_ppo`."""

    def row(self, problem: Problem, index: int, columns: Mapping[str, str] | None) -> dict[str, Any]:
        """`data_source`, `prompt`, `ability`, `reward_model` and `extra_info`."""
        return {
            "data_source": problem.source,
            "prompt": problem.prompt,
            "ability": problem.verifier,
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": standard_parts(problem, index, json.dumps(problem.info, default=str)),
        }

    def write_config(self, values: dict[str, Any], path: Path) -> list[str]:
        """Overrides, or the file where it has `defaults` and so replaces verl's own."""
        if "defaults" not in values:
            return [f"{name}={override(value)}" for name, value in leaves(values)]
        path = path.with_suffix(".yaml")
        write_form(values, path)
        return ["--config-path", str(path.parent), "--config-name", path.stem]


def override(value: Any) -> str:
    """A value in the grammar of Hydra's overrides.

    >>> override(["console", "file"]), override(None), override("it's"), override({"a": 1e-6}), override("true")
    ('[console,file]', 'null', "'it\\\\'s'", '{a:1e-06}', "'true'")
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{override(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(override, value)) + "]"
    if isinstance(value, str) and (
        not PLAIN.fullmatch(value) or value.lower() in ("true", "false", "null", "nan", "inf")
    ):
        return "'" + value.replace("'", "\\'") + "'"
    return str(value)


ADAPTER = Verl(
    package="verl",
    suffixes=(".yaml", ".yml"),
    command=("{python}", "-m", "verl.trainer.main_ppo"),
    told={
        "data.train_files": "{train_file}",
        "data.val_files": "{val_file}",
        "data.seed": "{seed}",
        "actor_rollout_ref.model.path": "{model}",
        "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "reward.custom_reward_function.path": "{reward_file}",
        "trainer.default_local_dir": "{output}/checkpoints",
        "trainer.logger": ["console", "file"],
        "hydra.run.dir": "{output}/hydra",
    },
    checkpoints="checkpoints/global_step_*",
    result="checkpoints/global_step_*/actor/huggingface",
    environment={
        "VERL_FILE_LOGGER_PATH": "{output}/metrics-{attempt}.jsonl",
        "TENSORBOARD_DIR": "{output}/tensorboard",
    },
)
