"""The HTML of `whetstone report`: what its template shows, as plain values."""

from __future__ import annotations

import json
import time
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from evaluation.pages import curves
from evaluation.pages.lineage import drawing
from evaluation.pages.page import render
from evaluation.pages.pictures import Pictures
from flows import table
from flows.report_data import Flips, side
from pipelines.data import marks, thumbnails
from tasks.tracking import benchmarks, links, record

HEAD = 160
"""Characters of a question that stand in its line."""
Span = tuple[str, str, str]
"""Text, style and title."""
Colours = tuple[str, str, str]
"""The property of the stylesheet, and the colours above and below zero."""
ADVANTAGE: Colours = ("a", "26,127,55", "207,34,46")
MISMATCH: Colours = ("m", "0,114,178", "213,94,0")
"""As `page.js` has them."""


def page(
    run: dict[str, Any], pairs: list[Flips], followed: dict[str, list[dict[str, Any]]], sampled: list[dict[str, Any]], stage: str
) -> str:  # fmt: skip
    """The whole file.

    Args:
        run: an entry of the index, with its summary.
        pairs: answers of two checkpoints.
        followed: uid → rollouts of the same problem at several steps.
        sampled: rollouts of some steps.
        stage: the name of the stage that the rollouts are of.
    """
    summary, stages = run["summary"], run["summary"]["stages"]
    shown = [*sampled, *chain.from_iterable(followed.values())]
    largest = max((abs(value) for row in shown for value in advantages(row)), default=0.0)
    mismatch = max((abs(value) for row in shown for value in mismatches(row)), default=0.0)
    pictures = Pictures(thumbnails.read(Path(entry["artifact"]) for entry in stages.values() if entry.get("artifact")))
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["started"]))
    parts = {
        "failed": summary.get("failed"),
        "alarms": [f"{name}: {line}" for name, entry in stages.items() for line in table.alarms(entry)],
        "scores": table.rows(summary) if summary.get("evaluation") else None,
        "drawn": _graph(stages),
        "learned": _learned(stages),
        "rewards": [f"{name}, {line}" for name, entry in stages.items() for line in entry.get("rewards", [])],
        "tasks": [_flips(task, pictures) for task in pairs],
        "followed": [_problem(uid, rows, stage, largest, pictures) for uid, rows in followed.items()],
        "sampled": _groups(sampled, stage, largest, pictures),
    }
    experiment = run.get("experiment_id")
    return render(
        "report.html", **parts, title=f"{run['name']} {run['run_id'][:8]}", sections=[(a, n) for p, a, n in SECTIONS if parts[p]],
        about=f"{summary.get('recipe', '')} {run['run_id']}, started {started}, {run['status']}, {summary.get('seconds') or 0:.0f} s",
        origin=_origin(run.get("tags") or {}),
        differences=[*(table.differences(summary) if parts["scores"] else []), *table.gate_lines(summary)],
        achieved=[f"{name}: {entry['achieved']}" for name, entry in stages.items() if entry.get("achieved")],
        stages=[*dict.fromkeys([*(task.task for task in pairs), *([stage] if shown else [])])], largest=largest, largest_mismatch=mismatch,
        scaled={"advantage": _scale(largest, ADVANTAGE), "mismatch": _scale(mismatch, MISMATCH)},
        link=links.run(experiment, run["run_id"]) if experiment else "",
    )  # fmt: skip


def _origin(tags: dict[str, str]) -> dict[str, str]:
    """What was set in the run, what has started it, and the address of its page in Prefect."""
    names = {
        "set": "whetstone.set",
        "trigger": record.TRIGGER,
        "deployment": record.DEPLOYMENT,
        "page": record.FLOW_RUN_URL,
    }
    return {name: tags.get(tag, "") for name, tag in names.items()}


SECTIONS = (
    ("failed", "failed", "What failed"), ("alarms", "alarms", "Alarms"), ("scores", "scores", "Scores"), ("drawn", "stages", "Stages"),
    ("learned", "curves", "Learning curves"), ("rewards", "rewards", "Rewards"), ("tasks", "answers", "Answers"),
    ("followed", "followed", "Same problem"), ("sampled", "rollouts", "Rollouts"),
)  # fmt: skip
"""What a part of the page is called in the code, in addresses, and in the contents."""


def _graph(stages: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """What each stage read, with times and what was reused."""
    if not any(entry.get("inputs") for entry in stages.values()):
        return None
    nodes = [
        {"id": name, "title": name, "about": _did(name, entry), "faults": [], "mark": "" if entry["status"] == "ran" else entry["status"]}
        for name, entry in stages.items()
    ]  # fmt: skip
    edges = [(name, source) for name, entry in stages.items() for source in dict.fromkeys(entry["inputs"].values())]
    return drawing({"nodes": nodes, "edges": [(a, b) for a, b in edges if b in stages]}, "Stages")


def _did(name: str, entry: dict[str, Any]) -> list[str]:
    kind = [] if entry["kind"] == name else [entry["kind"]]
    return [*kind, f"{entry['status']}, {entry['seconds']:.0f} s" if entry["status"] == "ran" else entry["status"]]


def _learned(stages: dict[str, dict[str, Any]]) -> list[tuple[str, list[Any]]]:
    """The curves of each stage that has some here, with its alarms."""
    drawn = []
    for name, entry in reversed(stages.items()):
        points = curves.of_artifact(Path(entry["artifact"])) if entry.get("artifact") else {}
        marks = [alarm["step"] for alarm in entry.get("alarms", [])]
        drawn.append((name, curves.drawn([{metric: [values] for metric, values in points.items()}], marks)))
    return [(name, charts) for name, charts in drawn if charts]


def _flips(task: Flips, pictures: Pictures) -> dict[str, Any]:
    counts = ", ".join(f"{name} {count}" for name, count in task.counts.items())
    shown = "" if len(task.pairs) == sum(task.counts.values()) else f" The first {len(task.pairs)} are below."
    return {
        "title": f"{task.task}: {task.before} → {task.after}",
        "about": f"Correct is a question with at least half of its answers correct: {counts}.{shown}",
        "before": task.before,
        "after": task.after,
        "pairs": [_pair(task.task, *pair, pictures) for pair in task.pairs],
    }


def _pair(task: str, before: benchmarks.Answer, after: benchmarks.Answer, pictures: Pictures) -> dict[str, Any]:
    what, question = side(before, after), before.question[-1]["content"]
    verdicts = {
        "gained": "gained flipped correct",
        "lost": "lost flipped incorrect",
        "both": "correct",
        "neither": "incorrect",
    }
    return {
        "side": what,
        "shown": " ".join(
            filter(None, [what if what in ("gained", "lost") else "", f"{_solved(before)} → {_solved(after)}"])
        ),
        "verdict": verdicts[what],
        "length": max(map(len, after.texts), default=0),
        "stage": task,
        "title": _head(pictures.words(question)),
        "question": pictures.html(question),
        "expected": before.expected or "–",
        "before": _answers(before),
        "after": _answers(after),
    }


def _solved(answer: benchmarks.Answer) -> str:
    """How many of the answers are correct; – where the task scores none."""
    return f"{sum(score >= 1 for score in answer.scores)}/{len(answer.scores)}" if answer.scores else "–"


def _head(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= HEAD else f"{line[: HEAD - 1]}…"


def _answers(answer: benchmarks.Answer) -> list[tuple[str, str, str]]:
    """Class, what is told, and text: each different text once, with how often it came and its score."""
    by_text: dict[str, list[float | None]] = {}
    scores = answer.scores if len(answer.scores) == len(answer.texts) else [None] * len(answer.texts)
    for text, score in zip(answer.texts, scores, strict=True):
        by_text.setdefault(text, []).append(score)
    lines = []
    for text, values in sorted(by_text.items(), key=lambda each: -len(each[1])):
        told = "" if values[0] is None else f", score {values[0]:.2f}"
        kind = "" if values[0] is None else _mark(values[0] >= 1)
        lines.append((kind, f"{len(values)}×{told}", text))
    return lines


def _mark(correct: bool | None) -> str:
    return "" if correct is None else "correct" if correct else "incorrect"


def _problem(uid: str, rows: list[dict[str, Any]], stage: str, largest: float, pictures: Pictures) -> dict[str, Any]:
    steps = [
        (step, [_rollout(row, largest, pictures) for row in rows if row["step"] == step])
        for step in sorted({r["step"] for r in rows})
    ]
    shown = f"steps {', '.join(str(step) for step, _ in steps)}"
    return _item(rows, stage, uid[:8], shown, pictures) | {"steps": steps}


def _groups(rows: list[dict[str, Any]], stage: str, largest: float, pictures: Pictures) -> list[dict[str, Any]]:
    """The rollouts of each prompt, by step."""
    groups = []
    ordered = sorted(rows, key=lambda row: row["step"])
    for (step, uid, _), group in groupby(ordered, key=lambda row: (row["step"], row.get("uid"), row.get("group"))):
        members = list(group)
        told = [row["score"] for row in members if row.get("score") is not None]
        mean = f"mean score {sum(told) / len(told):.3g} of {len(told)}" if told else ""
        item = _item(members, stage, f"step {step} · {str(uid)[:8]}", mean, pictures)
        groups.append(item | {"rows": [_rollout(row, largest, pictures) for row in members]})
    return groups


def _item(rows: list[dict[str, Any]], stage: str, name: str, shown: str, pictures: Pictures) -> dict[str, Any]:
    """What the line of some rollouts of a prompt tells, and what they are filtered by: correct where at least half of them are."""
    prompt = rows[0].get("prompt")
    judged = [bool(row["correct"]) for row in rows if row.get("correct") is not None]
    head = _head(pictures.words(prompt[-1]["content"])) if prompt else ""
    return {
        "title": f"{name} · {head}" if head else name,
        "shown": shown,
        "side": "",
        "verdict": _mark(2 * sum(judged) >= len(judged)) if judged else "",
        "length": max(len(str(row.get("text", ""))) for row in rows),
        "stage": stage,
        "prompt": [message | {"content": pictures.html(message.get("content") or "")} for message in prompt or []],
    }


def _rollout(row: dict[str, Any], largest: float, pictures: Pictures) -> dict[str, Any]:
    parts = [f"{name} {value:.3g}" for name, value in (row.get("components") or {}).items() if value is not None]
    score = "unscored" if row.get("score") is None else f"score {row['score']:.3g}"
    advantage = row.get("advantage")
    mark = f", advantage {advantage:+.3g}" if isinstance(advantage, int | float) else ""
    about = f"{row.get('status', '')}, {score}{mark}" + (f" ({', '.join(parts)})" if parts else "")
    return {"about": about, "mark": _mark(row.get("correct")), "turns": _turns(row, largest, pictures)}


def _turns(row: dict[str, Any], largest: float, pictures: Pictures) -> list[tuple[str, list[Span], str]]:
    """Who wrote, the text on the colour of its advantage, and length, advantage and mismatch of its parts where tokens differ."""
    turns, advantage = row.get("turns") or [["policy", row.get("text", "")]], row.get("advantage")
    if not row.get("tokens"):
        return [
            (who, [_span(text, advantage, largest) if who == "policy" else _unlearned(who, text, pictures)], "")
            for who, text in turns
        ]
    # The page's script colours them when they are looked at: an element for every token is too much for a phone.
    parts = [
        (sum(len(text) for text, *_ in run), *values)
        for values, run in groupby(row["tokens"], key=lambda token: token[1:])
    ]
    joined = "".join(text for text, *_ in row["tokens"])
    if "".join(text for _, text in turns) != joined:  # a token may hold half a letter
        turns = [["policy", joined]]
    told = []
    for (who, text), here in zip(turns, _cut([len(text) for _, text in turns], parts), strict=True):
        if who == "environment" and marks.marked(text):
            told.append((who, [_unlearned(who, text, pictures)], ""))
            continue
        span = _span(
            text.replace("\r", " "), advantage if who == "policy" else None, largest
        )  # a browser reads \r\n as one character
        told.append((who, [span], json.dumps(here, separators=(",", ":"))))
    return told


def _unlearned(who: str, text: str, pictures: Pictures) -> Span:
    """A text that nothing is learned from, with its images where an environment wrote it."""
    return pictures.html(text) if who == "environment" else text, "", ""


def _cut(sizes: list[int], parts: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """The parts of each of several texts that stand one behind the other, by characters.

    >>> _cut([3, 2], [(2, 0.5), (3, None)])
    [[(2, 0.5), (1, None)], [(2, None)]]
    """
    left, out = [*parts], []
    for size in sizes:
        here: list[tuple[Any, ...]] = []
        while size and left:
            length, *values = left.pop(0)
            here.append((min(size, length), *values))
            if length > size:
                left.insert(0, (length - size, *values))
            size -= here[-1][0]
        out.append(here)
    return out


def _span(text: str, value: float | None, largest: float, colours: Colours = ADVANTAGE) -> Span:
    if value is None or not largest:
        return text, "", ""
    name, above, below = colours
    return text, f"--{name}:rgba({above if value >= 0 else below},{0.45 * abs(value) / largest:.2f})", f"{value:+.4g}"


def _scale(largest: float, colours: Colours) -> list[Span]:
    shown = [part * largest for part in (-1, -0.5, 0, 0.5, 1)] if largest else []
    return [_span(f"{value:+.2g}", value, largest, colours) for value in shown]


def advantages(row: dict[str, Any]) -> list[float]:
    """The advantages that a row was logged with."""
    if row.get("tokens"):
        return [value for _, value, *_ in row["tokens"] if value is not None]
    return [row["advantage"]] if isinstance(row.get("advantage"), int | float) else []


def mismatches(row: dict[str, Any]) -> list[float]:
    """The mismatch of the parts of a row for which it was logged, in nats: the trainer's log-probability less the sampler's."""
    return [value for _, _, *mismatch in row.get("tokens") or [] for value in mismatch if value is not None]
