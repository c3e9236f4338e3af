"""A comparison as a page to show and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation.pages import svg, weights
from evaluation.pages.page import legend, page, table, text
from evaluation.samples import TRUNCATED


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
        for entry in benchmark["lost"]:
            yield f"  {loss(body, entry)}"
        for note in benchmark["notes"]:
            yield f"  note: {note}"
    yield from _picking_lines(body)
    yield from weights.lines(body)
    yield "\nCost, mean of a run"
    for cost in body["cost"]:
        shown = [f"{name} {value:,.0f}" for name, value in cost.items() if name != "arm"]
        yield f"  {cost['arm']}: {', '.join(shown)}"
    for note in body["notes"]:
        yield f"note: {note}"


def _setting_lines(body: dict[str, Any]) -> Iterator[str]:
    """A line per field that differs, and one for a stage that some do not have at all."""
    for stage, arms in body.get("missing_stages", {}).items():
        yield f"  {stage}: no such stage in {', '.join(arms)}"
    for row in body["settings"]:
        yield f"  {row['field']}: " + " | ".join("–" if v is None else v for v in row["values"])


def html(body: dict[str, Any], title: str = "Comparison") -> str:
    """The comparison as one self-contained page."""
    names = [arm["name"] for arm in body["arms"]]
    arms = legend([(name, svg.colour(i)) for i, name in enumerate(names)])
    parts = [f"<h1>{text(title)}</h1>", arms, *_verdict(body), *_scores(body, names), *_settings(body, names)]
    parts += [
        *_picking(body),
        *_curves(body, names),
        *weights.html(body),
        *_lost(body),
        *_cost(body),
        *_runs(body),
        *_method(body),
    ]
    return page(title, parts)


def _verdict(body: dict[str, Any]) -> Iterator[str]:
    rows = []
    for task, benchmark in body["benchmarks"].items():
        for test in benchmark["tests"]:
            arm = body["arms"][test["new"]]["name"]
            note = f"{points(test['value'])}  {test['verdict']}, {probability(test['p_holm'])}{' (Holm)' if test['family'] > 1 else ''}"
            label = f"{arm[:22]} · {task[:18]} {test['metric']}"
            rows.append(svg.Row(label, test["value"], test["low"], test["high"], note, svg.colour(test["new"])))
    if not rows:
        yield '<p class="muted">There is nothing to test: one recipe only, or no benchmark in common.</p>'
        return
    yield f"<h2>Against {text(body['arms'][0]['name'])}</h2>"
    for task, benchmark in body["benchmarks"].items():
        for test in benchmark["tests"]:
            if test["k"] == 1:
                kind = test["verdict"] if test["verdict"] in ("better", "worse") else "muted"
                yield f'<p class="verdict {kind}">{text(sentence(body, task, test))}</p>'
                yield f'<p class="note">{text(noticeable(body, test))}; {text(over_seeds(test))}</p>'
    yield f'<div class="card">{svg.forest("Differences with intervals", rows)}</div>'


def _scores(body: dict[str, Any], names: list[str]) -> Iterator[str]:
    for task, benchmark in body["benchmarks"].items():
        yield f"<h2>{text(task)}</h2>"
        yield f'<p class="muted">{benchmark["problems"]} problems that all were asked, {benchmark.get("answers", 0)} answers each</p>'
        yield from (f'<p class="note">{text(note)}</p>' for note in benchmark["notes"])
        curve, cards = benchmark["pass_at_k"], []
        if len(curve["k"]) > 1:
            series = [
                svg.Line(name, curve["k"], arm["mean"], arm["low"], arm["high"], svg.colour(i))
                for i, (name, arm) in enumerate(zip(names, curve["arms"], strict=True))
            ]
            chart = svg.lines(f"pass@k of {task}", series, x_label="k", log_x=True, share=True)
            cards.append(f'<div class="card"><h3>pass@k, with intervals over problems</h3>{chart}</div>')
        header = ["arm", *[m for m in (benchmark["scores"] or [{}])[0] if m.startswith("pass@")], "cut", "by seed"]
        rows = [
            [
                s["arm"],
                *[f"{points(s[m], False)} %" for m in header[1:-2]],
                f"{points(s[TRUNCATED], False)} %" if TRUNCATED in s else "–",
                ", ".join(f"{points(v, False)} %" for v in s["seeds"]),
            ]
            for s in benchmark["scores"]
        ]
        cards.append(f'<div class="card">{table(header, rows, range(1, len(header)))}</div>')
        yield f'<div class="grid2">{"".join(cards)}</div>'


def _picking_lines(body: dict[str, Any]) -> Iterator[str]:
    for task, about in body["picking"].items():
        yield f"\n{_picking_title(task, about)}"
        for picked in about["picked"]:
            shown = [f"{ratio(row['sharpe'])} (k = {row['k']})" for row in picked["top"]]
            yield f"  by {picked['by']}: SharpeRatio@k {', '.join(shown)}"


def _picking(body: dict[str, Any]) -> Iterator[str]:
    if not body["picking"]:
        return
    yield "<h2>Picking checkpoints by a cheap score</h2>"
    yield (
        '<p class="note">The k checkpoints that the cheap score ranks first, by what this benchmark gave them. SharpeRatio@k: what the '
        "best of them has over the best checkpoint that they were trained from, at least 0, in standard deviations of the k. A cheap "
        "score with a high one can choose what is worth evaluating; – where the k do not differ. Learning curves: mean of the last quarter."
        "</p>"
    )
    header = ["picked by", "k", "best", "worst", "mean", "std", "SharpeRatio@k"]
    for task, about in body["picking"].items():
        rows = [
            [picked["by"], str(row["k"]), *[points(row[name], False) for name in header[2:6]], ratio(row["sharpe"])]
            for picked in about["picked"]
            for row in picked["top"]
        ]
        yield f"<p>{text(_picking_title(task, about))}</p>{table(header, rows, range(1, len(header)))}"


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


def _settings(body: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield "<h2>What differs in the recipes</h2>"
    missing = body.get("missing_stages", {})
    yield from (f"<p>{text(stage)}: no such stage in {text(', '.join(arms))}.</p>" for stage, arms in missing.items())
    if not body["settings"]:
        yield "" if missing else '<p class="muted">Nothing but the seed.</p>'
        return
    rows = [[r["field"], *["–" if v is None else v for v in r["values"]]] for r in body["settings"]]
    yield table(["field", *names], rows)


def _curves(body: dict[str, Any], names: list[str]) -> Iterator[str]:
    charts = []
    for metric, bands in body["curves"].items():
        series = [
            svg.Line(name, band["steps"], band["mean"], band["low"], band["high"], svg.colour(i))
            for i, (name, band) in enumerate(zip(names, bands, strict=True))
        ]
        chart = svg.lines(metric, series)
        if chart:
            charts.append(f'<div class="card"><h3>{text(metric)}</h3>{chart}</div>')
    if charts:
        yield "<h2>Learning curves</h2>"
        yield '<p class="note">The line is the mean over seeds, the band reaches from the lowest to the highest seed.</p>'
        yield f'<div class="grid2">{"".join(charts)}</div>'


def _lost(body: dict[str, Any]) -> Iterator[str]:
    entries = [(task, e) for task, b in body["benchmarks"].items() for e in b["lost"]]
    if not entries:
        return
    yield "<h2>Solved before, lost now</h2>"
    for task, entry in entries:
        yield f"<p>{text(task)}: {text(loss(body, entry))}</p>"
        for problem in entry["problems"]:
            share = f"{100 * problem['share_before']:.0f} % of the answers before"
            yield (
                f'<details><summary>{text(problem["question"][:160])} <span class="muted">({share})</span></summary>'
                f"<h3>Problem</h3><pre>{text(problem['question'])}</pre><h3>Expected</h3><pre>{text(problem['target'])}</pre>"
                f"<h3>Before, correct</h3><pre>{text(problem['before'])}</pre>"
                f"<h3>Now</h3><pre>{text(problem['after'])}</pre></details>"
            )


def _cost(body: dict[str, Any]) -> Iterator[str]:
    names = list(dict.fromkeys(n for cost in body["cost"] for n in cost if n != "arm"))
    yield "<h2>Cost, mean of a run</h2>"
    rows = [[c["arm"], *[f"{c[n]:,.0f}" if n in c else "–" for n in names]] for c in body["cost"]]
    yield table(["arm", *names], rows, range(1, len(names) + 1))


def _runs(body: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Runs</h2>"
    rows = [
        [arm["name"], r["run_id"] or r["name"], str(r["seed"]), r["checkpoint"], r["artifact"]]
        for arm in body["arms"]
        for r in arm["runs"]
    ]
    yield table(["arm", "run", "seed", "checkpoint", "artifact"], rows)


def _method(body: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Notes</h2>"
    yield from (f'<p class="note">{text(note)}</p>' for note in body["notes"])
    yield (
        '<p class="note">Every test is paired by problem: a score test of the mean difference (with one answer to each problem '
        "McNemar's, with three more discordant pairs). An interval holds the differences that the test does not refuse, before Holm. "
        "Tests of pass@1 over all benchmarks and arms are one family, corrected by Holm; those of the largest pass@k are another. "
        "Seeds are averaged for each problem first, so these tests are about the checkpoints; "
        "Welch's test over seeds is about the methods.</p>"
    )
