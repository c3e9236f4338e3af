"""From a score back to the rows that it came from, with every file held against its manifest on the way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evaluation import paired, samples
from pipelines.base.errors import did_you_mean
from pipelines.base.files import REPORT, file_sha256, json_lines, read_manifest, read_object, reported
from pipelines.recipe.source import OF_ROWS
from pipelines.recipe.stage_kind import BASE, DATA, MODEL, SCORES
from tasks import brought, environment
from tasks.store import artifacts, index
from tasks.store.artifacts import Artifact, stored_scores
from tasks.store.known import Known, NotFound, makes, training, what_makes

Progress = Callable[[str], None]
TOLD = ("card.json", "card.md", "draws.jsonl", "dropped.jsonl", "quarantine.jsonl", "rollouts.jsonl")
"""Files of reports that say what became of rows; logs and pictures may be shortened or removed."""


@dataclass
class Node:
    """A thing in the drawing."""

    id: str
    kind: str
    """score, stage, model or source."""
    title: str
    about: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What is not as it was when it was produced."""


@dataclass
class Graph:
    """Nodes with edges from what was made to what it was made from."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)

    def add(self, node: Node, reader: str | None) -> None:
        """A node that `reader` was made from."""
        self.nodes.setdefault(node.id, node)
        if reader is not None and (reader, node.id) not in self.edges:
            self.edges.append((reader, node.id))

    @property
    def faults(self) -> list[str]:
        """Every fault with the thing that it is about."""
        return [f"{node.title}: {fault}" for node in self.nodes.values() for fault in node.faults]

    def body(self) -> dict[str, Any]:
        """For JSON."""
        nodes = [asdict(node) for node in self.nodes.values()]
        return {"name": self.name, "nodes": nodes, "edges": self.edges, "faults": self.faults}


def trace(name: str, progress: Progress = lambda what: None) -> Graph:
    """The lineage of a score, a model or a run.

    Args:
        name: `[RUN:]checkpoint/benchmark/metric` (of the newest run that has it, where none is named), a model or another artifact
            as `stage-key` or folder, or a run.

    Raises:
        NotFound: nothing here has this name.
    """
    known = Known()
    run_name, score = _score_of(name)
    if score is None or run_name is not None:
        _fetch(run_name or name, known, progress)
    tracer = _Tracer(known, Graph(name), progress)
    if score is not None:
        evaluation, (checkpoint, task, metric) = _evaluation(run_name, score, known)
        tracer.score(evaluation, checkpoint, task, metric)
        return tracer.graph
    artifact = known.by_name(name)
    if artifact is not None:
        tracer.artifact(artifact, None)
        return tracer.graph
    run = known.run(name)
    if run is None:
        raise known.unknown(name)
    stages = list((run.get("summary") or {}).get("stages") or {})
    root = Node(run["run_id"], "run", f"run {run['run_id'][:8]}", [run["name"], run["status"]])
    tracer.graph.add(root, None)
    for stage in reversed(stages):
        produced = known.stage_of(run, stage)
        if produced is None:
            root.faults.append(f"its {stage} artifact is not here")
        elif produced.name not in tracer.graph.nodes:
            tracer.artifact(produced, root.id)
    return tracer.graph


def _fetch(name: str, known: Known, progress: Progress) -> None:
    """Have what a run's name, or an artifact's, leads to, from MLflow where it was made in another project folder."""
    run, named = known.run(name), artifacts.NAME.fullmatch(name)
    there = known.by_name(name) if run is None else None
    if run is None and there is None and named is not None and what_makes(named[1]) is not None:
        there = brought.artifact(named[1], named[2], "", progress)
        known.forget()
    if there is not None and not known.complete(there):
        run_id = str((read_manifest(there.path) or {}).get("pipeline_run") or "")
        run = known.run(run_id) or brought.remote_run(run_id)
    elif run is None and there is None:
        run = brought.remote_run(name)
    if run is None:
        return
    if any(about.get("why") == index.REBUILT for about in ((run.get("summary") or {}).get("stages") or {}).values()):
        with contextlib.suppress(environment.Unreachable):  # only the artifacts that came here before tell of it
            run = brought.remote_run(run["run_id"]) or run
    known.runs = [run, *(other for other in known.runs if other["run_id"] != run["run_id"])]
    if brought.stages(run, (run.get("summary") or {}).get("stages") or {}, progress):
        known.forget()


def _score_of(name: str) -> tuple[str | None, tuple[str, str, str] | None]:
    """(run, (checkpoint, benchmark, metric)) of a score's name.

    >>> _score_of("3f2a:rlvr/gsm8k/pass@1"), _score_of("rlvr-0123")
    (('3f2a', ('rlvr', 'gsm8k', 'pass@1')), (None, None))
    """
    run, _, score = name.rpartition(":")
    parts = score.replace("_at_", "@").split("/")
    if len(parts) == 3 and all(parts) and not Path(name).exists():
        return run or None, (parts[0], parts[1], parts[2])
    return None, None


def _evaluation(
    run_name: str | None, score: tuple[str, str, str], known: Known
) -> tuple[Artifact, tuple[str, str, str]]:
    """The evaluation that holds a score, and the score with the checkpoint's label in it."""
    if run_name is not None:
        run = known.run(run_name)
        stage = known.evaluation_of(run, score[0]) if run else None
        if run and stage:
            score = (known.labels(run, stage).get(score[0], score[0]), *score[1:])
        evaluations = [known.stage_of(run, stage or "")] if run else [known.by_name(run_name)]
        if run is None and evaluations == [None]:
            raise known.unknown(run_name)
    else:
        evaluations = [a for a in known.artifacts if makes(a) == SCORES]
    there: list[str] = []
    for artifact in evaluations:
        stored = stored_scores(artifact.path) if artifact else {}
        if artifact and score[2] in stored.get(score[0], {}).get(score[1], {}):
            return artifact, score
        there += [f"{c}/{t}/{m}" for c, by in stored.items() for t, ms in by.items() for m in ms]
    raise NotFound("/".join(score), "no evaluation here has this score", did_you_mean("/".join(score), set(there)))


@dataclass
class _Tracer:
    known: Known
    graph: Graph
    progress: Progress

    def score(self, evaluation: Artifact, checkpoint: str, task: str, metric: str) -> None:
        """A score, what it is when computed again from the stored answers, and the evaluation behind it."""
        cell = stored_scores(evaluation.path)[checkpoint][task][metric]
        about = [f"{cell['value']:.4f} [{cell['low']:.4f}, {cell['high']:.4f}] over {cell['n']} problems"]
        node = Node("score", "score", f"{checkpoint}/{task}/{metric}", about)
        again = _again(evaluation.path / "samples" / checkpoint / f"{task}.jsonl", metric)
        if again is not None and abs(again - cell["value"]) > 1e-9:
            node.faults.append(f"the stored answers give {again:.4f}")
        elif again is not None:
            node.about.append("the stored answers give the same value")
        self.graph.add(node, None)
        results = read_object(evaluation.path / "results.json", guided=dict, searched=dict) or {}
        column = {**(results.get("guided") or {}), **(results.get("searched") or {})}.get(checkpoint)
        read = {column[name] for name in ("model", "base", "scorer") if column.get(name)} if column else {checkpoint}
        self.artifact(evaluation, node.id, only=read)

    def artifact(self, produced: Artifact, reader: str | None, only: set[str] | None = None) -> None:
        """An artifact and all that it was made from.

        Args:
            only: for an evaluation, the checkpoints that matter; the others are left out.
        """
        name = produced.name
        if name in self.graph.nodes:
            self.graph.add(self.graph.nodes[name], reader)
            return
        self.progress(f"verifying {name}")
        node = Node(name, "model" if makes(produced) == MODEL else "stage", name, _about(produced))
        fault = artifacts.foreign(produced.path, produced.stage, produced.key) or _changed(produced.path)
        if fault is not None:
            node.faults.append(fault)
        self.graph.add(node, reader)
        for source, digest in (produced.parts.get("inputs") or {}).items():
            origin = self.known.by_digest(str(digest), produced)
            keeps_base = only is not None and BASE in only and (origin is None or (origin.path / "base").is_dir())
            if only is not None and source not in only and not keeps_base:
                continue
            if origin is None:
                node.faults.append(
                    f"the {source} that it read (contents {str(digest)[:12]}) is not here{self._instead(produced, source)}"
                )
            else:
                self.artifact(origin, name)
        self._sources(produced, name)

    def _instead(self, produced: Artifact, source: str) -> str:
        """Where the same pipeline run names an artifact for that input, that its contents are others."""
        runs = [r for r in self.known.runs if self.known.stage_of(r, produced.stage) == produced]
        wanted = DATA if source == "data" else MODEL
        named = [(r, n) for r in runs for n in (r.get("summary") or {}).get("stages") or {}]
        others = [a for r, n in named if (a := self.known.stage_of(r, n)) is not None and makes(a) == wanted]
        other = next((a for a in others if source in ("data", "model", a.stage)), None)
        return f": {other.path.name} holds other contents ({other.digest[:12]})" if other else ""

    def _sources(self, produced: Artifact, reader: str) -> None:
        """What comes from outside: data sources of a curation, the base model of a training."""
        settings = produced.parts.get("settings") or {}
        files = produced.parts.get("files") or {}
        where = produced.parts.get("where") or {}
        for number, source in enumerate((settings.get("curate") or {}).get("sources") or []):
            if source.get("kind") == "stage":  # an input, which has a node of its own
                continue
            names = [n for n in files if n.startswith(f"sources.{number}/")] or list(files)
            place = source.get("task") or next((where[n] for n in names if n in where), None) or source.get("path")
            about = [
                f"{k}: {source[k]}" for k in ("kind", "size", "seed", "split", "licence") if source.get(k) is not None
            ]
            node = Node(f"{reader}/source{number}", "source", f"{source.get('kind')}: {place}", about)
            if source.get("kind") in OF_ROWS:
                versions = {n: files[n] if ":" in str(files[n]) else f"sha256 {str(files[n])[:12]}" for n in names[:8]}
                node.about += [f"{where.get(n, n)} {version}" for n, version in versions.items()]
            self.graph.add(node, reader)
        model = settings.get("model") or {}
        if makes(produced) == MODEL and (model.get("path") or model.get("fresh")):
            what = (
                model.get("path")
                or f"new {(model.get('fresh') or {}).get('architecture')} model, seed {produced.parts.get('seed')}"
            )
            self.graph.add(Node(f"{reader}/base", "source", f"base: {what}"), reader)


def _changed(folder: Path) -> str | None:
    """The first file of an artifact's report that rows are told from and that is not as it was made; None where there is none."""
    files = (read_manifest(folder) or {}).get("files") or {}
    told = [f"{REPORT}/{name}" for name in TOLD if f"{REPORT}/{name}" in files]
    lost = [n for n in told if not (folder / n).is_file() or file_sha256(folder / n) != files[n]["sha256"]]
    return f"{lost[0]} is damaged" if lost else None


def _about(produced: Artifact) -> list[str]:
    lines = [f"contents {produced.digest[:12]}, seed {produced.parts.get('seed')}, {produced.seconds:.0f} s"]
    if produced.run_id:
        lines.append(f"MLflow run {produced.run_id}")
    if makes(produced) == MODEL:
        lines.append(", ".join(training(produced)))
    if makes(produced) == DATA:
        card = read_object(reported(produced.path, "card.json"), rows=dict, splits=dict) or {}
        lines.append(", ".join(f"split {k}: {v} rows" for k, v in (card.get("splits") or {}).items()))
        lines.append(", ".join(f"{k.replace('_', ' ')} {v}" for k, v in (card.get("rows") or {}).items()))
    if makes(produced) == MODEL:
        drawn = rows_drawn(produced.path)
        if drawn:
            lines.append(f"drew {len(drawn)} rows (draws.jsonl): `whetstone rows UID` for one of them")
    return [line for line in lines if line]


def rows_drawn(folder: Path) -> dict[str, list[int]]:
    """uid → steps in which an RLVR artifact drew it; empty where it was trained before draws were recorded."""
    drawn: dict[str, list[int]] = {}
    for line in json_lines(reported(folder, "draws.jsonl")):
        for uid in line["rewards"]:
            drawn.setdefault(uid, []).append(line["step"])
    return drawn


def _again(path: Path, metric: str) -> float | None:
    """pass@k or avg@k from the stored answers; None for other metrics."""
    kind, _, k = metric.partition("@")
    if kind not in ("pass", "avg") or not k.isdigit() or not path.is_file():
        return None
    scores = [s.scores for s in samples.read(path).values()]
    if not scores or min(map(len, scores)) < int(k):
        return None
    return float(paired.passes(scores, [1 if kind == "avg" else int(k)]).mean())
