"""Runs of a recipe, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import UserError, did_you_mean
from pipelines.recipe.stage_kind import MODEL, SCORES
from whetstone_rlvr import command
from whetstone_rlvr.errors import explained
from whetstone_rlvr.recipes import Changes, Source, listed, read

if TYPE_CHECKING:
    import pandas as pd

INTERVAL = ("value", "low", "high", "n")


@dataclass(frozen=True)
class RunStage:
    """What became of one stage."""

    name: str
    kind: str
    status: str
    """"ran" or "reused"."""
    why: str
    key: str
    seconds: float
    run_id: str | None
    """Of its own run in MLflow."""
    folder: Path
    """Its artifact: data, model or scores, with a folder `report`."""
    achieved: str
    """What it has achieved, in words; empty where its kind does not say."""
    alarms: tuple[dict[str, Any], ...]
    """Of its monitors."""


class Run:
    """A run of a recipe: `stages` (name → stage), scores, metrics and answers, read from the project folder."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self.summary: dict[str, Any] = record.get("summary") or {}
        """As `whetstone run --summary` writes it."""

    @property
    def run_id(self) -> str | None:
        """Of the run in MLflow, which `compare`, `sample` and every command take; None where MLflow was away."""
        return self._record.get("run_id")

    @property
    def status(self) -> str:
        """ "FINISHED", or how else it ended."""
        return str(self._record["status"])

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return str(self.summary.get("recipe") or self._record["name"])

    @property
    def seconds(self) -> float | None:
        """In all."""
        return self.summary.get("seconds")

    @property
    def stages(self) -> dict[str, RunStage]:
        """Name → what became of the stage, in order."""
        stages = {}
        for name, about in (self.summary.get("stages") or {}).items():
            own = {field: about.get(field) for field in ("status", "why", "seconds", "run_id")}
            own |= {"kind": str(about.get("kind", name)), "key": str(about.get("key"))}
            own |= {"achieved": about.get("achieved", ""), "alarms": tuple(about.get("alarms") or ())}
            stages[name] = RunStage(name=name, folder=Path(about["artifact"]), **own)
        return stages

    @property
    def model(self) -> Path | None:
        """The folder of the last model that it made, in Hugging Face's format; None where it made none."""
        models = [stage.name for stage in self._that_make(MODEL)]
        return self._folder(models[-1]) / "model" if models else None

    def frame(self) -> pd.DataFrame:
        """The scores with their intervals: checkpoint, task, metric, value, low, high, n (problems)."""
        rows = [
            {"checkpoint": checkpoint, "task": task, "metric": metric, **{name: cell.get(name) for name in INTERVAL}}
            for checkpoint, by_task in (self.summary.get("evaluation") or {}).items()
            for task, metrics in by_task.items()
            for metric, cell in metrics.items()
        ]
        return _frame(rows, ["checkpoint", "task", "metric", *INTERVAL])

    def differences(self) -> pd.DataFrame:
        """What each stage changed, paired over problems, with intervals: task, old, new, value, low, high, n."""
        rows = []
        for task, steps in (self.summary.get("differences") or {}).items():
            for step, cell in steps.items():
                old, _, new = step.partition(" → ")
                rows.append({"task": task, "old": old, "new": new, **{name: cell.get(name) for name in INTERVAL}})
        return _frame(rows, ["task", "old", "new", *INTERVAL])

    @explained
    def metrics(self, stage: str | None = None) -> pd.DataFrame:
        """Learning curves: stage, step, and a column for each metric.

        Args:
            stage: of this stage only.

        Raises:
            UserError: there is no such stage.
        """
        from pipelines.stage.report import SPOOL, history

        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for name in self._named(stage):
            for line in history(self._folder(name) / "report" / SPOOL):
                rows.setdefault((name, line["step"]), {"stage": name, "step": line["step"]}).update(line["values"])
        return _frame([*rows.values()], ["stage", "step"])

    @explained
    def samples(self, checkpoint: str | None = None, task: str | None = None) -> pd.DataFrame:
        """The answers that its evaluations stored: checkpoint, task, problem, question, expected, sample, answer, score.

        Args:
            checkpoint: of this checkpoint only, by the name that `frame` has for it.
            task: of this benchmark only.
        """
        rows = [
            row
            for stage in self._that_make(SCORES)
            for row in self._answers(stage.name)
            if checkpoint in (None, row["checkpoint"]) and task in (None, row["task"])
        ]
        return _frame(rows, ["checkpoint", "task", "problem", "question", "expected", "sample", "answer", "score"])

    @explained
    def rollouts(self, stage: str | None = None) -> pd.DataFrame:
        """The rollouts that training with rewards stored, a row each, with stage, step, prompt, completion and score.

        Args:
            stage: of this stage only.

        Raises:
            UserError: there is no such stage.
        """
        from tasks.tracking import rollouts

        rows = [
            {"stage": name, "completion": row.pop("text", None)} | row
            for name in self._named(stage)
            for row in rollouts.read(self._folder(name))
        ]
        return _frame(rows, ["stage", "step", "prompt", "completion", "score"])

    def __repr__(self) -> str:
        from flows.table import markdown

        lines = [f"run {self.run_id or '(not recorded)'} of {self.recipe}: {self.status.lower()}"]
        width = max([9, *map(len, self.stages)])
        lines += [f"  {s.name:<{width}} {s.status:<6} {s.seconds:>8.1f} s  {s.why}" for s in self.stages.values()]
        return "\n".join([*lines, *(["", markdown(self.summary)] if self.summary.get("evaluation") else [])])

    def _answers(self, stage: str) -> Iterator[dict[str, Any]]:
        from evaluation import samples

        names = self.summary["stages"][stage].get("checkpoints") or {}
        for path in sorted((self._folder(stage) / "samples").glob("*/*.jsonl")):
            label = path.parent.name
            about = {"checkpoint": names.get(label, label), "task": path.stem}
            for problem, asked in samples.read(path).items():
                row = about | {"problem": problem, "question": asked.question, "expected": asked.target}
                answers = asked.answers if len(asked.answers) == len(asked.scores) else [None] * len(asked.scores)
                for number, (answer, score) in enumerate(zip(answers, asked.scores, strict=True)):
                    yield row | {"sample": number, "answer": answer, "score": score}

    def _that_make(self, what: str) -> list[RunStage]:
        from tasks.store.known import what_makes

        return [
            stage
            for stage in self.stages.values()
            if what_makes(stage.kind, self.summary["stages"][stage.name].get("makes")) == what
        ]

    def _named(self, stage: str | None) -> list[str]:
        if stage is not None and stage not in self.stages:
            raise UserError(f"stage {stage!r}", "this run has no such stage", did_you_mean(stage, self.stages))
        return [*self.stages] if stage is None else [stage]

    def _folder(self, name: str) -> Path:
        """The artifact of a stage; fetched from MLflow where it was made elsewhere.

        Raises:
            UserError: it is neither here nor in MLflow.
        """
        from tasks import brought
        from tasks.environment import runs_folder
        from tasks.store import artifacts

        stage = self.stages[name]
        here = artifacts.folder(runs_folder(), stage.kind, stage.key)
        if stage.folder.is_dir():
            return stage.folder
        brought.stages(self._record, [name])  # nothing where it is here
        if not here.is_dir():
            raise UserError(
                f"{name} of run {self.run_id}",
                f"its artifact {here.name} is neither here nor in MLflow",
                "Run its recipe again.",
            )
        return here


@explained
def run(
    source: Source,
    set: Changes = None,
    *,
    start: str | None = None,
    until: str | None = None,
    only: Iterable[str] = (),
    fresh: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Run:
    """Run the stages of a recipe whose inputs have changed; others are reused. It is the run of `whetstone run`, recorded in MLflow.

    It is done in a process of its own, so it works where an event loop runs, as in a notebook. Interrupted, it ends the stage, and the same
    call continues from the last commit; it ends too when this process does.

    Args:
        source: a recipe, as `recipe` takes it.
        set: fields to change, as `recipe` takes them.
        start: this stage and all that depend on it (`--from`).
        until: this stage and all that it depends on.
        only: these stages only.
        fresh: run the chosen stages even where nothing changed.
        progress: called from another thread with each line that the command would show, such as `print`.

    Raises:
        UserError: what would stop the run, all at once and before anything is started; or the error of a stage.
        RuntimeError: the command ended as nobody foresaw; the message has its last lines.

    >>> run = whetstone.run(toy)
    >>> [(stage.name, stage.status) for stage in run.stages.values()]
    [('curate', 'ran'), ('sft', 'ran'), ('rlvr', 'ran'), ('evaluate', 'ran')]
    >>> scores = run.frame()
    >>> scores[scores.metric == "pass@1"][["checkpoint", "task", "n"]]
      checkpoint         task  n
    1        base  palindromes  6
    7         sft  palindromes  6
    13       rlvr  palindromes  6
    >>> run.metrics("rlvr")["step"].tolist()
    [1, 2, 3, 4]
    >>> len(run.samples(checkpoint="rlvr")), len(run.rollouts())
    (12, 32)
    >>> longer = whetstone.run(toy, set={"rlvr.steps": 5})
    >>> longer.stages["sft"].status, longer.stages["rlvr"].why
    ('reused', 'rlvr.steps changed 4 → 5')
    """
    reading = read(source, set)
    words = ["run", reading.saved(), *(f"--set={text}" for text in reading.overrides), *(["--fresh"] if fresh else [])]
    words += [f"{option}={name}" for option, name in (("--from", start), ("--until", until)) if name is not None]
    words += [f"--only={name}" for name in listed(only)]
    summary = command.run(words, progress)
    record = {"run_id": summary["parent_run_id"], "name": summary["recipe"], "status": "FINISHED", "tags": {}}
    return Run(record | {"summary": summary})


@explained
def find_run(name: str) -> Run:
    """An earlier run, made here or by a command; one of another machine where MLflow knows it.

    Args:
        name: its id, the first characters of it, or its name.

    Raises:
        UserError: there is none, or there are several.

    >>> whetstone.find_run(run.run_id[:8]).status
    'FINISHED'
    """
    from tasks import brought
    from tasks.store.known import Known

    known = Known()
    record = known.run(name) or brought.remote_run(name)
    if record is None:
        raise known.unknown(name)
    return Run(record)


def _frame(rows: list[dict[str, Any]], first: list[str]) -> pd.DataFrame:
    """Rows as a frame that begins with these columns, which an empty one has too."""
    import pandas as pd

    frame = pd.DataFrame(rows)
    return frame.reindex(columns=[*first, *(name for name in frame.columns if name not in first)])
