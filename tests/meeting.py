"""Processes of one world as threads of one process: what they gather and send is pickled as between processes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from pipelines.engine import wire
from pipelines.engine.parallel import World


class Thread(World):
    """One of the processes."""

    def __init__(self, rank: int, size: int, boxes: list[Any], barrier: threading.Barrier) -> None:
        for name, value in {"rank": rank, "size": size, "received": Counter()}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "boxes", boxes)
        object.__setattr__(self, "barrier", barrier)

    def gather(self, value: Any) -> list[Any]:
        self.boxes[self.rank] = wire.dumps(value)
        self.barrier.wait(30)
        pickled = list(self.boxes)
        self.barrier.wait(30)
        return self._opened(pickled, value)

    def gather_first(self, value: Any) -> list[Any]:
        values = self.gather(value)
        return values if self.rank == 0 else []

    def send(self, pairs: Any, outgoing: Any) -> list[Any]:
        everything = self.gather(outgoing)
        return [everything[by][to] for by, to in sorted(pairs) if to == self.rank]


def on_ranks(size: int, work: Callable[[World], Any]) -> list[Any]:
    """What `work` returns on each process of a world; the first fault is raised."""
    boxes: list[Any] = [None] * size
    barrier, results, faults = threading.Barrier(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(Thread(rank, size, boxes, barrier))
        except BaseException as fault:
            faults.append(fault)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for fault in faults:
        if not isinstance(fault, threading.BrokenBarrierError):
            raise fault
    return results
