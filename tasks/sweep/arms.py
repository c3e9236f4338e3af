"""An experiment: named arms of one recipe (stages, presets, settings), each compared with one of them. A sweep whose variants are arms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.base.errors import UserError, did_you_mean
from pipelines.base.files import digest
from pipelines.base.names import DOT, of_fields
from pipelines.base.project import page
from pipelines.recipe import shipped
from pipelines.recipe.read import Recipe, read_recipe
from pipelines.recipe.stage_kind import SCORES, Node
from pipelines.recipe.training import TrainSettings
from tasks.sweep.plan import MOST_RUNS, TRIAL_SEED, Cell, Sweep, Tune, of_all


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Plain):
    """One arm of an experiment.

    Attributes:
        stage: the stage whose model is scored; None: the last that learns from rewards, else the last that trains.
        presets: of the recipe, in place of its own.
        set: `field=value` of this arm alone.
    """

    stage: str | None = None
    presets: tuple[str, ...] = ()
    set: tuple[str, ...] = ()


class Grid(_Plain):
    """Values of which the baseline gets its best, by the reward of runs with a seed of their own; the other arms take the same.

    Attributes:
        field: of an arm's stage, such as `optimizer.learning_rate`.
        values: at least two.
        full: compare in runs as long as the ranked ones, instead of by successive halving.
    """

    field: str
    values: tuple[str, ...] = Field(min_length=2)
    full: bool = True


class Experiment(_Plain):
    """What is run to see a claim.

    Attributes:
        recipe: name of a recipe that comes with the project, or the path of one.
        arms: name → arm.
        baseline: the arm that the others are compared with.
        about: the arm that the claim is about; None: the last.
        expects: what the claim says of it: `gain` over the baseline, or `as_good` as the baseline.
        set: `field=value` of all arms.
        benchmark: a task of the recipe; None: its first.
        metric: pass@k.
        seeds: how many.
        tune: the grid of the baseline.
    """

    recipe: str
    arms: dict[str, Arm] = Field(min_length=2)
    baseline: str
    about: str | None = None
    expects: str = Field("gain", pattern="^(gain|as_good)$")
    set: tuple[str, ...] = ()
    benchmark: str | None = None
    metric: str = Field("pass@1", pattern=r"^pass@[1-9][0-9]{0,3}$")
    seeds: int = Field(3, ge=1, le=MOST_RUNS)
    tune: Grid | None = None

    @property
    def path(self) -> str:
        """The recipe's file."""
        return self.recipe if self.recipe.endswith((".yaml", ".yml")) else str(shipped.FOLDER / f"{self.recipe}.yaml")

    @property
    def arm(self) -> str:
        """The arm that the claim is about."""
        return self.about or list(self.arms)[-1]

    @property
    def digest(self) -> str:
        """Of what decides what a run does; the number of seeds, and what the claim says of the result, do not."""
        return digest(self.model_dump(mode="json", exclude={"seeds", "about", "expects"}))


@dataclass(frozen=True)
class ArmSweep(Sweep):
    """What an experiment runs.

    Stages that the chains of all arms have run once, with the recipe's seed; what an arm trains beside them takes the seed of its run.
    """

    stages: dict[str, str] = field(default_factory=dict)
    """Arm → the stage whose model is scored."""
    baseline: str = ""
    task: str = ""
    """The benchmark."""

    @property
    def benchmark(self) -> str:
        """What the runs are ranked by."""
        return self.task

    @property
    def tunes(self) -> list[str]:
        """The baseline: the other arms take its value."""
        return [self.baseline]

    @property
    def steps(self) -> int:
        """Steps of a run of the baseline; 0 where its settings do not say them."""
        settings = self.base.node(self.stages[self.baseline]).settings
        return settings.steps or 0 if isinstance(settings, TrainSettings) else 0

    def start(self) -> Cell | None:
        """None: where the start is compared, it is an arm."""
        return None

    def chain(self, arm: str) -> list[Node]:
        """The stages that an arm's model is made from, and its own."""
        node = self.base.node(self.stages[arm])
        return [*node.ancestors(), node]

    @property
    def shared(self) -> set[str]:
        """The stages that the chains of all arms have; not the stage of which all arms are variants."""
        chains = [{node.name for node in self.chain(arm)} for arm in self.stages]
        ends = set(self.stages.values())
        return set.intersection(*chains) - (ends if len(ends) == 1 else set())

    def _in_order(self, names: set[str]) -> tuple[str, ...]:
        """As the recipe runs them."""
        return tuple(name for name in self.base.stage_names() if name in names)

    def own(self, arm: str) -> tuple[str, ...]:
        """The stages that an arm trains beside the shared ones, the first first; empty for an arm that all others start from."""
        return self._in_order({node.name for node in self.chain(arm) if node.kind.trains} - self.shared)

    def cells(self, chosen: dict[str, str] | None = None) -> list[Cell]:
        """The runs, seed by seed; an arm without stages of its own has one."""
        cells = []
        for seed, (arm, overrides) in product(self.seeds, self.variants.items()):
            own = self.own(arm)
            if not own and seed != self.seeds[0]:
                continue
            value = (chosen or {}).get(self.baseline) if self.tune and own else None
            tuned = [f"{self._section(self.stages[arm])}.{self.tune.field}={value}"] if self.tune and value else []
            every = (*self.common, *overrides, *tuned, *self._seeds(arm, seed), self._scored(self.stages[arm]))
            only = self._in_order({node.name for node in self.chain(arm)} | {self.evaluation})
            cells.append(Cell(arm, seed if own else None, every, only, own))
        return cells

    def trials(self, variant: str, values: list[str] | tuple[str, ...], steps: int) -> list[Cell]:  # type: ignore[override]
        """Runs of the baseline, one for each value of the grid; they end with training."""
        assert self.tune is not None
        stage, seed = self.stages[variant], self.seeds[0] + TRIAL_SEED
        section = self._section(stage)
        only = self._in_order({node.name for node in self.chain(variant)})
        return [
            Cell(
                DOT.join([variant, *of_fields({self.tune.field: value}), f"{steps} steps"]),
                seed,
                (*self.common, *self.variants[variant], f"{section}.{self.tune.field}={value}", f"{section}.steps={steps}",
                 *self._seeds(variant, seed)),
                only,
            )
            for value in values
        ]  # fmt: skip

    def work(self) -> int:
        """Tokens that the runs of one seed may train on and sample, as far as the recipe says: an order, and no forecast."""
        nodes = [node for arm in self.stages for node in self.chain(arm) if node.name not in self.shared]
        return sum(_tokens(node.settings) for node in nodes)

    def _seeds(self, arm: str, seed: int) -> list[str]:
        """Overrides, which keep what stages' seeds differ by; a section whose rounds are partly shared keeps its seed."""
        own, later = self.own(arm), seed - self.base.seed
        shared = {self._section(node.name) for node in self.chain(arm) if node.name not in own}
        sections = {self._section(name): self.base.node(name).seed + later for name in own}
        return [f"{section}.seed={value}" for section, value in sections.items() if section not in shared]

    def _section(self, stage: str) -> str:
        """What a stage is called in the recipe's file: rounds of one section are numbered."""
        name, dash, number = stage.rpartition("-")
        first = f"{name}-1" in self.base.stage_names()
        return name if dash and number.isdigit() and first else stage


def _tokens(settings: Any) -> int:
    """Of a stage, at most: of its rollouts, of its stored samples, else of the steps that it trains."""
    if isinstance(settings, TrainSettings) and not hasattr(settings, "sampling"):
        return int((settings.steps or 0) * getattr(settings, "tokens_per_step", 0))
    rollout = getattr(settings, "rollout", None)
    turns = rollout.get("max_turns", 1) if isinstance(rollout, dict) else 1
    if isinstance(settings, TrainSettings):
        answers = (settings.steps or 0) * settings.prompts * (settings.group_size or 1)  # type: ignore[attr-defined]
    else:
        answers = (getattr(settings, "problems", None) or 0) * getattr(settings, "k", 0)
    return int(answers * turns * settings.sampling.max_tokens) if answers else 0


def parse(body: Mapping[str, Any], place: str) -> Experiment:
    """An experiment as it stands in a file.

    Args:
        place: how messages name it.

    Raises:
        UserError: names the field and the fix.
    """
    try:
        read = Experiment.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join([place, *(str(part) for part in first["loc"])])
        raise UserError(name, f"{first['msg'][:1].lower()}{first['msg'][1:]}", _fix(first)) from None
    for name, arm in (("baseline", read.baseline), ("about", read.arm)):
        if arm not in read.arms:
            raise UserError(f"{place}.{name}", f"there is no arm {arm!r}", did_you_mean(arm, list(read.arms)))
    if read.arm == read.baseline:
        raise UserError(f"{place}.about", "this is the baseline", "Name the arm that the claim is about.")
    return read


def _fix(error: Any) -> str:
    known = {"extra_forbidden": f"Fields of an experiment: {', '.join(Experiment.model_fields)}.", "missing": "Add it."}
    return known.get(error["type"], f"{page('operations')} has an example.")


def read(recipe: str, experiment: Mapping[str, Any], name: str, seeds: int) -> ArmSweep:
    """Read what an experiment runs.

    Args:
        recipe: the path of its recipe.
        experiment: see `Experiment`.
        name: of the MLflow experiment; messages begin with it.
        seeds: how many, from the recipe's own on.

    Raises:
        UserError: names the field of the experiment, or the run and its field, and the fix.
    """
    wanted = parse(experiment, name)
    base = read_recipe(recipe, list(wanted.set))
    common = (*wanted.set, *of_all(base, name))
    if not any(node.kind.makes == SCORES for node in base.nodes()):
        raise UserError(f"{name}.recipe", f"{wanted.recipe} has no benchmark", "Name a recipe with an evaluation.")
    bare = Sweep(recipe, base, common, {}, ())
    stages = {arm: about.stage or bare.last for arm, about in wanted.arms.items()}
    for arm, stage in stages.items():
        trained = [node.name for node in base.nodes() if node.kind.trains]
        if stage not in trained:
            fix = did_you_mean(stage, trained)
            raise UserError(f"{name}.arms.{arm}.stage", f"{wanted.recipe} trains no stage {stage!r}", fix)
    tasks = [task.name for task in base.node(bare.evaluation).settings.tasks]
    task = wanted.benchmark or tasks[0]
    if task not in tasks:
        raise UserError(f"{name}.benchmark", f"{wanted.recipe} has no task {task!r}", did_you_mean(task, tasks))
    variants = {arm: _overrides(about) for arm, about in wanted.arms.items()}
    first = base.seed
    tune = Tune(wanted.tune.field, wanted.tune.values, wanted.tune.full) if wanted.tune else None
    sweep = ArmSweep(
        recipe, base, common, variants, tuple(range(first, first + seeds)), tune, k=int(wanted.metric.removeprefix("pass@")),
        stages=stages, baseline=wanted.baseline, task=task,
    )  # fmt: skip
    _check(sweep, name, base)
    return sweep


def _overrides(arm: Arm) -> tuple[str, ...]:
    return (*([f"presets=[{','.join(arm.presets)}]"] if arm.presets else []), *arm.set)


def _check(sweep: ArmSweep, name: str, base: Recipe) -> None:
    """Whether no two arms are the same, the grid has something to tune, and every run's recipe can be read."""
    known: dict[Any, str] = {}
    for arm, overrides in sweep.variants.items():
        same = known.setdefault((sweep.stages[arm], overrides), arm)
        if same != arm:
            raise UserError(f"{name}.arms.{arm}", f"is the same as {same}", "Give it a stage, presets or settings.")
    if sweep.tune and (not sweep.own(sweep.baseline) or not sweep.steps):
        raise UserError(
            f"{name}.tune", f"the baseline {sweep.baseline} trains nothing that counts steps", "Leave it out."
        )
    for cell in sweep.cells({sweep.baseline: sweep.tune.values[0]} if sweep.tune else None):
        cell.recipe(sweep.path)
