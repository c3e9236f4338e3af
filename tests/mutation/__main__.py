"""Mutate every method file and see whether its tests notice.

    python tests/mutation [--sample N] [--quick] [--tests PATH ...] [--] [pipelines/rlvr/advantage/grpo.py ...]

Mutants are swapped into this process (`swap.py`), and the tests that run the changed function are called one after another,
the fastest first, until one fails. What no test notices must stand in survivors.yaml with a reason; prints a line per file
names entries that are out of date, and exits 1 on a survivor that is not listed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import resource
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

for folder in Path(__file__).resolve().parents[1:3]:
    sys.path.insert(0, str(folder))
os.environ.setdefault("HYPOTHESIS_PROFILE", "mutants")
os.chdir(folder)

from mutation.listed import Listed  # noqa: E402
from mutation.operators import Mutant, mutants  # noqa: E402
from mutation.session import ROOT, Check, with_checks  # noqa: E402
from mutation.swap import planted  # noqa: E402

TESTS = ["tests/pipelines/rlvr", "tests/pipelines/papers", "pipelines/rlvr", "pipelines/papers"]
LONGEST = 30.0
"""Tests that take longer (s) are left out."""
MEMORY = 12 * 2**30
"""Bytes of address space: a loop without end must not take the machine with it."""


def method_files() -> list[Path]:
    """The file of every RLVR method, in its slot or with its paper; what methods share, and the loop, are not mutated."""
    from pipelines.papers import PARTS

    papers = {
        target.partition(":")[0]
        for slot, parts in PARTS.items()
        if slot.startswith("rlvr.")
        for target in parts.values()
    }
    slots = {p for p in (ROOT / "pipelines" / "rlvr").glob("*/*.py") if p.stem[0] != "_" and p.parent.name != "common"}
    files = {ROOT / f"{module.replace('.', '/')}.py" for module in papers}
    folders = {p for file in files if not file.exists() for p in file.with_suffix("").glob("*.py")}
    return sorted(slots | {file for file in files if file.exists()} | folders)


def _inside(scope: str, mutant: Mutant) -> bool:
    """Whether a function that a test runs may see the change: it is in it, or in the body of its class or file."""
    return not mutant.scope or scope == mutant.scope or scope.startswith(f"{mutant.scope}.")


def sample(work: list[tuple[Path, Mutant]], count: int) -> list[tuple[Path, Mutant]]:
    """The same part of the mutants every time, spread over all files."""

    def draw(one: tuple[Path, Mutant]) -> str:
        return hashlib.sha256(f"{one[0].name} {one[1].change}".encode()).hexdigest()

    return sorted(sorted(work, key=draw)[:count], key=lambda one: (one[0], one[1].line))


class Run:
    """All mutants against the tests that touch them."""

    def __init__(self, work: list[tuple[Path, Mutant]], whole: bool, verbose: bool) -> None:
        self.work, self.whole, self.verbose = work, whole, verbose
        self.counts: dict[Path, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.unlisted: list[str] = []
        self.stale: list[str] = []

    def __call__(self, checks: list[Check]) -> int:
        """Measure the tests, try every mutant, print. Returns the exit code."""
        began = time.perf_counter()
        broken = [f"{c.item.nodeid}: {why}" for c in checks if (why := c.measure(300.0))]
        if broken:
            print("these fail without any mutant:", *broken, sep="\n  ")
            return 1
        checks = sorted((c for c in checks if c.seconds < LONGEST), key=lambda c: c.seconds)
        print(
            f"{len(self.work)} mutants, {len(checks)} tests, measured in {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        alive: dict[str, list[str]] = defaultdict(list)
        for path, mutant in self.work:
            killer = self._try(path, mutant, checks)
            name = str(path.relative_to(ROOT))
            self.counts[path][0] += 1
            self.counts[path][1] += bool(killer)
            if self.verbose:
                print(
                    f"  {name}:{mutant.line} {mutant.operator}: {mutant.change}  [{killer or 'SURVIVES'}]", flush=True
                )
            if not killer:
                alive[name].append(mutant.change)
        return self._tell(alive, time.perf_counter() - began)

    def _try(self, path: Path, mutant: Mutant, checks: list[Check]) -> str:
        """The test that notices, empty where none does."""
        module: Any = importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        fitting = [c for c in checks if any(file == str(path) and _inside(scope, mutant) for file, scope in c.touched)]
        try:
            with planted(module, mutant):
                for check in fitting:
                    if check.fails(10 + 10 * check.seconds):
                        return check.item.nodeid.split("::", 1)[-1]
        except AssertionError:
            raise
        except Exception as error:  # the file does not even load
            return f"import: {type(error).__name__}"
        return ""

    def _tell(self, alive: dict[str, list[str]], seconds: float) -> int:
        listed = Listed()
        print(f"{'file':40} {'mutants':>7} {'killed':>7} {'listed':>7}")
        for path, (count, killed, _) in sorted(self.counts.items()):
            name = str(path.relative_to(ROOT))
            told = [c for c in alive[name] if listed.reason(name, c)]
            print(f"{name:40} {count:7} {killed:7} {len(told):7}")
            self.unlisted += [f"{name}  {c}" for c in alive[name] if c not in told]
            if self.whole:
                self.stale += [f"{name}  {c}" for c in listed.files.get(name, {}) if c not in alive[name]]
        total, killed = (sum(c[i] for c in self.counts.values()) for i in (0, 1))
        for title, lines in (("survive without a reason:", self.unlisted), ("listed, but killed or gone:", self.stale)):
            if lines:
                print(title, *lines, sep="\n  ")
        listed_count = total - killed - len(self.unlisted)
        print(f"{killed} of {total} killed, {listed_count} survivors listed, {len(self.unlisted)} not, {seconds:.0f} s")
        sys.stdout.flush()
        return 1 if self.unlisted else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python tests/mutation", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="method files; none: all")
    parser.add_argument("--sample", type=int, help="so many mutants only, the same every time")
    parser.add_argument("--quick", action="store_true", help="without the tests that need a trained model")
    parser.add_argument(
        "--tests", nargs="+", default=TESTS, help="with these tests alone, while they are being written"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each mutant")
    chosen = parser.parse_args()
    files = [f.resolve() for f in chosen.files] or method_files()
    work = [(path, mutant) for path in files for mutant in mutants(path)]
    if chosen.sample:
        work = sample(work, chosen.sample)
    return with_checks(Run(work, not chosen.sample and not chosen.files, chosen.verbose), chosen.tests, chosen.quick)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.exit(main())
