"""The recipe's fields, stage by stage, with types, bounds and defaults. pydantic only: fast to import.

A field marked `free()` cannot change a result (threads, logging, disk housekeeping): it stays out of stage keys.
"""

from __future__ import annotations

import math
import os
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipelines.contract.fields import Day, Function, Identifier, Label, Line, Seed, Settings, free
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.contract.sampling import Mismatch, Sampling
from pipelines.recipe.guidance import GuidedColumns
from pipelines.recipe.monitors import DEFAULT_MONITORS
from pipelines.recipe.played import PlayedTask as PlayedTask
from pipelines.recipe.played import check_unread_fields
from pipelines.recipe.search import SearchColumns, distinct
from pipelines.recipe.server import SERVED_ALONE, Dask, RemoteEngine, Server
from pipelines.recipe.source import Source as Source
from pipelines.recipe.spans import Span as Span
from pipelines.recipe.training import FixedDataSettings, OnePart, Optimizer, Part, Parts, TrainSettings, named_part
from pipelines.recipe.training import OfSource as OfSource


def _reward(value: Any) -> Any:
    if value == []:
        raise ValueError("the list is empty; name a reward, such as verifier")
    return {"kind": "composite", "terms": value} if isinstance(value, list) else named_part(value)


class NearDuplicates(Settings):
    """MinHash near-duplicate removal over word shingles; candidates are verified by exact Jaccard similarity."""

    threshold: float = Field(0.8, gt=0, le=1)
    shingle: int = Field(5, ge=1, le=1000)
    """Words per shingle."""
    permutations: int = Field(64, ge=16, le=256)
    images: Literal["near", "same"] = "near"
    """Pictures that repeats may have: those that are nearly the same (written in another format, at another size), or the same alone."""


class Decontaminate(Settings):
    """Drop records that overlap with the benchmarks this recipe evaluates."""

    ngram: int = Field(13, ge=2, le=1000)
    """Words in a row that count as an overlap; shorter texts are compared whole."""
    images: Literal["alone", "with_text"] = "alone"
    """A question's picture, or nearly it, counts by itself, or only where the words overlap too."""


class Difficulty(Settings):
    """Keep problems that a model solves sometimes."""

    model: Line
    """The model whose pass rate is measured: a stage, or the folder (`./NAME`) or hub name of one."""
    samples: int = Field(8, ge=2, le=100_000)
    low: float = Field(0.0, ge=0, le=1)
    high: float = Field(1.0, ge=0, le=1)
    """Keep low < pass rate < high; the bounds 0 and 1 drop only the never and always solved."""
    max_tokens: int = Field(256, ge=1)
    temperature: float = Field(1.0, gt=0, le=100)
    sampler: Server | None = None
    """vLLM servers that decode instead of this process."""
    processes: int = free(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU, each with the whole model: they divide the problems; any number gives the same bytes."""

    @model_validator(mode="after")
    def _ordered(self) -> Difficulty:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be under high ({self.high:g})")
        if self.processes > 1 and self.sampler is not None:
            raise ValueError(SERVED_ALONE)
        return self


class Curate(Settings):
    """Sources to clean, deduplicated, decontaminated splits."""

    sources: list[Source] = Field(min_length=1, max_length=1000)
    near_duplicates: NearDuplicates | None = NearDuplicates()
    decontaminate: Decontaminate | None = Decontaminate()
    max_prompt_tokens: int | None = Field(None, ge=1)
    min_prompt_tokens: int = Field(1, ge=0)
    max_solution_tokens: int | None = Field(None, ge=1)
    difficulty: Difficulty | None = None
    splits: dict[Label, float] = {"train": 0.95, "heldout": 0.05}
    """Split name → share; a record's split depends on its uid only."""
    self_check: bool = True
    """Quarantine rows whose gold answer does not verify itself."""
    batch_rows: int = free(20_000, ge=1)
    """Rows held in memory at a time."""
    dask: Dask | None = free(None)

    @model_validator(mode="after")
    def _shares(self) -> Curate:
        if not self.splits or any(v <= 0 for v in self.splits.values()) or abs(sum(self.splits.values()) - 1) > 1e-6:
            raise ValueError("splits must be positive shares that add up to 1")
        if len({name.lower() for name in self.splits}) < len(self.splits):
            raise ValueError("two names of splits differ in upper and lower case only, which not every disk can tell")
        if self.max_prompt_tokens is not None and self.min_prompt_tokens > self.max_prompt_tokens:
            raise ValueError("min_prompt_tokens must not be over max_prompt_tokens")
        for number, source in enumerate(self.sources):
            unknown = set(source.splits or []) - set(self.splits)
            if unknown or source.splits == []:
                named = ", ".join(sorted(unknown)) or "none"
                raise ValueError(f"sources.{number}.splits names no split of this recipe: {named}")
        return self


MixtureShare = Annotated[float, Field(ge=0, le=1e6)]
SharesOverTime = MixtureShare | tuple[MixtureShare, MixtureShare]


class Sft(FixedDataSettings):
    """Supervised cold start."""

    target: Literal["auto", "solution", "answer"] = "auto"
    """What the assistant says: the record's solution, its answer, or the solution where there is one."""
    turns: Literal["last", "all", "marked"] = "last"
    """Which of the assistant's messages are trained: the last one, those in the prompt too (whole conversations with an agent), or of
    all of them those that the data do not mark (`train: false` or `weight: 0` in a message)."""
    spans: Annotated[list[Span], Field(max_length=100)] = []
    """Parts of the trained messages whose tokens weigh differently, such as the action after the reasoning."""
    weights: dict[Line, Annotated[float, Field(ge=0, le=1000)]] = {}
    """Source → what its records' tokens count in the loss and its denominator; 1 where it is not named."""
    weight_from: Line | None = None
    """Field of a record's info with a weight of its own, such as `sample_score`, which is multiplied with that of its source."""
    mixture: dict[Line, SharesOverTime] = {}
    """Source → its share of the rows of a step, or `[at the first step, at the last]`, changing evenly in between (annealing). Shares are
    relative to their sum; a source starts again when all of its rows were read. Default: all rows of the split, once an epoch."""
    loss: Part = {"kind": "cross_entropy"}
    """One of pipelines/sft/loss, with its settings: `dft`, `{kind: psft, high: 0.28}`. The held-out loss is always the cross-entropy."""
    tokens_per_step: int = Field(16_384, ge=1)
    """Packed tokens per step; the loss of an optimizer update is divided by its own count of trained tokens."""
    mini_batches: int = Field(1, ge=1, le=100_000)
    """Optimizer updates that a step's rows are split over, at most one a row; the learning rate's schedule counts updates."""
    max_length: int = Field(2048, ge=2)
    """Length of a packed row; longer conversations are dropped and counted."""
    packing: bool = True
    optimizer: Optimizer = Optimizer(learning_rate=2e-5)
    processes: int = free(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU: weights sharded with FSDP2, forward passes shared between them. A run may go on with another
    number; its result is the same up to float rounding."""
    engine: RemoteEngine | None = None
    """Train on a server of the Tinker protocol (docs/remote-engine.md); default: in the stage's own processes."""

    @model_validator(mode="after")
    def _rows(self) -> Sft:
        if self.mixture and self.steps is None:
            raise ValueError("mixture: its shares change over `steps`; give them, and leave `epochs` out")
        ends = [(share, share) if isinstance(share, float) else share for share in self.mixture.values()]
        if self.mixture and not (any(first for first, _ in ends) and any(last for _, last in ends)):
            raise ValueError("mixture: some source needs a share over 0 at the first step, and some one at the last")
        if self.micro_batch_tokens < self.max_length:
            raise ValueError("micro_batch_tokens must hold at least one row of max_length tokens")
        return self


MOST_ROLLOUTS = 2**22
"""Of one step."""


class Budget(Settings):
    """What a run may spend; it ends with the step that spends the last of it, or after `steps`."""

    tokens: int | None = Field(None, ge=1)  # of completions
    seconds: float | None = Field(None, gt=0)
    """Time in steps, over all restarts. Not reproducible: how many steps fit depends on the machine."""


class Rlvr(TrainSettings):
    """Reinforcement learning with verifiable rewards."""

    seed: Seed | None = free(None)  # in the stage's key as its seed
    """Of this stage; default: the recipe's. Runs that differ in it alone share their data and SFT."""
    steps: int = Field(100, ge=1)
    budget: Budget = Budget()
    """The learning rate's schedule runs over `steps` all the same."""
    prompts: int = Field(32, ge=1, le=1_000_000)
    """Problems per step."""
    group_size: int = Field(8, ge=1, le=100_000)
    """Rollouts per problem."""
    sampling: Sampling = Sampling()
    by_source: dict[Line, OfSource] = {}
    """Source of prompts → what these have instead of the stage's settings of these names."""
    window: float | None = Field(None, gt=0)
    """Tokens that a row may grow by in a step, below 1 a share of `sampling.max_tokens`; the rest follows in later steps, with
    newer weights. Default: rows are drawn to their end."""
    curriculum: Part = {"kind": "uniform"}
    prompting: Part = {"kind": "plain"}
    rollout: Part = {"kind": "single_turn"}
    reward: Annotated[dict[str, Any], BeforeValidator(_reward, json_schema_input_type=OnePart | list[OnePart])] = {
        "kind": "verifier"
    }
    """One reward, or a list of them: `composite`."""
    filter: Part = {"kind": "all_rows"}
    sampling_schedule: Part = {"kind": "single"}
    reward_functions: list[Function] = []
    """More rewards, added to the verifier's: functions with TRL's signature, as `FILE.py:NAME` or `package.module:NAME`."""
    reward_timeout_s: float | None = free(600.0, gt=0)
    """Wall time that one call of a reward function may take; longer ends the run with its name."""
    on_timeout: Literal["incorrect", "unscored"] = "incorrect"
    """A completion that its verifier cannot judge in time scores 0, or nothing and trains nothing."""
    shaping: Parts = []
    advantage: Part = {"kind": "grpo"}
    credit: Parts = []
    replay: Part = {"kind": "no_replay"}
    objective: Part = {"kind": "clip"}
    divergence: Part | None = None
    auxiliary_loss: Parts = []
    loss_aggregation: Part = {"kind": "token_mean"}
    epochs: int = Field(1, ge=1, le=10_000)
    """Passes over a step's rollouts."""
    mini_batches: int = Field(1, ge=1, le=1_000_000)
    """Optimizer updates per pass, at most one a group; the learning rate's schedule counts updates, at most one a prompt and pass."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    optimizer: Optimizer = Optimizer(learning_rate=1e-6, schedule="constant", warmup=0)
    mismatch: Mismatch = Mismatch()
    old_logp: Literal["sampler", "trainer"] = "sampler"
    """Whose log-probabilities the objective's ratio starts from. `trainer` recomputes them before the first update, for
    samplers that are another engine; the credit part `truncated_is` then corrects the mismatch."""
    sampler: Server | None = None
    """Decode on a vLLM server; default: in the trainer's own process, with the weights that are trained."""
    engine: RemoteEngine | None = None
    """Train and decode on a server of the Tinker protocol (docs/remote-engine.md); default: in the stage's own processes."""
    full_copy: bool = free(True)
    """Where several processes train: each keeps a full copy of the weights, which decoding and methods that ask the policy itself read.
    false, with a server and without adapters: no process has it, and weights go to the servers tensor by tensor."""
    staleness: int = Field(0, ge=0, le=64)
    """With a server: steps that the sampling weights are behind those that train; the trainer continues meanwhile. 0: they take turns."""
    providers: Parts = []
    """Models that fill columns which methods read: `critic` (advantage: gae), `teacher`, `implicit_prm`, ..."""
    processes: int = free(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU: weights sharded with FSDP2, rollouts and forward passes sharded. A run may go on with another
    number; its result is the same up to float rounding."""
    skip_zero_advantage_rows: bool = True
    """Leave rows without gradient out of the forward pass where the parts allow it; never changes the gradient."""
    share_prefixes: bool = True
    """Compute a group's prompt once in the forward and backward pass; never changes the gradient."""
    decode_rows: int = Field(1024, ge=1)
    """Rows decoded side by side."""
    cuda_graphs: bool = True
    """On a GPU, replay decoding steps as CUDA graphs; their buffers stay in memory between steps."""
    monitors: Parts = DEFAULT_MONITORS
    """Rules over metrics and rollouts, each with what to do when it is broken (files of pipelines/monitor); [] for none."""
    no_effect_steps: int | None = free(20, ge=1)
    """Steps in a row in which a shaping or credit part changes nothing before the run warns of it, once; null: it never does."""
    log_rollouts: int = free(8, ge=0)
    """Rollouts per step written to rollouts.jsonl."""

    @property
    def window_tokens(self) -> int | None:
        """`window` in tokens."""
        unit = self.sampling.max_tokens if self.window is not None and self.window < 1 else 1
        return None if self.window is None else math.ceil(self.window * unit)

    @model_validator(mode="after")
    def _rollouts(self) -> Rlvr:
        rollouts = self.prompts * max([self.group_size, *(own.group_size or 1 for own in self.by_source.values())])
        if rollouts > MOST_ROLLOUTS:
            raise ValueError(f"prompts * group_size is {rollouts} rollouts a step; at most {MOST_ROLLOUTS} fit")
        if self.mini_batches > rollouts:
            raise ValueError("mini_batches: more updates per pass than the step has rollouts")
        if len(set(map(os.path.normpath, self.reward_functions))) < len(self.reward_functions):
            raise ValueError("reward_functions: each function may be named once")
        return self


class Task(Settings):
    """One benchmark."""

    name: Label
    """A task in evaluation/benchmarks, any task lm-eval installs, or a task of `include`; a label where `benchmark` names it."""
    benchmark: Label | None = None
    """The task that is asked, where `name` is a label: one benchmark can so be listed several times, such as once per mode."""
    limit: int | None = Field(None, ge=1)
    samples: int | None = Field(None, ge=1, le=1_000_000)
    """Answers per problem for avg@k, pass@k and maj@k; default: what the task's YAML says."""
    few_shot: int | None = Field(None, ge=0, le=10_000)
    sampling: dict[str, Any] = {}
    """Overrides of the task's generation settings, such as temperature and max_gen_toks."""
    environment: PlayedTask | None = None
    """Play episodes instead of asking an lm-eval task; `name` is then only a label."""
    against: Label | None = None
    """Another of these tasks that asks the same questions in another way: each checkpoint's paired difference to it is reported."""
    chat: bool | None = None
    """Put prompts through the chat template; default: yes, where the model has one."""
    system: str | None = Field(None, min_length=1, max_length=100_000)
    """A system message for every question, after the one that the model was trained with."""
    prefill: str | None = Field(None, min_length=1, max_length=100_000)
    """Text that each answer begins with and the model continues: the start of its thoughts, or their end. Not part of the answer."""
    data: Line | None = None
    """A local file with the benchmark's rows in its own columns, for `livecodebench`, `bfcl`, `bfcl_prompt` and `ifeval`."""
    start_date: Day | None = None
    """Ask only what was published on this day (`2025-01-01`) or later, where the benchmark's rows say when."""
    end_date: Day | None = None
    """Ask only what was published on this day or earlier."""

    def joined_system_prompt(self, own: str | None) -> str:
        """The model's own system message, if it has one, followed by the task's; empty without both."""
        return "\n\n".join(text for text in (own, self.system) if text)

    @property
    def asks(self) -> str:
        """lm-eval's name of the task."""
        return self.benchmark or self.name

    @property
    def rows(self) -> dict[str, str]:
        """What says which rows the benchmark asks, as far as it is given."""
        named = {"data": self.data, "start_date": self.start_date, "end_date": self.end_date}
        return {name: value for name, value in named.items() if value is not None}

    @model_validator(mode="after")
    def _mode(self) -> Task:
        if self.environment is not None:
            check_unread_fields(self.environment, self)
        if self.chat is False and (self.system or self.prefill):
            raise ValueError(f"{self.name}: `system` and `prefill` go through the chat template; leave chat: false out")
        if self.start_date is not None and self.end_date is not None and self.start_date > self.end_date:
            raise ValueError(f"{self.name}: start_date {self.start_date} is after end_date {self.end_date}")
        return self


Checkpoint = Literal["base", "sft", "rlvr"]
CHECKPOINTS: tuple[Checkpoint, ...] = get_args(Checkpoint)
"""Every model of a chain, in its order."""


def _task(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _without_stages(values: list[ModelEndpoint | None]) -> list[ModelEndpoint | None]:
    """Without the places of the stages among which endpoints are listed."""
    return [value for value in values if value is not None]


Endpoints = Annotated[list[ModelEndpoint | None], AfterValidator(_without_stages)]


class Evaluate(Settings):
    """Benchmarks for every checkpoint of the chain."""

    models: Endpoints = []
    """Models behind OpenAI-compatible servers, which stand in the table beside the recipe's own; in a stage with a name they are listed
    among the stages."""
    tasks: list[Annotated[Task, BeforeValidator(_task, json_schema_input_type=Label | Task)]] = Field(min_length=1)
    include: Line | None = None
    """Folder with more lm-eval task YAMLs."""
    checkpoints: list[Checkpoint] = Field(list(CHECKPOINTS), min_length=1)
    """Of the plain sections' chain; a stage with a name lists `models` instead."""
    guidance: GuidedColumns | None = None
    """Columns in which models are decoded together with one that they were trained from."""
    search: SearchColumns | None = None
    """Columns in which each answer is chosen among several that are drawn for it, by a score: one strategy, or a list."""
    batch_size: int = Field(256, ge=1)
    """Answers decoded side by side."""
    sampler: Server | None = None
    """vLLM servers that decode instead of this process; each model has its own start of them, or its own push."""
    processes: int = free(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU, each with the whole model: they divide the batches of `batch_size` answers or episodes, and
    the groups of choices. The scores are the same bytes for any number of them."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    bootstrap: int = free(2000, ge=100, le=1_000_000)
    """Resamples of problems and seeds from which a sweep counts how often a variant is best."""

    @model_validator(mode="after")
    def _unique(self) -> Evaluate:
        task_names = [t.name for t in self.tasks]
        if len(set(task_names)) != len(task_names):
            raise ValueError("each task may be named once")
        for task in self.tasks:
            if task.against is not None and (task.against == task.name or task.against not in task_names):
                raise ValueError(f"{task.name}.against: no other task is called {task.against!r}")
        if len(set(self.checkpoints)) != len(self.checkpoints):
            raise ValueError("checkpoints: each may be named once")
        distinct(self.search or [])
        return self

    @model_validator(mode="after")
    def _served(self) -> Evaluate:
        if self.sampler is None:
            return self
        if self.guidance is not None:
            raise ValueError("guidance: servers decode one model; leave `sampler` out, or `guidance`")
        if self.search is not None:
            raise ValueError("search: it draws and scores in this process; leave `sampler` out, or `search`")
        if self.processes > 1:
            raise ValueError(SERVED_ALONE)
        return self

    @model_validator(mode="after")
    def _of_endpoints(self) -> Evaluate:
        names = [each.name for each in self.models if each is not None]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: two endpoints are called {name}; give one a `label`")
        for task in self.tasks if names else ():
            if task.environment is not None:
                raise ValueError(
                    f"models: {task.name} plays episodes, and an endpoint answers questions; evaluate it in a stage of its own"
                )
            if task.chat is False or task.prefill:
                what = "prefill" if task.prefill else "chat: false"
                raise ValueError(
                    f"models: {task.name} has {what}, and an endpoint is asked by messages and begins its answers itself; leave it out"
                )
        return self


Mirror = Literal["wandb", "tensorboard", "trackio"]
"""A tracker, by the name of its Python client."""


class Tracking(Settings):
    """What is stored in MLflow. None of it changes a result."""

    experiment: Line | None = free(None)
    """Default: the recipe's name."""
    register_model: Line | None = free(None)
    """Name in the model registry; default: the recipe's name."""
    upload_models: bool = free(True)
    """Copy model folders to the artifact store; otherwise they are registered by reference."""
    answers: int = free(40, ge=0, le=10_000)
    """Questions of each benchmark whose answers MLflow shows side by side, for each checkpoint; 0 for none."""
    rollouts: int = free(32, ge=0, le=10_000)
    """Logged rollouts that MLflow shows with step, status and reward components, spread over the steps; 0 for none."""
    mirror: list[Mirror] = free([])
    """Other trackers that show the runs of stages too: wandb, tensorboard, trackio; MLflow stays the record."""
    timeout_s: float = free(60.0, gt=0, le=1e7)
    """How long a finished stage waits for an unreachable tracking server before the run continues; nothing is lost."""


CHAMPION = "champion"
Points = Annotated[float, Field(gt=0, lt=100)]


class Gate(Settings):
    """Marks a run whose model is worse than another one; `whetstone run` then ends with exit code 3. None of it changes a result."""

    against: Line = free(CHAMPION)
    """`champion` of the registered model, `base` of the same chain, or a run by its id, name or an id's first characters."""
    not_worse: dict[Label, Points] = free(..., min_length=1)
    """Benchmark → points of pass@1 that the model may lose; worse is what is shown to have lost more."""
    alpha: float = free(0.05, gt=0, lt=0.5)
    """Chance that any of all runs that are compared with one model is called worse and is not."""
    looks: int = free(30, ge=1, le=100_000)
    """Runs that share the first half of alpha, such as the nights of a month; the next so many share a quarter, and so on."""
    undecided: Literal["pass", "fail"] = free("pass")
    """What a run does that is neither shown to be worse nor shown to stay within the points: `fail` ends it with exit code 3 too."""


Event = Literal["failed", "crashed", "skipped", "waiting", "alarm", "worse"]
EVENTS: tuple[Event, ...] = get_args(Event)


class Email(Settings):
    """Mail by SMTP. User and password are in environment variables."""

    to: list[Line] = free(..., min_length=1)
    sender: Line = free(...)
    host: Line = free("localhost")
    port: int = free(587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = free("starttls")
    user_env: Identifier | None = free(None)
    """Environment variable that holds the user."""
    password_env: Identifier | None = free(None)
    """Environment variable that holds the password."""

    @model_validator(mode="after")
    def _login(self) -> Email:
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("user_env and password_env belong together; give both, or neither")
        if self.security == "none" and self.password_env is not None:
            raise ValueError("security: none would send the password in the clear; use starttls or tls")
        return self


class Notify(Settings):
    """Who is told what. None of it changes a result, and nothing of it delays or fails a run."""

    webhook_env: Identifier | None = free(None)
    """Environment variable that holds the address of a webhook; it gets Slack's JSON, `{"text": ...}`."""
    email: Email | None = free(None)
    events: list[Event] = free(list(EVENTS), min_length=1)
    """`failed`, `alarm` and `worse` are sent by the run itself, `waiting` by the promotion that waits for approval, `crashed` and
    `skipped` (the third run in a row) by upkeep."""
    timeout_s: float = free(10.0, gt=0, le=120)
    """How long a message may take."""

    @model_validator(mode="after")
    def _channel(self) -> Notify:
        if self.webhook_env is None and self.email is None:
            raise ValueError("a channel is missing: webhook_env, email or both")
        return self
