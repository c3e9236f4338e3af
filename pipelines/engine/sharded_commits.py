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
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipelines.base.errors import Interrupted
from pipelines.base.files import file_sha256, publish, read_json, write_atomic
from pipelines.engine.parallel import World
from pipelines.stage.report import Report

PATIENCE_S = 3600.0
"""Waited for the other processes' parts."""
POLL_S = 0.02


@dataclass
class Shards:
    """What of a commit one process writes (`checkpoint.Part`).

    Args:
        rank: of this process.
        size: how many write.
        token: names the folder that they fill; the same on all of them, and another for each commit.
    """

    rank: int
    size: int
    token: str

    def write(self, final: Path, state: dict[str, Any]) -> None:
        """Write this process's part; not the first one's, which `checkpoint.save` writes."""
        place = self._place(final)
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"state-{self.rank}.pt"
        torch.save(state, file)
        write_atomic(file.with_suffix(".json"), json.dumps({"sha256": file_sha256(file)}))

    @contextlib.contextmanager
    def building(self, final: Path) -> Iterator[Path]:
        """The folder that all processes fill, made visible under its final name by one rename when the block succeeds."""
        place = self._place(final)
        place.mkdir(parents=True, exist_ok=True)
        try:
            yield place
            publish(place, final)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def digests(self, place: Path) -> dict[str, str]:
        """File → digest of the others' parts, once all of them are there.

        Raises:
            Interrupted: one does not come.
        """
        until = time.monotonic() + PATIENCE_S
        named: dict[str, str] = {}
        for rank in range(1, self.size):
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

    def _place(self, final: Path) -> Path:
        return final.with_name(f".{final.name}.{self.token}.building")


def part(world: World) -> Shards:
    """This process's part of the next commit; every process must call."""
    return Shards(world.rank, world.size, agreed_token(world))


def agreed_token(world: World) -> str:
    """A name that the first process makes up; every process must call."""
    return str(world.gather(secrets.token_hex(4))[0])


def one_disk(world: World, folder: Path) -> bool:
    """Whether a file that the first process writes is seen by all; every process must call."""
    file = folder / f".disk-{agreed_token(world)}"
    if world.rank == 0:
        write_atomic(file, "")
    world.gather(None)  # it is written
    shared = all(world.gather(file.exists()))
    if world.rank == 0:
        file.unlink()
    return shared


def work_on_one_disk(world: World, folder: Path, report: Report, *, field: str) -> bool:
    """`one_disk`, and an event where not all processes see the first one's work folder; every process must call.

    Args:
        field: what has the run read a commit while it goes on; empty where nothing does.

    Raises:
        Interrupted: they do not see it, and would have to read a commit.
    """
    shared = one_disk(world, folder)
    if not shared and field:
        raise Interrupted(
            field,
            "the machines share no work folder, so only the first one could read the commit that the run would go back to",
            "Put the work folder on a disk that all machines see, or set checkpoint_selection: last and let monitors only warn.",
        )
    if not shared:
        report.event("the machines share no work folder, so the first process gathers each commit and writes it")
    return shared


def whole_on_first(value: Tensor) -> Tensor:
    """A sharded tensor in full on the first process's CPU, empty on the others; any other tensor as it is. Every process must call.

    One tensor at a time is gathered, so that a device never holds more than its shard and one tensor in full.
    """
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if dist.get_rank() == 0 else full.new_empty(0, device="cpu")
