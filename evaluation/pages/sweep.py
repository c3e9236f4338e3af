"""A sweep as one page: what came out in one sentence, scores, learning curves, the leaderboard, links to the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.base.names import DOT

if TYPE_CHECKING:
    from evaluation.pages.charts import Line


def page(
    body: dict[str, Any],
    cells: Sequence[dict[str, str]],
    *,
    curves: Sequence[dict[str, Any]] = (),
    links: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page.

    Args:
        body: what the sweep returned: recipe, task, confidence, leaderboard, shares.
        cells: the leaderboard's rows as text, by column.
        curves: for each row of the leaderboard metric → the points of each of its runs.
        links: id of a run → the address of its page in MLflow.
        notes: what else is to be told, such as runs that failed.
    """
    from evaluation.pages import charts
    from evaluation.pages import curves as learning
    from evaluation.pages.page import render

    board, title, start = body["leaderboard"], f"{body['recipe']}: {body['task']}", body.get("start")
    scored = [*board, start | {"name": _start(start)}] if start else board
    split, learned = None, learning.drawn(curves)
    if body.get("shares"):
        series = split_curves(body)
        drawn = charts.lines("score by the share of SFT", series, x_label="% of the budget spent on SFT", share=True)
        split = charts.Chart("score by the share of SFT", drawn, [line.name for line in series])
    sections = [
        ("scores", "Scores"),
        *([("split", "Split")] if split else []),
        *([("curves", "Learning curves")] if learned else []),
    ]
    return render(
        "sweep.html", title=title, sections=[*sections, ("leaderboard", "Leaderboard"), ("runs", "Runs")], conclusion=conclusion(body),
        percent=f"{100 * body['confidence']:g} %", split=split, curves=learned, names=[row["name"] for row in board],
        rows=[row | {"text": f"{_percent(row['mean'], row['low'], row['high'])} %"} for row in scored],
        least=min(row["low"] for row in scored), most=max(row["high"] for row in scored), start=start and start["mean"],
        header=list(cells[0]), cells=[list(row.values()) for row in cells], runs=_runs(scored, links or {}), notes=notes,
    )  # fmt: skip


def conclusion(body: dict[str, Any]) -> str:
    """What came out, in one sentence, by the rank intervals of the leaderboard."""
    first, *others = body["leaderboard"]
    level = f"{100 * body['confidence']:g} %"
    score = f"{_percent(first['mean'], first['low'], first['high'])} % of {body['task']}"
    if not others:
        return f"{first['name']} came to {score}; there is nothing to rank it against."
    rivals = [row["name"] for row in others if row["rank_low"] == 1]
    if first["rank_high"] == 1 and not rivals:
        return f"{first['name']} is best with {score}, apart from all {len(others)} others at {level}."
    shown = ", ".join(rivals[:4]) + (f" and {len(rivals) - 4} more" if len(rivals) > 4 else "")
    tied = f"{shown} may be first as well" if rivals else "its rank is not certain"
    equal = sum(row["mean"] == first["mean"] for row in others)
    if equal:
        companions = f"{equal} others" if equal > 1 else "one other"
        return f"{first['name']} and {companions} have the same mean, {score}, and no variant stands out at {level}: {tied}."
    return f"{first['name']} has the highest mean, {score}, but no variant stands out at {level}: {tied}."


def _start(start: Mapping[str, Any]) -> str:
    """What the checkpoint that all start from is called among the variants."""
    return f"start ({start['name']})"


def _runs(board: Sequence[dict[str, Any]], links: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """Variant, seed, run and the address of its page of each run."""
    return [
        (row["name"], "–" if seed is None else str(seed), str(run), links.get(str(run), ""))
        for row in board
        for seed, run in zip(row.get("seeds", []), row.get("runs", []), strict=True)
    ]


def split_curves(body: dict[str, Any]) -> list[Line]:
    """A line for each variant beside the split, its points in the order of the shares of SFT, in per cent."""
    from evaluation.pages.charts import Line

    points: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for row in body["leaderboard"]:
        share = body["shares"][row["name"]]
        beside = row["name"].rpartition(DOT)[0] or body["recipe"]
        points.setdefault(beside, []).append((share, row))
    lines = []
    for number, (name, rows) in enumerate(points.items()):
        rows.sort(key=lambda each: each[0])
        shares = [100 * share for share, _ in rows]
        mean, low, high = ([row[key] for _, row in rows] for key in ("mean", "low", "high"))
        lines.append(Line(name, shares, mean, low, high, number))
    return lines


def cells(rows: list[dict[str, Any]], start: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """The rows of a leaderboard as text by column: for terminals, pages, Prefect and Markdown; last the checkpoint that all start from."""
    rendered = []
    for row in rows:
        ends = f"{row['rank_low']}" if row["rank_low"] == row["rank_high"] else f"{row['rank_low']}-{row['rank_high']}"
        gain = "" if row["gain"] is None else _percent(row["gain"], row["gain_low"], row["gain_high"], "+")
        rendered.append({
            "rank": ends, "variant": row["name"], "score": _percent(row["mean"], row["low"], row["high"]),
            "by seed": " / ".join(f"{100 * v:.1f}" for v in row["by_seed"]), "gain": gain, "cut": _cut(row),
            "best": f"{100 * row['best']:.0f} %", "seconds": f"{row['cost'].get('seconds', 0):.0f}",
            "steps": f"{row['cost'].get('steps', 0):.0f}", "tokens": f"{row['cost'].get('tokens', 0):.0f}",
        })  # fmt: skip
    if start and rendered:
        score = _percent(start["mean"], start["low"], start["high"])
        known = {"rank": "–", "variant": _start(start), "score": score, "cut": _cut(start)}
        rendered.append(dict.fromkeys(rendered[0], "") | known)
    return rendered


def _cut(row: Mapping[str, Any]) -> str:
    return "–" if row.get("truncated") is None else f"{100 * row['truncated']:.1f} %"


def _percent(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} [{100 * low:.1f}, {100 * high:.1f}]"
