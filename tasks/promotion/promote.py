"""Moving the registry's `champion`: looks that are counted before they are acted on, evidence that stays, a way back.

The ledger is a set of tags on the registered name, so every machine that shares the store pays for the same looks:
`look.CHAMPION.NUMBER` (CHAMPION is the version looked at, 0 for none), `champions` (versions that held the alias, oldest first),
`rolled_back` (versions that lost it by hand).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation import gate, paired
from evaluation.comparison import Subject
from evaluation.gate import Pair, Rule
from evaluation.samples import Sample
from pipelines.base.errors import UserError, did_you_mean
from pipelines.base.files import write_atomic
from pipelines.recipe.stage_kind import BASE, MODEL
from tasks import environment, process
from tasks.environment import home
from tasks.lineage import subjects
from tasks.store.artifacts import Artifact
from tasks.store.known import Evaluated, Known, NotFound, makes
from tasks.tracking import outbox
from tasks.tracking.time_budget import TrackerError

Answers = Mapping[str, Mapping[str, Sample]]
NOBODY = "0"
"""Stands for the champion where there is none: the candidate is held against the base of its own chain."""


class GateError(UserError):
    """The gate cannot decide as asked."""


@dataclass(frozen=True)
class Candidate:
    """A registered model that was evaluated."""

    evaluated: Evaluated
    subject: Subject
    model: Artifact
    name: str
    """Registered name."""
    version: str
    run_id: str | None

    @property
    def scores(self) -> dict[str, dict[str, Sample]]:
        """task → problem → answers."""
        return self.subject.samples[self.subject.checkpoint]


@contextlib.contextmanager
def opened_registry() -> Iterator[Any]:
    """The registry; what it does not do becomes one line."""
    environment.prepare()
    environment.check_reachable()
    from tasks.tracking import registry as tracking_registry

    try:
        yield tracking_registry
    except TrackerError as error:
        raise environment.Unreachable(f"MLflow's model registry did not do it: {error}") from None


def candidate(run: str, name: str | None = None, *, new_name: bool = False) -> Candidate:
    """The checkpoint that is to be promoted, registered under `name` or the recipe's.

    Args:
        new_name: `name` may be one that is not registered yet. Otherwise that is an error: MLflow would take a misspelt name for a
            new model, whose first version is not held against the champion that was meant.

    Raises:
        UserError: it has no evaluation, is damaged, or has not reached MLflow; `name` is not registered.
    """
    evaluated, subject = subjects.single(run, with_model=True)
    model = Known().by_name(subject.artifact)
    if subject.checkpoint == BASE:
        raise GateError(run, f"only a trained checkpoint can be promoted, not {subject.checkpoint}.")
    if model is None or makes(model) != MODEL:
        raise GateError(
            run,
            f"the model of {subject.checkpoint} is not here, and MLflow has no copy of it",
            "Promote it on the machine that trained it.",
        )
    intact(model)
    model_id = _model_id(model)
    if model_id is None:
        raise GateError(
            run, f"{model.path.name} has no model in MLflow yet", "Run `whetstone sync`, which sends what is pending."
        )
    parent = evaluated.run["run_id"] if evaluated.run else None
    with opened_registry() as registry:
        listed = registry.versions_of(model_id)
        versions = dict(reversed(listed))
        chosen = name or (listed[0][0] if listed else None) or subjects.recipe_of(model)
        if chosen not in versions:
            if name is not None and not new_name and name != subjects.recipe_of(model):
                registered(registry, name, "--new-name registers it")
            from tasks.tracking import api as tracking

            tags = {"whetstone.parent_run": parent or "", "whetstone.seed": str(subject.seed)}
            versions[chosen] = str(tracking.register(model_id, chosen, tags))
    return Candidate(evaluated, subject, model, chosen, versions[chosen], parent)


def _model_id(model: Artifact) -> str | None:
    """Of its LoggedModel in MLflow; of a model that was fetched MLflow itself is asked."""
    sent = outbox.uploaded(model.path)
    known = sent.models.get(model.stage)
    if known is not None or sent.run_id is None:
        return known
    with opened_registry():
        from tasks.tracking import api as tracking

        there = tracking.model_of(model.stage, run_id=sent.run_id)
    return there[0] if there else None


def intact(artifact: Artifact) -> None:
    """Raise UserError where a file of the artifact is not what its manifest says."""
    from pipelines.base.files import damage

    reason = damage(artifact.path)
    if reason is not None:
        raise UserError(f"{artifact.path.name} is not what was trained: {reason}. It is not promoted.")


def look(chosen: Candidate, rule: Mapping[str, Any]) -> dict[str, Any]:
    """Hold a candidate against the champion and record the look; the same candidate's answers are looked at once.

    Args:
        rule: `primary` (None: the first shared benchmark), `guards` (benchmark → margin as a share; None: all others), `margin` for
            those, `alpha`, `looks`.

    Returns:
        The evidence: `decide`'s body with who was compared, when, and which benchmarks were left out.

    Raises:
        UserError: nothing to compare, another rule than the champion's, or the candidate was rolled back.
    """
    with process.lock(home() / "promotions" / ".lock"), opened_registry() as registry:
        ledger = registry.ledger(chosen.name)
        champion = registry.champion(chosen.name)
        version = champion[0] if champion else NOBODY
        if version == chosen.version:
            raise GateError(f"{chosen.name} version {version} is the champion already.")
        if chosen.version in ledger.get("rolled_back", []):
            raise GateError(
                f"{chosen.name} version {chosen.version} was rolled back; it is not promoted again by itself."
            )
        opponent, answers = _opponent(chosen, champion)
        pairs, left_out = _pairs(chosen, answers)
        stated = _rule(rule, pairs, left_out)
        looks = looks_at(ledger, version)
        _same_rule(stated, looks, chosen.name, version)
        mark = f"{chosen.evaluated.artifact.key}:{chosen.subject.checkpoint}"
        known, number = look_of(looks, mark)
        decided = gate.decide(stated, {t: pairs[t] for t in (stated.primary, *stated.guards)}, number)
        if rule.get("primary") is None or rule.get("guards") is None:  # the benchmarks were not all named
            decided["why"] += [f"{task}: left out, because {reason}" for task, reason in left_out.items()]
        evidence = {
            "name": chosen.name,
            "candidate": {"version": chosen.version, "run_id": chosen.run_id, "artifact": chosen.subject.artifact,
                          "evaluation": chosen.evaluated.artifact.path.name},
            "champion": opponent,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "left_out": left_out,
            **decided,
        }  # fmt: skip
        if not known:
            about = {
                "candidate": mark,
                "version": chosen.version,
                "promote": evidence["promote"],
                "p": evidence["primary"]["p"],
            }
            registry.remember(
                chosen.name, f"look.{version}.{number}", about | {"rule": stated.body(), "time": evidence["time"]}
            )
        _store_evidence(registry, chosen, evidence, version)
        return evidence


def _opponent(
    chosen: Candidate, champion: tuple[str, dict[str, str]] | None
) -> tuple[dict[str, Any], dict[str, dict[str, Sample]]]:
    """Who is looked at, and the answers."""
    if champion is None:
        first = chosen.subject.first
        if first == chosen.subject.checkpoint:
            raise GateError(
                chosen.name,
                f"there is no champion yet, so its first one is compared with the base that it was trained from, and the evaluation "
                f"{chosen.evaluated.artifact.path.name} has answers of {first} alone",
                f"Add base to {_where_models_are_listed(chosen)} of the recipe, run it again, which runs the evaluation alone, and promote "
                "that run.",
            )
        return {"version": None, "checkpoint": first, "of": "the candidate's own chain"}, chosen.subject.samples[first]
    evaluated, subject = of_champion(chosen.name, champion, chosen.evaluated.artifact)
    about = {"version": champion[0], "artifact": subject.artifact, "evaluation": evaluated.artifact.path.name}
    return about, subject.samples[subject.checkpoint]


def _where_models_are_listed(chosen: Candidate) -> str:
    """The field that says which checkpoints are evaluated: stages with a name list models."""
    stages = (chosen.evaluated.run or {}).get("summary", {}).get("stages", {})
    named = [
        name
        for name, about in stages.items()
        if about.get("key") == chosen.evaluated.artifact.key and "checkpoints" in about
    ]
    return f"{named[0]}.models" if named else "evaluate.checkpoints"


def compared(evidence: Mapping[str, Any]) -> str:
    """What a look has compared with what, on which benchmarks.

    >>> rule = {"primary": "sums", "guards": {"words": 0.02}, "alpha": 0.05, "looks": 30}
    >>> about = {"name": "demo", "candidate": {"version": "4"}, "rule": rule}
    >>> compared({**about, "champion": {"version": "3"}})
    'demo version 4 was compared with the champion, version 3: better on sums, not worse by 2 points on words?'
    >>> compared({**about, "rule": rule | {"guards": {}}, "champion": {"version": None, "checkpoint": "base"}})
    'demo version 4 was compared with the base of its own chain, as there is no champion yet: better on sums?'
    """
    version, rule = evidence["champion"]["version"], evidence["rule"]
    other = (
        f"the champion, version {version}"
        if version
        else f"the {evidence['champion']['checkpoint']} of its own chain, as there is no champion yet"
    )
    guards = "".join(f", not worse by {100 * margin:g} points on {task}" for task, margin in rule["guards"].items())
    return f"{evidence['name']} version {evidence['candidate']['version']} was compared with {other}: better on {rule['primary']}{guards}?"


def of_champion(name: str, champion: tuple[str, dict[str, str]], like: Artifact) -> tuple[Evaluated, Subject]:
    """The champion's evaluation, of several one that was made as `like`; where its model is not here, that of its run, from MLflow.

    Args:
        champion: its version and the version's tags.

    Raises:
        UserError: nothing says which run made it, or its evaluation is nowhere.
    """
    version, tags = champion
    artifact, run = tags.get("whetstone.artifact"), tags.get("whetstone.parent_run")
    if artifact:
        with contextlib.suppress(*([NotFound] if run else [])):
            return subjects.single(artifact, like=like)
    if run:
        return subjects.single(run, like=like)
    raise GateError(
        f"{name} version {version} is the champion, but nothing says which run made it",
        fix="Give the version the tag whetstone.parent_run with the id of its pipeline run.",
    )


def _pairs(chosen: Candidate, answers: dict[str, dict[str, Sample]]) -> tuple[dict[str, Pair], dict[str, str]]:
    """`paired_tasks` of a candidate, of which there has to be one."""
    pairs, left_out = paired_tasks(chosen.scores, answers)
    if not pairs:
        reasons = "; ".join(f"{task}: {reason}" for task, reason in left_out.items())
        raise GateError(
            f"no benchmark has {gate.LEAST} problems that both the candidate and the champion were asked alike. {reasons}".rstrip()
        )
    return pairs, left_out


def paired_tasks(scores: Answers, answers: Answers) -> tuple[dict[str, Pair], dict[str, str]]:
    """task → both sides' shares of correct answers on the problems that both were asked in the same words; and tasks left out → why.

    Args:
        scores: task → problem → answers of the candidate.
        answers: the same of the model that it is compared with.
    """
    pairs, left_out = {}, {}
    for task in dict.fromkeys([*scores, *answers]):
        problems, other = scores.get(task, {}), answers.get(task, {})
        shared = [p for p, s in problems.items() if p in other and s.prompt == other[p].prompt]
        if len(shared) < gate.LEAST:
            left_out[task] = _why_left_out(len(problems), len(other), len(shared))
            continue
        old, new = ([side[p].scores for p in shared] for side in (other, problems))
        pairs[task] = Pair(paired.passes(old, [1])[:, 0], paired.passes(new, [1])[:, 0])
    return pairs, left_out


def _why_left_out(asked: int, other: int, shared: int) -> str:
    """Of a benchmark, from the numbers of problems that the candidate was asked, the other model, and both in the same words.

    >>> _why_left_out(0, 50, 0), _why_left_out(50, 10, 10)
    ('the candidate was not asked it', '10 problems were asked of both alike, and fewer than 20 decide nothing')
    """
    if not asked or not other:
        return f"the {'candidate' if not asked else 'model it is compared with'} was not asked it"
    count = "1 problem was" if shared == 1 else f"{shared or 'no'} problems were"
    return f"{count} asked of both alike, and fewer than {gate.LEAST} decide nothing"


def _rule(rule: Mapping[str, Any], pairs: Mapping[str, Pair], left_out: Mapping[str, str]) -> Rule:
    primary = rule.get("primary") or next(iter(pairs))
    guards = rule.get("guards")
    if guards is None:
        guards = {task: rule["margin"] for task in pairs if task != primary}
    for option, task in (("--primary", primary), *(("--guard", g) for g in guards)):
        if task in left_out:
            raise GateError(f"{option} {task}", f"{left_out[task]}.")
        if task not in pairs:
            raise GateError(f"{option} {task}", "both were not asked it, or not alike", did_you_mean(task, pairs))
    return Rule(primary, dict(sorted(guards.items())), rule["alpha"], rule["looks"])


def look_of(looks: Mapping[int, Mapping[str, Any]], candidate: str) -> tuple[bool, int]:
    """Whether the answers of a candidate have been looked at, and the number of that look or of the next one.

    >>> look_of({1: {"candidate": "a"}, 2: {"candidate": "b"}}, "a"), look_of({1: {"candidate": "a"}}, "b")
    ((True, 1), (False, 2))
    """
    known = next((number for number, about in looks.items() if about.get("candidate") == candidate), None)
    return known is not None, known or max(looks, default=0) + 1


def looks_at(ledger: Mapping[str, Any], version: str, kind: str = "look") -> dict[int, dict[str, Any]]:
    """Number → what is known of each look at a champion; `kind`: "look" of promotions, "gate" of nights."""
    prefix = f"{kind}.{version}."
    keys = [k for k in ledger if k.startswith(prefix) and k.removeprefix(prefix).isdigit()]
    return {int(k.removeprefix(prefix)): ledger[k] for k in keys}


def _same_rule(stated: Rule, looks: Mapping[int, dict[str, Any]], name: str, version: str) -> None:
    for number, about in looks.items():
        if about.get("rule") != json.loads(json.dumps(stated.body())):
            raise GateError(
                name,
                f"look {number} at champion {version} was made by the rule {json.dumps(about.get('rule'))}; the rule may only change "
                "with the champion, or the false promotions would not be bounded.",
            )


def _store_evidence(registry: Any, chosen: Candidate, evidence: dict[str, Any], version: str) -> None:
    file = f"champion-{version}-look-{evidence['look']}.json"
    write_atomic(home() / "promotions" / chosen.name / file, json.dumps(evidence, indent=1))
    if chosen.run_id:
        verdict = "may be promoted" if evidence["promote"] else "is not promoted"
        tags = {
            "whetstone.promotion": f"{verdict} (look {evidence['look']} at champion {version}): "
            + "; ".join(evidence["why"])
        }
        registry.keep_evidence(chosen.run_id, f"promotion/{file}", evidence, tags)


def move(chosen: Candidate, evidence: Mapping[str, Any], approved_by: str | None = None) -> None:
    """Give the alias to a candidate whose look allows it.

    Raises:
        UserError: the look does not, or the champion is another one by now.
    """
    if not evidence["promote"]:
        raise GateError("the gate does not promote: " + "; ".join(evidence["why"]))
    intact(chosen.model)
    with process.lock(home() / "promotions" / ".lock"), opened_registry() as registry:
        champion = registry.champion(chosen.name)
        if (champion[0] if champion else None) != evidence["champion"]["version"]:
            raise GateError(
                f"{chosen.name} has another champion by now (version {champion and champion[0]})", fix="Look again."
            )
        tags = {"whetstone.artifact": chosen.subject.artifact, "whetstone.promoted": evidence["time"],
                "whetstone.evidence": "; ".join(evidence["why"])}  # fmt: skip
        if approved_by:
            tags["whetstone.approved_by"] = approved_by
        history = registry.ledger(chosen.name).get("champions", [])
        if champion and history[-1:] != [champion[0]]:  # somebody gave it the alias by hand
            history = [*history, champion[0]]
        registry.set_champion(chosen.name, chosen.version, tags)
        registry.remember(chosen.name, "champions", [*history, chosen.version])


def rollback(name: str | None) -> dict[str, Any]:
    """Give the alias back to the champion before this one, whose looks stay counted.

    Raises:
        UserError: there is no champion to take it from.
    """
    with process.lock(home() / "promotions" / ".lock"), opened_registry() as registry:
        chosen = registered(registry, name)
        history = registry.ledger(chosen).get("champions", [])
        champion = registry.champion(chosen)
        if champion is None or not history or history[-1] != champion[0]:
            raise GateError(
                chosen, f"there is no promotion of ours to roll back (champion: {champion and champion[0]})."
            )
        before = history[-2] if len(history) > 1 else None
        registry.remember(chosen, "rolled_back", [*registry.ledger(chosen).get("rolled_back", []), history[-1]])
        if before is None:
            registry.clear_champion(chosen)
        else:
            registry.set_champion(chosen, before, {})
        registry.remember(chosen, "champions", history[:-1])
        return {"name": chosen, "from": history[-1], "to": before}


def status(name: str | None) -> dict[str, Any]:
    """The champion, who was before it, and what its looks have spent."""
    with opened_registry() as registry:
        chosen = registered(registry, name)
        ledger, champion = registry.ledger(chosen), registry.champion(chosen)
    version = champion[0] if champion else NOBODY
    looks = looks_at(ledger, version)
    rules = [about.get("rule") or {} for about in looks.values()]
    spent = sum(gate.level(n, r["alpha"], r["looks"]) for n, r in zip(looks, rules, strict=True) if r)
    return {
        "name": chosen,
        "champion": champion[0] if champion else None,
        "champions": ledger.get("champions", []),
        "rolled_back": ledger.get("rolled_back", []),
        "looks": [{"look": n, **about} for n, about in sorted(looks.items())],
        "spent": spent,
    }


def registered(registry: Any, name: str | None, otherwise: str = "") -> str:
    """The registered name that is meant.

    Args:
        otherwise: what to do where the name is a new one on purpose.

    Raises:
        UserError: there is none, or several.
    """
    known = registry.names()
    if name is None and len(known) == 1:
        return str(known[0])
    if name in known:
        return str(name)
    if name is None and not known:
        raise GateError("no model is registered yet; `whetstone promote RUN --name NAME` registers the first one.")
    if name is None:
        raise GateError("--name", "say which registered model", f"Known: {', '.join(sorted(known))}.")
    hint = f" If it is a new one, {otherwise}." if otherwise else ""
    raise GateError(f"--name {name}", "no such registered model", f"{did_you_mean(name, known)}{hint}")


__all__ = ["Candidate", "GateError", "candidate", "compared", "look", "move", "rollback", "status"]
