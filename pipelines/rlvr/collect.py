"""The sampling side of a step: problems, rollouts, scores, and the rows that the step goes on with.

It changes no weight and touches no method that learns from updates, so the batches of later steps can be collected while
the trainer trains (`overlap.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.contract.rollout import (
    Allocation,
    DrawnProblem,
    GroupOutcome,
    RolloutContext,
    RolloutRequest,
    Sampler,
    StoredCompletion,
    no_stored_rows,
)
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.data import chat
from pipelines.data.records import Problem, Stop, Trajectory, by_group
from pipelines.engine import parallel
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import diagnostics, function_keywords, scoring
from pipelines.rlvr.algorithm import Update, filtered
from pipelines.rlvr.own_rows import ALONE, Rows
from pipelines.rlvr.pack import pack, widths
from pipelines.rlvr.text_scorer import TextScorer
from pipelines.rlvr.windows import OpenGroup, OpenRows

ROLLOUTS = 1
"""RNG stream id of the sampler."""
SETUP = 4
"""RNG stream id of setup-time rollouts."""
TRIES = 6
"""RNG stream id of what a curriculum tries out."""


@dataclass
class Batch:
    """What a step trains on."""

    step: int
    """The step that trains on it, from 0."""
    version: int
    """Number of optimizer updates that the weights which sampled it have had."""
    sampling: Sampling
    sampled: list[Trajectory]
    """Everything drawn for it."""
    rows: list[Trajectory]
    """What the step goes on with."""
    seconds: float
    """Spent on collecting it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the server, at the push before it and while it was decoded, and of the methods that draw."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """What methods want kept of the step."""
    held: Rows = field(default=ALONE, compare=False)
    """Whether other processes have other rows of it."""

    def to_plain(self) -> dict[str, Any]:
        """The batch as plain values, for commits."""
        place = {id(row): i for i, row in enumerate(self.sampled)}
        return {
            "step": self.step,
            "version": self.version,
            "sampling": self.sampling.model_dump(),
            "sampled": [row.to_plain() for row in self.sampled],
            "rows": [place[id(row)] if id(row) in place else row.to_plain() for row in self.rows],
            "seconds": self.seconds,
            "metrics": self.metrics,
            "lines": self.lines,
        }

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Batch:
        """The batch again; a row that was sampled for it is one object in both lists, as before."""
        sampled = [Trajectory.from_plain(row) for row in values["sampled"]]
        rows = [sampled[row] if isinstance(row, int) else Trajectory.from_plain(row) for row in values["rows"]]
        return cls(**{**values, "sampling": Sampling(**values["sampling"]), "sampled": sampled, "rows": rows})


class Collector:
    """Collects batches, one after the other.

    Args:
        settings: the stage's section of the recipe.
        update: the bound methods.
        problems: of the split.
        tokenizer: for prompts and texts; one thread at a time may use it.
        sampler: what decodes.
        scorer: of text, by the weights that sample; not used by another thread.
        seed: of every draw.
        world: the processes that share the work.
    """

    def __init__(
        self,
        settings: Rlvr,
        update: Update,
        problems: list[Problem],
        *,
        tokenizer: Any,
        sampler: Sampler,
        scorer: TextScorer,
        seed: int,
        world: parallel.World,
    ) -> None:
        self.settings, self.update, self.problems = settings, update, problems
        self.tokenizer, self.sampler = tokenizer, sampler
        self.scorer = scorer
        self.seed, self.world = seed, world
        self.by_uid = {p.uid: p for p in problems}
        self.functions = scoring.load_functions(settings.reward_functions)
        self.sampling = settings.sampling
        """Of the batch that is being collected."""
        self.version = 0
        """Number of optimizer updates that the sampling weights have had."""
        self.stored: Callable[[str], Sequence[StoredCompletion]] = no_stored_rows
        """Of a problem's uid, what a sample stage drew."""
        self.branch: tuple[int, ...] = ()
        """Added to the RNG streams of rollouts; another one after each rollback."""
        self.rows: Rows = ALONE
        """Whether each process keeps the rows that it draws for itself."""
        self.open = OpenRows(train_at_once=update.advantage.bootstraps)
        """Groups whose rows were cut at the window."""
        update.curriculum.fn.try_out = self.try_out
        self._step = 0
        """Of the batch."""
        self._tried: list[Trajectory] = []
        """What the curriculum tried out for it."""
        self._draws = 0
        """Draws of the batch so far."""
        self._asked = 0
        """Problems of the last draw."""
        self._session = function_keywords.Session(0, settings.steps)
        """What reward functions see and log in this step."""
        self._groups = 0
        """The next draw's first group."""
        self._packed: tuple[list[Trajectory], dict[str, Any]] = ([], {})
        """Rows, and their columns."""

    def begin(self, version: int) -> Sampling:
        """Ask the methods for the settings of the next batch, which weights of this version sample."""
        sampling = self.settings.sampling
        for method in self.update.methods():
            sampling = method.sampling(sampling)
        self.sampling, self.version = sampling, version
        return sampling

    def collect(self, step: int) -> Batch:
        """The batch of a step, after `begin`."""
        began = time.perf_counter()
        sampled: list[Trajectory] = []
        self._session = function_keywords.Session(step, self.settings.steps)

        def draw() -> list[DrawnProblem]:
            rows = self._rollouts(step, self._draws, self._groups)
            sampled.extend(rows)
            return self._judged(rows, step)

        self._step, self._tried = step, []
        self._draws = self._groups = 0
        drawn = self.update.sampling_schedule.fn.collect(draw, self.settings.prompts)
        rows = sorted((row for problem in drawn for row in problem.rows), key=lambda row: row.group)
        held = self.rows
        if not all(held.world.gather(bool(rows))):  # a process without rows has nothing to compute on
            held, sampled, rows = ALONE, *held.exchanged(sampled, rows)
        batch = Batch(step, self.version, self.sampling, sampled, rows, time.perf_counter() - began, held=held)
        if self.settings.window:
            batch.metrics = diagnostics.of_windows(rows, self.version, len(self.open.unfinished()))
        batch.metrics |= self._logged_metrics() | diagnostics.of_tries(self._tried) | self.update.metrics(drawing=True)
        batch.lines = self.update.lines(drawing=True)
        return batch

    def _logged_metrics(self) -> dict[str, float]:
        """Means of what reward functions logged in this step, over calls and processes."""
        values: dict[str, list[float]] = {}
        for noted in self.world.gather(dict(self._session.metrics)):
            for name, logged in noted.items():
                values.setdefault(name, []).extend(logged)
        return {f"logged/{name}": sum(logged) / len(logged) for name, logged in sorted(values.items())}

    def _judged(self, rows: list[Trajectory], step: int) -> list[DrawnProblem]:
        """The problems of a draw, with the filter's verdict; none where the curriculum left all of them out.

        A problem's paraphrases are as many groups apart as problems were asked: of 4 from group 8 on, 8 and 12 are one problem's.
        """
        for method in self.update.methods():
            rows = method.on_rollouts(rows)
        self._draws += 1
        if not self.rows.any(bool(rows)):
            return []
        columns = self.pack(rows, step, self.version, self.rows)
        verdict = self.filtered(columns)["in_loss"].tolist() if rows else []
        problems: dict[int, tuple[list[Trajectory], list[bool]]] = {}
        for row, trains in zip(rows, verdict, strict=True):
            place = row.group - self._groups
            members, votes = problems.setdefault(place if self.settings.window else place % self._asked, ([], []))
            members.append(row)
            votes.append(trains)
        self._groups = max(self.rows.world.gather(max((row.group for row in rows), default=-1))) + 1
        trains = {place: any(votes) for place, (_, votes) in problems.items()}
        for others in self.rows.world.gather(trains):
            trains |= others
        return [
            DrawnProblem(problems[place][0] if place in problems else [], trains[place]) for place in sorted(trains)
        ]

    def filtered(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The columns after the filter (`algorithm.filtered`)."""
        return filtered(self.update, columns)

    def _rollouts(self, step: int, draw: int, first: int) -> list[Trajectory]:
        """Scored rollouts of the next problems, whose groups are numbered from `first` on."""
        if self.settings.window:
            return self._windowed(step, draw, first)
        curriculum = self.update.curriculum.fn
        allocations = curriculum.propose(self.settings.prompts, self.settings.group_size)
        if self.settings.by_source:
            from pipelines.rlvr import by_source

            allocations = by_source.sized(allocations, self.problems, self.settings)
        self._asked = len(allocations)
        rows = self.sample(allocations, first, (step, draw, ROLLOUTS), self.rows) if allocations else []
        for row in rows:
            row.propensity = allocations[(row.group - first) % self._asked].propensity
        groups = by_group(rows)
        own = self.rows.world.share(list(enumerate(allocations)))
        outcomes = [GroupOutcome.of(a.problem, groups.get(first + i, [])) for i, a in own]
        curriculum.observe(self.rows.world.joined(outcomes))
        return rows

    def _windowed(self, step: int, draw: int, first: int) -> list[Trajectory]:
        """Scored rows that a window was enough for, or brought on; windows are drawn until there is one."""
        curriculum, context = self.update.curriculum.fn, self._context(0, (step, draw, ROLLOUTS))
        taken: list[OpenGroup] = []
        while not taken:
            unfinished = self.open.unfinished()
            count = self.settings.prompts - -(-len(unfinished) // self.settings.group_size)
            if unfinished:
                self.open.go_on(self.update.rollout.fn.resume(unfinished, context))
            if count > 0:
                allocations = curriculum.propose(count, self.settings.group_size)
                requests = self.update.prompting.fn.build_requests(self._requests(allocations, 0), context)
                groups = by_group(self.update.rollout.fn.run(requests, context))
                for i, allocation in enumerate(allocations):
                    for row in groups[i]:
                        row.propensity = allocation.propensity
                    self.open.open(allocation.problem, groups[i])
            taken = self.open.take(first)
        rows = [row for group in taken for row in group.rows]
        self._score([row for row in rows if row.stop != Stop.WINDOW])
        curriculum.observe([GroupOutcome.of(group.problem, group.rows) for group in taken])
        return rows

    def sample(
        self, allocations: list[Allocation], first: int, stream: tuple[int, ...], held: Rows = ALONE
    ) -> list[Trajectory]:
        """Scored rollouts of problems to their ends, in the order of their groups.

        Each process samples and scores whole groups. Every process has all of them, or with `held` those that it sampled. A reward that
        reads several groups scores all of them, on every process alike.
        """
        requests = self._requests(allocations, first)
        context = replace(self._context(len(allocations), stream), window=None)
        requests = self.update.prompting.fn.build_requests(self.world.share(requests), context)
        rows = self.update.rollout.fn.run(requests, context)
        together = self.update.reward_crosses_groups()
        if not together:
            self._score(rows)
        rows = sorted(rows if held.divided else self.world.gather_all(rows), key=lambda t: t.group)
        if together:
            self._score(rows)
        return rows

    def try_out(self, problems: list[int], rollouts: int, temperature: float) -> list[GroupOutcome]:
        """What the weights that sample now make of some problems; see `Curriculum.try_out`."""
        asked, self.sampling = (
            self.sampling,
            self.sampling.model_copy(update={"temperature": temperature, "adaptive": None}),
        )
        allocations = [Allocation(problem, rollouts) for problem in problems]
        rows = self.sample(allocations, 0, (self._step, self._draws, TRIES, len(self._tried)))
        self.sampling = asked
        self._tried += rows
        groups = by_group(rows)
        return [GroupOutcome.of(problem, groups.get(i, [])) for i, problem in enumerate(problems)]

    def _requests(self, allocations: list[Allocation], first: int) -> list[RolloutRequest]:
        """A request for each allocation, whose groups are numbered from `first` on."""
        prompts = self.rendered([self.problems[a.problem] for a in allocations])
        return [
            RolloutRequest(self.problems[a.problem], prompt, first + i, a.rollouts)
            for i, (a, prompt) in enumerate(zip(allocations, prompts, strict=True))
        ]

    def _context(self, prompts: int, stream: tuple[int, ...]) -> RolloutContext:
        return RolloutContext(
            sampler=self.sampler, sampling=self.sampling, prompts=prompts, streams=Streams(self.seed, *stream, *self.branch),
            entropy=self.update.needs("entropy_old"), version=self.version, tokenizer=self.tokenizer, scorer=self.scorer,
            window=self.settings.window_tokens, stored=self.stored, progress=self._step / self.settings.steps,
            on_timeout=self.settings.on_timeout,
        )  # fmt: skip

    def _score(self, rows: list[Trajectory]) -> None:
        """Fill in scores, in place."""
        if not rows:
            return
        for row in rows:
            row.source = self.by_uid[row.uid].source
        scoring.verify(rows, self.by_uid, on_timeout=self.settings.on_timeout)
        with function_keywords.session(self._session):
            scoring.score(self.update.reward.fn, rows, self.by_uid)
            scoring.add(self.functions, rows, self.by_uid, timeout_s=self.settings.reward_timeout_s)

    def forget(self) -> None:
        """Before what was packed last is replaced by rows of an earlier step."""
        self._packed = ([], {})

    def rendered(self, problems: list[Problem]) -> list[list[int]]:
        """Token ids of the problems' prompts."""
        return chat.render_prompts(self.tokenizer, [p.prompt for p in problems], [p.tools for p in problems])

    def pack(self, rows: list[Trajectory], step: int, version: int, held: Rows = ALONE) -> dict[str, Any]:
        """Columns of rows; packed once where the step goes on with the rows of its last draw. All processes' columns are equally wide.

        Args:
            held: whether other processes pack other rows.
        """
        if held.any(not _same(self._packed[0], rows)):
            wide: dict[str, int] = {}
            for of_one in held.world.gather(widths(rows)):
                wide |= {name: max(width, wide.get(name, 0)) for name, width in of_one.items()}
            columns = pack(rows, step=step, total_steps=self.settings.steps, version=version, wide=wide)
            self._packed = (rows, columns)
        return dict(self._packed[1])


def _same(some: list[Trajectory], others: list[Trajectory]) -> bool:
    """Whether two lists hold the same objects."""
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
