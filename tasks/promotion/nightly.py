"""The gate of a recipe: after its evaluation, is the model worse than the champion, the base or another run?

The ledger is the one of promotions, a set of tags on the registered name: `gate.OPPONENT.NUMBER` (OPPONENT is the version of the champion,
`base-` with a digest of the recipe's model section, or `run-` with the beginning of a run's id). Promotions and nights count their
looks apart, since each has an alpha of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evaluation import gate
from evaluation.gate import Pair
from pipelines.base.errors import Problem, UserError
from pipelines.base.files import digest, write_atomic
from pipelines.recipe.read import Recipe
from pipelines.recipe.settings import CHAMPION
from pipelines.recipe.stage_kind import BASE
from tasks import process
from tasks.environment import home
from tasks.lineage import subjects
from tasks.pipeline import Pipeline
from tasks.promotion.promote import Answers, look_of, looks_at, of_champion, opened_registry, paired_tasks
from tasks.store.artifacts import Artifact
from tasks.store.known import NotFound

NO_CHAMPION = "no champion"
"""Verdict where there is nothing to be worse than yet."""


@dataclass(frozen=True)
class _Opponent:
    """What a run is compared with."""

    mark: str
    """In keys of the ledger."""
    words: str
    champion: tuple[str, dict[str, str]] | None = None


def name_of(recipe: Recipe) -> str:
    """The registered model of a recipe."""
    return recipe.tracking.register_model or recipe.name


def ask(pipeline: Pipeline) -> None:
    """Let the gate of a pipeline's recipe, which has one, say its verdict before the pipeline is closed."""
    pipeline.gate = look(pipeline.recipe, pipeline.evaluations, pipeline.parent)


def look(recipe: Recipe, evaluations: Mapping[str, Artifact], run_id: str | None) -> dict[str, Any] | None:
    """Compare what a run has evaluated with the model that its gate names; the same answers are looked at once.

    What keeps the gate from deciding, such as an absent server, is its verdict and no error: the night's work is done. Only a run that is
    named and is nowhere marks the run as failed.

    Args:
        evaluations: stage → its artifact, of those that the run has made or reused.
        run_id: of the pipeline's run in MLflow, which gets the evidence; None: it stays in the project folder.

    Returns:
        verdict ("worse", "not worse", "undecided" or "no champion"), failed (whether the run is to be marked), against (None:
        nobody), why (sentences), and of a look its number, level and tests; None where no trained model was evaluated.
    """
    assert recipe.gate is not None
    candidates = _candidates(recipe, evaluations)
    if not candidates:
        return None
    gone = False
    try:
        body = _look(recipe, evaluations, candidates, run_id)
    except UserError as error:
        gone = isinstance(error, NotFound) and recipe.gate.against not in (CHAMPION, BASE)
        body = {"verdict": gate.UNDECIDED, "against": recipe.gate.against, "why": [str(error)]}
    failing = (gate.WORSE, gate.UNDECIDED) if gone or recipe.gate.undecided == "fail" else (gate.WORSE,)
    return body | {"failed": body["verdict"] in failing}


def _candidates(recipe: Recipe, evaluations: Mapping[str, Artifact]) -> dict[str, subjects.Subject]:
    """Evaluation → its last trained checkpoint with its answers."""
    chosen = {}
    for stage, artifact in evaluations.items():
        trained = [
            label for label in subjects.checkpoints(artifact) if label in recipe.node(stage).labels and label != BASE
        ]
        if trained:
            chosen[stage] = subjects.of_evaluation(artifact, trained[-1])
    return chosen


def _look(
    recipe: Recipe, evaluations: Mapping[str, Artifact], candidates: dict[str, subjects.Subject], run_id: str | None
) -> dict[str, Any]:
    settings, name = recipe.gate, name_of(recipe)
    assert settings is not None
    with process.lock(home() / "promotions" / ".lock"), opened_registry() as registry:
        opponent = _opponent(recipe, registry)
        if opponent is None:
            why = f"{name} has no champion yet, so there is nothing to be worse than; `whetstone promote RUN` makes the first"
            return {"verdict": NO_CHAMPION, "against": None, "why": [why]}
        if opponent.champion and opponent.champion[1].get("whetstone.artifact") in {
            c.artifact for c in candidates.values()
        }:
            return {"verdict": gate.NOT_WORSE, "against": opponent.words, "why": ["this model is the champion"]}
        pairs, left_out = _pairs(recipe, evaluations, candidates, opponent)
        why_not = [f"{task}: decides nothing, because {reason}" for task, reason in left_out.items()]
        if not pairs:  # a look that can decide nothing costs nothing
            return {"verdict": gate.UNDECIDED, "against": opponent.words, "left_out": left_out, "why": why_not}
        registry.add_name(name)
        looks = looks_at(registry.ledger(name), opponent.mark, "gate")
        mark = digest([[s.name, s.checkpoint] for s in candidates.values()])[:16]
        known, number = look_of(looks, mark)
        margins = {task: points / 100 for task, points in settings.not_worse.items()}
        held = gate.hold(margins, pairs, number, settings.alpha, settings.looks)
        held["why"] += why_not
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        evidence = {"name": name, "against": opponent.words, "time": when, "left_out": left_out, **held}
        if not known:
            about = {"candidate": mark, "verdict": held["verdict"], "run": run_id, "time": when}
            registry.remember(name, f"gate.{opponent.mark}.{number}", about)
        _store_evidence(registry, name, f"gate-{opponent.mark}-look-{number}.json", evidence, run_id)
        return evidence


def _opponent(recipe: Recipe, registry: Any) -> _Opponent | None:
    """Whom the recipe names; None: a champion, and there is none yet."""
    assert recipe.gate is not None
    against, name = recipe.gate.against, name_of(recipe)
    if against == BASE:
        return _Opponent(f"base-{digest(recipe.model.model_dump(mode='json'))[:12]}", "the base of its own chain")
    if against != CHAMPION:
        evaluated, subject = subjects.single(against)
        mark = subject.run_id or evaluated.artifact.key
        return _Opponent(f"run-{mark[:12]}", f"run {against}")
    champion = registry.champion(name) if name in registry.names() else None
    return None if champion is None else _Opponent(champion[0], f"champion version {champion[0]} of {name}", champion)


def _pairs(
    recipe: Recipe,
    evaluations: Mapping[str, Artifact],
    candidates: dict[str, subjects.Subject],
    opponent: _Opponent,
) -> tuple[dict[str, Pair], dict[str, str]]:
    """Benchmark of the gate → both sides' scores; and benchmark → why it decides nothing. The first evaluation that asks it counts."""
    assert recipe.gate is not None
    pairs: dict[str, Pair] = {}
    left_out: dict[str, str] = {}
    for stage, candidate in candidates.items():
        answers = _answers(recipe, evaluations[stage], candidate, opponent)
        there, why_not = paired_tasks(candidate.samples[candidate.checkpoint], answers)
        pairs = there | pairs
        left_out = why_not | left_out
    wanted = recipe.gate.not_worse
    left_out = {task: left_out.get(task, "it was not asked") for task in wanted if task not in pairs}
    return {task: pairs[task] for task in wanted if task in pairs}, left_out


def _answers(recipe: Recipe, like: Artifact, candidate: subjects.Subject, opponent: _Opponent) -> Answers:
    """What the opponent answered; nothing of a base that this evaluation has not asked."""
    assert recipe.gate is not None
    if recipe.gate.against == BASE:
        return candidate.samples.get(BASE, {})
    if opponent.champion is not None:
        _, subject = of_champion(name_of(recipe), opponent.champion, like)
    else:
        _, subject = subjects.single(recipe.gate.against, like=like)
    return subject.samples[subject.checkpoint]


def _store_evidence(registry: Any, name: str, file: str, evidence: dict[str, Any], run_id: str | None) -> None:
    """Put the evidence where that of promotions is."""
    write_atomic(home() / "promotions" / name / file, json.dumps(evidence, indent=1))
    if run_id:
        why = "; ".join(evidence["why"])
        tags = {
            "whetstone.gate": evidence["verdict"],
            "whetstone.gate.why": f"look {evidence['look']} at {evidence['against']}: {why}",
        }
        registry.keep_evidence(run_id, f"gate/{file}", evidence, tags)


def told(recipe: Recipe) -> str:
    """What `whetstone plan` says of the gate: with what a run will be compared, and whether that model is there."""
    assert recipe.gate is not None
    words = ", ".join(f"{task} by {points:g} points" for task, points in recipe.gate.not_worse.items())
    try:
        with opened_registry() as registry:
            opponent = _opponent(recipe, registry)
    except UserError as error:
        return f"gate: {error}"
    if opponent is None:
        return f"gate: {name_of(recipe)} has no champion yet, so it passes; `whetstone promote RUN` makes the first"
    return f"gate: exit code 3 where the model is worse than {opponent.words} ({words})"


def problems(recipe: Recipe) -> list[Problem]:
    """A run that the gate names and that is nowhere, before the first stage."""
    if recipe.gate is None or recipe.gate.against in (CHAMPION, BASE):
        return []
    try:
        subjects.single(recipe.gate.against)
    except UserError as error:
        return [Problem("gate.against", each.problem if each.field else str(each), each.fix) for each in error.problems]
    return []


__all__ = ["ask", "look", "name_of", "problems", "told"]
