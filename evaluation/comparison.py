"""Arms against each other on the problems that all of them were asked: recipes, curves, tests, pass@k, losses, cost.

An arm is a recipe; its subjects are checkpoints that differ in the seed. Everything here is plain data; texts and pages are drawn
from the body that `compare` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation import paired
from evaluation.length_gain import Answers, differs, length_gain
from evaluation.risk_return import FEWEST, cheap_score, top_k
from evaluation.samples import TRUNCATED, Sample, truncated_share
from pipelines.base import intervals, names
from pipelines.base.errors import ModelError
from pipelines.recipe.stage_kind import BASE

SHOWN = 20
"""Lost problems whose texts are kept."""
FIELDS_IN_NAME = 3
"""Settings that stand in the name of an arm where nothing that was set tells the arms apart."""
Progress = Callable[[str], None]


@dataclass
class Subject:
    """One evaluated checkpoint."""

    name: str
    """As asked for: a run's or a model's id."""
    run_id: str | None
    seed: int | None
    checkpoint: str
    artifact: str
    """The stage and key of the model, else of the evaluation."""
    settings: dict[str, str]
    """Resolved recipe, flattened, without the seed."""
    samples: dict[str, dict[str, dict[str, Sample]]]
    """checkpoint → task → problem → answers: of this checkpoint and of the first of its chain."""
    reported: dict[str, dict[str, Any]] = field(default_factory=dict)
    """task → metric → value, low, high, n, as the evaluation stored them."""
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """task → how it was asked (samples, sampling, few-shot)."""
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    """`stage file` → digest, `stage library` → version."""
    notes: list[str] = field(default_factory=list)
    recipe: str = ""
    """The name of the recipe that made it."""
    presets: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    """What somebody set for its run; empty where that is not known."""
    evaluation: Path | None = None
    """The artifact of its answers."""
    model: Path | None = None
    """The folder of its weights; None where they are not on this machine."""
    made_from: tuple[str, ...] = ()
    """Artifacts of its chain in front of its own."""

    @property
    def first(self) -> str:
        """The first checkpoint of its chain, which it is held against for lost problems."""
        return next(iter(self.samples))


@dataclass
class Arm:
    """Subjects of one recipe."""

    name: str
    subjects: list[Subject]


def arms_of(subjects: Sequence[Subject], *, separate: bool = False) -> list[Arm]:
    """Group subjects that differ in nothing but the seed, in the order given; equal seeds stay separate.

    Args:
        separate: where all would be one arm, each becomes one, so that there is something to compare.
    """
    arms: list[Arm] = []
    for subject in subjects:
        for arm in arms:
            same = arm.subjects[0].settings == subject.settings and arm.subjects[0].checkpoint == subject.checkpoint
            if same and subject.seed not in [s.seed for s in arm.subjects]:
                arm.subjects.append(subject)
                break
        else:
            arms.append(Arm("", [subject]))
    if separate and len(arms) == 1:
        arms = [Arm("", [subject]) for subject in subjects]
    for arm, name in zip(arms, arm_names(arms), strict=True):
        arm.name = name
    return arms


def arm_names(arms: Sequence[Arm]) -> list[str]:
    """A name for each arm, all different: its presets, and what was set in it that differs.

    Where nothing that was set differs, up to three settings that differ stand for it; then the checkpoint, the seed or the run.
    """
    firsts = [arm.subjects[0] for arm in arms]
    chosen = [names.settings(subject.overrides) for subject in firsts]
    presets = [
        names.listed(own["presets"]) if "presets" in own else [*s.presets]
        for s, own in zip(firsts, chosen, strict=True)
    ]
    fields = [
        f for f in dict.fromkeys(name for own in chosen for name in own) if f != "presets" and not names.is_seed(f)
    ]
    differing = [f for f in fields if len({own.get(f) for own in chosen}) > 1]
    told = [
        [*p, *names.of_fields({f: own[f] for f in differing if f in own})]
        for p, own in zip(presets, chosen, strict=True)
    ]
    if len({*map(tuple, told)}) < 2:
        rows = settings_table(arms)[:FIELDS_IN_NAME]
        shown = [{r["field"]: r["values"][i] for r in rows if r["values"][i] is not None} for i in range(len(arms))]
        told = [[*p, *names.of_fields(values)] for p, values in zip(presets, shown, strict=True)]
    several = len({s.recipe for s in firsts}) > 1
    told = [[s.recipe, *parts] if several or not parts else parts for s, parts in zip(firsts, told, strict=True)]
    places = [f"({place})" for place in range(1, len(arms) + 1)]
    for about in (
        [s.checkpoint for s in firsts],
        [f"seed {s.seed}" for s in firsts],
        [s.name for s in firsts],
        places,
    ):
        if len({*map(tuple, told)}) < len(told) and len({*about}) > 1:
            told = [[*parts, mark] if told.count(parts) > 1 else parts for parts, mark in zip(told, about, strict=True)]
    return [names.DOT.join(dict.fromkeys(parts)) for parts in told]


def settings_table(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """Fields in which the arms differ: field, and a value for each arm; None where it has no such field.

    A field that only some arms have, because the others lack its stage or its method, is no difference beside that.
    """
    listed = dict.fromkeys(name for arm in arms for name in arm.subjects[0].settings)
    rows = [{"field": n, "values": [_value(n, arm.subjects[0].settings) for arm in arms]} for n in listed]
    return [row for row in rows if len({v for v in row["values"] if v is not None}) > 1]


def _value(name: str, settings: dict[str, str]) -> str | None:
    """The value of a field; of a field in a section that is none or empty, what stands in the section's place."""
    while name not in settings and "." in name:
        name = name.rpartition(".")[0]
        if settings.get(name) not in (None, "None", "{}"):  # a method's name: the field belongs to another method
            return None
    return settings.get(name)


def missing_stages(arms: Sequence[Arm]) -> dict[str, list[str]]:
    """Stage → the arms that have none, of the stages that some have."""
    own = {arm.name: {name.split(".")[0].split(" ")[0] for name in arm.subjects[0].settings} for arm in arms}
    stages = dict.fromkeys(name for arm in arms for name in own[arm.name])
    lacking = {stage: [name for name, has in own.items() if stage not in has] for stage in stages}
    return {stage: missing for stage, missing in lacking.items() if missing}


def compare(arms: Sequence[Arm], *, confidence: float = 0.95, progress: Progress = lambda what: None) -> dict[str, Any]:
    """The whole comparison as a JSON-like body.

    Every arm is tested against the first one. Tests of pass@1 over all benchmarks and arms are one family (Holm), those of the
    largest pass@k another.
    """
    asked = list(dict.fromkeys(task for arm in arms for s in arm.subjects for task in _of(s)))
    benchmarks = {}
    shared_tasks = [task for task in asked if all(task in _of(s) for arm in arms for s in arm.subjects)]
    family = max(1, len(shared_tasks) * (len(arms) - 1))
    for task in shared_tasks:
        progress(f"benchmark {task}")
        benchmarks[task] = _benchmark(task, arms, confidence, family)
    _correct(benchmarks, 1 - confidence)
    notes = [note for arm in arms for s in arm.subjects for note in s.notes]
    for task in sorted(set(asked) - set(shared_tasks)):
        holders = [arm.name for arm in arms if all(task in _of(s) for s in arm.subjects)]
        notes.append(f"{task}: asked of {', '.join(holders) or 'some runs'} only, so it is not compared")
    if not benchmarks:
        notes.append("no benchmark was asked of all of them, so no score is compared")
    return {
        "confidence": confidence,
        "arms": [_arm(arm) for arm in arms],
        "evaluations": sorted({str(s.evaluation) for arm in arms for s in arm.subjects if s.evaluation is not None}),
        "settings": settings_table(arms),
        "missing_stages": missing_stages(arms),
        "curves": _curves(arms),
        "benchmarks": benchmarks,
        "picking": _picking(arms, benchmarks),
        "cost": [_cost(arm) for arm in arms],
        "notes": list(dict.fromkeys(notes + _code_notes(arms))),
    }


def weights(arms: Sequence[Arm], progress: Progress = lambda what: None) -> list[dict[str, Any]]:
    """The first arm's model against the first model of every other arm, in parameter space.

    Raises:
        ModelError: a model is not on this machine, or two have no weights in common.
    """
    from evaluation.weights import compare_weights  # torch takes seconds to import, and most pages compare no weights

    models = [(f"{arm.name} ({arm.subjects[0].checkpoint})", arm.subjects[0].model) for arm in arms]
    for name, folder in models:
        if folder is None or not folder.is_dir():
            raise ModelError(
                "--weights",
                f"the model of {name} is not on this machine",
                "Run its recipe here, or leave the option out.",
            )
    (old, before), *others = models
    return [
        {"old": old, "new": new, **compare_weights(before, after, progress)}
        for new, after in others
        if before is not None and after is not None
    ]


def _of(subject: Subject) -> dict[str, dict[str, Sample]]:
    return subject.samples.get(subject.checkpoint, {})


def _arm(arm: Arm) -> dict[str, Any]:
    fields = ("name", "run_id", "seed", "checkpoint", "artifact")
    return {"name": arm.name, "runs": [{name: getattr(s, name) for name in fields} for s in arm.subjects]}


def _benchmark(task: str, arms: Sequence[Arm], confidence: float, family: int) -> dict[str, Any]:
    subjects = [s for arm in arms for s in arm.subjects]
    shared = [p for p in _of(subjects[0])[task] if all(p in _of(s)[task] for s in subjects)]
    body: dict[str, Any] = {
        "problems": len(shared),
        "asked": [len(_of(arm.subjects[0])[task]) for arm in arms],
        "notes": _differently_asked(task, arms, shared),
    }
    if not shared:
        body["notes"].append("they were asked no problem in common")
        return body | {"scores": [], "tests": [], "pass_at_k": {"k": [], "arms": []}, "length": [], "lost": []}
    counts = {len(_of(s)[task][p].scores) for s in subjects for p in shared}
    most = min(counts)
    ks = sorted({1, most, *(2**i for i in range(20) if 2**i < most)})
    tables = [_table(arm, task, shared, ks) for arm in arms]
    body["answers"] = most
    body["pass_at_k"] = {"k": ks, "arms": [_bands(table.mean(0), confidence) for table in tables]}
    cut = [truncated_share(_of(s)[task][p] for s in arm.subjects for p in shared) for arm in arms]
    body["scores"] = [_scores(arm, table, ks, share) for arm, table, share in zip(arms, tables, cut, strict=True)]
    body["start"] = _start(task, subjects, shared)
    body["tests"] = []
    for number, table in list(enumerate(tables))[1:]:
        for column in dict.fromkeys((0, len(ks) - 1)):
            old, new = tables[0][:, :, column].mean(0), table[:, :, column].mean(0)
            result = paired.compare(old, new, confidence=confidence, tests=family).body()
            seeds = paired.over_seeds(
                tables[0][:, :, column].mean(1), table[:, :, column].mean(1), confidence=confidence
            )
            about = {"old": 0, "new": number, "metric": f"pass@{ks[column]}", "k": ks[column]}
            body["tests"].append(about | result | {"over_seeds": seeds})
    body["length"] = _at_equal_length(task, arms, shared, confidence)
    body["lost"] = [entry for number in range(len(arms)) for entry in _lost(task, arms, number, shared)]
    return body


def _at_equal_length(task: str, arms: Sequence[Arm], shared: list[str], confidence: float) -> list[dict[str, Any]]:
    """What remains of each arm's gain among answers of about equal length (characters), of arms whose answers are longer or shorter."""
    answered = []
    for arm in arms:
        own = [[_of(s)[task][problem] for s in arm.subjects] for problem in shared]
        if any(len(sample.answers) != len(sample.scores) for samples in own for sample in samples):
            return []
        lengths = [[len(answer) for sample in samples for answer in sample.answers] for samples in own]
        answered.append([Answers(lengths[i], _joined(arm, task, problem)) for i, problem in enumerate(shared)])
    results = [length_gain(answered[0], new, confidence) for new in answered[1:]]
    return [
        {"old": 0, "new": number, **result._asdict()}
        for number, result in enumerate(results, start=1)
        if result is not None and differs(result)
    ]


def _bands(table: np.ndarray, confidence: float) -> dict[str, list[float]]:
    """mean, low and high of every column of [problems, ks]."""
    ends = [intervals.share_interval(column, confidence) for column in table.T]
    low, high = zip(*ends, strict=True)
    return {
        "mean": table.mean(0).round(12).tolist(),
        "low": np.round(low, 12).tolist(),
        "high": np.round(high, 12).tolist(),
    }


def _table(arm: Arm, task: str, problems: list[str], ks: list[int]) -> np.ndarray:
    """pass@k: float64 [subjects, problems, ks]."""
    return np.stack([paired.passes([_of(s)[task][p].scores for p in problems], ks) for s in arm.subjects])


def _scores(arm: Arm, table: np.ndarray, ks: list[int], truncated: float | None) -> dict[str, Any]:
    """An arm's scores of a task; `truncated` is the share of its answers that were cut at the token limit, None where it is not known."""
    by_seed = table[:, :, 0].mean(1)
    return {
        "arm": arm.name,
        "pass@1": float(by_seed.mean()),
        f"pass@{ks[-1]}": float(table[:, :, -1].mean()),
        "seeds": by_seed.tolist(),
    } | ({} if truncated is None else {TRUNCATED: truncated})


def _is_start(subject: Subject, subjects: Sequence[Subject]) -> bool:
    """Whether others of them were trained from it: it is the base, or was evaluated alone as what they start from."""
    alone = subject.first == subject.checkpoint
    return subject.checkpoint == BASE or (alone and any(subject.artifact in other.made_from for other in subjects))


def _start(task: str, subjects: Sequence[Subject], shared: list[str]) -> float | None:
    """The highest pass@1 of what the checkpoints were trained from; None where none of it was asked these problems."""
    asked = [_of(s)[task] for s in subjects if _is_start(s, subjects)]
    asked += [s.samples[s.first].get(task, {}) for s in subjects if s.first != s.checkpoint]
    complete = [rows for rows in asked if all(p in rows for p in shared)]
    return max((float(paired.passes([rows[p].scores for p in shared], [1]).mean()) for rows in complete), default=None)


def _picking(arms: Sequence[Arm], benchmarks: dict[str, Any]) -> dict[str, Any]:
    """task → what the checkpoints come to that cheap scores pick: by the ends of learning curves, and by the other benchmarks."""
    subjects = [s for arm in arms for s in arm.subjects]
    places = [i for i, s in enumerate(subjects) if not _is_start(s, subjects)]
    if len(places) < FEWEST:
        return {}
    scores = {}
    for task, body in benchmarks.items():
        values = [value for arm in body["scores"] for value in arm["seeds"]]
        if values:
            scores[task] = [values[i] for i in places]
    curves = [subjects[i].curves for i in places]
    ends = {name: [cheap_score(name, each.get(name, [])) for each in curves] for name in curves[0]}
    known = {name: [value for value in values if value is not None] for name, values in ends.items()}
    cheap = {name: values for name, values in known.items() if len(values) == len(places)}
    told = {}
    for task, values in scores.items():
        start = benchmarks[task]["start"]
        others = {f"{other}, pass@1": estimates for other, estimates in scores.items() if other != task}
        picked = [
            {"by": name, "top": [asdict(row) for row in top_k(estimates, values, start)]}
            for name, estimates in (cheap | others).items()
            if start is not None
        ]
        if picked:
            told[task] = {"start": start, "checkpoints": len(places), "picked": picked}
    return told


def _lost(task: str, arms: Sequence[Arm], number: int, shared: list[str]) -> list[dict[str, Any]]:
    """What an arm lost against the first checkpoint of its own chain, and against the first arm."""
    arm = arms[number]
    after = [_joined(arm, task, p) for p in shared]
    entries = []
    references: list[tuple[str, list[list[float]], Callable[[str], Sample]]] = []
    own = arm.subjects[0].samples[arm.subjects[0].first].get(task, {})
    if arm.subjects[0].first != arm.subjects[0].checkpoint and all(p in own for p in shared):
        references.append((f"its {arm.subjects[0].first}", [own[p].scores for p in shared], own.__getitem__))
    if number:
        asked = _of(arms[0].subjects[0])[task]
        references.append((arms[0].name, [_joined(arms[0], task, p) for p in shared], asked.__getitem__))
    for name, before, sample_of in references:
        counts = paired.lost(before, after)
        places = counts.pop("places")
        problems = [
            _texts(sample_of(shared[i]), _of(arm.subjects[0])[task][shared[i]], before[i]) for i in places[:SHOWN]
        ]
        entries.append({"arm": number, "reference": name, **counts, "problems": problems})
    return entries


def _joined(arm: Arm, task: str, problem: str) -> list[float]:
    """The answers of all seeds to a problem."""
    return [score for s in arm.subjects for score in _of(s)[task][problem].scores]


def _texts(before: Sample, after: Sample, scores: list[float]) -> dict[str, Any]:
    """A lost problem as a person reads it."""
    correct = next((a for a, v in zip(before.answers, before.scores, strict=False) if v >= 1), "")
    return {
        "problem": before.problem,
        "question": before.question[:2000],
        "target": before.target[:500],
        "before": correct[:2000],
        "after": (after.answers or [""])[0][:2000],
        "share_before": sum(v >= 1 for v in scores) / len(scores),
    }


def _differently_asked(task: str, arms: Sequence[Arm], shared: list[str]) -> list[str]:
    notes = []
    asked = [len(_of(s)[task]) for arm in arms for s in arm.subjects]
    if len(set(asked)) > 1 or len(shared) != asked[0]:
        counts = ", ".join(f"{arm.name}: {len(_of(arm.subjects[0])[task])}" for arm in arms)
        notes.append(f"compared on the {len(shared)} problems that all were asked ({counts})")
    first = arms[0].subjects[0]
    for arm in arms[1:]:
        other = arm.subjects[0]
        first_settings, other_settings = first.tasks.get(task, {}), other.tasks.get(task, {})
        for name in sorted(set(first_settings) | set(other_settings)):
            if first_settings.get(name) != other_settings.get(name):
                notes.append(f"asked with other settings: {name} is {first_settings.get(name)} in {arms[0].name}, "
                             f"{other_settings.get(name)} in {arm.name}")  # fmt: skip
        changed = sum(_of(first)[task][p].prompt != _of(other)[task][p].prompt for p in shared)
        if changed:
            notes.append(f"{changed} of the shared problems were asked with another prompt in {arm.name}")
    return notes


def _correct(benchmarks: dict[str, Any], alpha: float) -> None:
    """Adjusted p-values and verdicts, in place."""
    tests = [test for body in benchmarks.values() for test in body["tests"]]
    for family in ([t for t in tests if t["k"] == 1], [t for t in tests if t["k"] > 1]):
        for test, adjusted in zip(family, paired.holm([t["p"] for t in family]), strict=True):
            test |= {"p_holm": adjusted, "family": len(family)}
            direction = "better" if test["value"] > 0 else "worse"
            test["verdict"] = direction if adjusted <= alpha and test["value"] else "no difference shown"


def _curves(arms: Sequence[Arm]) -> dict[str, Any]:
    """metric → per arm: steps, mean, low, high over its seeds (the lowest and highest of them)."""
    names = dict.fromkeys(name for arm in arms for s in arm.subjects for name in s.curves)
    return {name: [band([s.curves[name] for s in arm.subjects if name in s.curves]) for arm in arms] for name in names}


def band(curves: list[list[tuple[int, float]]], points: int = 200) -> dict[str, Any]:
    """Steps, mean, low and high over curves of several seeds, at most so many points; longer curves are smoothed."""
    by_step: dict[int, list[float]] = {}
    for curve in curves:
        for step, value in _smoothed(curve):
            by_step.setdefault(step, []).append(value)
    full = sorted(step for step, values in by_step.items() if len(values) == len(curves))
    chosen = full if len(full) <= points else [full[round(i * (len(full) - 1) / (points - 1))] for i in range(points)]
    rows = [by_step[step] for step in chosen]
    return {
        "seeds": len(curves),
        "steps": chosen,
        "mean": [float(np.mean(r)) for r in rows],
        "low": [min(r) for r in rows],
        "high": [max(r) for r in rows],
    }


def _smoothed(curve: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """A centred moving average over a twentieth of a long curve; short ones stay as they are."""
    if len(curve) <= 40:
        return curve
    half = max(1, len(curve) // 40)
    values = [v for _, v in curve]
    return [(step, float(np.mean(values[max(0, i - half) : i + half + 1]))) for i, (step, _) in enumerate(curve)]


def _cost(arm: Arm) -> dict[str, Any]:
    """Means over the arm's runs."""
    names = dict.fromkeys(name for s in arm.subjects for name in s.cost)
    return {"arm": arm.name} | {
        name: float(np.mean([s.cost[name] for s in arm.subjects if name in s.cost])) for name in names
    }


def _code_notes(arms: Sequence[Arm]) -> list[str]:
    """What changed of the files and libraries that the runs have in common; a method's own file is no change of the code."""
    subjects = [s for arm in arms for s in arm.subjects]
    changed: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for s in subjects for name in s.code):
        if len({s.code[name] for s in subjects if name in s.code}) > 1:
            stage, _, part = name.partition(" ")
            changed.setdefault(stage, []).append(part)
    return [
        f"{stage}: the runs were made with different code or libraries: {', '.join(parts[:4])}"
        + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")
        for stage, parts in changed.items()
    ]
