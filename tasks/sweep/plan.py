"""A sweep: one recipe with several settings, presets, budget splits and seeds, a pipeline run each. What is to be run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pipelines.base.errors import RecipeError, UserError
from pipelines.base.files import digest
from pipelines.base.names import DOT, of_fields
from pipelines.recipe import yaml_text
from pipelines.recipe.read import Recipe, preset_names, read_preset, read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.stage_kind import SCORES
from pipelines.recipe.training import TrainSettings
from tasks.pipeline import Prepared, Selection
from tasks.preflight import check as preflight
from tasks.sweep import budget_split as sweep_split

_checked: set[str] = set()
START = "(start)"
"""The checkpoint that RLVR starts from, among the variants of a leaderboard."""
MOST_RUNS = 10_000
TRIAL_SEED = 1_000_003
"""Added to the seed for the runs that choose a tuned value, so that the final seeds have had no part in the choice."""
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Cell:
    """One pipeline run of a sweep."""

    variant: str
    seed: int | None
    """Of RLVR, or of the whole recipe where it has no RLVR; None: the recipe's own."""
    overrides: tuple[str, ...]
    only: tuple[str, ...] | None = None
    """The stages to run; default: all."""
    cost_of: tuple[str, ...] = ()
    """The stages whose training is its cost; default: the last that makes a model."""

    @property
    def name(self) -> str:
        """For people."""
        return self.variant if self.seed is None else f"{self.variant}{DOT}seed {self.seed}"

    def recipe(self, path: str | Path) -> Recipe:
        """Its recipe.

        Raises:
            RecipeError: names the run, the field and the fix.
        """
        try:
            return read_recipe(path, list(self.overrides))
        except RecipeError as error:
            raise RecipeError(problems=[replace(each, scope=self.name) for each in error.problems]) from None


@dataclass(frozen=True)
class Tune:
    """A field of which every variant gets the value that suits it."""

    field: str
    values: tuple[str, ...]
    full: bool = False
    """Compare the values in one round of runs as long as the ranked ones, instead of by successive halving."""

    def rounds(self, steps: int) -> list[int]:
        """Steps of the runs of each round; the ranked runs have `steps`."""
        return [steps] if self.full else rungs(len(self.values), steps)


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs."""

    path: str
    base: Recipe
    """The recipe without any axis."""
    common: tuple[str, ...]
    """Overrides of all runs."""
    variants: dict[str, tuple[str, ...]]
    """Name → overrides."""
    seeds: tuple[int, ...]
    tune: Tune | None = None
    shares: dict[str, float] = field(default_factory=dict)
    """Variant → share of its budget that SFT spends, where a budget is split."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Presets of `--presets all` that do not fit the recipe → why."""
    overruled: dict[str, list[str]] = field(default_factory=dict)
    """Fields that the recipe sets itself, against what presets of the sweep say → those presets."""
    k: int = 1
    """The runs are ranked by pass@k."""

    @property
    def learner(self) -> str | None:
        """The last stage that learns from rewards: its seed is the sweep's, and data and all before it are shared by the seeds."""
        return next((n.name for n in reversed(self.base.nodes()) if n.kind.rewards), None)

    @property
    def last(self) -> str:
        """The stage whose model is ranked: the learner, else the last that trains."""
        return self.learner or next(n.name for n in reversed(self.base.nodes()) if n.kind.trains)

    @property
    def evaluation(self) -> str:
        """The stage that scores."""
        return next(n.name for n in reversed(self.base.nodes()) if n.kind.makes == SCORES)

    @property
    def steps(self) -> int:
        """Steps of a whole run; 0 where its settings do not say them."""
        settings = self.base.graph[self.last].settings
        return settings.steps or 0 if isinstance(settings, TrainSettings) else 0

    @property
    def experiment(self) -> str:
        """MLflow experiment of the runs."""
        return self.base.tracking.experiment or f"{self.base.name}-sweep"

    @property
    def benchmark(self) -> str:
        """What the runs are ranked by."""
        return str(self.base.node(self.evaluation).settings.tasks[0].name)

    @property
    def tunes(self) -> list[str]:
        """The variants whose best value of the tuned field is looked for."""
        return list(self.variants)

    def start(self) -> Cell | None:
        """The run that scores the checkpoint from which the learner starts; None where nothing learns from rewards, or SFT differs."""
        if self.learner is None or self.shares:
            return None
        node = self.base.node(self.learner)
        left_out = set(Selection(start=node.name).of(self.base)) - {self.evaluation}
        only = tuple(name for name in self.base.stage_names() if name not in left_out)
        return Cell(START, None, (*self.common, self._scored(node.parents[0])), only)

    def _scored(self, model: str) -> str:
        """The override by which only one model is evaluated."""
        return f"{self.evaluation}.{'models' if self.base.stages else 'checkpoints'}=[{model}]"

    def cells(self, chosen: dict[str, str] | None = None) -> list[Cell]:
        """The runs that are ranked, seed by seed, so that a sweep that is stopped has every variant as often.

        Args:
            chosen: variant → value of the tuned field.
        """
        scored = (self._scored(self.last),)
        cells = []
        for seed, (variant, overrides) in product(self.seeds, self.variants.items()):
            tuned = (f"{self.tune.field}={(chosen or {})[variant]}",) if self.tune and chosen else ()
            cells.append(Cell(variant, seed, (*self.common, *overrides, *tuned, self._seed(seed), *scored)))
        return cells

    def trials(self, variant: str, values: Sequence[str], steps: int) -> list[Cell]:
        """Runs of a variant, one for each value of the tuned field; they end with training."""
        assert self.tune is not None
        seed = max(self.seeds) + TRIAL_SEED
        only = tuple(node.name for node in self.base.nodes() if node.kind.makes != SCORES)
        return [
            Cell(
                DOT.join([variant, *of_fields({self.tune.field: value}), f"{steps} steps"]),
                seed,
                (
                    *self.common,
                    *self.variants[variant],
                    f"{self.tune.field}={value}",
                    f"{self.last}.steps={steps}",
                    self._seed(seed),
                ),
                only,
            )
            for value in values
        ]

    def describe(self) -> str:
        """What will be run, in words."""
        variants, seeds = len(self.variants), len(self.seeds)
        words = f"{variants * seeds} runs: {variants} variants x {seeds} seeds"
        if self.tune:
            words += f", each at the best of {len(self.tune.values)} values of {self.tune.field}"
            words += ", tried in runs as long" if self.tune.full else ", tried in short runs"
        out = "".join(f"\nleft out: {name}: {reason}" for name, reason in self.left_out.items())
        for name, presets in self.overruled.items():
            shown = ", ".join(presets[:6]) + (f" and {len(presets) - 6} more" if len(presets) > 6 else "")
            out += f"\nthe recipe's own {name} stands in place of what {shown} would set"
        return f"{words}; stages that they share run once{out}"

    def _seed(self, seed: int) -> str:
        return f"{self.learner}.seed={seed}" if self.learner else f"seed={seed}"


def read(
    path: str,
    sets: Sequence[str] = (),
    presets: str | None = None,
    seeds: str = "1",
    tune: str | None = None,
    budget: str | None = None,
    split: str | None = None,
    sft_price: float = 1.0,
    tune_full: bool = False,
) -> Sweep:
    """Read the axes of a sweep.

    Args:
        path: the recipe.
        sets: `field=value`, or `field=value1,value2` for an axis.
        presets: names of presets, comma separated, or `all`: an axis.
        seeds: how many, from the recipe's own on; or which, comma separated.
        tune: `field=value1,value2`: every variant is judged at its own best value, found by successive halving on the reward
            of short runs with another seed.
        budget: what a run's RLVR may spend: `30m`, `90s`, `2h` or `1e6tokens`; with `split`, its SFT and RLVR together.
        split: shares of the budget that SFT spends, comma separated: an axis.
        sft_price: what a token of SFT costs, a completion token of RLVR costing 1.
        tune_full: with `tune`, in one round of runs as long as the ranked ones.

    Raises:
        UserError: names the option, or the run and its field, and the fix.
    """
    common, axes = [], []
    for text in sets:
        name, values = axis(text)
        if len(values) == 1:
            common.append(text)
        else:
            axes.append((name, values))
    base = read_recipe(path, common)
    nodes = base.nodes()
    if not any(n.kind.makes == SCORES for n in nodes):
        raise RecipeError(
            "evaluate", "a sweep ranks what the benchmarks say, and this recipe has none", "Add the section."
        )
    if not any(n.kind.trains for n in nodes):
        raise RecipeError("rlvr", "this recipe trains nothing, so there is nothing to compare.")
    bare = Sweep(path, base, (), {}, ())
    if presets is not None and bare.learner is None:
        raise UserError(
            "--presets", "this recipe has no RLVR stage, so its SFT would be ranked", "Add a section: rlvr: {}."
        )
    shares = sweep_split.read(split, budget, sft_price, base, bare.learner)
    if budget is not None and not shares:
        common += budget_overrides(budget, bare.learner or "rlvr")
        base = read_recipe(path, common)
    if tune_full and tune is None:
        raise UserError("--tune-full says how --tune compares values", fix="Add --tune FIELD=VALUE,VALUE.")
    if tune is not None and bare.steps == 0:
        raise RecipeError(f"{bare.last}.steps", "--tune makes runs that are counted in steps", "Set it.")
    common += of_all(base, base.tracking.experiment or f"{base.name}-sweep")
    names, left_out = _presets(path, common, presets)
    variants: dict[str, tuple[str, ...]] = {}
    share_of: dict[str, float] = {}
    every_share: list[sweep_split.Share | None] = [*shares] or [None]
    for preset, share in product(names, every_share):
        for chosen in product(*(values for _, values in axes)):
            settings = [f"{name}={value}" for (name, _), value in zip(axes, chosen, strict=True)]
            shown = of_fields({name: value for (name, _), value in zip(axes, chosen, strict=True)})
            if share is not None:
                shown.append(share.label)
                settings += share.overrides
            label = DOT.join([*([preset] if preset else []), *shown]) or base.name
            label = DOT.join([label, *settings]) if label in variants else label  # two long values that are shown alike
            variants[label] = (*([f"presets=[{preset}]"] if preset else []), *settings)
            if share is not None:
                share_of[label] = share.of_sft
    tuned = None
    if tune is not None:
        name, values = axis(tune, "--tune")
        if len(values) < 2:
            raise UserError(f"--tune {tune}", "one value is no choice", "Write it as field=value1,value2.")
        tuned = Tune(name, tuple(values), tune_full)
    first = base.node(bare.learner).seed if bare.learner else base.seed
    overruled = _overruled(path, common, [name for name in names if name])
    sweep = Sweep(path, base, tuple(common), variants, _seeds(seeds, first), tuned, share_of, left_out, overruled)
    if len(variants) * len(sweep.seeds) > MOST_RUNS:
        raise UserError(f"{len(variants) * len(sweep.seeds)} runs are more than a sweep may have ({MOST_RUNS}).")
    _read_cells(sweep, [("--set", name) for name, _ in axes] + ([("--tune", tuned.field)] if tuned else []))
    return sweep


def of_all(base: Recipe, experiment: str) -> list[str]:
    """Overrides of all runs: one experiment; no gate, since they are compared with each other and no looks at the champion; no messages,
    since who started the sweep sees what fails."""
    return [
        f"tracking.experiment={experiment}",
        *(f"{section}=null" for section in ("gate", "notify") if getattr(base, section) is not None),
    ]


def _read_cells(sweep: Sweep, axes: Sequence[tuple[str, str]]) -> None:
    """Read every run's recipe, with every value of the tuned field.

    Args:
        axes: option and field of each axis.

    Raises:
        UserError: a run cannot be read, another override would replace the values of an axis, or two values are one setting.
    """
    runs = sweep.cells(dict.fromkeys(sweep.variants, sweep.tune.values[0]) if sweep.tune else None)
    for option, name in axes:
        several = runs[:1] if option == "--set" else [*runs[:1], *sweep.trials(runs[0].variant, ["0"], 1)]
        settings = [[text.partition("=")[0].strip() for text in c.overrides[len(sweep.common) :]] for c in several]
        if any(names.count(name) > 1 for names in settings):
            raise UserError(
                f"{option} {name[:80]}",
                "the sweep sets this field a second time, so these values would change nothing",
                "Name a field once; --seeds chooses seeds, and a sweep decides itself on the steps of --tune and --split and on the "
                "models to score.",
            )
    known: dict[str, str] = {}
    values = sweep.tune.values if sweep.tune else ("",)
    for value in values:
        for cell in sweep.cells(dict.fromkeys(sweep.variants, value))[: len(sweep.variants)]:
            name = DOT.join([cell.variant, *of_fields({sweep.tune.field: value})]) if sweep.tune else cell.variant
            same = known.setdefault(digest(_as_floats(cell.recipe(sweep.path).model_dump(mode="json"))), name)
            if same != name:
                raise UserError(
                    " and ".join(dict.fromkeys(option for option, _ in axes)) or "--split",
                    f"{same!r} and {name!r} are one and the same recipe, which would be ranked against itself",
                    "Name the value once.",
                )
    for cell in runs[len(sweep.variants) :]:
        cell.recipe(sweep.path)


def _as_floats(value: Any) -> Any:
    """A plain value with all numbers as floats, so that 1 and 1.0 are equal; true and false stay."""
    if isinstance(value, dict):
        return {key: _as_floats(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_floats(part) for part in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def axis(text: str, option: str = "--set") -> tuple[str, list[str]]:
    """Field and values of `field=value1,value2`; commas inside brackets, braces and quotes belong to a value.

    >>> axis("rlvr.advantage=grpo,{kind: gae, lam: 0.9}")
    ('rlvr.advantage', ['grpo', '{kind: gae, lam: 0.9}'])

    Raises:
        UserError: it is written otherwise.
    """
    name, equals, rest = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"{option} {text[:80]}", "write it as field=value, or field=value1,value2 to compare values.")
    values, depth, quote, start = [], 0, "", 0
    for at, letter in enumerate(rest):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "[{(":
            depth += 1
        elif letter in "]})":
            depth -= 1
        elif letter == "," and depth == 0:
            values.append(rest[start:at].strip())
            start = at + 1
    values.append(rest[start:].strip())
    if len(values) > 1 and not all(values):
        raise UserError(f"{option} {text[:80]}", "a value between two commas is empty.")
    for value in values:
        yaml_text.parse(value, f"{option} {name.strip()[:80]}")
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise UserError(f"{option} {text[:80]}", f"the value {repeated[0]} is named twice.")
    return name.strip(), values


def budget_overrides(text: str, stage: str = "rlvr") -> list[str]:
    """Overrides for `30m`, `90s`, `2h` or `1e6tokens` of a stage.

    >>> budget_overrides("30m"), budget_overrides("1e6tokens")
    (['rlvr.budget.seconds=1800'], ['rlvr.budget.tokens=1000000'])

    Raises:
        UserError: it is none of them.
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(s|m|h|tokens?)\s*", text)
    try:
        amount = float(match[1]) if match else math.nan
    except ValueError:
        amount = math.nan
    if match is None or not 0 < amount < 1e15:
        raise UserError(f"--budget {text[:40]}", "write it as 30m, 90s, 2h or 1e6tokens; it is what one run may spend.")
    if match[2] in UNITS:
        return [f"{stage}.budget.seconds={amount * UNITS[match[2]]:g}"]
    return [f"{stage}.budget.tokens={max(1, round(amount))}"]


def _seeds(text: str, first: int) -> tuple[int, ...]:
    """`3` → three seeds from the recipe's on; `0,5,7` → these."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts):
        raise UserError(f"--seeds {text[:40]}", "write how many (3), or which (0,5,7).")
    if len(parts) == 1:
        if not 1 <= int(parts[0]) <= MOST_RUNS:
            raise UserError(f"--seeds {text[:40]}", f"at least 1, at most {MOST_RUNS}.")
        return tuple(range(first, first + int(parts[0])))
    listed = tuple(int(part) for part in parts)
    if len(set(listed)) < len(listed):
        raise UserError(f"--seeds {text[:40]}", "a seed is named twice.")
    return listed


def _presets(path: str, common: Sequence[str], text: str | None) -> tuple[list[str], dict[str, str]]:
    """Names of presets ([""] where none are compared), and of `all` those that do not fit the recipe."""
    if text is None:
        return [""], {}
    if text.strip() != "all":
        names = [name.strip() for name in text.split(",")]
        repeated = [name for name in names if names.count(name) > 1]
        if repeated or not all(names):
            raise UserError(
                f"--presets {text[:80]}", f"{'names ' + repeated[0] + ' twice' if repeated else 'a name is empty'}."
            )
        return names, {}
    from pipelines.recipe.check import check

    fitting, left_out = [], {}
    for name in preset_names():
        try:
            check(read_recipe(path, [*common, f"presets=[{name}]"]))
            fitting.append(name)
        except RecipeError as error:
            left_out[name] = str(error.problems[0])
    if not fitting:
        name, reason = next(iter(left_out.items()))
        raise UserError("--presets all", f"no preset fits this recipe. {name}: {reason}")
    return fitting, left_out


def _overruled(path: str, common: Sequence[str], presets: Sequence[str]) -> dict[str, list[str]]:
    """Fields in which a recipe differs from its presets → the presets: a comparison of methods in which one part is the same for all."""
    out: dict[str, list[str]] = {}
    for preset in presets:
        settings = read_recipe(path, [*common, f"presets=[{preset}]"]).rlvr
        if settings is None:
            continue
        for name, value in read_preset(preset).items():
            alone = Rlvr.model_validate({**settings.model_dump(mode="json"), name: value})
            if getattr(alone, name) != getattr(settings, name):
                out.setdefault(f"rlvr.{name}", []).append(preset)
    return out


def check(read: Sweep, fresh: bool = False) -> None:
    """What `whetstone plan` checks, for every variant; a variant that has passed is not looked at again in this process.

    Raises:
        UserError: all that is wrong, with the run that it belongs to.
    """
    start, cells = read.start(), read.cells(dict.fromkeys(read.variants, read.tune.values[0]) if read.tune else None)
    marks, names, runs = [], [], []
    for cell in [*([start] if start else []), *cells[: len(read.variants)]]:
        recipe = cell.recipe(read.path)
        chosen = Selection(only=cell.only or ()).of(recipe)
        mark = digest([recipe.model_dump(mode="json"), chosen, fresh])
        if mark in _checked:
            continue
        marks.append(mark)
        names.append(cell.name)
        runs.append((recipe, Prepared(recipe, chosen, fresh).will_run))
    for mark, name, error in zip(marks, names, preflight.require_each(runs), strict=True):
        if error is not None:
            raise UserError(problems=[replace(each, scope=name) for each in error.problems])
        _checked.add(mark)


def keep_better_half(scores: dict[str, float]) -> list[str]:
    """The values of the tuned field that go on, best first: half of them, rounded up, never all.

    >>> keep_better_half({"1e-3": 0.2, "1e-4": 0.5, "1e-5": 0.4})
    ['1e-4', '1e-5']
    """
    ordered = sorted(scores, key=lambda value: -scores[value])
    return ordered[: min(len(ordered) - 1, -(-len(ordered) // 2))] if len(ordered) > 1 else ordered


def rungs(values: int, steps: int) -> list[int]:
    """Steps of the rounds of successive halving that leave one of so many values; each has twice the steps of the one before.

    >>> rungs(4, 80), rungs(2, 80), rungs(1, 80)
    ([20, 40], [40], [])
    """
    rounds = 0
    while values > 1:
        values = min(values - 1, -(-values // 2))
        rounds += 1
    return [max(1, steps // 2 ** (rounds - i)) for i in range(rounds)]
