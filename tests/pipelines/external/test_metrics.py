"""Metrics of files that grow, begin again and become more."""

from __future__ import annotations

import json

from pipelines.external.metrics import JsonFiles, TensorBoard


def test_lines_are_read_once_they_are_whole(tmp_path):
    reader = JsonFiles(tmp_path, "m*.jsonl")
    assert reader.new() == []
    file = tmp_path / "m1.jsonl"
    file.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert reader.new() == [(1, "loss", 2.0)]
    with open(file, "a") as handle:
        handle.write('ss": 1}\nno json\n')
    assert reader.new() == [(2, "loss", 1.0)]
    file.write_text('{"step": 3, "loss": 0.5}\n')
    (tmp_path / "m2.jsonl").write_text(json.dumps({"_step": 4, "eval": {"acc": 1}, "time": 9.0, "ok": True}) + "\n")
    assert reader.new() == [(3, "loss", 0.5), (4, "eval/acc", 1.0)]


def test_scalars_of_event_files(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    reader, writer = TensorBoard(tmp_path, "**/events.out.tfevents.*"), EventFileWriter(str(tmp_path / "run"))
    for step, value in ((1, 0.5), (2, 0.25)):
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="loss", simple_value=value)])))
        writer.flush()
        assert reader.new() == [(step, "loss", value)]
    writer.close()
