"""What is known of a trainer: its command, what it must be told, what it reads and what it writes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipelines.data.records import Problem
from pipelines.external import config


@dataclass(frozen=True)
class Adapter:
    """A trainer. Paths of its globs are relative to the output folder; texts may have placeholders (`config.PLACEHOLDERS`)."""

    package: str | None = None
    """Its distribution, whose version is in the key."""
    suffixes: tuple[str, ...] = ()
    """Of the files that it reads its configuration from; empty: any."""
    command: tuple[str, ...] = ()
    told: Mapping[str, Any] = field(default_factory=dict)
    """Dotted field of its configuration → value. A value whose placeholder the user's configuration uses, and one whose field it has,
    is left to the user."""
    resume_arguments: tuple[str, ...] = ()
    checkpoints: str | None = None
    result: str | None = None
    metrics: str = "jsonl"
    metrics_path: str = "metrics*.jsonl"
    environment: Mapping[str, str] = field(default_factory=dict)

    def row(self, problem: Problem, index: int, columns: Mapping[str, str] | None) -> dict[str, Any]:
        """A row of its Parquet file.

        Args:
            columns: of the settings.
        """
        raise NotImplementedError

    def write_config(self, values: dict[str, Any], path: Path) -> list[str]:
        """Write the configuration with its placeholders replaced; returns the arguments that name it.

        Args:
            values: the fields of the user's file with what the trainer must be told.
            path: where it may be written: the user's name for it in the stage's folder.
        """
        raise NotImplementedError

    def write_extras(self, folder: Path) -> None:
        """Write what it imports beside the reward file."""


def adapter(name: str) -> Adapter:
    """The adapter in this package's module of that name."""
    return importlib.import_module(f"{__package__}.{name}").ADAPTER  # type: ignore[no-any-return]


def standard_parts(problem: Problem, index: int, info: str) -> dict[str, Any]:
    """What a reward file needs of a row beside the answer: `verifier`, `uid`, `index` and `info` as JSON text, so that rows with different
    keys have one schema."""
    return {"index": index, "uid": problem.uid, "verifier": problem.verifier, "info": info}


def write_form(values: dict[str, Any], path: Path) -> None:
    """Write fields in the form that the file's name says: JSON, TOML or YAML."""
    if path.suffix == ".json":
        path.write_text(json.dumps(values, indent=1))
    elif path.suffix == ".toml":
        path.write_text(config.to_toml(values))
    else:
        path.write_text(yaml.safe_dump(values, sort_keys=False))
