"""Ranks of a stage as threads of this process, one of which works at a time: everything but the way that messages go is real."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipelines.engine.parallel import World
from pipelines.engine.ranks import Ranks


@dataclass
class Meeting:
    """Where threads gather."""

    size: int
    values: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = [b""] * self.size
        self.barrier = threading.Barrier(self.size, timeout=300)
        self.turn = threading.Lock()


class ThreadWorld(World):
    """A rank of a meeting; what it gathers is pickled, as between processes."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, meeting.size)
        object.__setattr__(self, "meeting", meeting)

    def gather(self, value: Any) -> list[Any]:
        self.meeting.values[self.rank] = pickle.dumps(value)
        self._wait()
        values = [pickle.loads(each) for each in self.meeting.values]
        self._wait()
        return values

    def _wait(self) -> None:
        self.meeting.turn.release()
        try:
            self.meeting.barrier.wait()
        finally:
            self.meeting.turn.acquire()


def in_ranks(count: int, first: Callable[[Ranks], Any]) -> Any:
    """What the first of so many ranks returns; the others serve it."""
    meeting = Meeting(count)
    errors: list[BaseException] = []

    def serve(rank: int) -> None:
        with meeting.turn:
            try:
                Ranks(ThreadWorld(rank, meeting)).serve()
            except BaseException as error:
                errors.append(error)
                meeting.barrier.abort()

    threads = [threading.Thread(target=serve, args=[rank]) for rank in range(1, count)]
    for thread in threads:
        thread.start()
    try:
        with meeting.turn:
            ranks = Ranks(ThreadWorld(0, meeting))
            result = first(ranks)
            ranks.end()
            return result
    except threading.BrokenBarrierError:
        raise errors[0] from None
    finally:
        meeting.barrier.abort()
        for thread in threads:
            thread.join()
