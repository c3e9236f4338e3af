"""The result of a pipeline run as a table: for terminals, Markdown and people."""

from __future__ import annotations

from typing import Any

from evaluation.samples import TRUNCATED
from tasks.tracking import record
from tasks.tracking.alarms import sentence

NAMES = {"base": "base", "sft": "SFT", "rlvr": "RLVR"}
LENGTHS = ("mean_length", "mean_tokens")
"""Metrics that are tokens and no shares."""
WORDS = dict.fromkeys(LENGTHS, "tokens an answer") | {TRUNCATED: "answers cut"}
"""What people read in place of a metric's name."""


def columns(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(task, metric) pairs worth a column: pass@1, the largest pass@k, mean lengths, answers cut; else what a task reports."""
    pairs: list[tuple[str, str]] = []
    for tasks in body["evaluation"].values():
        for task, metrics in tasks.items():
            passes = sorted((m for m in metrics if m.startswith("pass@")), key=lambda m: int(m.split("@")[1]))
            chosen = [*dict.fromkeys([*passes[:1], *passes[-1:]]), *[m for m in LENGTHS if m in metrics]]
            chosen = chosen or [m for m in metrics if m != TRUNCATED][:3]
            for metric in [*chosen, *([TRUNCATED] if TRUNCATED in metrics else [])]:
                if (task, metric) not in pairs:
                    pairs.append((task, metric))
    return pairs


def cell(value: dict[str, float] | None, metric: str) -> str:
    """A value with its interval.

    >>> cell({"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}, "pass@1")
    '50.0 % [40.0, 60.0]'
    """
    if value is None:
        return "–"
    if metric in LENGTHS:
        return f"{value['value']:.1f} [{value['low']:.1f}, {value['high']:.1f}]"
    return f"{100 * value['value']:.1f} % [{100 * value['low']:.1f}, {100 * value['high']:.1f}]"


def seconds(body: dict[str, Any], checkpoint: str) -> str:
    """Time its stage took."""
    stage = body["stages"].get(checkpoint)
    if stage is None:
        return "–"
    return f"{stage['seconds']:.0f} s" if stage["status"] == "ran" else "reused"


def rows(body: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one line a checkpoint."""
    pairs = columns(body)
    several = len({t for t, _ in pairs}) > 1
    named = [(t, WORDS.get(m, m)) for t, m in pairs]
    header = ["checkpoint", *[f"{t} {m}" if several else m for t, m in named], "stage time"]
    lines = [
        [NAMES.get(c, c), *[cell(tasks.get(t, {}).get(m), m) for t, m in pairs], seconds(body, c)]
        for c, tasks in body["evaluation"].items()
    ]
    return header, lines


def scores(body: dict[str, Any]) -> list[str]:
    """One line for each benchmark: what a reader looks at first, of every checkpoint.

    >>> cells = {"pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10}}
    >>> scores({"evaluation": {"base": {"sums": cells}, "sft": {"sums": cells}}})
    ['sums pass@1: base 50.0 % [40.0, 60.0], SFT 50.0 % [40.0, 60.0]']
    """
    evaluation = body["evaluation"]
    pairs = dict.fromkeys(pair for tasks in evaluation.values() for pair in record.headline(tasks))
    return [
        f"{task} {metric}: "
        + ", ".join(
            f"{NAMES.get(name, name)} {cell(tasks[task][metric], metric)}"
            for name, tasks in evaluation.items()
            if metric in tasks.get(task, {})
        )
        for task, metric in pairs
    ]


def differences(body: dict[str, Any]) -> list[str]:
    """One line per paired difference."""
    return [
        f"{task}: {step} {100 * d['value']:+.1f} points, 95 % interval [{100 * d['low']:+.1f}, {100 * d['high']:+.1f}], "
        f"paired over {d['n']} questions"
        for task, steps in body.get("differences", {}).items()
        for step, d in steps.items()
    ]


def alarms(stage: dict[str, Any]) -> list[str]:
    """One line per alarm of a stage's entry in the summary."""
    return [f"alarm at {sentence(alarm)}" for alarm in stage.get("alarms", [])]


def outcomes(stage: dict[str, Any]) -> list[str]:
    """What a stage's entry in the summary says that it has achieved, and its alarms, one line each."""
    return [*([stage["achieved"]] if stage.get("achieved") else []), *alarms(stage)]


def gate_lines(body: dict[str, Any]) -> list[str]:
    """What the recipe's gate has said, a line for its verdict and one for each reason.

    >>> gate_lines({"gate": {"verdict": "worse", "against": "champion version 3 of toy", "look": 7, "why": ["so it is"]}})
    ['gate: worse against champion version 3 of toy (look 7)', 'so it is']
    """
    gate = body.get("gate")
    if not gate:
        return []
    return [f"gate: {record.verdict(gate)}", *gate["why"]]


def markdown(body: dict[str, Any]) -> str:
    """The table as Markdown."""
    header, lines = rows(body)
    table = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    table += ["| " + " | ".join(line) + " |" for line in lines]
    stages = [f"- {name}: {line}" for name, stage in body["stages"].items() for line in outcomes(stage)]
    gate = [f"- {line}" for line in gate_lines(body)]
    return "\n".join([*table, "", *[f"- {d}" for d in differences(body)], *gate, *stages])


def narrow(header: list[str], lines: list[list[str]]) -> list[str]:
    """The table for terminals that are narrower than it: what was measured of a checkpoint stands below its name.

    >>> narrow(["checkpoint", "pass@1", "stage time"], [["SFT", "50.0 % [40.0, 60.0]", "12 s"]])
    ['SFT', '  pass@1 50.0 % [40.0, 60.0]', '  stage time 12 s']
    """
    told = []
    for name, *values in lines:
        told += [name, *(f"  {column} {value}" for column, value in zip(header[1:], values, strict=True))]
    return told


def show(body: dict[str, Any]) -> None:
    """Print the table; colours on terminals only."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    if not body["evaluation"]:
        return
    header, lines = rows(body)
    table = Table(title=f"{body['recipe']}, seed {body['seed']}", title_justify="left")
    for name in header:
        table.add_column(name, justify="left" if name == "checkpoint" else "right")
    for line in lines:
        table.add_row(*line)
    if console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width:
        console.print(table)
    else:  # columns as narrow as that would cut the values off
        for text in [f"{body['recipe']}, seed {body['seed']}", *narrow(header, lines)]:
            console.print(text, highlight=False)
    for text in differences(body):
        console.print(text, highlight=False)
