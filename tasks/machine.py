"""What this machine has: memory, GPUs, cores, room on its disks. Asked of the system, not of torch, to stay quick."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its control group's where that is smaller."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total


def available_bytes() -> int:
    """Memory that could be had now without swapping, in the machine and in this process's control group."""
    import psutil

    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" is none
        lines = (group / "memory.stat").read_text().splitlines()
        cached = sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
        free = min(free, limit - int((group / "memory.current").read_text()) + cached)
    return free


@cache
def gpu_bytes() -> tuple[int, ...]:
    """Memory of every GPU that the driver lists and CUDA_VISIBLE_DEVICES leaves; empty without one."""
    if not shutil.which("nvidia-smi"):
        return ()
    ask = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    sizes = tuple(int(n) << 20 for n in listing.stdout.split() if n.isdigit()) if listing.returncode == 0 else ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return sizes
    return sizes[: len([part for part in visible.split(",") if part.strip() not in ("", "-1")])]


def cores() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))


def free_inodes(folder: Path) -> int | None:
    """Files that can still be made; None where the file system does not count them."""
    filesystem = os.statvfs(existing(folder))
    return filesystem.f_favail if filesystem.f_files else None


def gigabytes(size: float) -> str:
    """
    >>> gigabytes(2_340_000_000)
    '2.3 GB'
    """
    return f"{size / 1e9:.1f} GB"


def cpu_flags() -> set[str]:
    """What the processor can do, in Linux's words (`avx2`, `amx_bf16`); empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for flag in line.split(":", 1)[1].split()
    }
