"""The HTML of `whetstone report`: one file, no script, nothing fetched."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

from evaluation.pages import page as html
from evaluation.pages.lineage import drawing
from flows import table
from flows.cli.report_data import Flips, side
from tasks.tracking import benchmarks

STYLE = """
td+td{border-left:1px solid var(--line)}.text{white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;font-size:13px}
.who{color:var(--muted);font-size:12px}.environment{background:var(--card)}
.rollout{border-left:3px solid var(--line);padding-left:.7rem;margin:.6rem 0}
.correct{border-color:var(--good)}.incorrect{border-color:var(--bad)}
.gained td:first-child{border-left:4px solid var(--good)}.lost td:first-child{border-left:4px solid var(--bad)}
summary{font-weight:600}.scale span{padding:0 .5rem}
"""
"""Beside what all pages share."""


def page(
    run: dict[str, Any], pairs: list[Flips], followed: dict[str, list[dict[str, Any]]], sampled: list[dict[str, Any]]
) -> str:
    """The whole file.

    Args:
        run: an entry of the index, with its summary.
        pairs: answers of two checkpoints.
        followed: uid → rollouts of the same problem at several steps.
        sampled: rollouts of some steps.
    """
    title = f"{run['name']} {run['run_id'][:8]}"
    shown = [*sampled, *chain.from_iterable(followed.values())]
    largest = max((abs(value) for row in shown for value in advantages(row)), default=0.0)
    parts = [
        f"<h1>{html.text(title)}</h1>",
        _scores(run),
        _stages(run["summary"]["stages"]),
        _rewards(run["summary"]["stages"]),
        *[_flips(task) for task in pairs],
        _followed(followed, largest),
        _sampled(sampled, largest),
    ]
    return html.page(title, [part for part in parts if part], STYLE)


def _scores(run: dict[str, Any]) -> str:
    summary = run["summary"]
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["started"]))
    about = f"<p class='muted'>{html.text(run['run_id'])}, started {started}, {html.text(run['status'])}</p>"
    reached = [f"{stage}: {entry['achieved']}" for stage, entry in summary["stages"].items() if entry.get("achieved")]
    if reached:
        about += "<h2>Training</h2><ul>" + "".join(f"<li>{html.text(line)}</li>" for line in reached) + "</ul>"
    alarms = [f"{stage}: {line}" for stage, entry in summary["stages"].items() for line in table.alarms(entry)]
    if alarms:
        about += "<h2>Alarms</h2><ul>" + "".join(f"<li>{html.text(line)}</li>" for line in alarms) + "</ul>"
    if not summary.get("evaluation"):
        return about
    header, lines = table.rows(summary)
    gains = "".join(f"<li>{html.text(text)}</li>" for text in table.differences(summary))
    return f"{about}{html.table(header, lines)}<ul>{gains}</ul>"


def _stages(stages: dict[str, dict[str, Any]]) -> str:
    """What each stage read, drawn from the last stage down to the data."""
    if not any(entry.get("inputs") for entry in stages.values()):
        return ""
    nodes = [
        {"id": name, "title": name, "about": [_did(name, entry)], "faults": []}
        for name, entry in reversed(stages.items())
    ]
    edges = [(name, source) for name, entry in stages.items() for source in dict.fromkeys(entry["inputs"].values())]
    drawn = drawing({"name": "stages", "nodes": nodes, "edges": [(a, b) for a, b in edges if b in stages]})
    return f"<h2>Stages</h2><div class='card scroll'>{drawn}</div>"


def _rewards(stages: dict[str, dict[str, Any]]) -> str:
    """What each stage was rewarded by, and what that is made from."""
    lines = [
        f"<li>{html.text(f'{name}, {line}')}</li>"
        for name, entry in stages.items()
        for line in entry.get("rewards", [])
    ]
    return f"<h2>What the rewards are made from</h2><ul>{''.join(lines)}</ul>" if lines else ""


def _did(name: str, entry: dict[str, Any]) -> str:
    kind = "" if entry["kind"] == name else f"{entry['kind']}, "
    return f"{kind}{entry['status']}, {entry['seconds']:.0f} s"


def _flips(task: Flips) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in task.counts.items())
    lines = []
    for before, after in task.pairs:
        cells = [
            _text(before.question[-1]["content"]),
            _text(before.expected or "–"),
            _answers(before),
            _answers(after),
        ]
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        lines.append(f"<tr class='{side(before, after)}'>{row}</tr>")
    columns = ("question", "expected", task.before, task.after)
    header = "".join(f"<th>{html.text(column)}</th>" for column in columns)
    shown = "" if len(task.pairs) == sum(task.counts.values()) else f" The first {len(task.pairs)} are below."
    return (
        f"<h2>{html.text(task.task)}: {html.text(task.before)} → {html.text(task.after)}</h2>"
        f"<p>Correct is a question with at least half of its answers correct: {counts}.{shown}</p>"
        f"<div class='scroll'><table><tr>{header}</tr>{''.join(lines)}</table></div>"
    )


def _answers(answer: benchmarks.Answer) -> str:
    """Each different text once, with how often it came and its score."""
    by_text: dict[str, list[float | None]] = {}
    scores = answer.scores if len(answer.scores) == len(answer.texts) else [None] * len(answer.texts)
    for text, score in zip(answer.texts, scores, strict=True):
        by_text.setdefault(text, []).append(score)
    lines = []
    for text, marks in sorted(by_text.items(), key=lambda item: -len(item[1])):
        mark = "" if marks[0] is None else f", score {marks[0]:.2f}"
        kind = "" if marks[0] is None else " correct" if marks[0] >= 1 else " incorrect"
        lines.append(f"<div class='rollout{kind}'><span class='who'>{len(marks)}×{mark}</span>{_text(text)}</div>")
    return "".join(lines)


def _text(text: str) -> str:
    return f"<div class='text'>{html.text(text) or '<span class=muted>(empty)</span>'}</div>"


def _followed(followed: dict[str, list[dict[str, Any]]], largest: float) -> str:
    if not followed:
        return ""
    parts = ["<h2>The same problem while the policy learned</h2>", _scale(largest)]
    for uid, rows in followed.items():
        parts.append(f"<details open><summary>{html.text(uid[:8])}</summary>{_prompt(rows[0])}")
        for step in sorted({row["step"] for row in rows}):
            group = [row for row in rows if row["step"] == step]
            parts.append(f"<h4>step {step}</h4>" + "".join(_rollout(row, largest) for row in group))
        parts.append("</details>")
    return "".join(parts)


def _sampled(rows: list[dict[str, Any]], largest: float) -> str:
    if not rows:
        return ""
    parts = ["<h2>Rollouts</h2>", _scale(largest)]
    for step in sorted({row["step"] for row in rows}):
        parts.append(f"<details><summary>step {step}</summary>")
        before: Any = None
        for row in [row for row in rows if row["step"] == step]:
            if (row.get("uid"), row.get("group")) != before:
                parts.append(_prompt(row))
            before = (row.get("uid"), row.get("group"))
            parts.append(_rollout(row, largest))
        parts.append("</details>")
    return "".join(parts)


def _prompt(row: dict[str, Any]) -> str:
    messages = row.get("prompt") or []
    return "".join(f"<p class='who'>{html.text(m['role'])}</p>{_text(m['content'])}" for m in messages)


def _rollout(row: dict[str, Any], largest: float) -> str:
    parts = [f"{name} {value:.3g}" for name, value in (row.get("components") or {}).items() if value is not None]
    score = "unscored" if row.get("score") is None else f"score {row['score']:.3g}"
    advantage = row.get("advantage")
    mark = f", advantage {advantage:+.3g}" if isinstance(advantage, int | float) else ""
    about = html.text(f"{row.get('status', '')}, {score}{mark}" + (f" ({', '.join(parts)})" if parts else ""))
    kind = "" if row.get("correct") is None else " correct" if row["correct"] else " incorrect"
    return f"<div class='rollout{kind}'><span class='who'>{about}</span><div class='text'>{_coloured(row, largest)}</div></div>"


def _coloured(row: dict[str, Any], largest: float) -> str:
    """The tokens on the colour of their advantage; what somebody else wrote stands on grey."""
    if row.get("tokens"):
        return "".join(_token(text, value, largest) for text, value in row["tokens"])
    if row.get("turns"):
        advantage = row.get("advantage")
        return "".join(
            f"<div class='{html.text(who)}'><span class='who'>{html.text(who)}</span> "
            f"{_token(text, advantage if who == 'policy' else None, largest)}</div>"
            for who, text in row["turns"]
        )
    return _token(row.get("text", ""), row.get("advantage"), largest)


def _token(text: str, value: float | None, largest: float) -> str:
    if value is None or not largest:
        return f"<span>{html.text(text)}</span>"
    colour = "26,127,55" if value >= 0 else "207,34,46"
    return f"<span style='background:rgba({colour},{0.6 * abs(value) / largest:.2f})' title='{value:+.4g}'>{html.text(text)}</span>"


def _scale(largest: float) -> str:
    if not largest:
        return "<p class='muted'>These rollouts were logged without advantages.</p>"
    steps = [_token(f"{share * largest:+.2g}", share * largest, largest) for share in (-1, -0.5, 0, 0.5, 1)]
    return f"<p class='scale'>advantage {''.join(steps)}</p>"


def advantages(row: dict[str, Any]) -> list[float]:
    """The advantages that a row was logged with."""
    if row.get("tokens"):
        return [value for _, value in row["tokens"] if value is not None]
    return [row["advantage"]] if isinstance(row.get("advantage"), int | float) else []
