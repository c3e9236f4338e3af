"""Watches a run: its rules judge every step, an alarm is an event of the spool, and the stage does what the alarm says.

All state is committed with the checkpoint, so a restart raises the same alarms at the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.base.errors import Interrupted
from pipelines.contract.monitor import StepRollouts
from pipelines.recipe.monitors import Rollback
from pipelines.recipe.slots import Watched, bind_monitors
from pipelines.stage.report import Report

STRONGEST = ("stop", "finish", "rollback", "warn")
"""Of several alarms in one step, the first of these is done."""
ALARMS = "monitor/alarms"
"""The metric that counts them."""


@dataclass(frozen=True)
class Alarm:
    """A rule that found `patience` steps in a row wrong."""

    monitor: str
    step: int
    """The last of them, from 1."""
    action: str
    text: str


@dataclass
class Monitors:
    """The rules of a section and what they have led to.

    Args:
        section: "rlvr" or "sft".
        specs: its `monitors`.
        rollback: its `rollback`.

    Raises:
        RecipeError: as `bind_monitors`.
    """

    section: str
    specs: list[dict[str, Any]]
    rollback: Rollback
    watched: list[Watched] = field(init=False)
    counts: list[int] = field(init=False)
    """For each rule: steps in a row that it found wrong, up to now."""
    raised: int = 0
    """Alarms so far, those of steps that were rolled back included."""
    rollbacks: int = 0
    origin: int = 0
    """The step that the last rollback went back to."""
    ended: dict[str, Any] = field(default_factory=dict)
    """The alarm that ended the run (`action`, `text`, `step`); empty while it goes on."""

    def __post_init__(self) -> None:
        self.watched = bind_monitors(self.section, self.specs)
        self.counts = [0] * len(self.watched)

    @property
    def measures(self) -> bool:
        """Whether some rule measures something on rollouts."""
        return any(each.rule.measures for each in self.watched)

    @property
    def row_fields(self) -> frozenset[str] | None:
        """The fields of rollouts that these rules read; None: any."""
        read = [each.rule.row_fields for each in self.watched if each.rule.measures]
        return None if None in read else frozenset().union(*(fields for fields in read if fields is not None))

    @property
    def acts(self) -> bool:
        """Whether some alarm would do more than warn."""
        return any(each.options.action != "warn" for each in self.watched)

    @property
    def healthy(self) -> bool:
        """Whether no rule that would act finds the last step wrong: a commit made now is good."""
        return not any(
            count for each, count in zip(self.watched, self.counts, strict=True) if each.options.action != "warn"
        )

    @property
    def learning_rate_scale(self) -> float:
        """What the rollbacks so far have made of the learning rate."""
        return self.rollback.learning_rate**self.rollbacks

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """The metrics that the rules add to a step's."""
        metrics: dict[str, float] = {}
        for each in self.watched:
            if each.rule.measures:
                metrics |= each.rule.measure(rollouts)
        return metrics

    def lines(self, step: int) -> list[dict[str, Any]]:
        """What the rules found on the rollouts measured last, beside metrics; each with the step, from 1, and the rule's name."""
        return [{"step": step, "monitor": each.name, **line} for each in self.watched for line in each.rule.lines()]

    def judge(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """The alarms of a step: once for each time that a rule's patience runs out.

        Args:
            step: from 1.
            metrics: of the step; a rule that lacks one of its metrics, or gets NaN, passes it over.
        """
        alarms = []
        for place, each in enumerate(self.watched):
            rule = each.rule
            known = {name: value for name, value in metrics.items() if rule.sees_nan or value == value}
            values = {name: known[name] for name in (*rule.reads, *rule.may_read) if name in known}
            if any(name not in values for name in rule.reads):
                continue
            text = rule.judge(values)
            self.counts[place] = self.counts[place] + 1 if text and step > each.options.after else 0
            if text and self.counts[place] == each.patience:
                alarms.append(Alarm(each.name, step, each.options.action, text))
        return alarms

    def decide(self, alarms: list[Alarm]) -> Alarm | None:
        """Count the alarms of a step; the one whose action is to be done now, None where all only warn.

        A rollback that is one too many becomes a stop.
        """
        self.raised += len(alarms)
        chosen = min(alarms, key=lambda alarm: STRONGEST.index(alarm.action), default=None)
        if chosen is None or chosen.action == "warn":
            return None
        if chosen.action == "rollback" and self.rollbacks >= self.rollback.limit:
            text = (
                f"{chosen.text}. The run has gone back {self.rollbacks} times already ({self.section}.rollback.limit)"
            )
            chosen = Alarm(chosen.monitor, chosen.step, "stop", text)
        if chosen.action in ("stop", "finish"):
            self.ended = {"action": chosen.action, "step": chosen.step, "text": f"{chosen.monitor}: {chosen.text}"}
        return chosen

    def report(self, report: Report, step: int, metrics: dict[str, float], alarms: list[Alarm]) -> Alarm | None:
        """Report a step and its alarms, in place of `Report.metrics`; returns what `decide` does."""
        chosen = self.decide(alarms)
        if self.watched:
            metrics[ALARMS] = float(self.raised)
        report.metrics(step, metrics)
        for alarm in alarms:
            report.event(**event(alarm))
        return chosen

    def report_rollback(self, report: Report, alarm: Alarm, step: int) -> None:
        """Say that the run goes on from a step, after `went_back`."""
        report.event(
            f"rolled back from step {alarm.step} to step {step}", monitor=alarm.monitor, step=alarm.step, to=step,
            rollbacks=self.rollbacks, learning_rate_scale=self.learning_rate_scale,
        )  # fmt: skip

    def went_back(self, step: int, raised: int, rollbacks: int) -> None:
        """After the state of a good commit was loaded: what a rollback does not undo.

        Args:
            step: of that commit.
            raised: alarms before it was loaded.
            rollbacks: the number of rollbacks, this one included.
        """
        self.raised, self.rollbacks, self.origin, self.ended = raised, rollbacks, step, {}

    def check_stopped(self) -> None:
        """Refuse to go on where an alarm has stopped the run.

        Raises:
            Interrupted: says which alarm, and what to do.
        """
        if self.ended.get("action") == "stop":
            raise Interrupted(
                f"stopped at step {self.ended['step']} by {self.section}.monitors: {self.ended['text']}",
                fix=(
                    "Look at the rollouts of these steps; then change what the reward pays for or the learning rate, or the monitor's "
                    f"limits ({self.section}.monitors), which starts the stage over."
                ),
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a commit."""
        names = ("counts", "raised", "rollbacks", "origin", "ended")
        return {name: getattr(self, name) for name in names} | {
            "rules": [each.rule.state_dict() for each in self.watched]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.counts, self.ended = list(state["counts"]), dict(state["ended"])
        self.raised, self.rollbacks, self.origin = state["raised"], state["rollbacks"], state["origin"]
        for each, rule_state in zip(self.watched, state["rules"], strict=True):
            each.rule.load_state_dict(rule_state)


def event(alarm: Alarm) -> dict[str, Any]:
    """An alarm as the arguments of `Report.event`."""
    text = f"monitor {alarm.monitor}: {alarm.text}"
    return {"text": text, "monitor": alarm.monitor, "step": alarm.step, "action": alarm.action}
