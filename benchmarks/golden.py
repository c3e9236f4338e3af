"""Compare our methods with numbers that the papers' own code gave.

    python -m benchmarks.golden tests/golden

Every JSON file under the folder is one method, or one setting of it: inputs, and outputs of the official function (or, where
none was released, of another implementation, which the file then says). The format is described in tests/golden/README.md;
files that bear earlier names of slots and columns are read too. Outputs are compared in float64 within 1e-6, losses and
divergences once more in float32 within 1e-4, as training computes them. Rows that a file lists under `differs` are left out;
where it says what ours has there, that is compared instead. Prints a table and exits 1 on a difference.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import golden_cases

TIGHT, TRAINING = 1e-6, 1e-4
"""Bounds on the relative difference: in float64, and in float32 for what carries a gradient."""
SLOTS = {"keep": "filter", "compose": "replay", "bonus": "auxiliary_loss", "reduce": "loss_aggregation"}
COLUMNS = {
    "counted": "scored", "given": "teacher_forced", "fresh": "on_policy", "probe": "mc_value",
    "hidden_numbers": "hidden_stats", "logp_sampled": "logp_sampler", "entropy_top": "entropy_top_p",
}  # fmt: skip
KEYS = COLUMNS | {"keep": "filter", "reduce": "loss_aggregation"}
"""Names of earlier releases → today's; `bonus` and `compose` are never keys of a file, only slots."""
DIFFERENTIATED = ("objective", "divergence", "auxiliary_loss", "loss_aggregation")
"""Slots whose outputs are computed in float32 when the policy trains."""


@dataclass
class Comparison:
    """One file against our method."""

    path: Path
    method: str
    slot: str
    source: str
    cases: int = 0
    largest: float = 0.0
    """The largest relative difference in float64."""
    largest_single: float | None = None
    """The largest in float32, where the method is compared there."""
    differs: int = 0
    """Cases with rows that differ on purpose."""
    problems: list[str] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Whether every output agrees."""
        return not self.problems


def relative(ours: Any, golden: Any, rows: Tensor | None = None) -> float:
    """The largest |ours - golden| / max(|golden|, m), m the median of the golden absolute values that are not 0.

    Args:
        rows: bool [B], which rows count; None for all. m is of all rows.

    >>> relative([1.0, 2.0], [1.0, 4.0]), relative([[1.0], [9.0]], [[1.0], [2.0]], torch.tensor([True, False]))
    (0.5, 0.0)
    """
    left, right = torch.as_tensor(ours, dtype=torch.float64), torch.as_tensor(golden, dtype=torch.float64)
    if left.shape != right.shape:
        raise ValueError(f"shapes differ: ours {tuple(left.shape)}, golden {tuple(right.shape)}")
    nonzero = right.abs()[right != 0]
    floor = float(nonzero.median()) if len(nonzero) else 1.0
    difference = (left - right).abs() / right.abs().clamp(min=floor)
    difference = torch.where(left.isfinite(), difference, torch.inf)
    if rows is not None:
        difference = difference[rows]
    return float(difference.max()) if difference.numel() else 0.0


def compare_file(path: Path) -> Comparison:
    """Run our method on every case of a file."""
    body = _today(json.loads(path.read_text()))
    source = body["source"]
    by = source["kind"] if source["kind"].startswith("official") else f"third-party {source['repository']}"
    out = Comparison(path, body["method"], SLOTS.get(body["slot"], body["slot"]), by, len(body["cases"]))
    for number, case in enumerate(body["cases"]):
        ours = {**body.get("ours", {}), **case.get("ours", {})}
        case = {**case, "method": out.method, "slot": out.slot, "ours": ours}
        out.differs += bool(case.get("differs"))
        try:
            made = golden_cases.run(case, torch.float64)
            out.largest = max(out.largest, *_check(case, made, TIGHT, out.problems, f"case {number}"))
            if out.slot in DIFFERENTIATED:
                single = golden_cases.run(case, torch.float32)
                found = max(_check(case, single, TRAINING, out.problems, f"case {number} in float32"))
                out.largest_single = max(out.largest_single or 0.0, found)
        except Exception as error:  # a stranger's file: whatever it breaks, the other files are still compared
            where = traceback.extract_tb(error.__traceback__)[-1]
            out.problems.append(
                f"case {number}: {type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {error}"
            )
    return out


def _check(case: dict[str, Any], made: dict[str, Any], bound: float, problems: list[str], label: str) -> list[float]:
    """Differences of all outputs of a case; what exceeds the bound goes to the problems."""
    found = [0.0]
    for name, golden in case["outputs"].items():
        if name.startswith("also_") or skipped(case, name):
            continue
        if name not in made:
            problems.append(f"{label}: nothing of ours gives the output {name!r}")
            continue
        found.append(_difference(case, name, made[name], golden, label, problems, bound))
    return found


def _difference(
    case: dict[str, Any], name: str, ours: Any, golden: Any, label: str, problems: list[str], bound: float
) -> float:
    """The difference of one output without the rows that differ on purpose; those are held to `ours` where it is said."""
    if exact(golden):
        if plain(ours) != plain(golden):
            problems.append(f"{label}: {name} is {plain(ours)}, golden {plain(golden)}")
        return 0.0
    rows = compared_rows(case, name, golden)
    if rows is not None and not rows.any() and all("ours" not in d for d in case["differs"]):
        return 0.0
    worst = relative(ours, golden, rows)
    for differ in case.get("differs") or []:
        if "ours" in differ and isinstance(differ["rows"], list):
            expected = torch.full_like(torch.as_tensor(ours)[differ["rows"]], differ["ours"])
            worst = max(worst, relative(torch.as_tensor(ours)[differ["rows"]], expected))
    if not worst <= bound:
        problems.append(f"{label}: {name} differs by {worst:.2g} ({case['about']})")
    return worst


def _today(body: Any) -> Any:
    """The file with today's names of columns and slots, at every depth."""
    if isinstance(body, dict):
        return {KEYS.get(key, key): _today(value) for key, value in body.items()}
    return [_today(value) for value in body] if isinstance(body, list) and body and isinstance(body[0], dict) else body


def exact(golden: Any) -> bool:
    """Whether an output is compared for equality: booleans, ranks and names."""
    if isinstance(golden, list):
        return all(exact(value) for value in golden)
    return isinstance(golden, bool | int | dict)


def plain(value: Any) -> Any:
    """Nested lists of Python values."""
    return value.tolist() if isinstance(value, Tensor) else value


def skipped(case: dict[str, Any], name: str) -> bool:
    """Whether an output is not ours to give: the case says so in words, or another output stands for it."""
    replaced = name == "loss" and "loss_without_floor" in case["outputs"]
    return replaced or any(differ["rows"] == name for differ in case.get("differs") or [])


def compared_rows(case: dict[str, Any], name: str, golden: Any) -> Tensor | None:
    """bool [B], the rows of an output that are compared; None for all of them, and for an output without rows."""
    differs = case.get("differs") or []
    if not differs:
        return None
    if not isinstance(golden, list):
        return torch.zeros(1, dtype=torch.bool) if any(d["rows"] == "all" for d in differs) else None
    rows = torch.ones(len(golden), dtype=torch.bool)
    for differ in differs:
        if differ["rows"] == "all":
            rows[:] = False
        elif isinstance(differ["rows"], list):
            rows[differ["rows"]] = False
        elif words := re.fullmatch(r"(first|second) wording of problem (\d+)", differ["rows"]):
            rows = torch.ones(len(golden), len(golden[0]), dtype=torch.bool) if rows.ndim == 1 else rows
            rows[int(words[1] == "second"), int(words[2])] = False
    return rows


def compare(folder: Path) -> Iterator[Comparison]:
    """Every file under a folder, in order."""
    for path in sorted(folder.rglob("*.json")):
        yield compare_file(path)


def table(results: list[Comparison]) -> str:
    """The results as lines: method, source, cases, largest relative differences, verdict."""
    lines = [f"{'method':44} {'source':34} {'cases':>5} {'float64':>9} {'float32':>9}  verdict"]
    for one in results:
        single = "" if one.largest_single is None else f"{one.largest_single:9.1e}"
        verdict = "pass" if one.passes else "DIFFERS"
        if one.passes and one.differs:
            verdict += f" ({one.differs} with rows that differ on purpose)"
        name = f"{one.slot}/{one.path.stem}"
        lines.append(f"{name:44} {one.source[:34]:34} {one.cases:5} {one.largest:9.1e} {single:>9}  {verdict}")
        lines += [f"    {problem}" for problem in one.problems]
    lines.append(f"{sum(one.passes for one in results)} of {len(results)} pass")
    return "\n".join(lines)


def main() -> None:
    """Compare, print, and exit with 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with golden files, searched at every depth")
    folder = parser.parse_args().folder
    results = list(compare(folder))
    if not results:
        sys.exit(f"{folder}: no golden files there (*.json)")
    print(table(results))
    sys.exit(0 if all(one.passes for one in results) else 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
