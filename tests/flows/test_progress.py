"""Progress of stages where standard error is no terminal."""

from __future__ import annotations

from flows.progress import Lines


def test_a_line_a_minute(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("flows.progress.time.monotonic", lambda: now[0])
    lines = Lines()
    for second in range(0, 200):
        now[0] = second
        lines("sft", {} if second < 5 else {"done": second, "total": 400, "unit": "step", "rate": 1.0})
    lines("sft", None)
    lines("sft", None)
    said = [line.split(maxsplit=1)[1] for line in capsys.readouterr().err.splitlines()]
    assert [" ".join(line.split()) for line in said] == [
        "sft started",
        "sft 60 of 400 steps, 1.00 steps/s, 5 min 40 s left",
        "sft 120 of 400 steps, 1.00 steps/s, 4 min 40 s left",
        "sft 180 of 400 steps, 1.00 steps/s, 3 min 40 s left",
        "sft ended after 3 min 19 s",
    ]
