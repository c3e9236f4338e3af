"""Commits of which each process writes its part are whole or not there, and any number of processes reads them."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
from rank_threads import Meeting, ThreadWorld

from pipelines.base.errors import Interrupted
from pipelines.engine import checkpoint, sharded_commits
from pipelines.engine.checkpoint import Pieces
from pipelines.engine.sharded_commits import Shards

WEIGHT = torch.arange(21.0).view(7, 3)


def state(step: int, rank: int, size: int) -> dict:
    """A process's part of a commit."""
    rows = (WEIGHT + step).chunk(size)
    own = rows[rank] if rank < len(rows) else WEIGHT[:0]
    first = sum(map(len, rows[:rank]))
    shard = {checkpoint.ROWS: own.clone(), checkpoint.FIRST: first, checkpoint.SHAPE: list(WEIGHT.shape)}
    sharded = {
        "model": {"w": shard},
        "optimizer": {"state": {0: {"m": shard, "step": torch.tensor(1.0)}}, "groups": [{"lr": 0.1}]},
    }
    return sharded | ({"step": step, "rng": torch.arange(5), "cursor": 0} if rank == 0 else {})


def commit(folder, step: int, size: int = 3, token: str = "t") -> None:
    """All parts of a commit, one after the other."""
    for rank in (*range(1, size), 0):
        part, name = Shards(rank, size, f"{token}{step}"), checkpoint._name(step, (0, 0))
        if rank > 0:
            part.write(folder / name, state(step, rank, size))
        else:
            checkpoint.save(folder, step, state(step, 0, size), part=part)


def check(loaded: dict, step: int) -> None:
    """What was committed, as any number of processes reads it."""
    assert loaded["step"] == step and torch.equal(loaded["rng"], torch.arange(5))
    assert loaded["optimizer"]["groups"] == [{"lr": 0.1}] and loaded["optimizer"]["state"][0]["step"] == 1
    for piece in (loaded["model"]["w"], loaded["optimizer"]["state"][0]["m"]):
        assert isinstance(piece, Pieces) and piece.shape == WEIGHT.shape
        for size in range(1, 10):
            starts = range(0, 7, -(-7 // size))
            rows = torch.cat([piece.rows(start, min(-(-7 // size), 7 - start)) for start in starts])
            assert torch.equal(rows, WEIGHT + step)
        assert piece.rows(7, 0).shape == (0, 3)


@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_any_number_of_processes_reads_what_any_number_wrote(tmp_path, size):
    commit(tmp_path, 4, size)
    check(checkpoint.load(tmp_path), 4)


@pytest.mark.parametrize("file", ["state.pt", "state-1.pt", "state-2.pt", "meta.json"])
def test_a_commit_with_a_damaged_part_is_skipped(tmp_path, file):
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    path = tmp_path / "step-00000002" / file
    path.write_bytes(path.read_bytes()[:-20])
    check(checkpoint.load(tmp_path), 1)
    path.unlink()
    check(checkpoint.load(tmp_path), 1)


def test_the_first_process_waits_for_the_others(tmp_path, monkeypatch):
    first = threading.Thread(
        target=checkpoint.save, args=[tmp_path, 1, state(1, 0, 2)], kwargs={"part": Shards(0, 2, "t")}
    )
    first.start()
    first.join(0.3)
    assert first.is_alive() and checkpoint.load(tmp_path) is None
    Shards(1, 2, "t").write(tmp_path / "step-00000001", state(1, 1, 2))
    first.join(30)
    check(checkpoint.load(tmp_path), 1)
    monkeypatch.setattr(sharded_commits, "PATIENCE_S", 0.1)
    with pytest.raises(Interrupted, match="process 1 has not written"):
        checkpoint.save(tmp_path, 2, state(2, 0, 2), part=Shards(0, 2, "u"))
    check(checkpoint.load(tmp_path), 1)


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def at(name):
    """Dies where a file of this name is to be written."""
    write = checkpoint.write_atomic
    return lambda path, *rest, **options: die() if path.name == name else write(path, *rest, **options)


BOUNDARIES = {
    "before any part": (1, lambda: setattr(torch, "save", die)),
    "before a part's digest": (1, lambda: setattr(sharded_commits, "write_atomic", at("state-1.json"))),
    "between two parts": (1, lambda: setattr(sharded_commits, "write_atomic", at("state-2.json"))),
    "before the digests are together": (1, lambda: setattr(checkpoint, "write_atomic", at("meta.json"))),
    "before the rename": (1, lambda: setattr(sharded_commits, "publish", die)),
    "after the rename": (2, lambda: setattr(checkpoint, "write_atomic", at("LATEST.json"))),
}


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_kill_leaves_the_previous_commit_or_this_one(tmp_path, boundary):
    commit(tmp_path, 1)
    left, plant = BOUNDARIES[boundary]
    child = os.fork()
    if child == 0:
        plant()
        commit(tmp_path, 2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    check(checkpoint.load(tmp_path), left)
    commit(tmp_path, 3, token="again")
    check(checkpoint.load(tmp_path), 3)
    assert not list(tmp_path.glob(".step-*")), "nothing is left of what was killed"


@pytest.mark.parametrize("shared", [True, False])
def test_ranks_know_whether_they_write_to_one_disk(tmp_path, shared):
    def seen(rank):
        folder = tmp_path / ("0" if shared else str(rank))
        return sharded_commits.one_disk(ThreadWorld(rank, meeting), folder)

    def run(rank):
        with meeting.turn:
            results[rank] = seen(rank)

    meeting, results = Meeting(3), {}
    threads = [threading.Thread(target=run, args=[rank]) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == dict.fromkeys(range(3), shared)
    assert not list(tmp_path.rglob(".disk-*"))
