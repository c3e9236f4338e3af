"""A trainer's metrics as they are written: lines of JSON, lines of its output, event files of TensorBoard.

A reader gives (step, name, value) of what is new since it was asked last; NaN stands for a value that is no number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

Value = tuple[int, str, float]
STEP = ("step", "global_step", "training/global_step", "_step")
"""Keys of a line of JSON that say its step; the first that is there counts."""
_PAIR = re.compile(r"(\S+?):\s*(?:np\.float\d+\()?([+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf))\)?(?=\s|$)")
MAX_NAME = 250
"""Characters of a metric's name; MLflow takes no longer one."""


class Reader(Protocol):
    """Files that are read while they grow."""

    def new(self) -> list[Value]:
        """What has come since the last call."""


def tracked(name: str) -> str:
    """A name as MLflow takes it.

    >>> tracked("val-core/gsm8k/acc/mean@1")
    'val-core/gsm8k/acc/mean_1'
    """
    return re.sub(r"[^\w\-./ :]", "_", name)[:MAX_NAME]


def of_console(line: str) -> list[Value]:
    """The metrics of a line of output as verl writes it.

    >>> of_console("(TaskRunner pid=7) step:3 - actor/loss:0.5 - critic/score/mean:np.float64(1e-05) - x:nan")
    [(3, 'actor/loss', 0.5), (3, 'critic/score/mean', 1e-05), (3, 'x', nan)]
    >>> of_console("epoch 1: 3 of 4")
    []
    """
    match = re.search(r"(?:^|\s)step:(\d+) - ", line)
    if match is None:
        return []
    return [(int(match[1]), name, float(value)) for name, value in _PAIR.findall(line[match.end() :])]


def of_json(line: str) -> list[Value]:
    """The metrics of a line of JSON: `{"step": 3, "loss": 0.5}`, or `{"step": 3, "data": {...}}` as verl's file logger writes it.

    >>> of_json('{"step": 3, "data": {"loss": 0.5, "bad": null, "text": "x"}}'), of_json("no json")
    ([(3, 'loss', 0.5), (3, 'bad', nan)], [])
    """
    try:
        values = json.loads(line)
    except ValueError:
        return []
    if not isinstance(values, dict):
        return []
    step = next((values[name] for name in STEP if isinstance(values.get(name), int | float)), None)
    inner = data if isinstance(data := values.get("data"), dict) else values
    return [] if step is None else list(_scalars(int(step), inner))


def _scalars(step: int, values: Mapping[str, Any], above: str = "") -> Iterator[Value]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(step, value, f"{above}{name}/")
        elif value is None:
            yield step, f"{above}{name}", math.nan
        elif isinstance(value, int | float) and not isinstance(value, bool) and f"{above}{name}" not in (*STEP, "time"):
            yield step, f"{above}{name}", float(value)


class JsonFiles:
    """Lines of JSON in the files of a glob, which grow, begin again, and become more."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self.folder, self.pattern = folder, pattern
        self.offsets: dict[Path, int] = {}

    def new(self) -> list[Value]:
        """What whole lines have come."""
        values: list[Value] = []
        for path in sorted(self.folder.glob(self.pattern)):
            start = self.offsets.get(path, 0)
            with open(path, "rb") as file:
                if file.seek(0, 2) < start:
                    start = 0
                file.seek(start)
                text = file.read()
            lines = text[: text.rfind(b"\n") + 1]
            self.offsets[path] = start + len(lines)
            for line in lines.decode(errors="replace").splitlines():
                values += of_json(line)
        return values


class TensorBoard:
    """Scalars of the event files in the folders of a glob."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self.folder, self.pattern = folder, pattern
        self.loaders: dict[Path, Any] = {}

    def new(self) -> list[Value]:
        """What events have come."""
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray

        values: list[Value] = []
        for path in sorted(self.folder.glob(self.pattern)):
            if path not in self.loaders:
                self.loaders[path] = EventFileLoader(str(path))
            for event in self.loaders[path].Load():
                for each in event.summary.value:
                    number = make_ndarray(each.tensor) if each.HasField("tensor") else None
                    if number is not None and number.size == 1 and number.dtype.kind in "fiu":
                        values.append((int(event.step), each.tag, float(number)))
        return values


READERS: dict[str, Callable[[Path, str], Reader]] = {"jsonl": JsonFiles, "tensorboard": TensorBoard}
EVENTS = "**/events.out.tfevents.*"
"""Where TensorBoard's files are unless the recipe says so."""
