"""The process of a mirror, with a client that writes down what it is told."""

from __future__ import annotations

import json
import threading

import pytest

from tasks.tracking.mirror import clients, process
from tasks.tracking.mirror.feed import FEED


class Ledger:
    """A client whose tracker has three points already."""

    held = 3

    def __init__(self, job, sent):
        self.told = job["told"] = []

    def send(self, number, point):
        self.told.append((number, point["step"]))

    def finish(self, status, scores, about):
        self.told.append((status, scores, about))


def entry_of(folder, points):
    lines = [
        {"kind": "metrics", "from": "spool.jsonl", "after": i, "step": 2 * i, "time": 1, "values": {"a/pass_at_1": 0.5}}
        for i in range(points)
    ]
    (folder / FEED).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / process.JOB).write_text("{}")
    return folder


@pytest.mark.parametrize("ended", [True, False])
def test_what_the_tracker_has_is_not_sent_again(tmp_path, monkeypatch, ended):
    made = []
    monkeypatch.setitem(clients.CLIENTS, "ledger", lambda job, sent: made.append(Ledger(job, sent)) or made[-1])
    entry, orphaned = entry_of(tmp_path, 5), threading.Event()
    scores = {"a/pass_at_1": 0.5, "a/pass_at_1_low": 0.1}
    if ended:
        body = {"status": "FINISHED", "scores": scores, "about": {"x": "y"}}
        (entry / process.FINISH).write_text(json.dumps(body))
    else:
        orphaned.set()
    process.serve("ledger", entry, orphaned)
    told = made[0].told
    assert told[:2] == [(3, 6), (4, 8)] and len(told) == 3
    assert told[2] == (("FINISHED", {"a/pass_at_1_low": 0.1}, {"x": "y"}) if ended else ("KILLED", {}, {}))
    state = process.state_of(entry, "ledger")
    assert (state["sent"], state["done"]) == (5, ended), "an orphan goes on with the next run"


def test_a_damaged_state_starts_anew(tmp_path):
    process.state_file(tmp_path, "wandb").write_text("{half")
    assert process.state_of(tmp_path, "wandb") == {"sent": 0, "done": False, "problem": "", "failures": 0}
