"""The hooks of a method, typed; all of them do nothing by default, so the loop calls them on every part alike.

A method that computes columns from columns is a plain function and needs none of this. One that remembers, samples, or
wants to see rollouts is a class that inherits from `Method`, or from the base of its slot where the slot is not called
with columns:

    connect         once per process, before everything else
    setup           once in a run, before the first step
    sampling        before a step is sampled
    on_rollouts     with the scored trajectories of each draw
    on_batch        once a step, with the columns of its own update, before any update
    metrics, lines  once a step: up to the filter when its rows are there, after it when credit is assigned
    state_dict      at every commit; load_state_dict at a restart
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.contract.monitor import Monitor
from pipelines.contract.provider import Provider
from pipelines.contract.rollout import no_try_out
from pipelines.contract.scorer import Scorer

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel
    from torch import Tensor

    from pipelines.contract.card import Bound
    from pipelines.contract.rollout import (
        Allocation,
        DrawnProblem,
        GroupOutcome,
        RolloutContext,
        RolloutRequest,
        SetupContext,
        TryOut,
    )
    from pipelines.contract.sampling import Sampling
    from pipelines.data.records import Problem, Trajectory


def metric_of(owner: str, name: str) -> str:
    """What a metric of a method is called beside those of others; one of time keeps its name, by which it may differ between equal runs.

    >>> metric_of("method/grpo", "kept"), metric_of("method/multi_turn", "time/rollout_idle_share")
    ('method/grpo/kept', 'time/rollout_idle_share')
    """
    return name if name.startswith("time/") else f"{owner}/{name}"


class Method:
    """What the loop may tell any method. Override what is needed; call `super()` where the base of a slot does something."""

    model_paths: ClassVar[tuple[str, ...]] = ()
    """Settings that name a frozen model to score with: a stage of the recipe that makes a model, or a model by path, whose files belong to
    the stage's key; `policy` and `reference` where the scoring hook is asked."""
    reward_models: ClassVar[tuple[str, ...]] = ()
    """Settings that name reward models, one or a list: stages of the recipe, or checkpoints by path. Their files belong to the key too."""
    players: ClassVar[tuple[str, ...]] = ()
    """Settings that list who plays a game, each a name or a section with `player`: `policy`, `past`, `random`, `perfect`, stages of the
    recipe that make a model, or models by path. The files of models belong to the key too."""
    info_fields: ClassVar[tuple[str, ...]] = ()
    """Settings that name a field of the records' info, which some record must have."""
    reads_all_rows: ClassVar[bool] = False
    """Whether every process must have every row of a step for it, beside what its hooks and the columns that it is called with say."""
    asks_policy: bool = False
    """Whether it asks the scoring hook about the policy itself, beside what a setting of `model_paths` says. Instances may differ."""
    reads_network: bool = False
    """Whether it reads the policy's weights, hidden states or logits, and not the log-probabilities of tokens alone: a remote engine gives
    nothing else."""

    def parts(self) -> Sequence[Bound]:
        """The methods that this one is made of, for the recipe's checks; their hooks are this one's to call."""
        return ()

    def uses(self, hook: str) -> bool:
        """Whether a hook of this instance does something.

        >>> FunctionMethod(abs, {}).uses("on_batch")
        False
        """
        return getattr(type(self), hook) is not getattr(Method, hook)

    def connect(self, scorer: Scorer) -> None:
        """Once per process, before everything else: what says how likely a model finds a text. Keep it where it is needed."""

    def setup(self, context: SetupContext) -> None:
        """Once in a run, before the first step. A restart does not repeat it: what it finds belongs into the state."""

    def sampling(self, settings: Sampling) -> Sampling:
        """The settings that the next step is sampled with."""
        return settings

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The scored trajectories of a draw, on every process the same; returns those that the step goes on with.

        Stored trajectories may be put among them, marked as `replayed`, before anything is compared.
        """
        return rows

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """The columns of the step's own update, stored rows that join it included, before any update; for reading only."""

    def divisor_loss(self, columns: Mapping[str, Any]) -> Tensor:
        """Of an objective: a loss per token by the norm of whose gradient, or by `self.least`, the larger, each update's is divided."""
        raise NotImplementedError

    def column_options(self) -> dict[str, Any]:
        """Column → how it is to be made, for columns that `contract/columns.py` says take options.

        Two methods of a recipe cannot ask for the same column in different ways.
        """
        return {}

    def metrics(self) -> dict[str, float]:
        """What it shows of a step, by name; what measures time begins with `time/`.

        Asked for when the rows of the step are there, or after the filter when it was called with their columns.
        """
        return {}

    def lines(self) -> list[dict[str, Any]]:
        """What it wants kept of a step, a line each in `methods.jsonl` beside the model; asked for where `metrics` is."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs, as plain values and tensors; part of every commit."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""


class Composed(Method):
    """A method that is made of others: it reads the columns that they read (`bind` adds them), and its hooks are theirs."""

    term_settings: ClassVar[type[BaseModel] | None] = None
    """What each of its `terms` says beside the settings of its own method."""

    @abstractmethod
    def parts(self) -> Sequence[Bound]:
        """The methods that it is made of."""

    def uses(self, hook: str) -> bool:
        """Whether a part uses the hook."""
        return any(part.fn.uses(hook) for part in self.parts())

    def connect(self, scorer: Scorer) -> None:
        """Pass on to the parts."""
        for part in self.parts():
            part.fn.connect(scorer)

    def setup(self, context: SetupContext) -> None:
        """Pass on to the parts."""
        for part in self.parts():
            part.fn.setup(context)

    def sampling(self, settings: Sampling) -> Sampling:
        """Pass on to the parts."""
        for part in self.parts():
            settings = part.fn.sampling(settings)
        return settings

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Pass on to the parts."""
        for part in self.parts():
            rows = part.fn.on_rollouts(rows)
        return rows

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Pass on to the parts."""
        for part in self.parts():
            part.fn.on_batch(columns)

    def column_options(self) -> dict[str, Any]:
        """What the parts ask for."""
        options: dict[str, Any] = {}
        for part in self.parts():
            options |= part.fn.column_options()
        return options


class FunctionMethod(Method):
    """A plain function with its settings chosen; it uses no hooks and keeps no state."""

    def __init__(self, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        self._call = partial(function, **settings)

    def __call__(self, **columns: Any) -> Any:
        return self._call(**columns)


class Curriculum(Method):
    """Which problems a step asks, and with how many rollouts."""

    tries_out: ClassVar[bool] = False
    """Whether it samples before it proposes (`try_out`)."""
    size: int = 0
    """Problems of the split."""
    seed: int = 0
    sources: Sequence[str] = ()
    """Of every problem the source that its record names."""
    try_out: TryOut = staticmethod(no_try_out)
    """What `propose` may ask of the present policy: rollouts, scored as all are, that nothing is trained on. The loop sets it."""

    def setup(self, context: SetupContext) -> None:
        """Note how many problems there are, and of which sources."""
        self.sources = context.sources
        self.start(context.problems, context.seed)

    def start(self, size: int, seed: int) -> None:
        """Note how many problems there are, and the run's seed."""
        self.size, self.seed = size, seed

    @abstractmethod
    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next `count` problems, with `rollouts` rollouts each on average; one that tries problems out may leave some out."""

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Outcomes of the problems proposed last, in their order; an outcome without scored rows says nothing.

        Where rows go on over several steps, those of the problems whose rows have ended.
        """

    def state_dict(self) -> dict[str, Any]:
        """Size and seed; a curriculum that remembers more adds it."""
        return {"size": self.size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.start(state["size"], state["seed"])


class Prompting(Method):
    """How problems are put to the policy; random numbers and memory as for `Rollout`."""

    leaves_prompts: bool = False
    """Every problem is asked as it is, so that a game may ask each seat in its own way."""

    system_prompt: str | None = None
    """Put in front of every problem; saved with the checkpoint, so that evaluation uses it too."""

    @abstractmethod
    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the requests, changed or with others appended."""


class Rollout(Method):
    """How trajectories come from requests; it owns the loop with the environment.

    Of several ranks each rolls out whole groups of its own. All must draw what one rank would: random numbers come from
    `context.streams`, by group, and what later steps need is noted in `on_rollouts`, which sees every rank's rows.
    """

    reads_samples: ClassVar[bool] = False
    """Whether it takes completions from a sample stage (`context.stored`), which the recipe then names as `samples`."""
    reads_episodes: ClassVar[bool] = False
    """Whether these are episodes."""
    repeatable: bool = True
    """Whether the same requests give the same rows again, to the bit, where the sampler does: so a restart ends with the same bytes."""

    @abstractmethod
    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All trajectories of the requests, those of one group together."""

    def resume(self, rows: list[Trajectory], context: RolloutContext) -> list[Trajectory]:
        """The rows grown by another window, in order, for a rollout whose rows may be cut (`context.window`).

        Args:
            rows: cut ones (`Stop.WINDOW`); they are not changed.

        Raises:
            NotImplementedError: the rollout does not do that.
        """
        raise NotImplementedError


class Reward(Method):
    """Who scores trajectories."""

    label: str = ""
    """Default name of the term that it is in a composite reward; empty: the method's name."""
    pays_turns: bool = False
    """Whether it needs a rollout with turns, whose rewards it changes."""
    keeps_score: bool = False
    """Whether a score that the rollout has given stays in the row's score, and with it what the environment paid the turns."""
    reads_calls: ClassVar[bool] = False
    """Whether it reads which tools were called: stored episodes do not hold that."""
    rescores: bool = False
    """Whether rows that the rollout has scored are scored again."""
    term_names: Sequence[str] = ()
    """Of a score that is the sum of named terms: their names, in the order of a row's `terms`."""

    @abstractmethod
    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place; what the infrastructure failed stays unscored.

        Args:
            problems: uid → problem.
        """


class SamplingSchedule(Method):
    """How often a step samples, and which of the problems it drew it goes on with."""

    reads_all_rows: ClassVar[bool] = True
    """Whether it reads the rows of a problem; otherwise those that other processes have may be left out of it."""

    @abstractmethod
    def collect(self, draw: Callable[[], list[DrawnProblem]], prompts: int) -> list[DrawnProblem]:
        """The problems whose rows the step goes on with.

        Args:
            draw: samples and scores the curriculum's next `prompts` problems.
            prompts: problems that a step wants.
        """


@dataclass(frozen=True, eq=False)
class UpdateParts:
    """How an update is made in parts, each on some of its tokens: the next one starts from the weights that the one before has left.

    In every part but the first `logp_old` is the log-probability under the weights as they are when it begins.
    """

    masks: Sequence[Tensor]
    """bool [B, T] for each part, in order."""
    carry: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Between two parts: the tokens just trained, bool [B, T], their log-probabilities [B, T] before the part and after it → the
    advantage [B, T] of the parts to come."""


@dataclass(frozen=True, eq=False)
class PolicyUpdate:
    """A batch that the policy is trained on: the step's own, or a replay update."""

    columns: dict[str, Any]
    """Its rows, with `advantage`; of the step's own update they may be followed by stored rows that join it (the column `replayed`)."""
    replayed: bool = False
    """All rows are stored ones. Such an update has no place in the learning rate's schedule: in front of the step's own it uses
    the rate of that one's first mini-batch, after it that of its last."""
    split: bool = True
    """Into `rlvr.mini_batches`, `rlvr.epochs` times over; otherwise one optimizer update on all rows."""
    normalise_separately: bool = False
    """The tokens of replayed rows have denominators of their own."""
    parts: UpdateParts | None = None
    """One part after the other instead of all tokens at once. Each is split and repeated as the whole would be; those after the first
    have no place in the learning rate's schedule, as replay updates have none."""


def own_update(updates: list[PolicyUpdate]) -> PolicyUpdate:
    """The step's own among its updates.

    Raises:
        ValueError: there is none, or more than one: a fault of the replay part.
    """
    own = [update for update in updates if not update.replayed]
    if len(own) != 1:
        raise ValueError(f"a replay must return one update that is not replayed, the step's own (got {len(own)})")
    return own[0]


class Replay(Method):
    """Which rows of earlier steps train in this one, and in which updates.

    Those that it puts in are marked: as columns by `append` and `stack` of `pipelines/rlvr/common/stored_rows.py`, as trajectories by
    their `replayed`.
    """

    reads_all_rows: ClassVar[bool] = True
    """Whether it stores rows or puts any in; otherwise its one update is the columns that it is given."""

    @abstractmethod
    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's updates in the order in which they are made; exactly one is not `replayed`: the step's own.

        Args:
            columns: of the step's rows, with `advantage`; not to be changed in place.
            generator: for draws from stored rows.
        """


BASES: dict[str, type] = {
    "rlvr.curriculum": Curriculum,
    "rlvr.prompting": Prompting,
    "rlvr.rollout": Rollout,
    "rlvr.reward": Reward,
    "rlvr.sampling_schedule": SamplingSchedule,
    "rlvr.replay": Replay,
    "rlvr.providers": Provider,
    "monitor": Monitor,
}
"""Slots whose methods are not called with columns, and the base class each method of theirs has."""
