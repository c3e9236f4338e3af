"""Start the process, or the processes, of a stage; end them all when one fails or when the owner goes.

    python -m pipelines.stage.launch pipelines.rlvr WORK

This process imports nothing heavy. It compares its parent with the one that `job.json` names before it starts
anything, so a stage whose pipeline was killed meanwhile never begins. Ranks on one machine meet through a
file in the work folder (`torch.distributed.FileStore`) and talk over the loopback interface: torchrun's store
listens on all interfaces and unpickles what anybody sends.

Several machines, on a network where every host is trusted, with the work folder on both:

    python -m pipelines.stage.launch pipelines.rlvr WORK --nodes 2 --node 0 --address 10.0.0.1:29400 --interface eth1
    python -m pipelines.stage.launch pipelines.rlvr WORK --nodes 2 --node 1 --address 10.0.0.1:29400 --interface eth1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from pipelines.base import owner
from pipelines.base.project import python

STORE = "WHETSTONE_STORE"
"""Environment variable of a rank: where ranks meet, `file:PATH` or `tcp:HOST:PORT`."""
AGAIN = 75
"""Exit code of a rank in which memory ran out in a pass: all ranks of the machine are started again, with passes half as large."""
MOST_STARTS = 20
"""Of the ranks; halved more often, no pass would have a token left."""
HALVED = "WHETSTONE_HALVED"
"""Environment variable of a rank: how often they were made half as large so."""
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def main(argv: list[str] | None = None) -> None:
    """Run a stage to its end and exit as it did: with its code, or by the signal that killed it."""
    arguments = _parser().parse_args(argv)
    folder = Path(arguments.work).resolve()
    if arguments.rank:
        owner.bind_rank()
        run(arguments.module, folder)
        return
    job = json.loads((folder / "job.json").read_text())
    meeting = folder / f"ranks-{os.getpid()}"

    def ranks(restarts: int) -> Iterator[subprocess.Popen[bytes]]:
        remove_stale(folder)
        halved = {HALVED: str(restarts)} if restarts else {}
        for environment in _environments(arguments, job, meeting):
            yield subprocess.Popen(
                rank_command(arguments.module, folder),
                env={**os.environ, **environment, **halved},
                stdin=subprocess.DEVNULL,
            )

    supervise(ranks, arguments.owner or job.get("parent_pid"), meeting)


def rank_command(module: str, folder: Path) -> list[str]:
    """The command of a rank."""
    return python("pipelines.stage.launch", "--rank", module, str(folder))


def run(module: str, folder: Path) -> None:
    """Be the process of a stage: `python -m module folder`."""
    sys.argv = [module, str(folder)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def supervise(
    start: Callable[[int], Iterator[subprocess.Popen[bytes]]], parent: int | None, meeting: Path | None = None
) -> NoReturn:
    """Wait for the ranks that `start` starts one after the other, and exit as they did; end them all when one fails.

    Where one asks for smaller passes (`AGAIN`), all are started again.

    Args:
        start: called once this process would notice its owner's end, and each time that ranks are started again, with how often they were.
        parent: pid of the owner, with which all end; None for a stage that was started by hand.
        meeting: a folder to remove at the end.
    """
    processes: dict[int, subprocess.Popen[bytes]] = {}

    def part() -> None:
        if meeting is not None:
            shutil.rmtree(meeting, ignore_errors=True)

    def stop(*_: Any) -> NoReturn:
        part()
        _kill(processes)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # whatever the ranks have started, and this process
        os._exit(owner.ORPHANED)

    signal.signal(signal.SIGTERM, stop)
    if parent is not None:
        owner.bind(int(parent), signal.SIGTERM, stop)
    try:
        for restarts in range(MOST_STARTS):
            for rank in start(restarts):
                processes[rank.pid] = rank
            status = _wait(processes)
            if os.waitstatus_to_exitcode(status) != AGAIN:
                break
            part()
            _reap(processes)
    except KeyboardInterrupt:
        _kill(processes)
        status = signal.SIGINT
    finally:
        part()
    _leave_as(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.stage.launch", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("module", help="such as pipelines.rlvr")
    parser.add_argument("work", help="a folder with job.json")
    parser.add_argument("--owner", type=int, help="pid of the process with which all end; default: that of job.json")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--nodes", type=int, default=1, help="machines that work together")
    parser.add_argument("--node", type=int, default=0, help="which of them this is, from 0")
    parser.add_argument("--address", help="HOST:PORT of the first machine, on the network that they share")
    parser.add_argument("--interface", help="this machine's interface on that network, such as eth1")
    return parser


def _environments(arguments: argparse.Namespace, job: dict[str, Any], meeting: Path) -> list[dict[str, str]]:
    """The environment variables of each rank of this machine."""
    section = job.get("settings", {}).get(job.get("stage"), {})
    count = int(job.get("processes", section.get("processes", 1)))
    size = count * arguments.nodes
    interface, store = LOOPBACK, f"file:{meeting / 'store'}"
    if arguments.nodes > 1:
        host = (arguments.address or "").rpartition(":")[0]
        if not arguments.interface or host in ("", "0.0.0.0", "::", "[::]", "*"):
            sys.exit(
                "several machines need --address HOST:PORT (not a wildcard) and --interface NAME: nothing listens elsewhere"
            )
        interface, store = arguments.interface, f"tcp:{arguments.address}"
    elif count > 1:
        meeting.mkdir(mode=0o700)
    first = arguments.node * count
    return [_world(first + local, size, local, count, store if size > 1 else "", interface) for local in range(count)]


def alone(parent: int | None = None) -> dict[str, str]:
    """The environment variables of a rank that is the only one.

    Args:
        parent: its parent's pid; this process's where it is None.
    """
    return _world(0, 1, 0, 1, "", LOOPBACK, parent)


def _world(
    rank: int, size: int, local: int, count: int, store: str, interface: str, parent: int | None = None
) -> dict[str, str]:
    return {
        owner.PARENT: str(parent or os.getpid()), STORE: store, "WORLD_SIZE": str(size), "RANK": str(rank),
        "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count),
        "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface,
    }  # fmt: skip


def _wait(ranks: dict[int, subprocess.Popen[bytes]]) -> int:
    """Wait status of the first rank that fails, after the others were ended; 0 where all ended well."""
    left = set(ranks)
    while left:
        pid, status = os.wait()
        if pid not in left:
            continue
        left.discard(pid)
        ranks[pid].returncode = os.waitstatus_to_exitcode(status)
        if status != 0:
            _kill(ranks)
            return status
    return 0


def _kill(ranks: dict[int, subprocess.Popen[bytes]]) -> None:
    """Kill the ranks that still run."""
    for rank in list(ranks.values()):
        if rank.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)


def _reap(ranks: dict[int, subprocess.Popen[bytes]]) -> None:
    """Wait until killed ranks are gone, with their locks and their memory, and forget them."""
    for rank in ranks.values():
        rank.wait()
    ranks.clear()


def _leave_as(status: int) -> NoReturn:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def start_again() -> None:
    """End this rank so that all are started again with smaller passes; nothing where ranks of other machines would not hear of it."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "1"):
        logging.shutdown()
        os._exit(AGAIN)


def halved() -> int:
    """How often memory ran out in a pass of a rank, so that all were started again with passes half as large."""
    return int(os.environ.get(HALVED, "0"))


def remove_stale(folder: Path) -> None:
    """Remove the rendezvous folders of launchers that were killed."""
    for path in folder.glob("ranks-*"):
        if owner.started(int(path.name.removeprefix("ranks-"))) is None:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
