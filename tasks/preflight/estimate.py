"""Lower bounds of the disk that a run takes, from the sizes of the model and the recipe; the time that its stages will take, from what
stages of their kind and size have taken in this project folder. Nothing is loaded.

Weights and AdamW's two moments are float32: 4 bytes a parameter each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pipelines.base.files import read_manifest
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import MODEL, Node
from pipelines.recipe.training import TrainSettings
from tasks import keys
from tasks.environment import runs_folder
from tasks.tracking.names import flatten

WEIGHTS, MOMENTS = 4, 8
"""Bytes per parameter."""
LATEST = 10
"""Earlier runs of a stage that count, the newest."""
SIZES = (
    "micro_batch_tokens", "tokens_per_step", "max_length", "max_tokens", "max_turns", "prompts", "group_size", "mini_batches",
    "batch_size", "epochs", "sources", "tasks", "checkpoints", "models", "rows", "samples", "gradient_checkpointing", "lora", "rank",
)  # fmt: skip
"""Last parts of the settings that say how much a stage computes, beside all of the model's; `steps` counts in proportion."""
TOLD = ("trainer", "command", "config", "overrides")
"""Settings of a section that say so with all that they hold: what another project's trainer is told."""


def parameters_of(path: str | None) -> int | None:
    """Parameters of a local model folder, from the headers of its safetensors files; None where they cannot be read."""
    folder = Path(path or "").expanduser()
    if not path or not folder.is_dir():
        return None
    count = 0
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as handle:
                length = int.from_bytes(handle.read(8), "little")
                header = json.loads(handle.read(length)) if length < 100_000_000 else {}
            count += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
    return count or None


def disk(nodes: list[Node], parameters: int) -> int:
    """Bytes that the run needs at its fullest: the commits of one stage beside the models of all.

    A commit holds weights and moments; one more than `keep_last` is on disk while it is written.
    """
    trained = [node for node in nodes if node.kind.makes == MODEL]
    models = WEIGHTS * parameters * len(trained)
    largest = 0
    for section in (node.settings for node in trained if isinstance(node.settings, TrainSettings)):
        if section.lora is not None:
            continue
        written = math.ceil(section.steps / section.commit.every) if section.steps else 1
        largest = max(largest, min(section.commit.keep_last + 1, written) * (WEIGHTS + MOMENTS) * parameters)
    return models + largest


def already(home: Path, nodes: list[Node]) -> int:
    """Bytes of commits that an interrupted run has left, and that this one goes on from."""
    files = [
        f
        for k in {n.kind.name for n in nodes}
        for f in (home / "runs" / ".work").glob(f"{k}-*/checkpoints/**/*")
        if f.is_file()
    ]
    return sum(f.stat().st_size for f in files)


@dataclass(frozen=True)
class Duration:
    """Seconds of a stage."""

    seconds: float
    low: float
    high: float
    runs: int
    """Earlier runs that it is taken from."""
    scaled: bool
    """Some of them had another number of steps."""

    def __str__(self) -> str:
        spread = f", {_span(self.low)} to {_span(self.high)}" if self.runs > 1 else ""
        how = ", by their time of a step" if self.scaled else ""
        return f"about {_span(self.seconds)} ({self.runs} earlier run{'s' * (self.runs > 1)} of this size{spread}{how})"


def durations(recipe: Recipe, stages: Iterable[str]) -> dict[str, Duration]:
    """Stage → what it will take, for those that have earlier runs of their kind and size here.

    Args:
        stages: those that will run.
    """
    told = {}
    for stage in stages:
        kind = recipe.graph[stage].kind
        wanted, steps = _size(keys.settings_of(recipe, stage))
        taken: list[tuple[float, bool]] = []
        for manifest in _manifests(kind):
            size, of_steps = _size((manifest.get("parts") or {}).get("settings") or {})
            if size == wanted and bool(steps) == bool(of_steps) and len(taken) < LATEST:
                share = steps / of_steps if steps and of_steps else 1.0
                taken.append((manifest["seconds"] * share, share != 1.0))
        if taken:
            seconds = [value for value, _ in taken]
            scaled = any(changed for _, changed in taken)
            told[stage] = Duration(median(seconds), min(seconds), max(seconds), len(taken), scaled)
    return told


def _manifests(kind: str) -> Iterable[dict[str, Any]]:
    """The manifests of a kind's artifacts that say what they took, the newest first."""
    folders = sorted(runs_folder().glob(f"{kind}-*"), key=lambda folder: -folder.stat().st_mtime)
    for folder in folders:
        manifest = read_manifest(folder) or {}
        seconds = manifest.get("seconds")
        if manifest.get("stage") == kind and isinstance(seconds, int | float) and seconds > 0:
            yield manifest


def _size(settings: dict[str, Any]) -> tuple[dict[str, str], float | None]:
    """What decides how long a stage takes with these settings, and its steps, where it has any."""
    settings = json.loads(json.dumps(settings, sort_keys=True, default=str))  # as manifests have them
    amounts = {
        name: text
        for name, text in flatten(settings)
        if name.startswith("model.")
        or name.rpartition(".")[2] in SIZES
        or name.partition(".")[2].partition(".")[0] in TOLD
    }
    steps = next((text for name, text in flatten(settings) if name.count(".") == 1 and name.endswith(".steps")), "None")
    return amounts, float(steps) if steps.isdigit() and int(steps) else None


def _span(seconds: float) -> str:
    """Seconds, minutes or hours, as exact as an estimate is.

    >>> _span(0.4), _span(42.4), _span(150), _span(8000)
    ('1 s', '42 s', '2.5 min', '2.2 h')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
