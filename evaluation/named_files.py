"""Which of our benchmarks read a file that the recipe names, in the columns of other projects, and what else they take from a task."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.distribution import install_hint
from pipelines.base.project import page
from pipelines.data.files import data_files


@dataclass(frozen=True)
class Reads:
    """What a benchmark takes from the recipe's task."""

    module: str
    """Defines `documents(path, **options)`, and `companions(path)` where more files belong to the one that is named."""
    verifiers: frozenset[str]
    """Those that judge its answers."""
    needs: bool = False
    """Without `data` it has no questions."""
    fixed: bool = False
    """Its rows are its own, so that it takes no `data`."""
    dated: bool = False
    """Its rows say when they were published."""


_PROGRAMS, _CALLS, _INSTRUCTIONS = frozenset({"python"}), frozenset({"tool_calls"}), frozenset({"instructions"})
BENCHMARKS = {
    "livecodebench": Reads("evaluation.livecode", _PROGRAMS, needs=True, dated=True),
    "livecode_small": Reads("evaluation.livecode", _PROGRAMS, fixed=True, dated=True),
    "bfcl": Reads("evaluation.bfcl", _CALLS, needs=True),
    "bfcl_prompt": Reads("evaluation.bfcl", _CALLS, needs=True),
    "bfcl_small": Reads("evaluation.bfcl", _CALLS, fixed=True),
    "bfcl_small_prompt": Reads("evaluation.bfcl", _CALLS, fixed=True),
    "ifeval": Reads("evaluation.ifeval", _INSTRUCTIONS),
    "ifeval_small": Reads("evaluation.ifeval", _INSTRUCTIONS, fixed=True),
}
"""Ours that read files in columns of other projects."""


IFEVAL_LIBRARIES = ("langdetect", "immutabledict", "nltk")
"""What the instructions of lm-eval's own tasks of IFEval import; ours need the first, for languages."""


def refusal(name: str, *, data: str | None, dated: bool) -> tuple[str, str, str] | None:
    """Field, problem and fix where a benchmark does not take what a task gives it; None where it does.

    >>> refusal("sums", data="rows.jsonl", dated=False)[0], refusal("livecodebench", data=None, dated=True)[1]
    ('data', 'livecodebench has no rows of its own')
    """
    reads = BENCHMARKS.get(name)
    if data is not None and (reads is None or reads.fixed):
        taking = sorted(each for each, its in BENCHMARKS.items() if not its.fixed)
        return "data", f"{name} brings its own rows", f"Leave `data` out; {', '.join(taking)} read a file."
    if data is None and reads is not None and reads.needs:
        return "data", f"{name} has no rows of its own", f"Name the file: data: FILE.jsonl ({page('evaluation')})."
    if dated and (reads is None or not reads.dated):
        taking = sorted(each for each, its in BENCHMARKS.items() if its.dated)
        return "start_date", f"the rows of {name} have no date", f"Leave dates out; {', '.join(taking)} have them."
    return None


def missing(name: str, data: str | None) -> tuple[str, str] | None:
    """Problem and fix where a benchmark needs libraries of an extra that are not here: IFEval from the hub, ours or lm-eval's own.

    The rows of a file say themselves whether they do.
    """
    if name != "ifeval" and ("ifeval" not in name or name in BENCHMARKS):
        return None
    wanted = ("langdetect",) if name == "ifeval" else IFEVAL_LIBRARIES
    lacking = [library for library in wanted if data is None and importlib.util.find_spec(library) is None]
    return (f"{name} needs {' and '.join(lacking)} (extra: ifeval)", install_hint("ifeval")) if lacking else None


def files_of(name: str, data: str) -> list[Path]:
    """Every file that a benchmark reads for this `data`; empty where it is not there."""
    path = only(data)
    if path is None or name not in BENCHMARKS:
        return []
    companions: Callable[[Path], list[Path]] | None = getattr(
        importlib.import_module(BENCHMARKS[name].module), "companions", None
    )
    return [path, *(companions(path) if companions is not None else [])]


def only(data: str) -> Path | None:
    """The one file that a path or a glob names; None where there is none or several."""
    files = data_files(data)
    return files[0] if len(files) == 1 else None
