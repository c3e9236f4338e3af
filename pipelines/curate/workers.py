"""Rows on worker processes of Dask, of this machine or of others: blocks of them are worked on anywhere, results come in order.

A worker that is killed costs nothing but time: its blocks, which the scheduler holds, go to another.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pipelines.base.errors import DataError
from pipelines.recipe.server import Dask

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 3
"""Blocks that are handed in for each thread of the workers."""
WAIT_S = 60
"""How long a scheduler may take to have its first worker."""


class Workers:
    """The workers that `curate.dask` names; those of this machine end with it.

    Args:
        job: of the stage; a worker loads its plug-ins, and confines programs as it says.
        folder: where the workers of this machine put what does not fit into memory.
    """

    def __init__(self, settings: Dask, job: dict[str, Any], folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.job = {name: job[name] for name in ("plugins", "sandbox") if name in job}

    def __enter__(self) -> Workers:
        from distributed import Client, LocalCluster

        logging.getLogger("distributed").setLevel(logging.WARNING)  # it tells of each connection
        self.cluster = None
        if self.settings.workers is not None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Port .* is already in use")  # then it takes another one
                self.cluster = LocalCluster(
                    n_workers=self.settings.workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None,
                    local_directory=str(self.folder),
                )  # fmt: skip
        fix = f"Start a worker that reaches it: `dask worker {self.settings.address} --nthreads 1`."
        try:
            self.client = Client(self.cluster or self.settings.address, timeout=WAIT_S, set_as_default=False)
            self.client.wait_for_workers(1, timeout=WAIT_S)
        except (OSError, TimeoutError) as error:
            if self.cluster is not None:
                self.cluster.close()
            raise DataError("curate.dask", f"no worker in {WAIT_S} s ({error})", fix) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()

    def map(
        self, work: Callable[[Sequence[Item]], Sequence[Result]], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """(item, its result), in order.

        Args:
            work: of a list of items gives the list of results; is pickled, once.

        Raises:
            DataError: a block ended every worker that it was given to.
        """
        packed = self.client.submit(bytes, pickle.dumps((self.job, work)), pure=False)
        listed = iter(items)
        pending: deque[tuple[list[Item], Any]] = deque()
        ahead = AHEAD * max(1, sum(self.client.nthreads().values()))
        while block := list(itertools.islice(listed, self.settings.block)):
            pending.append((block, self.client.submit(_apply, packed, block, pure=False)))
            if len(pending) >= ahead:
                yield from _results(*pending.popleft())
        while pending:
            yield from _results(*pending.popleft())


def _results(block: list[Item], future: Any) -> Iterator[tuple[Item, Any]]:
    from distributed import KilledWorker

    try:
        results = future.result()
    except KilledWorker as error:
        problem = f"several workers died at the same block of rows ({str(error)[:200]})"
        raise DataError("curate.dask", problem, "Give them more memory, or make `dask.block` smaller.") from error
    yield from zip(block, results, strict=True)


def _apply(packed: bytes, block: list[Any]) -> list[Any]:
    return list(_loaded(packed)(block))


@lru_cache(2)
def _loaded(packed: bytes) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """The work, in a process that is prepared as a stage's is."""
    from pipelines.stage import process

    job, work = pickle.loads(packed)
    process.prepare(job)
    return work  # type: ignore[no-any-return]
