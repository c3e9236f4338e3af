"""A comparison as a page to show and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.pages import charts, weights
from evaluation.pages import curves as learning
from evaluation.pages.page import render
from evaluation.pages.pictures import Pictures
from evaluation.samples import TRUNCATED
from pipelines.data import thumbnails


def points(value: float, signed: bool = True) -> str:
    """A share as points of 100.

    >>> points(0.0312), points(0.5, signed=False)
    ('+3.1', '50.0')
    """
    return f"{100 * value:{'+' if signed else ''}.1f}"


def probability(p: float) -> str:
    """A p-value.

    >>> probability(0.0421), probability(0.00003)
    ('p = 0.042', 'p < 0.0001')
    """
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def verdicts(body: dict[str, Any]) -> list[str]:
    """One sentence per test of pass@1."""
    lines = []
    for task, benchmark in body["benchmarks"].items():
        for test in benchmark["tests"]:
            if test["k"] == 1:
                lines.append(sentence(body, task, test))
    return lines


def sentence(body: dict[str, Any], task: str, test: dict[str, Any]) -> str:
    """A test in words."""
    old, new = body["arms"][test["old"]]["name"], body["arms"][test["new"]]["name"]
    level = f"{100 * body['confidence']:g} %"
    interval = f"{points(test['value'])} points [{points(test['low'])}, {points(test['high'])}] at {level}"
    corrected = tested(test)
    verb = {"better": "is better than", "worse": "is worse than"}.get(
        test["verdict"], "does not differ demonstrably from"
    )
    return (
        f"{task}, {test['metric']}: {new} {verb} {old}: {interval}, {corrected} ({test['test']}, {test['n']} problems)"
    )


def tested(test: dict[str, Any]) -> str:
    """The p-value that the interval goes with; then the one that the verdict goes by, where it is one of several tests."""
    several = f", {probability(test['p_holm'])} after Holm over {test['family']}" if test["family"] > 1 else ""
    return probability(test["p"]) + several


def noticeable(body: dict[str, Any], test: dict[str, Any]) -> str:
    """What the test could have seen."""
    level = f"with 80 % power at {100 * (1 - body['confidence']):g} %"
    if test["detectable"] > 1:
        return f"with so few problems hardly any difference shows {level}"
    shown = f"a difference of {points(test['detectable'], signed=False)} points would have shown {level}"
    return shown if test["better"] or test["worse"] else f"no problem told the two apart; {shown}"


def over_seeds(test: dict[str, Any]) -> str:
    """What the spread between seeds says of the method."""
    seeds = test.get("over_seeds")
    if seeds is None:
        return "too few seeds that differ: this is about these checkpoints, not about the methods"
    return (
        f"over seeds (Welch): {points(seeds['value'])} points [{points(seeds['low'])}, {points(seeds['high'])}], "
        f"{probability(seeds['p'])}"
    )


def at_equal_length(body: dict[str, Any], entry: dict[str, Any]) -> str:
    """What of a gain remains among answers of equal length, in words."""
    old, new = (body["arms"][entry[side]]["name"] for side in ("old", "new"))
    return (
        f"answers of {new} have {entry['new_length']:.0f} characters, those of {old} {entry['old_length']:.0f}: of {points(entry['gain'])} "
        f"points {points(entry['within'])} [{points(entry['low'])}, {points(entry['high'])}] remain among answers of about equal length "
        f"({points(entry['covered'], False)} % of them)"
    )


def loss(body: dict[str, Any], entry: dict[str, Any]) -> str:
    """A count of lost problems in words."""
    return (
        f"{body['arms'][entry['arm']]['name']} against {entry['reference']}: of {entry['solved']} problems solved at least once, "
        f"{entry['lost']} are never solved any more ({entry['expected']:.1f} expected by chance alone); {entry['gained']} gained"
    )


def lines(body: dict[str, Any]) -> Iterator[str]:
    """The comparison for a terminal."""
    for arm in body["arms"]:
        seeds = ", ".join(f"{r['name']} seed {r['seed']}" for r in arm["runs"])
        yield f"{arm['name']}: {arm['runs'][0]['checkpoint']} of {seeds}"
    differing = list(_setting_lines(body))
    yield from ["\nWhat differs", *differing] if differing else []
    for task, benchmark in body["benchmarks"].items():
        yield f"\n{task}, {benchmark['problems']} shared problems"
        for score in benchmark["scores"]:
            shown = [f"{m} {points(v, False)} %" for m, v in score.items() if m.startswith("pass@")]
            shown += [f"{points(score[TRUNCATED], False)} % of the answers cut"] if TRUNCATED in score else []
            yield f"  {score['arm']}: {', '.join(shown)}"
        for test in benchmark["tests"]:
            yield f"  {sentence(body, task, test).removeprefix(task + ', ')}"
            yield f"    {noticeable(body, test)}; {over_seeds(test)}"
        for entry in benchmark["length"]:
            yield f"  {at_equal_length(body, entry)}"
        for entry in benchmark["lost"]:
            yield f"  {loss(body, entry)}"
        for note in benchmark["notes"]:
            yield f"  note: {note}"
    yield from _picking_lines(body)
    yield from weights.lines(body)
    yield "\nCost, mean of a run"
    for cost in body["cost"]:
        shown = [f"{name} {value:,.0f}" for name, value in cost.items() if name != "arm"]
        yield f"  {cost['arm']}: {', '.join(shown) or 'not known'}"
    for note in body["notes"]:
        yield f"note: {note}"


def _setting_lines(body: dict[str, Any]) -> Iterator[str]:
    """A line per field that differs, and one for a stage that some do not have at all."""
    for stage, arms in body.get("missing_stages", {}).items():
        yield f"  {stage}: no such stage in {', '.join(arms)}"
    for row in body["settings"]:
        yield f"  {row['field']}: " + " | ".join("–" if v is None else v for v in row["values"])


def html(
    body: dict[str, Any],
    title: str = "Comparison",
    links: Mapping[str, str] | None = None,
    evaluations: Sequence[str] = (),
) -> str:
    """The comparison as one self-contained page.

    Args:
        links: id of a run → the address of its page in MLflow.
        evaluations: the folders of the compared answers, which have the pictures of their questions.
    """
    tasks = list(body["benchmarks"])
    sections = [
        ("verdict", "Verdict"),
        *((f"task-{i}", task) for i, task in enumerate(tasks)),
        ("settings", "What differs"),
    ]
    sections += [("picking", "Picking")] if body["picking"] else []
    curves = learning_curves(body["curves"])
    sections += [("curves", "Learning curves")] if curves else []
    sections += [("weights", "Weights")] if body.get("weights") else []
    sections += [("lost", "Lost")] if any(b["lost"] for b in body["benchmarks"].values()) else []
    sections += [("cost", "Cost"), ("runs", "Runs"), ("notes", "Notes")]
    rows = verdict_rows(body)
    reach = max([0.01, *(abs(v) for row in rows for v in (row["low"], row["high"]))])
    return render(
        "comparison.html", title=title, sections=sections, body=body, arms=[arm["name"] for arm in body["arms"]], rows=rows, reach=reach,
        tasks=[(task, benchmark, _pass_at_k(task, body), score_table(benchmark)) for task, benchmark in body["benchmarks"].items()],
        curves=curves, weights=[weights.page_part(pair) for pair in body.get("weights", [])], picking=_picking(body), **_tables(body),
        pictures=Pictures(thumbnails.read(map(Path, evaluations))),
        sentence=sentence, noticeable=noticeable, over_seeds=over_seeds, loss=loss, at_equal_length=at_equal_length, points=points,
        links=links or {},
        seeds=max(len(arm["runs"]) for arm in body["arms"]),
    )  # fmt: skip


def verdict_rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A row of the forest for every test."""
    rows = []
    for task, benchmark in body["benchmarks"].items():
        for test in benchmark["tests"]:
            holm = " (Holm)" if test["family"] > 1 else ""
            note = f"{points(test['value'])} {test['verdict']}, {probability(test['p_holm'])}{holm}"
            label = f"{body['arms'][test['new']]['name']} · {task} {test['metric']}"
            ends = {name: test[name] for name in ("value", "low", "high")}
            rows.append({"label": label, "note": note, "number": test["new"], **ends})
    return rows


def _pass_at_k(task: str, body: dict[str, Any]) -> list[charts.Chart]:
    curve = body["benchmarks"][task]["pass_at_k"]
    if len(curve["k"]) < 2:
        return []
    series = [
        charts.Line(arm["name"], curve["k"], band["mean"], band["low"], band["high"], i)
        for i, (arm, band) in enumerate(zip(body["arms"], curve["arms"], strict=True))
    ]
    chart = charts.lines(f"pass@k of {task}", series, x_label="k", log_x=True, share=True)
    return [charts.Chart("pass@k, with intervals over problems", chart)]


def score_table(benchmark: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the arms' scores."""
    metrics = [m for m in (benchmark["scores"] or [{}])[0] if m.startswith("pass@")]
    rows = [
        [
            s["arm"],
            *[f"{points(s[m], False)} %" for m in metrics],
            f"{points(s[TRUNCATED], False)} %" if TRUNCATED in s else "–",
            ", ".join(f"{points(v, False)} %" for v in s["seeds"]),
        ]
        for s in benchmark["scores"]
    ]
    return ["arm", *metrics, "cut", "by seed"], rows


def _picking_lines(body: dict[str, Any]) -> Iterator[str]:
    for task, about in body["picking"].items():
        yield f"\n{_picking_title(task, about)}"
        for picked in about["picked"]:
            shown = [f"{ratio(row['sharpe'])} (k = {row['k']})" for row in picked["top"]]
            yield f"  by {picked['by']}: SharpeRatio@k {', '.join(shown)}"


def _picking(body: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Title and rows of each benchmark: picked by, k, best, worst, mean, std, SharpeRatio@k."""
    return [
        (
            _picking_title(task, about),
            [
                [
                    picked["by"],
                    str(row["k"]),
                    *[points(row[n], False) for n in ("best", "worst", "mean", "std")],
                    ratio(row["sharpe"]),
                ]
                for picked in about["picked"]
                for row in picked["top"]
            ],
        )
        for task, about in body["picking"].items()
    ]


def _picking_title(task: str, about: dict[str, Any]) -> str:
    start = points(about["start"], False)
    return (
        f"{task}, {about['checkpoints']} checkpoints to pick from; the best that they were trained from has {start} %"
    )


def ratio(value: float | None) -> str:
    """A SharpeRatio@k.

    >>> ratio(2.127624), ratio(None)
    ('2.13', '–')
    """
    return "–" if value is None else f"{value:.2f}"


def learning_curves(curves: dict[str, list[dict[str, Any]]]) -> list[charts.Chart]:
    """A chart for each metric that has a finite point.

    Args:
        curves: metric → a band for each arm: steps, mean, low, high.
    """
    drawn = []
    for metric, bands in curves.items():
        series = [charts.Line("", b["steps"], b["mean"], b["low"], b["high"], i) for i, b in enumerate(bands)]
        stage, colon, name = metric.rpartition(": ")
        title = f"{stage}{colon}{learning.title_of(name)}"
        drawn.append(charts.Chart(title, charts.lines(title, series, share=learning.is_share(name))))
    return [chart for chart in drawn if chart.svg]


def _tables(body: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Rows of the tables of settings, costs (the header first) and runs."""
    costs = list(dict.fromkeys(n for cost in body["cost"] for n in cost if n != "arm"))
    return {
        "settings": [[r["field"], *["–" if v is None else v for v in r["values"]]] for r in body["settings"]],
        "cost": [
            ["arm", *costs],
            *([c["arm"], *[f"{c[n]:,.0f}" if n in c else "–" for n in costs]] for c in body["cost"]),
        ],
        "runs": [
            [arm["name"], r["run_id"] or r["name"], str(r["seed"]), r["checkpoint"], r["artifact"]]
            for arm in body["arms"]
            for r in arm["runs"]
        ],
    }
