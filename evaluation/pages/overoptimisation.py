"""The page of over-optimisation: gold and proxy over the distance, with the fitted laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evaluation.overoptimisation import Curve, Fit, law
from evaluation.pages import charts
from evaluation.pages.page import render

X_LABEL = "sqrt(KL to the reference), nats of a completion"


def lines(curves: Sequence[tuple[Curve, Fit | None]]) -> list[str]:
    """One line a curve, for a terminal."""
    told = []
    for curve, fitted in curves:
        head = f"{curve.name}: {len(curve.distance)} points up to d = {_largest(curve):.2f}"
        told.append(f"{head}, gold {curve.gold[0]:.3f} to {curve.gold[-1]:.3f}")
        if fitted is None:
            told.append("  no fit: too few points of different distance")
            continue
        alpha, beta = (f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in (fitted.alpha, fitted.beta))
        told.append(
            f"  {_formula(curve)}: g0 {fitted.start:.3f}, alpha {alpha}, beta {beta}, residual {fitted.error:.3f}"
        )
        told.append(f"  {_peak(curve, fitted)}")
    return told


def html(curves: Sequence[tuple[Curve, Fit | None]], title: str) -> str:
    """The whole page."""
    gold: list[charts.Line] = []
    proxy: list[charts.Line] = []
    for number, (curve, fitted) in enumerate(curves):
        order = np.argsort(curve.distance)
        across = curve.distance[order].tolist()
        gold.append(charts.Line(curve.name, across, curve.gold[order].tolist(), number=number))
        if fitted is not None:
            smooth = np.linspace(0, _largest(curve), 60)
            values = fitted.start + law(curve.law, smooth) @ [fitted.alpha[0], -fitted.beta[0]]
            gold.append(
                charts.Line(f"{curve.name}, fitted", smooth.tolist(), values.tolist(), number=number + charts.COLOURS)
            )
        if np.isfinite(curve.proxy).any():
            proxy.append(charts.Line(curve.name, across, curve.proxy[order].tolist(), number=number))
    drawn = [
        charts.Chart(name, charts.lines(name, series, x_label=X_LABEL))
        for name, series in (("Gold score", gold), ("Proxy score", proxy))
    ]
    rows = [
        [curve.name, _formula(curve), *(_cells(curve, fitted) if fitted else ["too few points", "", "", "", ""])]
        for curve, fitted in curves
    ]
    sections = [("curves", "Curves"), ("laws", "Laws")]
    names = [curve.name for curve, _ in curves]
    return render("overoptimisation.html", title=title, sections=sections, names=names, drawn=drawn, rows=rows)


def _largest(curve: Curve) -> float:
    return float(np.nanmax(curve.distance))


def _formula(curve: Curve) -> str:
    return "g0 + d (alpha - beta d)" if curve.law == "best_of_n" else "g0 + d (alpha - beta log d)"


def _peak(curve: Curve, fitted: Fit) -> str:
    if fitted.peak is None:
        columns = law(curve.law, np.array([_largest(curve)]))[0]
        gain = float(columns @ np.array([fitted.alpha[0], -fitted.beta[0]]))
        return f"no peak: the fitted gold {'rises with' if gain > 0 else 'falls over'} the distance"
    inside = "" if fitted.peak[0] <= _largest(curve) else ", beyond what was measured"
    return f"peak at d = {fitted.peak[0]:.3g}, gold {fitted.peak[1]:.3f}{inside}"


def _cells(curve: Curve, fitted: Fit) -> list[str]:
    spans = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in (fitted.alpha, fitted.beta)]
    return [f"{fitted.start:.3f}", *spans, f"{fitted.error:.3f}", _peak(curve, fitted)]
