"""Commits of sharded weights: each process writes its rows, and the first one publishes the commit once all of them are there.

Processes write into one folder, under a name that the first one gives them: `state.pt` of the first holds everything, sharded tensors as
its rows; `state-R.pt` of process R its rows of these, and `state-R.json` its digest, which comes last. When all digests are there they
go into `meta.json`, and the folder gets its name by one rename. So a kill at any instant leaves the previous commit or this one, and
no process ever holds more than its shard and the copy of it that is being written. A commit is read by any number of processes:
files are mapped, and each takes the rows of its shard.

torch.distributed.checkpoint would be the library for it. Its index is a pickle, it writes no digests, and its plan is made by
collectives on the thread that saves; commits here are checked by digests, loaded with `weights_only`, and written beside the training.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pipelines.base.errors import Interrupted
from pipelines.base.files import file_sha256, publish, read_json, write_atomic
from pipelines.engine.adamw import first_row, local
from pipelines.engine.checkpoint import SHARDED, Part, Pieces, each_tensor

ROWS, FIRST, SHAPE = "rows of a shard", "first row", "shape"
"""Fields that stand for a sharded tensor in a file."""
PATIENCE_S = 3600.0
"""Waited for the other processes' parts."""
POLL_S = 0.02


def rows_of(tensor: DTensor) -> dict[str, Any]:
    """What stands for a sharded tensor in this process's file; the rows are copied."""
    return {ROWS: local(tensor.detach()).to("cpu", copy=True), FIRST: first_row(tensor), SHAPE: list(tensor.shape)}


def write(final: Path, state: dict[str, Any], part: Part) -> None:
    """Write a process's part of a commit; the first process's is written by `checkpoint.save`."""
    place = _building(final, part)
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"state-{part.rank}.pt"
    torch.save(state, file)
    write_atomic(file.with_suffix(".json"), json.dumps({"sha256": file_sha256(file)}))


@contextlib.contextmanager
def building(final: Path, part: Part) -> Iterator[Path]:
    """The folder that all processes fill, made visible under its final name by one rename when the block succeeds."""
    place = _building(final, part)
    place.mkdir(parents=True, exist_ok=True)
    try:
        yield place
        publish(place, final)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _building(final: Path, part: Part) -> Path:
    return final.with_name(f".{final.name}.{part.token}.building")


def digests(place: Path, part: Part) -> dict[str, str]:
    """File → digest of the other processes' parts, once all of them are there.

    Raises:
        Interrupted: one does not come.
    """
    until = time.monotonic() + PATIENCE_S
    named: dict[str, str] = {}
    for rank in range(1, part.size):
        while (body := read_json(place / f"state-{rank}.json")) is None:
            if time.monotonic() > until:
                raise Interrupted(
                    "commit",
                    f"process {rank} has not written its part of {place.name} within {PATIENCE_S:.0f} s",
                    "Look at its log and at the disk; the previous commit is intact.",
                )
            time.sleep(POLL_S)
        named[f"state-{rank}.pt"] = body["sha256"]
    return named


def read(place: Path, first: Path, parts: Mapping[str, str]) -> dict[str, Any] | None:
    """The state of a commit whose sharded tensors are `Pieces` in mapped files; None where a part is not the one that was committed.

    Args:
        first: the file of the first process.
        parts: file → digest of the others.
    """
    if not all((place / name).exists() and file_sha256(place / name) == digest for name, digest in parts.items()):
        return None
    states = [
        torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        for file in (first, *map(place.joinpath, parts))
    ]
    own = {k: each_tensor(v, torch.Tensor.clone) for k, v in states[0].items() if k not in SHARDED}
    return own | {key: _joined([state[key] for state in states]) for key in SHARDED}


def _joined(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict) and ROWS in first:
        return Pieces(torch.Size(first[SHAPE]), [(value[FIRST], value[ROWS]) for value in values])
    if isinstance(first, dict):
        return {key: _joined([value[key] for value in values]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(items)) for items in zip(*values, strict=True))
    return first.clone() if isinstance(first, torch.Tensor) else first
