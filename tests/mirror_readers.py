"""What the trackers that runs are mirrored to have on this machine, read back from their own files."""

from __future__ import annotations

import json
import sqlite3
import struct
from pathlib import Path
from typing import Any, NamedTuple


class Held(NamedTuple):
    """A run of a tracker."""

    name: str
    group: str
    points: list[tuple[int, float, dict[str, float]]]
    """(step, seconds, values); no seconds where the tracker keeps none of ours."""
    params: dict[str, str]
    scores: dict[str, float]
    about: dict[str, str]
    exit_code: int | None = None


def records(path: Path) -> list[bytes]:
    """The records of a `.wandb` file: a log in LevelDB's format (blocks of 32 KB) behind a header of seven bytes."""
    raw, at, parts, whole = path.read_bytes(), 7, b"", []
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + 7])
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            whole.append(parts)
            parts = b""
    return whole


def wandb(home: Path) -> list[Held]:
    """Offline runs, one for each folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for path in sorted(home.glob("wandb/offline-run-*/run-*.wandb")):
        name = group = ""
        points, params, summary, code = [], {}, {}, None
        for raw in records(path):
            record = Record.FromString(raw)
            if record.HasField("run"):
                name, group = record.run.display_name, record.run.run_group
                params |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                values = {key: value for key, value in row.items() if not key.startswith("_") and key != "step"}
                points.append((row["step"], row["_timestamp"], values))
            elif record.HasField("summary"):
                changed = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.summary.update}
                summary |= {
                    key: value for key, value in changed.items() if "final" in key or "." in key or "pass" in key
                }
            elif record.HasField("exit"):
                code = record.exit.exit_code
        about = {key: value for key, value in summary.items() if isinstance(value, str)}
        scores = {key: value for key, value in summary.items() if key not in about}
        runs.append(Held(name, group, points, params, scores, about, code))
    return runs


def tensorboard(home: Path) -> list[Held]:
    """Runs by their folders."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    runs = []
    for folder in sorted({path.parent for path in home.glob("tensorboard/*/*/*/events.*")}):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        rows: dict[tuple[int, float], dict[str, float]] = {}
        scores = {}
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                if tag.startswith("final/") or "pass" in tag:
                    scores[tag] = event.value
                else:
                    rows.setdefault((event.step, event.wall_time), {})[tag] = event.value
                    assert len(events.Scalars(tag)) == len({e.step for e in events.Scalars(tag)}), "doubled"
        started = HParamsPluginData.FromString(
            events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        ).session_start_info.hparams
        texts = [tag for tag in events.Tags()["tensors"] if tag.startswith(("mlflow", "whetstone"))]
        about = {
            tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
            for tag in texts
        }
        points = [(step, seconds, values) for (step, seconds), values in rows.items()]
        params = {key: value.string_value for key, value in started.items()}
        runs.append(Held(folder.name.rpartition("-")[0], folder.parent.name, points, params, scores, about))
    return runs


def trackio(home: Path) -> list[Held]:
    """Runs of the local database in `trackio/`."""
    runs = []
    for path in home.glob("trackio/*.db"):
        base = sqlite3.connect(path)
        for run_id, name in base.execute("select distinct run_id, run_name from metrics").fetchall():
            (text,) = base.execute("select config from configs where run_id = ?", (run_id,)).fetchone()
            rows = base.execute("select step, metrics from metrics where run_id = ? order by id", (run_id,)).fetchall()
            told: list[tuple[int, float, dict[str, Any]]] = [(step, 0.0, json.loads(values)) for step, values in rows]
            last = told.pop()[2] if "whetstone.status" in told[-1][2] else {}
            about = {key: value for key, value in last.items() if isinstance(value, str)}
            scores = {key: value for key, value in last.items() if key not in about}
            config = json.loads(text)
            runs.append(Held(name.rpartition("-")[0], config["_Group"], told, config, scores, about))
        base.close()
    return runs


READERS = {"wandb": wandb, "tensorboard": tensorboard, "trackio": trackio}
