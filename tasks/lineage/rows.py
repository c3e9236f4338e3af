"""One row of the data: where it came from, why it was kept, who drew it with which rewards, and which models saw it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from evaluation import samples
from pipelines.base.errors import UserError
from pipelines.base.files import json_lines, read_object, reported
from pipelines.data import dataset
from pipelines.recipe.source import OF_ROWS
from pipelines.recipe.stage_kind import DATA, MODEL, SCORES, kind_of_run
from tasks import brought, environment
from tasks.store.artifacts import Artifact
from tasks.store.known import Known, makes, what_makes

Progress = Callable[[str], None]
STEPS = ("exact_duplicate", "contaminated", "near_duplicate", "length", "difficulty")
MOST_FETCHED = 10
"""Data artifacts that are fetched from MLflow in the search for a row, the newest first."""
NGRAM = 13
"""Words in a row that count as an overlap where the curation did not look for any."""


class NoRow(UserError):
    """No data here or in MLflow holds such a row."""


def describe(uid: str, progress: Progress = lambda what: None) -> dict[str, Any]:
    """Everything known of the row whose uid starts with `uid`: in this project folder, else in MLflow's newest runs, whose artifacts are
    fetched then.

    Returns:
        uid, row (as it was kept, or None), data (per curation: split or the step that dropped it, why kept), draws (per model:
        steps with rewards), trained (models whose training split holds it), overlaps (benchmark, question).

    Raises:
        NoRow: no curation here has it, nor has one of MLflow's.
        UserError: several rows match.
    """
    known = Known()
    curations = [a for a in known.artifacts if makes(a) == DATA]
    places = []
    for number, curation in enumerate(curations, 1):
        progress(f"looking through data {number} of {len(curations)}")
        places += list(_places(curation, uid))
    if not places:
        places = _fetched(uid, known, len(curations), progress)
    uids = sorted({place["uid"] for place in places})
    if len(uids) > 1:
        raise UserError(
            uid, f"{len(uids)} rows start so ({', '.join(u[:12] for u in uids[:5])})", "Give more of the uid."
        )
    row = next((p["row"] for p in places if p.get("row")), None)
    readers = _readers(known, [p["artifact"] for p in places if "split" in p])
    progress("looking through rollouts")
    return {
        "uid": uids[0],
        "row": row,
        "data": [{k: v for k, v in p.items() if k not in ("row", "uid")} for p in places],
        "draws": [d for model in readers if kind_of_run(model.stage).rewards for d in draws(model, uids[0])],
        "trained": [
            m.name for m in readers if not kind_of_run(m.stage).rewards and _split(m) in _splits_of(m, places, known)
        ],
        "overlaps": _overlaps(known, row, places) if row else [],
    }


def _fetched(uid: str, known: Known, here: int, progress: Progress) -> list[dict[str, Any]]:
    """Where the data of MLflow's newest runs has the row, with all stages of the run that has it, fetched; never [].

    Args:
        here: data sets of this project folder, none of which has it.
    """
    missing = f"{uid}: none of the {here} curated data sets here has a row whose uid starts so"
    tried: set[str] = set()
    try:
        for run in brought.remote_runs():
            entries = (run.get("summary") or {}).get("stages") or {}
            for about in entries.values():
                kind, key = str(about["kind"]), str(about.get("key"))
                if what_makes(kind, about.get("makes")) != DATA or key in tried or len(tried) == MOST_FETCHED:
                    continue
                tried.add(key)
                curation = brought.artifact(kind, key, brought.experiment_of(run), progress)
                places = list(_places(curation, uid)) if curation else []
                if places:
                    brought.stages(run, entries, progress)
                    known.forget()
                    return places
    except environment.Unreachable as error:
        raise NoRow(f"{missing}, and MLflow cannot be asked: {error}") from None
    raise NoRow(
        f"{missing}, and neither has one of the {len(tried)} newest that MLflow has artifacts of",
        fix=(
            "The uids of a data set are in its files and in rollouts.jsonl; `whetstone lineage RUN` fetches the data of an older run, "
            "and this command then finds its rows."
        ),
    )


def _places(curation: Artifact, uid: str) -> Iterator[dict[str, Any]]:
    """Where a curation has rows whose uid starts with `uid`."""
    import pyarrow.parquet as pq

    about = {"artifact": curation.name, "run_id": curation.run_id}
    for path in sorted(curation.path.glob("*.parquet")):
        column = pq.read_table(path, columns=["uid"]).column("uid").to_pylist()
        wanted = {i for i, value in enumerate(column) if value.startswith(uid)}
        if wanted:
            for number, problem in enumerate(dataset.iter_problems(path)):
                if number in wanted:
                    yield about | {
                        "uid": problem.uid, "split": path.stem, "row": asdict(problem), "kept": _kept(curation),
                        "source": _source(curation, problem.source),
                    }  # fmt: skip
    for line in json_lines(reported(curation.path, "dropped.jsonl")):
        if str(line.get("uid", "")).startswith(uid):
            yield about | {"uid": line["uid"], "dropped": line.get("step"), "reason": line.get("reason")}


def _kept(curation: Artifact) -> list[str]:
    """The filters that the row passed, with what each of them dropped."""
    settings = _settings(curation)
    card = read_object(reported(curation.path, "card.json"), rows=dict) or {}
    dropped = card.get("rows") or {}
    on = {"near_duplicate": settings.get("near_duplicates"), "contaminated": settings.get("decontaminate"),
          "difficulty": settings.get("difficulty"), "length": True, "exact_duplicate": True}  # fmt: skip
    words = {
        "contaminated": "no overlap with benchmarks",
        "length": "length in bounds",
        "difficulty": "solved sometimes",
    }
    return [
        f"{words.get(step, 'no ' + step.replace('_', ' '))} ({dropped.get(step, 0)} rows dropped)"
        for step in STEPS
        if on[step]
    ]


def _source(curation: Artifact, name: str) -> dict[str, Any]:
    """The recipe's source of a row, as far as its name tells."""
    sources = _settings(curation).get("sources") or []
    where = curation.parts.get("where") or {}
    matching = [s for s in sources if name in (str(s.get(k)) for k in ("task", "path", "name", "url_env"))]
    chosen = matching or (sources if len(sources) == 1 else [])
    about = {k: v for s in chosen[:1] for k, v in s.items() if k in ("kind", "task", "path", "size", "seed", "split")}
    return {"name": name, **about, "files": list(where.values())[:8] if about.get("kind") in OF_ROWS else []}


def _readers(known: Known, data: list[str]) -> list[Artifact]:
    """Models trained on these curations."""
    digests = {a.digest for a in known.artifacts if a.name in data}
    return [a for a in known.artifacts if makes(a) == MODEL and (a.parts.get("inputs") or {}).get("data") in digests]


def _settings(produced: Artifact) -> dict[str, Any]:
    """The section of the stage that made an artifact."""
    return (produced.parts.get("settings") or {}).get(produced.stage) or {}


def _split(model: Artifact) -> str:
    return str(_settings(model).get("split") or "train")


def _splits_of(model: Artifact, places: list[dict[str, Any]], known: Known) -> set[str]:
    """Splits that hold the row in the data that a model read."""
    digest = (model.parts.get("inputs") or {}).get("data")
    data = {a.name for a in known.artifacts if a.digest == digest}
    return {p["split"] for p in places if "split" in p and p["artifact"] in data}


def draws(model: Artifact, uid: str) -> list[dict[str, Any]]:
    """When an RLVR model drew a row: at most one entry, with `steps` (step, rewards) and whether all draws were recorded."""
    path, complete = reported(model.path, "draws.jsonl"), True
    steps = [
        {"step": line["step"], "rewards": line["rewards"][uid]} for line in json_lines(path) if uid in line["rewards"]
    ]
    if not path.is_file():
        complete = False
        by_step: dict[int, list[float | None]] = {}
        for line in json_lines(reported(model.path, "rollouts.jsonl")):
            if line.get("uid") == uid:
                by_step.setdefault(line["step"], []).append(line.get("score"))
        steps = [{"step": step, "rewards": rewards} for step, rewards in by_step.items()]
    return [{"model": model.name, "run_id": model.run_id, "complete": complete, "steps": steps}] if steps else []


def _overlaps(known: Known, row: dict[str, Any], places: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Benchmark questions that share a run of words with the row's prompt, of the benchmarks that were evaluated here."""
    from pipelines.curate.similar import Contamination

    asked: dict[tuple[str, str], None] = {}
    for evaluation in (a for a in known.artifacts if makes(a) == SCORES):
        for path in evaluation.path.glob("samples/*/*.jsonl"):
            asked |= {(path.stem, samples.question_of(line)): None for line in json_lines(path)}
    curations = {p["artifact"] for p in places}
    settings = [_settings(a) for a in known.artifacts if a.name in curations]
    ngram = next((s["decontaminate"]["ngram"] for s in settings if s.get("decontaminate")), NGRAM)
    prompt = "\n".join(m["content"] for m in row["prompt"] if m["role"] != "assistant")
    task = Contamination(ngram, asked).hit(prompt) if asked else None
    if task is None:
        return []
    same = [q for t, q in asked if t == task and Contamination(ngram, [(t, q)]).hit(prompt)]
    return [{"benchmark": task, "question": question} for question in same[:5]]


def taint(uid: str, progress: Progress = lambda what: None) -> dict[str, Any]:
    """Models that saw a row: in the split that they were trained on, in a rollout, or in a model that they were made from.

    Returns:
        uid, and models: model, run_id, how.

    Raises:
        NoRow: as `describe`.
    """
    about = describe(uid, progress)
    known = Known()
    how = dict.fromkeys(about["trained"], "in its training split")
    for draw in about["draws"]:
        steps = [s["step"] for s in draw["steps"]]
        certain = "" if draw["complete"] else ", of the rollouts that were logged"
        times = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, first in step {steps[0]}"
        how[draw["model"]] = f"drew it in {times}{certain}"
    by_name = {a.name: a for a in known.artifacts}
    waiting = list(how)
    while waiting:
        parent = by_name[waiting.pop()]
        for child in known.artifacts:
            inputs = (child.parts.get("inputs") or {}).values()
            if makes(child) == MODEL and parent.digest in inputs and child.name not in how:
                how[child.name] = f"made from {parent.name}"
                waiting.append(child.name)
    models = [{"model": name, "run_id": by_name[name].run_id, "how": text} for name, text in how.items()]
    unrecorded = [
        a.name for a in _readers(known, [p["artifact"] for p in about["data"] if "split" in p])
        if kind_of_run(a.stage).rewards and a.name not in how and not reported(a.path, "draws.jsonl").is_file()
    ]  # fmt: skip
    return {"uid": about["uid"], "models": models, "unknown": unrecorded}
