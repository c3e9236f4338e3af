"""Commits: everything a run needs to go on, in one folder that appears by one rename."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from pipelines.base.errors import ModelError
from pipelines.base.files import atomic_folder, file_sha256, read_json, write_atomic
from pipelines.engine.adamw import first_row, local
from pipelines.stage.report import HANDED_ON, Report

LATEST, STATE, META = "LATEST.json", "state.pt", "meta.json"
SHARDED = ("model", "optimizer")
"""What of a state is sharded where several processes train."""


ROWS, FIRST, SHAPE = "rows of a shard", "first row", "shape"
"""Fields that stand for a sharded tensor in a file."""


class Part(Protocol):
    """What of a commit this process writes, where several do (`sharded_commits`)."""

    rank: int

    def building(self, final: Path) -> contextlib.AbstractContextManager[Path]:
        """The folder that all processes fill, and that gets its name when the block succeeds."""

    def digests(self, place: Path) -> dict[str, str]:
        """File → digest of the others' parts, once they are there."""

    def write(self, final: Path, state: dict[str, Any]) -> None:
        """Write this process's part; not the first one's."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """A tensor of a commit in the rows that each process has written."""

    shape: torch.Size
    parts: list[tuple[int, torch.Tensor]]
    """First row and rows; some may have none."""

    def rows(self, start: int, count: int) -> torch.Tensor:
        """A copy of some rows; of no more than these is there a copy."""
        return torch.cat([part[max(0, start - first) : max(0, start + count - first)] for first, part in self.parts])


def save(
    folder: Path,
    step: int,
    state: dict[str, Any],
    *,
    keep_last: int = 2,
    keep_best: int = 0,
    score: float | None = None,
    keep_good: int = 0,
    good: bool = False,
    branch: tuple[int, int] = (0, 0),
    part: Part | None = None,
) -> None:
    """Commit a step. A crash at any instant leaves the previous commit or this one, never a part.

    Args:
        folder: where the commits live.
        step: steps done.
        state: tensors, int, float, str, lists and dicts.
        keep_last: newest commits kept on disk.
        keep_best: commits with the highest score kept beside them.
        score: higher is better; None is never among the best.
        keep_good: newest commits kept that are marked `good`.
        good: nothing was found wrong with the run up to here.
        branch: how often the run has gone back, and the step that it went back to last; commits after that step from before the last
            rollback are removed.
        part: where several processes write their shards: this is the first one's, which waits for the others'.
    """
    name = _name(step, branch)
    with atomic_folder(folder / name) if part is None else part.building(folder / name) as building:
        torch.save(state, building / STATE)
        meta = {"step": step, "sha256": file_sha256(building / STATE), "score": score, "good": good}
        if part is not None:
            meta["parts"] = part.digests(building)
        write_atomic(building / META, json.dumps(meta))
    write_atomic(folder / LATEST, f'{{"name": "{name}", "step": {step}}}')
    on_disk = _newest(folder)
    newest = [path for path in on_disk if _place(path)[0] >= branch[0] or _place(path)[1] <= branch[1]]
    good_ones = [path for path in newest if keep_good and _meta(path).get("good")]
    retained = {*newest[:keep_last], *_ranked(newest)[:keep_best], *good_ones[:keep_good]}
    for old in on_disk:
        if old not in retained:
            shutil.rmtree(old, ignore_errors=True)
    for scrap in folder.glob(".step-*"):
        shutil.rmtree(scrap, ignore_errors=True)


def _name(step: int, branch: tuple[int, int]) -> str:
    """Of a commit's folder."""
    return f"step-{step:08d}" + (f"-{branch[0]}" if branch[0] else "")


def _place(path: Path) -> tuple[int, int]:
    """(rollbacks before it, step) of a commit: the later in the run, the larger."""
    _, step, *branch = path.name.split("-")
    return (int(branch[0]) if branch else 0, int(step))


def _newest(folder: Path) -> list[Path]:
    """Commits, the last one made first."""
    return sorted(folder.glob("step-*"), key=_place, reverse=True)


def _ranked(commits: list[Path]) -> list[Path]:
    """Commits that have a score, the best first, the newer of equals first."""
    scored = [(meta["score"], path.name, path) for path in commits if (meta := _meta(path)).get("score") is not None]
    return [path for *_, path in sorted(scored, reverse=True)]


def _meta(path: Path) -> dict[str, Any]:
    meta = read_json(path / META)
    return meta if isinstance(meta, dict) else {}


def _read(path: Path) -> dict[str, Any] | None:
    meta = _meta(path)
    if not (path / STATE).exists() or file_sha256(path / STATE) != meta.get("sha256"):
        return None
    with contextlib.suppress(RuntimeError, EOFError):
        if "parts" in meta:
            return _read_parts(path, meta["parts"])
        return torch.load(path / STATE, map_location="cpu", weights_only=True)
    return None


def _read_parts(path: Path, parts: Mapping[str, str]) -> dict[str, Any] | None:
    """A commit whose sharded tensors are `Pieces` in mapped files; None where a part is not the one that was committed."""
    if not all((path / name).exists() and file_sha256(path / name) == digest for name, digest in parts.items()):
        return None
    files = [path / name for name in (STATE, *parts)]
    states = [torch.load(file, map_location="cpu", weights_only=True, mmap=True) for file in files]
    own = {k: each_tensor(v, torch.Tensor.clone) for k, v in states[0].items() if k not in SHARDED}
    return own | {key: _joined([state[key] for state in states]) for key in SHARDED}


def _joined(values: list[Any]) -> Any:
    """A value of the first process with what the others have of its sharded tensors."""
    first = values[0]
    if isinstance(first, dict) and ROWS in first:
        return Pieces(torch.Size(first[SHAPE]), [(value[FIRST], value[ROWS]) for value in values])
    if isinstance(first, dict):
        return {key: _joined([value[key] for value in values]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined(list(items)) for items in zip(*values, strict=True))
    return first.clone() if isinstance(first, torch.Tensor) else first


def load(folder: Path) -> dict[str, Any] | None:
    """The newest complete commit, or None; damaged ones are skipped."""
    states = map(_read, _newest(folder))
    return next((state for state in states if state is not None), None)


def last_good(folder: Path) -> dict[str, Any] | None:
    """The newest complete commit that is marked good, or None."""
    states = (_read(path) for path in _newest(folder) if _meta(path).get("good"))
    return next((state for state in states if state is not None), None)


def best(folder: Path) -> dict[str, Any] | None:
    """The complete commit with the highest score, or None."""
    states = map(_read, _ranked(list(folder.glob("step-*"))))
    return next((state for state in states if state is not None), None)


def selected(
    folder: Path,
    ended: Mapping[str, Any],
    wanted: str,
    report: Report,
    about: Callable[[dict[str, Any]], dict[str, Any]],
) -> dict[str, Any] | None:
    """The commit whose weights a stage hands on, which an event names; None for the present weights.

    Args:
        ended: the alarm that ended the run, whose weights are then the last good ones; empty where none did.
        wanted: `checkpoint_selection`.
        about: of the best commit, what the event says.
    """
    if ended:
        state = last_good(folder)
        step = state["step"] if state is not None else 0
        report.event("the last good weights are handed on", code=HANDED_ON, step=step, ended=ended["step"])
        return state
    state = best(folder) if wanted == "best" else None
    if state is not None:
        report.event("the best weights are handed on", code=HANDED_ON, step=state["step"], **about(state))
    return state


class Committer:
    """Writes commits while training goes on: the state is copied at once, the disk is waited for at the next commit.

    Args:
        folder: where the commits live.
        keep_last, keep_best, keep_good: as in `save`.
        written: called with the state's `cursor` when its commit is on the disk.
        part: what of each commit this process writes, where several do; called by all of them in each `submit`.
    """

    def __init__(
        self, folder: Path, *, keep_last: int, keep_best: int, written: Callable[[int], None], keep_good: int = 0,
        part: Callable[[], Part | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.part = part
        self.folder, self.keep_last, self.keep_best, self.written = folder, keep_last, keep_best, written
        self.keep_good = keep_good
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(
        self,
        step: int,
        state: dict[str, Any],
        score: float | None = None,
        *,
        good: bool = False,
        branch: tuple[int, int] = (0, 0),
    ) -> None:
        """Commit soon; arguments as in `save`. Raises what the previous write failed with, such as OSError for a full disk."""
        self.wait()
        part = self.part()
        copied = each_tensor(state, _own_copy)

        def write() -> None:
            try:
                if part is not None and part.rank > 0:
                    part.write(self.folder / _name(step, branch), copied)
                    return
                save(
                    self.folder, step, copied, keep_last=self.keep_last, keep_best=self.keep_best, score=score,
                    keep_good=self.keep_good, good=good, branch=branch, part=part,
                )  # fmt: skip
                self.written(copied["cursor"])
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=write, name="commit", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when everything submitted is on the disk; raises what a write failed with."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def each_tensor(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Nested dicts, lists and tuples with every tensor changed, everything else as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each_tensor(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(each_tensor(item, change) for item in value)
    return value


def _own_copy(tensor: torch.Tensor) -> Any:
    """On the CPU and with memory of its own: the original changes with the next step. Of a sharded tensor this process's rows."""
    if isinstance(tensor, DTensor):
        rows = local(tensor.detach()).to("cpu", copy=True)
        return {ROWS: rows, FIRST: first_row(tensor), SHAPE: list(tensor.shape)}
    return tensor.detach().to("cpu", copy=True)


def trainable_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What training changes: all weights, or the adapters alone under LoRA."""
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    return {n: t for n, t in model.state_dict().items() if n in names}


def check_names(model: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Refuse a commit that holds other weights than those that are trained.

    Raises:
        ModelError: says how many, and names some.
    """
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    lacking, foreign = sorted(trained - set(state)), sorted(set(state) - trained)
    if lacking or foreign:
        raise ModelError(
            f"the commit does not fit the model: {len(lacking)} weights are not in it, {len(foreign)} are not trained here "
            f"({', '.join([*lacking, *foreign][:3])})",
            fix="Run the stage with --fresh.",
        )
