"""Plots of a stage: training curves from its spool, benchmark bars with intervals."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from evaluation.samples import TRUNCATED
from pipelines.stage.report import history

CURVES = {
    "sft": {"loss": ("loss/train", "loss/heldout"), "learning_rate": ("optimizer/learning_rate",)},
    "rlvr": {
        "reward": ("reward/mean", "reward/correct"),
        "length": ("rollout/length_mean",),
        "entropy": ("policy/entropy",),
        "loss": ("loss/policy",),
        "time": ("time/rollout_s", "time/train_s", "time/step_s"),
    },
}
INK, MUTED = "#1b1f24", "#8a939e"
COLOURS = ("#2f6fde", "#e0782f", "#3a9d5d", "#9a4fbf")


def curves(spool: Path, folder: Path, stage: str) -> list[Path]:
    """One PNG per group of metrics that the spool holds."""
    groups = CURVES.get(stage, {})
    if not groups or not spool.exists():
        return []
    series: dict[str, list[tuple[int, float]]] = {}
    for body in history(spool):
        for name, value in body["values"].items():
            series.setdefault(name, []).append((body["step"], value))
    paths = []
    for title, names in groups.items():
        present = [n for n in names if n in series]
        if present:
            paths.append(_curve(title, {n: series[n] for n in present}, folder / f"{title}.png", stage))
    return paths


def prepare(stage: str) -> None:
    """Import what `curves` needs, while there is nothing else to do: it takes a second. If that fails, `curves` will say so."""
    if CURVES.get(stage):
        with contextlib.suppress(Exception):
            _pyplot()


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _axes(width: float = 6.4, height: float = 3.6) -> tuple[Any, Any]:
    figure, axes = _pyplot().subplots(figsize=(width, height), dpi=120)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    _pyplot().close(figure)
    return path


def _curve(title: str, series: dict[str, list[tuple[int, float]]], path: Path, stage: str) -> Path:
    figure, axes = _axes()
    for colour, (name, points) in zip(COLOURS, series.items(), strict=False):
        steps, values = zip(*points, strict=True)
        many = len(values) > 40
        axes.plot(steps, values, color=colour, linewidth=1, alpha=0.3 if many else 1, label=None if many else name)
        if many:
            axes.plot(steps, _smooth(values), color=colour, linewidth=1.8, label=name)
    axes.set_xlabel("step", color=INK)
    axes.set_title(f"{stage}: {title}", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, path)


def _smooth(values: tuple[float, ...], share: float = 0.05) -> list[float]:
    """Centred moving average over a share of the points; the pale line shows the raw values."""
    half = max(1, int(len(values) * share / 2))
    return [
        sum(values[max(0, i - half) : i + half + 1]) / len(values[max(0, i - half) : i + half + 1])
        for i in range(len(values))
    ]


def bars(evaluation: dict[str, dict[str, dict[str, dict[str, float]]]], path: Path) -> Path:
    """Checkpoints side by side on every benchmark's pass@1 and largest pass@k, with intervals."""
    groups: list[tuple[str, str]] = []
    for tasks in evaluation.values():
        for task, metrics in tasks.items():
            for metric in headline(metrics):
                if (task, metric) not in groups:
                    groups.append((task, metric))
    figure, axes = _axes(width=max(5.0, 1.6 * len(groups) + 2.5))
    width = 0.8 / max(1, len(evaluation))
    for i, (checkpoint, tasks) in enumerate(evaluation.items()):
        for g, (task, metric) in enumerate(groups):
            cell = tasks.get(task, {}).get(metric)
            if cell is None:
                continue
            x = g + (i - (len(evaluation) - 1) / 2) * width
            error = [[max(0, cell["value"] - cell["low"])], [max(0, cell["high"] - cell["value"])]]
            label = checkpoint if g == 0 else None
            axes.bar(x, cell["value"], width * 0.92, color=COLOURS[i % len(COLOURS)], label=label)
            axes.errorbar(x, cell["value"], yerr=error, color=INK, linewidth=1, capsize=3)
    axes.set_xticks(range(len(groups)), [f"{t}\n{m}" for t, m in groups])
    axes.set_ylim(0, 1)
    axes.set_title("benchmarks, with intervals", loc="left", fontsize=11, color=INK)
    axes.legend(frameon=False, fontsize=9)
    return _save(figure, path)


def headline(metrics: dict[str, Any]) -> list[str]:
    """The headline metrics: pass@1 and the largest pass@k, else whatever there is."""
    passes = sorted((m for m in metrics if m.startswith("pass@")), key=lambda m: int(m.split("@")[1]))
    if passes:
        return [passes[0], passes[-1]] if len(passes) > 1 else passes
    return [m for m in metrics if m not in ("mean_length", "mean_tokens", TRUNCATED)][:2]
