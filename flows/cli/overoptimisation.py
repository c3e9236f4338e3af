"""`whetstone overoptimisation`: gold against proxy over sqrt(KL), of the stages of runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

KL, LENGTH, PROXY, GOLD = "policy/kl_to_reference", "rollout/length_mean", "reward/mean", "reward/correct"
"""Metrics of a step of reinforcement learning; the KL is a mean over tokens, so that times the mean length it is a completion's."""
SAMPLED_KL, SAMPLED_GOLD, SAMPLED_PROXY = "kl/mean", "score/mean", "reward_model/mean"
"""Metrics of a sample stage."""


END = 10
"""A run's end is one part in this many of its steps."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="the id of a run, or its first characters; curves of equal stages join"
    )
    parser.add_argument(
        "--aligned", nargs="+", default=[], metavar="STAGE",
        help="sample stages with a `reference` that are points of one curve, such as one for each beta or epoch",
    )  # fmt: skip
    parser.add_argument(
        "--penalised", nargs="+", default=[], metavar="STAGE",
        help="rlvr stages that differ in what they pay for the KL; their ends are points of one curve, beside their own curves",
    )  # fmt: skip
    parser.add_argument("--html", metavar="FILE", help="write one page with the figure, which opens without a network")
    parser.add_argument("--json", action="store_true", help="for machines: points and coefficients as JSON")


def command(arguments: argparse.Namespace) -> int:
    """Run the command."""
    import numpy as np

    from evaluation import overoptimisation
    from evaluation.pages import overoptimisation as pages
    from evaluation.pages.page import visible
    from pipelines.base.errors import UserError
    from pipelines.base.files import write_atomic
    from tasks.preflight import check as preflight
    from tasks.tracking import lookup

    preflight.summary_file(arguments.html, "--html")
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    stages_of_runs = [
        (lookup.find_run(run, ask_mlflow=False).get("summary") or {}).get("stages") or {} for run in arguments.runs
    ]
    check_named(stages_of_runs, "--aligned", arguments.aligned)
    check_named(stages_of_runs, "--penalised", arguments.penalised)
    for stages in stages_of_runs:
        for key, measured in curves_of(stages, arguments.aligned, arguments.penalised):
            points.setdefault(key, []).extend(measured)
    if not points:
        raise UserError(
            f"no stage of {', '.join(arguments.runs)} measured a KL: rlvr stages do with `divergence: {{kind: k3, weight: 0}}`, sample "
            "stages with `reference`, and a sample stage with `reward_model` and k > 1 gives the curve of best of n."
        )
    fitted = []
    for (name, kind), rows in points.items():
        distance, gold, proxy = (np.array(column, dtype=float) for column in zip(*sorted(rows), strict=True))
        curve = overoptimisation.Curve(name, kind, distance, gold, proxy)  # type: ignore[arg-type]
        fitted.append((curve, overoptimisation.fit(curve)))
    if arguments.html:
        write_atomic(Path(arguments.html), pages.html(fitted, "Over-optimisation"), durable=False)
    if arguments.json:
        body = [
            {**{k: v if isinstance(v, str) else _plain(v) for k, v in vars(curve).items()}, "fit": fit and asdict(fit)}
            for curve, fit in fitted
        ]
        print(json.dumps(body, indent=1))
        return 0
    for line in pages.lines(fitted):
        print(visible(line))
    if arguments.html:
        print(f"\npage: {Path(arguments.html).resolve()}")
    return 0


def check_named(stages_of_runs: Sequence[dict[str, Any]], option: str, named: Sequence[str]) -> None:
    """Every stage that an option names is one of the runs' stages.

    Raises:
        UserError: the name that is not, and the nearest one that is.
    """
    from pipelines.base.errors import UserError, did_you_mean

    known = {stage for stages in stages_of_runs for stage in stages}
    for name in named:
        if name not in known:
            raise UserError(f"{option} {name[:80]}", "no stage of these runs is called so", did_you_mean(name, known))


def curves_of(
    stages: dict[str, Any], aligned: list[str], penalised: Sequence[str] = ()
) -> Iterator[tuple[tuple[str, str], list[tuple[float, float, float]]]]:
    """((name, law), points of distance, gold and proxy) of a run's stages, by what they measured.

    Args:
        stages: of the run's summary.
        aligned: sample stages that are points of one curve.
        penalised: rlvr stages whose ends are points of one curve.

    Raises:
        UserError: one of these stages measured nothing that could be a point.
    """
    from pipelines.base.errors import UserError

    nan = float("nan")
    for name, about in stages.items():
        if not about.get("artifact"):
            continue
        artifact = Path(about["artifact"])
        steps = _of_steps(artifact)
        if steps:
            yield (name, "rl"), steps
            if name in penalised:
                yield ("ends of KL-penalised RL", "rl"), [_end(steps)]
        elif name in penalised:
            raise UserError(
                f"--penalised {name}",
                "the stage measured no KL",
                "Name rlvr stages with a divergence, such as `{kind: k3, weight: 0.01}`.",
            )
        about_samples = artifact / "samples.json"
        metrics = (json.loads(about_samples.read_text()).get("metrics") or {}) if about_samples.is_file() else {}
        if name in aligned and not {SAMPLED_KL, SAMPLED_GOLD} <= metrics.keys():
            raise UserError(
                f"--aligned {name}",
                f"the stage has no {SAMPLED_KL} and {SAMPLED_GOLD}",
                "Name sample stages with a `reference`.",
            )
        if metrics:
            if name in aligned:
                distance = max(0.0, metrics[SAMPLED_KL]) ** 0.5
                yield ("direct alignment", "rl"), [(distance, metrics[SAMPLED_GOLD], metrics.get(SAMPLED_PROXY, nan))]
            problems = _of_completions(artifact) if SAMPLED_PROXY in metrics else []
            if problems:
                from evaluation.overoptimisation import best_of_n_curve

                curve = best_of_n_curve(name, problems)
                columns = zip(curve.distance, curve.gold, curve.proxy, strict=True)
                yield (name, "best_of_n"), [(float(d), float(gold), float(proxy)) for d, gold, proxy in columns]


def _plain(values: Any) -> list[float | None]:
    """An array for JSON; None where nothing was measured."""
    return [None if value != value else value for value in values.tolist()]


def _of_steps(artifact: Path) -> list[tuple[float, float, float]]:
    from pipelines.stage.report import history

    spool = artifact / "report" / "spool.jsonl"
    lines = [line["values"] for line in history(spool)] if spool.is_file() else []
    return [
        (max(0.0, v[KL] * v[LENGTH]) ** 0.5, v[GOLD], v[PROXY]) for v in lines if {KL, LENGTH, GOLD, PROXY} <= v.keys()
    ]


def _end(steps: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Mean distance, gold and proxy over the last tenth of a run's steps, at least one: where the penalty lets it settle."""
    last = steps[-max(1, len(steps) // END) :]
    distance, gold, proxy = (sum(column) / len(last) for column in zip(*last, strict=True))
    return distance, gold, proxy


def _of_completions(artifact: Path) -> list[tuple[list[float], list[float]]]:
    """Proxy and gold scores of each problem whose completions all have both; empty without a reward model or with one completion."""
    from pipelines.data import samples

    problems = []
    for rows in samples.by_problem(artifact, ["uid", "correct", "components"]):
        scores = [(json.loads(row["components"]).get("reward_model"), row["correct"]) for row in rows]
        if len(scores) > 1 and all(proxy is not None and correct is not None for proxy, correct in scores):
            problems.append(([float(proxy) for proxy, _ in scores], [float(correct) for _, correct in scores]))
    return problems
