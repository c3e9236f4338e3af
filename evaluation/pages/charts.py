"""Line charts by matplotlib as SVG that follows the page's light or dark colours: text stays text, equal data gives equal bytes."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evaluation.pages.page import visible

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

COLOURS, STYLES = 8, ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
"""Colours of the stylesheet after Okabe and Ito, told apart with any colour vision; series 8 has the first colour again, dashed."""
SIZE = (4.7, 2.6)
"""Inches, of 72 units each."""
MARKED = 12
"""Points of a series up to which each has a mark."""
INK, LINE, BAD, SERIES = "#a1b2c1", "#a1b2c2", "#a1b2c3", "#a1b2d%d"
"""Stand for the variables of the stylesheet until the drawing is text."""
COLOUR_NAMES = {INK: "muted", LINE: "line", BAD: "bad"} | {SERIES % n: f"s{n}" for n in range(COLOURS)}
REWRITTEN = (
    (r"<!--.*?-->|\n\s*", ""),
    (r"xlink:href", "href"),
    (r'<defs>\s*<clipPath.*?</clipPath>\s*</defs>| clip-path="[^"]*"| transform="rotate\(-0 [^"]*"', ""),
    (r' style="font[^"]*text-anchor: (\w+)[^"]*"', r' text-anchor="\1"'),
    (r' id="(?!m[0-9a-f]{10}")[^"]*"', ""),
    (r"<g/>", ""),
)
"""What is taken out of matplotlib's document: comments, clipping, fonts (the stylesheet has them) and ids that nothing refers to."""


@dataclass
class Line:
    """A series with an optional band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)
    number: int = 0
    """Its place among all series of the page: chooses colour and dashes."""


@dataclass
class Chart:
    """A drawing with its title; `svg` is empty where nothing can be drawn."""

    title: str
    svg: Markup
    names: list[str] = field(default_factory=list)
    """Series for a legend in the order of their numbers, where the page has none for all charts."""


def lines(
    title: str, series: Sequence[Line], *, x_label: str = "step", log_x: bool = False, share: bool = False, marks: Sequence[float] = (),
) -> Markup:  # fmt: skip
    """A line chart with bands; empty without a finite point.

    Args:
        log_x: a logarithmic horizontal axis in powers of two, with a tick for every value (pass@k).
        share: the vertical axis is a share of 1, shown in per cent.
        marks: places of vertical lines, such as the steps of alarms.
    """
    from markupsafe import Markup
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    series = [each for each in series if any(map(math.isfinite, each.y))]
    if not series:
        return Markup("")
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 10,
        "text.parse_math": False,
        "path.simplify": True,
    }
    with rc_context(settings):
        figure = Figure(figsize=SIZE, dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_axes((0.12, 0.16, 0.86, 0.74))
        for each in series:
            _series(axes, each)
        for mark in marks:
            axes.axvline(mark, color=BAD, linewidth=1.3, linestyle=(0, (2, 2)), clip_on=False)
        _axes(axes, series, x_label, log_x, share)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Markup(_inline(out.getvalue(), title))


def _series(axes: Axes, each: Line) -> None:
    colour = SERIES % (each.number % COLOURS)
    if len(each.low) > 1:
        edge = [*_finite(each.x, each.high), *reversed(_finite(each.x, each.low))]
        axes.fill(*zip(*edge, strict=True), facecolor=colour, edgecolor="none", alpha=0.16, clip_on=False)
    points = _finite(each.x, each.y)
    style: Any = STYLES[each.number // COLOURS % len(STYLES)]
    marker = "o" if len(points) <= MARKED else ""
    axes.plot(
        *zip(*points, strict=True),
        color=colour,
        linestyle=style,
        linewidth=1.8,
        marker=marker,
        markersize=4.5,
        clip_on=False,
    )


def _axes(axes: Axes, series: Sequence[Line], x_label: str, log_x: bool, share: bool) -> None:
    axes.set_xlabel(x_label, color=INK, labelpad=2)
    axes.tick_params(length=0, colors=INK, pad=4)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_frame_on(False)
    axes.locator_params(axis="y", nbins=5)
    axes.margins(x=0.01)
    if log_x:
        places = sorted({value for each in series for value in each.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [short(value) for value in places])
        axes.xaxis.set_minor_locator(_no_ticks())
    else:
        axes.locator_params(axis="x", nbins=6, integer=all(float(v).is_integer() for each in series for v in each.x))
        axes.xaxis.set_major_formatter(lambda value, _: short(value))
    if share:
        low, high = axes.get_ylim()
        axes.set_ylim(max(0.0, low), max(0.01, min(1.0, high)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    else:
        axes.ticklabel_format(axis="y", useOffset=False, scilimits=(-3, 5))


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _inline(text: str, title: str) -> str:
    """What is inside matplotlib's document, as a part of a page: colours are the page's, and fonts."""
    from markupsafe import escape

    width, height = (round(72 * inches) for inches in SIZE)
    body = text[text.index("<g ", text.index("<svg")) : text.rindex("</svg>")]
    for pattern, instead in REWRITTEN:
        body = re.sub(pattern, instead, body, flags=re.DOTALL)
    body = re.sub(r"\d+\.\d{4,}(?![\d<])", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), body)
    for colour, name in COLOUR_NAMES.items():
        body = body.replace(colour, f"var(--{name})")
    name = escape(visible(title))
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{name}"><title>{name}</title>{body}</svg>'


def short(value: float) -> str:
    """A tick's label.

    >>> [short(v) for v in (0.25, 40.0, 1200, 2_500_000)]
    ['0.25', '40', '1.2k', '2.5M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.4g}"


def _finite(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """The points that can be drawn: a reward or a loss may be infinite."""
    return [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
