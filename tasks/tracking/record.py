"""What a pipeline run tells MLflow about itself: parameters, scores, where the code came from.

Plain values, so that they can wait in the outbox; nothing here imports MLflow.
"""

from __future__ import annotations

import getpass
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.base import names, project
from pipelines.base.project import ROOT, is_checkout
from pipelines.base.secrets import redact
from pipelines.recipe.read import Recipe
from pipelines.recipe.stage_kind import Node, kind_of_run
from tasks.tracking.names import clean, flatten

ALWAYS = (
    "seed", "model.path", "model.fresh.architecture", "sft.steps", "sft.epochs", "sft.optimizer.learning_rate", "rlvr.steps",
    "rlvr.prompts", "rlvr.group_size", "rlvr.mini_batches", "rlvr.optimizer.learning_rate", "rlvr.sampling.temperature",
    "rlvr.sampling.max_tokens", "rlvr.curriculum.kind", "rlvr.reward.kind", "rlvr.filter.kind", "rlvr.advantage.kind",
    "rlvr.objective.kind", "rlvr.divergence.kind", "rlvr.loss_aggregation.kind",
)  # fmt: skip
"""Settings that runs are sorted by: given as parameters even where they are the default."""
HEADLINES = ("pass@1", "exact_match", "acc_norm", "acc", "prompt_level_strict_acc")
"""Metrics that come first, in this order."""
STAGE_LOG = "artifact/report/stage.log"
"""Where the log of a stage is among the files of its run, whether it has finished or failed."""
TRIGGER, FLOW_RUN, DEPLOYMENT, FLOW_RUN_URL = (
    "whetstone.trigger", "whetstone.prefect.flow_run", "whetstone.prefect.deployment", "whetstone.prefect.url",
)  # fmt: skip
"""Tags of a pipeline's run: what started it (schedule, hand, API, automation or restart), and where it is in Prefect."""
DIGITS = 6
"""Significant digits of scores: MLflow's table prints all that a number has."""


def params(recipe: Recipe, sections: tuple[str, ...] | None = None) -> dict[str, str]:
    """The resolved recipe as flat parameters: what is not the default, and `ALWAYS`; the rest is in recipe.yaml.

    Args:
        sections: only these sections of the recipe, and the seed.
    """
    resolved = dict(flatten(_by_name(recipe.model_dump(mode="json"))))
    written = dict(flatten(_by_name(recipe.model_dump(mode="json", exclude_defaults=True))))
    empty = ("None", "[]", "{}")
    kind_of = {name: stage.kind for name, stage in recipe.graph.items()}

    def always(name: str) -> bool:
        stage, dot, rest = name.partition(".")
        return f"{kind_of.get(stage, stage)}{dot}{rest}" in ALWAYS

    values = {name: written.get(name, text) for name, text in resolved.items() if name in written or always(name)}
    values = {name: text for name, text in values.items() if text not in empty}
    for name, stage in recipe.graph.items():
        if getattr(stage.settings, "divergence", "no such field") is None:
            values[f"{name}.divergence.kind"] = "none"
    values = {name: text for name, text in values.items() if name.partition(".")[0] not in names.SAID_ELSEWHERE}
    if sections is not None:
        values = {name: text for name, text in values.items() if name.partition(".")[0] in ("seed", *sections)}
    return {name: redact(text)[:6000] for name, text in values.items()}


def _by_name(body: dict[str, Any]) -> dict[str, Any]:
    """A recipe's fields with its named stages beside its sections."""
    return {k: v for k, v in body.items() if k != "stages"} | (body.get("stages") or {})


def run_name(recipe: Recipe, overrides: list[str] | None) -> str:
    """What was set for the run: presets, seed and changes of the command line; the recipe's name where nothing was.

    >>> from types import SimpleNamespace
    >>> run_name(SimpleNamespace(name="toy", presets=["gspo"]), ["seed=3", "rlvr.optimizer.learning_rate=3e-4"])
    'gspo · seed 3 · rlvr.lr 3e-4'
    """
    return names.named(recipe.name, recipe.presets, overrides or [])


def reward_tags(node: Node) -> dict[str, str]:
    """What a stage's rewards are made from: to find runs by, and line by line to read."""
    told = list(node.kind.provenance(node))
    if not told:
        return {}
    made_from = sorted({source for each in told for source in each.made_from})
    lines = "\n".join(each.text for each in told)[:5000]
    return {"whetstone.reward_sources": ", ".join(made_from), "whetstone.rewards": lines}


def source_tags(path: str | None, overrides: list[str] | None) -> dict[str, str]:
    """MLflow's own tags for where a run came from, and whether the project's files had been changed since their commit."""
    tags = {"mlflow.source.type": "LOCAL", "mlflow.user": _user(), **git()}
    if path:
        tags["mlflow.source.name"] = redact(path)
    if overrides:
        tags["whetstone.set"] = redact(" ".join(overrides))[:5000]
    return tags


@cache
def git(root: Path = ROOT) -> dict[str, str]:
    """Commit, branch and dirty flag of the project as tags; nothing where it is no git checkout, or is installed into one of another's."""
    commit = project.git(root, "rev-parse", "HEAD") if root != ROOT or is_checkout() else None
    if commit is None:
        return {}
    tags = {"mlflow.source.git.commit": commit}
    branch = project.git(root, "rev-parse", "--abbrev-ref", "HEAD")
    if branch and branch != "HEAD":
        tags["mlflow.source.git.branch"] = branch
    status = project.git(root, "status", "--porcelain", "--untracked-files=no")
    return tags if status is None else {**tags, "mlflow.source.git.dirty": str(bool(status)).lower()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return "unknown"


def scores(summary: dict[str, Any]) -> dict[str, float]:
    """Metrics of the pipeline's run: every score with its interval, gains, seconds; the headline score first.

    Names are those of the evaluation stage: `rlvr/TASK/pass_at_1`, with `_low` and `_high` for the interval;
    `gain/TASK/sft_to_rlvr` is the paired difference; `seconds/STAGE` and `seconds/total`.
    """
    evaluation = summary["evaluation"]
    names = [(c, t, m) for c in reversed(list(evaluation)) for t in evaluation[c] for m in evaluation[c][t]]
    names.sort(key=lambda name: HEADLINES.index(name[2]) if name[2] in HEADLINES else len(HEADLINES))
    out: dict[str, float] = {}
    for checkpoint, task, metric in names:
        out |= with_interval(f"{checkpoint}/{task}/{metric}", evaluation[checkpoint][task][metric])
    for task, steps in summary["differences"].items():
        for step, cell in steps.items():
            out |= with_interval(f"gain/{task}/{step.replace(' → ', '_to_')}", cell)
    out |= {f"seconds/{name}": float(about["seconds"]) for name, about in summary["stages"].items()}
    if summary.get("seconds") is not None:
        out["seconds/total"] = float(summary["seconds"])
    return out


def with_interval(name: str, cell: dict[str, Any]) -> dict[str, float]:
    """A score under its name, and the bounds of its interval under `_low` and `_high`.

    >>> with_interval("rlvr/x/pass@1", {"value": 0.5, "low": 0.41, "high": 0.59, "n": 9})
    {'rlvr/x/pass_at_1': 0.5, 'rlvr/x/pass_at_1_low': 0.41, 'rlvr/x/pass_at_1_high': 0.59}
    """
    bounds = {f"_{end}": cell[end] for end in ("low", "high") if isinstance(cell.get(end), int | float)}
    values = {clean(name + suffix): value for suffix, value in {"": cell["value"], **bounds}.items()}
    return {k: float(f"{v:.{DIGITS}g}") for k, v in values.items()}


def headline(tasks: dict[str, Any]) -> list[tuple[str, str]]:
    """(task, metric) of the score that a reader looks at first, for each task of a checkpoint.

    >>> headline({"x": {"mean_length": {}, "pass@1": {}}, "y": {"acc (none)": {}}})
    [('x', 'pass@1'), ('y', 'acc (none)')]
    """
    return [
        (task, min(metrics, key=lambda m: HEADLINES.index(m) if m in HEADLINES else len(HEADLINES)))
        for task, metrics in tasks.items()
        if metrics
    ]


def verdict(gate: dict[str, Any]) -> str:
    """What the gate of a run has said, in a few words.

    >>> verdict({"verdict": "worse", "against": "champion version 3 of toy", "look": 7})
    'worse against champion version 3 of toy (look 7)'
    >>> verdict({"verdict": "no champion", "against": None})
    'no champion yet'
    """
    if gate["against"] is None:
        return f"{gate['verdict']} yet"
    return f"{gate['verdict']} against {gate['against']}" + (f" (look {gate['look']})" if "look" in gate else "")


def last_of(summary: dict[str, Any], what: str) -> dict[str, Any] | None:
    """What a run's summary tells of its last stage that makes something; None where it has none."""
    stages = summary["stages"].items()
    names = [name for name, about in stages if kind_of_run(about["kind"], about.get("makes", "")).makes == what]
    return summary["stages"][names[-1]] if names else None
