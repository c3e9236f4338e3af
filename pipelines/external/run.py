"""The stage: rows, reward file and configuration out; the trainer's run; metrics and model in."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import python
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.external import config, metrics, model, rows, trainer, whetstone_reward
from pipelines.external.adapter import Adapter, adapter
from pipelines.external.installed import resolved_python, trainer_version
from pipelines.external.settings import External
from pipelines.stage.report import SPOOL, Report, lines_of

log = logging.getLogger("whetstone")
STARTS = "starts"
"""The file that counts the trainer's starts."""
DATA_PLACEHOLDERS = ("model", "train_file", "val_file", "reward_file")
"""What the user's configuration may put elsewhere than the adapter would."""


@dataclass
class Stage:
    """One run of a trainer, perhaps in several attempts.

    Args:
        work: the stage's folder; what the trainer reads and writes is below `trainer`, and stays for the next attempt.
    """

    settings: External
    job: dict[str, Any]
    start: str
    work: Path
    report: Report
    reported: dict[int, set[str]] = field(default_factory=dict)
    """Step → metrics that are in the spool: a trainer that resumes makes steps again, whose first values stand."""
    checkpoints_before: tuple[str, ...] = ()
    """The checkpoints at the last look."""

    def __post_init__(self) -> None:
        self.adapter: Adapter = adapter(self.settings.trainer)
        self.folder = self.work / "trainer"
        self.output, self.export, self.exit_file = (self.folder / name for name in ("output", "export", "exit_code"))
        self.last_line = ""
        self.output.mkdir(parents=True, exist_ok=True)
        for line in lines_of(self.work / SPOOL):
            if line["kind"] == "metrics":
                self.reported.setdefault(line["step"], set()).update(line["values"])
        about = self.settings.metrics
        kind = about.kind or self.adapter.metrics
        pattern = about.path or (metrics.EVENTS if kind == "tensorboard" else self.adapter.metrics_path)
        self.reader = metrics.READERS[kind](self.output, pattern) if kind in metrics.READERS else None

    @property
    def checkpoints(self) -> str | None:
        """Glob of the trainer's checkpoints."""
        return self.settings.checkpoints or self.adapter.checkpoints

    def values(self, attempt: int) -> dict[str, Any]:
        """What the placeholders stand for."""
        files = {name: str(self.folder / f"{name}.parquet") for name in ("train", "val")}
        written = self.folder / config.name_of(self.settings.config)
        return {
            "model": self.start, "train_file": files["train"], "val_file": files["val"], "output": str(self.output),
            "reward_file": str(self.folder / "whetstone_reward.py"), "folder": str(self.folder), "config": str(written),
            "python": resolved_python(self.settings.python), "seed": self.job["seed"], "attempt": attempt,
            "export": str(self.export), "checkpoint": str(model.newest(self.output, self.checkpoints) or self.output),
        }  # fmt: skip

    def prepare(self) -> int:
        """Write what the trainer reads; returns how many rows it trains on."""
        settings, data = self.settings, Path(self.job["inputs"]["data"])
        count = rows.write(data, settings.split, self.folder / "train.parquet", self.adapter, settings.columns)
        rows.write(
            data, settings.heldout or settings.split, self.folder / "val.parquet", self.adapter, settings.columns
        )
        shutil.copyfile(str(whetstone_reward.__file__), self.folder / "whetstone_reward.py")
        about = self.folder / "whetstone_judge.json"
        about.write_text(json.dumps({name: self.job[name] for name in ("plugins", "sandbox") if name in self.job}))
        started = {
            "command": python("pipelines.external.judge", str(about)),
            "environment": {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PYTHONHOME": ""},
            "folder": str(Path.cwd()),
        }
        (self.folder / "whetstone_reward.json").write_text(json.dumps(started))
        self.adapter.write_extras(self.folder)
        return count

    def command(self, values: dict[str, Any]) -> list[str]:
        """Write the configuration of an attempt and say how the trainer is started."""
        settings = self.settings
        resumes = model.newest(self.output, self.checkpoints) is not None
        resuming = settings.resume_arguments if settings.resume_arguments is not None else self.adapter.resume_arguments
        command = [*(settings.command or self.adapter.command)]
        path = self.folder / config.name_of(settings.config)
        fields, text = config.of(settings.config)
        if fields is None:
            path.write_text(config.filled(text, values))
            written = []
        else:
            fields = self.told(fields, command)
            written = self.adapter.write_config(config.filled(fields, values), path)
        parts = config.filled([*command, *settings.overrides, *(resuming if resumes else ())], values)
        return [str(part) for part in [*parts[: len(command)], *written, *parts[len(command) :]]]

    def told(self, fields: dict[str, Any], command: list[str]) -> dict[str, Any]:
        """The user's fields with what the trainer must be told beside them."""
        used = config.names_in([fields, command, self.settings.overrides])
        for dotted, value in self.adapter.told.items():
            names = config.names_in(value) & {*DATA_PLACEHOLDERS}
            if not config.has(fields, dotted) and not (names and names <= used):
                config.put(fields, dotted, value)
        return fields

    def train(self) -> int:
        """Run the trainer until it has ended well; returns the attempts that this took.

        Raises:
            UserError: it has not, or a metric that must be a number is none.
        """
        settings = self.settings
        until = time.monotonic() + settings.time_limit_s if settings.time_limit_s else None
        if self.reader:  # a NaN that ended an earlier run does not end this one, which goes on from a checkpoint
            self._tell(self.reader.new())
        for attempt in range(1, settings.retries + 2):
            values = self.values(self._starts() + 1)
            (self.folder / STARTS).write_text(str(values["attempt"]))
            command, environment = self.command(values), self._environment(values)
            log.info("the trainer starts: %s", " ".join(command))
            ended = trainer.run(
                command, self.exit_file, environment, self.look, hang_s=settings.hang_limit_s, until=until
            )
            if not ended.why:
                self._require_metrics()
                return attempt
            self.report.event(f"the trainer {ended.why}", attempt=attempt)
            if ended.late or attempt > settings.retries:
                raise self._failed(ended, attempt)
        raise AssertionError("the last attempt returns or raises")

    def _starts(self) -> int:
        """How often the trainer was started in this folder, by earlier runs too; files of an attempt bear its number."""
        path = self.folder / STARTS
        return int(path.read_text()) if path.exists() else 0

    def _environment(self, values: dict[str, Any]) -> dict[str, str]:
        """The variables of the trainer and of what exports its model."""
        named = config.filled({**self.adapter.environment, **self.settings.environment}, values)
        return {name: str(each) for name, each in named.items()}

    def _failed(self, ended: trainer.Ended, attempts: int) -> UserError:
        if ended.late:
            return UserError(
                "external.time_limit_s",
                f"the trainer ran past {self.settings.time_limit_s:g} seconds",
                "Give it more time; it goes on from its own checkpoint when the recipe is run again.",
            )
        if ended.hung:
            return UserError(
                "external.hang_limit_s",
                f"the trainer showed nothing new for {self.settings.hang_limit_s:g} seconds (attempt {attempts})",
                "Read its output in the stage's log, or give it more time.",
            )
        return UserError(
            "external.command",
            f"the trainer {ended.why} (attempt {attempts}): {self.last_line[-300:]}",
            "Read its output in the stage's log; run the recipe again to go on from its own checkpoint.",
        )

    def look(self, lines: list[str]) -> bool:
        """Report the metrics that have come; whether there were any, or a new checkpoint.

        Raises:
            UserError: a metric that must be a number is none.
        """
        printed = [line.strip() for line in lines if line.strip()]
        self.last_line = printed[-1] if printed else self.last_line
        arrived = self.reader.new() if self.reader else [value for line in lines for value in metrics.of_console(line)]
        for step, name, value in arrived:
            if name in self.settings.metrics.finite and not math.isfinite(value):
                raise UserError(
                    "external.metrics.finite",
                    f"{name} is {value} at step {step}",
                    "Lower the learning rate, or look into the data.",
                )
        self._tell(arrived)
        checkpoints = tuple(sorted(map(str, self.output.glob(self.checkpoints)))) if self.checkpoints else ()
        before, self.checkpoints_before = self.checkpoints_before, checkpoints
        return bool(arrived) or checkpoints != before

    def _tell(self, arrived: list[metrics.Value]) -> None:
        """Report of what has come the numbers that were not reported before."""
        steps: dict[int, dict[str, float]] = {}
        for step, name, value in arrived:
            if math.isfinite(value) and metrics.tracked(name) not in self.reported.get(step, ()):
                steps.setdefault(step, {})[metrics.tracked(name)] = value
        for step, values in sorted(steps.items()):
            self.reported.setdefault(step, set()).update(values)
            self.report.metrics(step, values)
            self.report.progress(step, self.settings.steps or step, "training")

    def _require_metrics(self) -> None:
        written = set().union(*self.reported.values())
        for name in self.settings.metrics.finite:
            if metrics.tracked(name) not in written:
                raise UserError(
                    "external.metrics.finite",
                    f"the trainer has not written {name}",
                    "Correct its name, or metrics.path.",
                )

    def hand_on(self, settings: Model) -> None:
        """Export the model where that takes a command of its own, check it and put it into the artifact.

        Raises:
            UserError: the command fails, or the model is none.
        """
        own, values, folder = self.settings, self.values(self._starts()), self.output
        pattern = own.result or self.adapter.result or ""
        if own.export is not None:
            shutil.rmtree(self.export, ignore_errors=True)
            self.export.mkdir()
            command = [str(part) for part in config.filled(own.export, values)]
            ended = trainer.run(
                command, self.exit_file, self._environment(values), lambda lines: False, hang_s=own.hang_limit_s
            )
            if ended.why:
                raise UserError("external.export", f"the command {ended.why}", "Read its output in the stage's log.")
            folder, pattern = self.export, own.result or "."
        chosen = folder if pattern == "." else model.newest(folder, pattern)
        about = {"stage": "external", "trainer": own.trainer, "version": trainer_version(own)}
        model.take(chosen, f"{folder}/{pattern}", self.start, self.work / "out" / "model", settings, about)


def run(
    settings: External, loading: Model, job: dict[str, Any], *, start: str, work: Path, report: Report
) -> dict[str, float]:
    """Train, and write `out/model`.

    Args:
        loading: how the recipe's models are loaded.
        start: the model that is trained: a folder, a GGUF file or a hub name.
        work: the stage's folder.

    Raises:
        UserError: the data, the trainer or its model will not do; names the field and the fix.
    """
    place = models.local(start)
    stage = Stage(settings, job, str(Path(place).absolute()) if Path(place).is_dir() else place, work, report)
    count = stage.prepare()
    attempts = stage.train()
    stage.hand_on(loading)
    steps = max(stage.reported, default=0)
    return {"steps": float(steps), "attempts": float(attempts), "rows": float(count)}
