"""Charts as inline SVG text. Labels come from recipes and models, so every one is escaped here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evaluation.pages.page import text as escaped

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7a5195", "#666666")
"""After Okabe and Ito: told apart with any colour vision."""
WIDTH, HEIGHT = 480, 260
LEFT, MARGIN, TOP, BOTTOM = 52, 12, 14, 34


@dataclass
class Line:
    """A series with an optional band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)
    colour: str = COLOURS[0]


@dataclass
class Row:
    """A difference with its interval in a forest plot."""

    name: str
    value: float
    low: float
    high: float
    note: str
    colour: str = COLOURS[0]


def colour(number: int) -> str:
    """The colour of the arm with this number."""
    return COLOURS[number % len(COLOURS)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values that span an interval.

    >>> ticks(0, 1), ticks(3, 47)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    span = high - low
    if not math.isfinite(span) or span <= 1e-9 * max(abs(low), abs(high)):  # nothing that digits could tell apart
        return [low] if math.isfinite(low) else []
    raw = span / count
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * m for m in (1, 2, 5, 10) if base * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(int((high + 1e-9 * span - first * step) / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A tick's label.

    >>> [short(v) for v in (0.25, 40.0, 1200, 2_500_000)]
    ['0.25', '40', '1.2k', '2.5M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.4g}"


def lines(
    title: str, series: Sequence[Line], *, x_label: str = "step", log_x: bool = False, share: bool = False
) -> str:
    """A line chart with bands.

    Args:
        log_x: a logarithmic horizontal axis in powers of two, with a tick for every value (pass@k).
        share: the vertical axis is a share of 1, shown in per cent.
    """
    series = [s for s in series if any(map(math.isfinite, s.y))]
    if not series:
        return ""
    across = [math.log2(v) if log_x else v for s in series for v in s.x]
    up = [v for s in series for values in (s.y, s.low, s.high) for v in values if math.isfinite(v)]
    x0, x1, y0, y1 = min(across), max(across), min(up), max(up)
    x1 = x1 if x1 > x0 else x0 + 1
    pad = (y1 - y0) * 0.06 or abs(y1) * 0.1 or 0.5
    y0, y1 = y0 - pad, y1 + pad
    if share:
        y0, y1 = max(0.0, y0), min(1.0, y1)

    def at_x(value: float) -> float:
        return LEFT + ((math.log2(value) if log_x else value) - x0) / (x1 - x0) * (WIDTH - LEFT - MARGIN)

    def at_y(value: float) -> float:
        return HEIGHT - BOTTOM - (min(max(value, y0), y1) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in ticks(y0, y1):
        label = f"{100 * value:g} %" if share else short(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{at_y(value):.1f}" y2="{at_y(value):.1f}"/>'
        )
        parts.append(_text(LEFT - 6, at_y(value) + 4, label, "end"))
    marks = sorted({v for s in series for v in s.x}) if log_x else ticks(x0, x1)
    parts += [_text(at_x(value), HEIGHT - BOTTOM + 16, short(value), "middle") for value in marks]
    parts.append(_text((LEFT + WIDTH - MARGIN) / 2, HEIGHT - 3, x_label, "middle"))
    for each in series:
        if len(each.low) > 1:
            edge = [*_finite(each.x, each.high), *reversed(_finite(each.x, each.low))]
            shape = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in edge)
            parts.append(f'<polygon points="{shape}" fill="{each.colour}" opacity="0.16"/>')
        points = _finite(each.x, each.y)
        way = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{each.colour}" stroke-width="2"/>')
        if len(points) <= 12:
            parts += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3" fill="{each.colour}"/>' for x, y in points]
    return _svg(title, WIDTH, HEIGHT, parts)


def _finite(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """The points that can be drawn: a reward or a loss may be infinite."""
    return [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]


LETTER = 7
"""Width that a letter of 12 pixels may take: text beyond the edge of a drawing is cut off."""


def forest(title: str, rows: Sequence[Row]) -> str:
    """Differences in points with their intervals around a line at 0."""
    if not rows:
        return ""
    start = max(300, 30 + LETTER * max(len(row.name) for row in rows))
    rest = max(250, 30 + LETTER * max(len(row.note) for row in rows))
    width, height = start + 370 + rest, 34 * len(rows) + 44
    reach = max(0.01, *(abs(v) for r in rows for v in (r.low, r.high))) * 1.08

    def at(value: float) -> float:
        return start + (value + reach) / (2 * reach) * (width - start - rest)

    parts = []
    for value in ticks(-reach, reach, 6):
        kind = "zero" if value == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{at(value):.1f}" x2="{at(value):.1f}" y1="8" y2="{height - 34}"/>')
        parts.append(_text(at(value), height - 18, f"{100 * value:+g}" if value else "0", "middle"))
    parts.append(_text((start + width - rest) / 2, height - 2, "points", "middle"))
    for number, row in enumerate(rows):
        y = 24 + 34 * number
        parts.append(_text(start - 14, y + 4, row.name, "end"))
        parts.append(
            f'<line x1="{at(row.low):.1f}" x2="{at(row.high):.1f}" y1="{y}" y2="{y}" stroke="{row.colour}" stroke-width="3"/>'
        )
        parts.append(f'<circle cx="{at(row.value):.1f}" cy="{y}" r="5.5" fill="{row.colour}"/>')
        parts.append(_text(width - rest + 14, y + 4, row.note, "start"))
    return _svg(title, width, height, parts)


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(words)}</text>'


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    name = escaped(title)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{name}"><title>{name}</title>{"".join(parts)}</svg>'
