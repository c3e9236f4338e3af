"""A sweep as one page: the leaderboard, and what each way to split a budget came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluation.pages import page as frame
from evaluation.pages import svg


def page(body: dict[str, Any], cells: Sequence[dict[str, str]]) -> str:
    """The page.

    Args:
        body: what the sweep returned: recipe, task, confidence, leaderboard, shares.
        cells: the leaderboard's rows as text, by column.
    """
    percent = f"{100 * body['confidence']:g} %"
    parts = [f"<h1>{frame.text(body['recipe'])}: {frame.text(body['task'])}</h1>"]
    parts.append(
        f'<p class="muted">Share of correct answers with {percent} intervals over problems and seeds. Ranks are intervals too; '
        "best: how often a variant is first when problems and seeds are resampled.</p>"
    )
    if body.get("shares"):
        series = curves(body)
        parts.append("<h2>One budget, split between SFT and RLVR</h2>")
        parts.append(frame.legend([(line.name, line.colour) for line in series]) if len(series) > 1 else "")
        chart = svg.lines("score by the share of SFT", series, x_label="% of the budget spent on SFT", share=True)
        parts.append(f'<div class="card">{chart}</div>')
    parts.append("<h2>Leaderboard</h2>")
    header = list(cells[0])
    parts.append(frame.table(header, [list(row.values()) for row in cells]))
    return frame.page(f"{body['recipe']}: sweep", parts)


def curves(body: dict[str, Any]) -> list[svg.Line]:
    """A line for each variant beside the split, its points in the order of the shares of SFT, in per cent."""
    points: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for row in body["leaderboard"]:
        share = body["shares"][row["name"]]
        beside = row["name"].rpartition(", ")[0] or body["recipe"]
        points.setdefault(beside, []).append((share, row))
    lines = []
    for number, (name, rows) in enumerate(points.items()):
        rows.sort(key=lambda each: each[0])
        shares = [100 * share for share, _ in rows]
        mean, low, high = ([row[key] for _, row in rows] for key in ("mean", "low", "high"))
        lines.append(svg.Line(name, shares, mean, low, high, svg.colour(number)))
    return lines


def cells(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The rows of a leaderboard as text by column: for terminals, pages, Prefect and Markdown."""
    rendered = []
    for row in rows:
        ends = f"{row['rank_low']}" if row["rank_low"] == row["rank_high"] else f"{row['rank_low']}-{row['rank_high']}"
        gain = "" if row["gain"] is None else _percent(row["gain"], row["gain_low"], row["gain_high"], "+")
        rendered.append({
            "rank": ends, "variant": row["name"], "score": _percent(row["mean"], row["low"], row["high"]),
            "by seed": " / ".join(f"{100 * v:.1f}" for v in row["by_seed"]), "gain": gain,
            "cut": "–" if row.get("truncated") is None else f"{100 * row['truncated']:.1f} %",
            "best": f"{100 * row['best']:.0f} %", "seconds": f"{row['cost'].get('seconds', 0):.0f}",
            "steps": f"{row['cost'].get('steps', 0):.0f}", "tokens": f"{row['cost'].get('tokens', 0):.0f}",
        })  # fmt: skip
    return rendered


def _percent(value: float, low: float, high: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.1f} [{100 * low:.1f}, {100 * high:.1f}]"
