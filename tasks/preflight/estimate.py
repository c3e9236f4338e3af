"""Lower bounds of the disk that a run takes, from the sizes of the model and the recipe; nothing is loaded.

Weights and AdamW's two moments are float32: 4 bytes a parameter each.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from pipelines.recipe.stage_kind import MODEL, Node
from pipelines.recipe.training import TrainSettings

WEIGHTS, MOMENTS = 4, 8
"""Bytes per parameter."""


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
