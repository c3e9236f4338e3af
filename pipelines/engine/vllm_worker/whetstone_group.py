"""The process group of a trainer, rank 0, and the workers of one vLLM server: how it is formed on both sides.

This file runs in vLLM's environment and in ours, so it needs torch alone.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

LOOPBACK = "127.0.0.1"


@dataclass
class Meeting:
    """Where and as what a group is formed; what `/init_weight_transfer_engine` is sent."""

    place: str
    """`file:PATH`, which both sides see, or `tcp:HOST:PORT`, where the trainer listens."""
    name: str
    """Random, in front of every name in the store."""
    size: int
    """Ranks: the trainer and the server's workers."""
    kind: str
    """Of the group: "gloo", through host memory, or "nccl", from GPU to GPU."""
    join_s: float
    """Seconds for all ranks to come."""
    timeout_s: float
    """Seconds of one broadcast."""


def join(meeting: Meeting, rank: int, listener: socket.socket | None = None) -> Any:
    """Form the group; returns when all ranks have come.

    Args:
        listener: of the trainer, bound to the place; else the store is only asked.

    Raises:
        RuntimeError: the others stayed away (`dist.DistStoreError` is one).
    """
    kind, _, where = meeting.place.partition(":")
    host = LOOPBACK
    store: Any
    if kind == "file":
        store = dist.FileStore(where, meeting.size)
    else:
        host, _, port = where.rpartition(":")
        options: dict[str, Any] = {} if listener is None else {"master_listen_fd": listener.detach()}
        store = dist.TCPStore(
            host, int(port), meeting.size, is_master=bool(options), wait_for_workers=False,
            timeout=timedelta(seconds=meeting.join_s), **options,
        )  # fmt: skip
        host = host if options else address_towards(host)
    store.set_timeout(timedelta(seconds=meeting.join_s))
    store = dist.PrefixStore(meeting.name, store)
    if meeting.kind == "nccl":
        settings = dist.ProcessGroupNCCL.Options()
        settings._timeout = timedelta(seconds=meeting.timeout_s)
        return dist.ProcessGroupNCCL(store, rank, meeting.size, settings)
    gloo: Any = dist.ProcessGroupGloo
    settings = gloo._Options()
    settings._timeout = timedelta(seconds=meeting.timeout_s)
    settings._devices = [gloo.create_device(hostname=host)]
    return gloo(store, rank, meeting.size, settings)


def address_towards(host: str) -> str:
    """The address of this machine that a host is reached from; nothing is sent.

    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])
