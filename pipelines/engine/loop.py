"""The loop of every stage that trains: steps, monitors, rollbacks, commits, exact resume, the weights handed on.

Subclasses say what a step is, how good the weights are after it, and what a commit holds beside weights, optimizer and monitors. The
three layers are `Loop`, which RLVR drives directly, `pipelines.engine.fixed_data.FixedDataLoop`, and the stages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pipelines.base.errors import Interrupted
from pipelines.contract.model_settings import Model
from pipelines.data import dataset
from pipelines.engine import checkpoint, models, parallel
from pipelines.engine.in_process import engine_of
from pipelines.engine.optimizer import Stepper
from pipelines.engine.policy import without_dropout
from pipelines.recipe.model_path import ADAPTER, PLAIN
from pipelines.recipe.training import TrainSettings
from pipelines.stage import process
from pipelines.stage.monitors import Alarm, Monitors
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.engine.sharded_commits import Shards
    from pipelines.engine.sharded_files import Unread

DRAWN = "drawn"
"""Of a commit: the images that its rows name and that no data folder has."""


class Loop:
    """One run of a stage that trains.

    Subclasses set `section`, and in `prepare` also `weights`, `optimizer`, `stepper` and `total`.

    Args:
        settings: the stage's section of the recipe.
        model_settings: the recipe's model section.
        data: the curated folder.
        out: where `model/` and, for randomly initialised models, `base/` are written.
        work: where the commits live.
        report: metrics and progress.
        seed: of everything that is drawn.
        start: model folder to continue with; default: the recipe's own model.
        inputs: label → folder of every input of the stage.
    """

    section: ClassVar[str]
    """The recipe's name for the kind of stage, for messages."""
    takes: ClassVar[tuple[str, ...]] = (PLAIN,)
    """What the model that it starts from may be, as ports of stages name it."""
    dropout: ClassVar[bool] = False
    """Whether the network keeps its dropout."""
    world = parallel.World()
    """The processes of the run."""
    unread: Unread | None = None
    """Where the network's weights are, while it has no values."""
    weights: parallel.Weights
    optimizer: torch.optim.Optimizer
    stepper: Stepper
    total: int
    """Steps of the run."""

    def __init__(
        self,
        settings: Any,
        model_settings: Model,
        *,
        data: Path,
        out: Path,
        work: Path,
        report: Report,
        seed: int,
        start: str | None = None,
        inputs: Mapping[str, Path] | None = None,
    ) -> None:
        self.settings, self.model_settings, self.inputs = settings, model_settings, inputs or {}
        self.out, self.work, self.report, self.seed = out, work, report, seed
        self.origin = start or model_settings.path
        self.device = models.device()
        self.engine = engine_of(settings, model_settings, start, seed=seed, event=report.event)
        self.world = parallel.World.join()
        self.tokenizer = models.load_tokenizer(self.origin or data / "tokenizer", model_settings)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, self.section)
        self.monitors = Monitors(self.section, settings.monitors, settings.rollback)
        best = settings.commit.keep_best if settings.checkpoint_selection == "best" else 0
        self.committer = checkpoint.Committer(
            work / "checkpoints", keep_last=settings.commit.keep_last, keep_best=best, written=report.publish,
            keep_good=int(self.monitors.acts), part=self._part,
        )  # fmt: skip
        self.one_disk = self.world.size == 1 or self._one_disk()
        """Whether all processes see the work folder of the first."""
        self.best = float("-inf")
        """The highest score of the run."""
        self.start_step, self.resumed = 0, False
        self.phase: Callable[[str, int], None] = lambda name, step: None
        """Called when a part of a step begins, with its name: `commit`, and those of the stage."""
        self.prepare(data)

    def prepare(self, data: Path) -> None:
        """Read the data and make what is trained: the end of the constructor."""
        raise NotImplementedError

    def begin(self) -> None:
        """After a commit, if there is one, was taken up (`resumed`); before the first step."""

    @property
    def commits_start(self) -> bool:
        """Whether the state after `begin` is committed before the first step; a first alarm goes back to it."""
        return self.monitors.acts

    def ended(self, steps: int) -> bool:
        """Whether a run that has done so many steps is over."""
        return bool(self.monitors.ended) or steps >= self.total

    def make_step(self, step: int) -> dict[str, float]:
        """One step, from 0; its metrics."""
        raise NotImplementedError

    def score(self, step: int, metrics: dict[str, float]) -> float | None:
        """How good the weights are after a step, higher is better; None where it is not known.

        Args:
            metrics: of the step; what is measured for the score is added.
        """
        raise NotImplementedError

    def note(self, metrics: dict[str, float]) -> str:
        """What the progress line says of a step."""
        raise NotImplementedError

    def finish(self, steps: int) -> None:
        """After the last step, before weights are selected."""

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """Numbers of the finished run; those that are NaN are left out.

        Args:
            metrics: of its last step; empty where none was made since the restart.
        """
        return {}

    def extra_state(self, step: int) -> dict[str, Any]:
        """What a commit holds of the subclass: tensors, numbers, text. Every process calls it."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave; `state` is the whole commit."""

    def load_resumed_state(self, state: dict[str, Any]) -> None:
        """Take up what a restart gets from its commit and a rollback does not."""

    def describe_best(self, state: dict[str, Any]) -> dict[str, Any]:
        """What the event about the best commit says of it."""
        raise NotImplementedError

    def run(self) -> dict[str, float]:
        """Train from the last commit to the end, and write the model folder."""
        try:
            return self._run()
        finally:
            self.close()

    def close(self) -> None:
        """End what runs beside the loop."""
        self.engine.close()

    def _run(self) -> dict[str, float]:
        self._resume()
        self.begin()
        metrics: dict[str, float] = {}
        step = self.start_step
        if step == 0 and self.commits_start:
            self._commit(0)
        while not self.ended(step):
            metrics = self.make_step(step)
            score = self._improved(step, metrics)
            alarm = self._watch(step + 1, metrics)
            self.report.progress(step + 1, self.total, self.note(metrics))
            if alarm is not None and alarm.action == "rollback":
                step = self._go_back(alarm)
                continue
            if (step + 1) % self.settings.commit.every == 0 or self.ended(step + 1) or score is not None:
                self.phase("commit", step)
                self._commit(step + 1, score)
            step += 1
        self.committer.wait()
        self.world.gather(None)  # the last commit is there for all
        self.monitors.check_stopped()
        self.finish(step)
        self._select()
        self.save()
        final = {"steps": float(step), **self.summary(metrics)}
        return {name: float(value) for name, value in final.items() if value == value}

    def _improved(self, step: int, metrics: dict[str, float]) -> float | None:
        """The score of a step's weights where they are to be kept as the best so far."""
        score = self.score(step, metrics)
        if self.settings.checkpoint_selection == "last" or score is None or not score > self.best:
            return None
        self.best = score
        return score

    def _watch(self, step: int, metrics: dict[str, float]) -> Alarm | None:
        """Report a step, let the monitors judge it, and report their alarms; what is to be done now, the same on every process."""
        alarms = self.monitors.judge(step, metrics) if self.world.rank == 0 else []
        alarms = self.world.gather(alarms)[0] if self.monitors.watched else []
        return self.monitors.report(self.report, step, metrics, alarms)

    def _go_back(self, alarm: Alarm) -> int:
        """Go on from the last good commit, on another branch; returns its step. What was reported stays reported."""
        self.committer.wait()
        raised, rollbacks = self.monitors.raised, self.monitors.rollbacks + 1
        self.world.gather(None)  # nobody reads before the first process has written
        state = checkpoint.last_good(self.committer.folder)
        assert state is not None, "the first step commits the start"
        self._restore(state)
        self.monitors.went_back(state["step"], raised, rollbacks)
        self.branch_off()
        self.monitors.report_rollback(self.report, alarm, state["step"])
        self._commit(state["step"])
        return int(state["step"])

    def branch_off(self) -> None:
        """Set what the number of rollbacks decides: the factor of the learning rate."""
        self.stepper.scale = self.monitors.learning_rate_scale

    def _resume(self) -> None:
        state = checkpoint.load(self.committer.folder)
        steps = self.world.gather(None if state is None else state["step"])
        if any(step != steps[0] for step in steps):
            raise Interrupted(
                "checkpoints",
                f"the processes see other commits: {steps} (steps, in the order of ranks)",
                "Give all machines one work folder, or copy `checkpoints` of the first one to the others.",
            )
        if state is None:
            self.report.rewind(0)
            return
        self._restore(state)
        self.load_resumed_state(state)
        self.start_step, self.resumed = state["step"], True
        self.report.rewind(state["cursor"] if self.world.rank == 0 else 0)
        self.monitors.check_stopped()
        self.report.event("resumed from a commit", step=self.start_step)

    def _restore(self, state: dict[str, Any]) -> None:
        """Everything as a commit has it, the spool apart."""
        self.weights.load(state["model"])
        parallel.load_optimizer(self.optimizer, state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "device_rng" in state:
            torch.cuda.set_rng_state(state["device_rng"], self.device)
        self.best = state["best"]
        self.monitors.load_state_dict(state["monitors"])
        if DRAWN in state:
            from pipelines.data.images import IMAGES

            IMAGES.redraw(state[DRAWN])
        self.load_extra_state(state)
        self.branch_off()

    def state(self, step: int) -> dict[str, Any]:
        """What a commit holds after so many steps; of sharded tensors this process's shards. Every process must call."""
        state = {
            "step": step,
            "best": self.best,
            "model": self.weights.state(),
            "optimizer": self.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
            "rng": torch.get_rng_state(),
            **self.extra_state(step),
            "monitors": self.monitors.state_dict(),
            "cursor": self.report.cursor(),
        }
        if (images := sys.modules.get("pipelines.data.images")) is not None and (drawn := images.IMAGES.drawn(state)):
            state[DRAWN] = drawn  # stored rows name them, and another process has not seen them
        if self.device.type == "cuda":
            state["device_rng"] = torch.cuda.get_rng_state(self.device)  # of dropout
        return state

    def _commit(self, step: int, score: float | None = None) -> None:
        state = self.state(step)
        if not self.one_disk:
            from pipelines.engine.sharded_commits import whole_on_first

            state = checkpoint.each_tensor(state, whole_on_first)
            if self.world.rank > 0:
                return
        elif self.world.rank > 0:
            state = {key: state[key] for key in checkpoint.SHARDED}
        branch = (self.monitors.rollbacks, self.monitors.origin)
        self.committer.submit(step, state, score, good=self.monitors.healthy, branch=branch)

    def _part(self) -> Shards | None:
        """What of a commit this process writes: its shards, where all write to one disk."""
        if self.world.size == 1 or not self.one_disk:
            return None
        from pipelines.engine import sharded_commits

        return sharded_commits.part(self.world)

    def _one_disk(self) -> bool:
        """Whether all processes see what the first one writes."""
        from pipelines.engine import sharded_commits

        best = self.settings.checkpoint_selection == "best"
        field = "checkpoint_selection" if best else "monitors" if self.monitors.acts else ""
        return sharded_commits.work_on_one_disk(self.world, self.work, self.report, field=field)

    def _select(self) -> None:
        """Take up the commit whose weights are handed on, where it is not the last."""
        ended, wanted = self.monitors.ended, self.settings.checkpoint_selection
        state = checkpoint.selected(self.committer.folder, ended, wanted, self.report, self.describe_best)
        if state is not None:
            self.weights.load(state["model"])
            self.selected(state)

    def selected(self, state: dict[str, Any]) -> None:
        """After the weights of a commit were taken up to be handed on."""

    def load_network(self) -> Any:
        """The network that is trained, on its device: the model to start from or a fresh one, with adapters where they are asked for.

        Of several processes each reads its shard alone where that can be: the weights have no values yet then (`unread`).
        """
        settings = self.settings
        if self.engine.network is not None:
            return self.engine.network
        network = self._outline() if self.world.size > 1 else None
        if network is None:
            network = self._whole_network()
        if settings.gradient_checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if settings.activation_offload:
            from pipelines.engine.offload import offload_activations

            offload_activations(getattr(network, network.base_model_prefix), self.device)
        torch.manual_seed(self.seed)
        if settings.lora:
            from pipelines.engine import adapters

            network = adapters.with_lora(network, settings.lora)
        if not self.dropout:
            without_dropout(network)
        return network if self.unread is not None else network.to(self.device)

    def _whole_network(self) -> Any:
        if self.origin is not None:
            return models.load_model(self.origin, self.model_settings, self.takes)
        network = models.fresh_model(self.model_settings, self.tokenizer, self.seed)
        if self.world.rank == 0:
            models.save_model(network, self.tokenizer, self.out / "base", {"stage": "base"})
        return network

    def _outline(self) -> Any:
        """The network without values, to be read shard by shard; None where every process must load it whole, which an event says.

        The first process alone makes a fresh model, and writes it as the base that all of them read.
        """
        from pipelines.engine import sharded_files

        why, network = self.needs_values(), None
        if not why:
            if self.origin is None and self.world.rank == 0:
                self._whole_network()
            self.world.gather(None)  # the base is written
            network, self.unread, why = sharded_files.outline_or_why(
                self.origin or self.out / "base", self.model_settings, self.world.gather
            )
        if why:
            self.report.event("every process loads the whole model before it is sharded", why=why)
        return network

    def needs_values(self) -> str:
        """Why the weights must have values before they are sharded; empty where they need not."""
        if self.settings.lora:
            return "adapters are made beside it"
        if self.one_disk or self.origin is not None:
            return ""
        return "not all machines see the base that the first one writes"

    def about(self) -> dict[str, Any]:
        """What is written beside the model."""
        base = {"base": self.model_settings.path, "trust_remote_code": self.model_settings.trust_remote_code}
        return {"stage": self.section, **base}

    def save_adapter(self, model: Any, score: torch.Tensor | None = None) -> None:
        """Write what LoRA has trained into the folder `adapter`; the first process does.

        Args:
            model: of peft, with all weights whole.
            score: as in `adapters.save`.
        """
        own, revision = self.origin == self.model_settings.path, self.model_settings.revision
        base = "../base" if self.origin is None else self.origin if own else Path(self.origin).parent.name
        if self.world.rank == 0:
            from pipelines.engine import adapters

            adapters.save(model, self.out / ADAPTER, base, revision if own else None, score=score)

    def save(self) -> None:
        """Write the model folder, and adapters by themselves; every process must call."""
        if not self.settings.lora:
            self.weights.save(self.tokenizer, self.out / "model", self.about())
            return
        from pipelines.engine import quantization

        with self.weights.gathered(first=True) as model:
            if model is not None:
                self.save_adapter(model)
                models.save_model(quantization.merged(model), self.tokenizer, self.out / "model", self.about())


def work(
    section: str,
    settings: type[TrainSettings],
    trainer: Callable[..., Loop],
    fields: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]] = lambda fields, inputs: fields,
) -> process.Work:
    """What the process of a stage does: `process.main(work(...))`.

    Args:
        section: where the stage's fields are in the job's settings.
        settings: their class.
        trainer: makes the loop; arguments as in `Loop`.
        fields: (fields, inputs of the job) → fields with what the recipe could not say.
    """

    def run(job: dict[str, Any], folder: Path) -> dict[str, float]:
        report = Report.of_rank(folder, committed=True)
        inputs = {label: Path(path) for label, path in job["inputs"].items() if path}
        loop = trainer(
            settings.model_validate(fields(job["settings"][section], job["inputs"])),
            Model.model_validate(job["settings"]["model"]),
            start=process.model_of(job),
            data=inputs["data"],
            out=folder / "out",
            work=folder,
            report=report,
            seed=job["seed"],
            inputs=inputs,
        )
        metrics = loop.run()
        report.close()
        return metrics

    return run
