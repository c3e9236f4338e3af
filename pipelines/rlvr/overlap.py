"""Batches of later steps are sampled by a decoding server while the trainer trains, at most `rlvr.staleness` steps behind.

With staleness k, the batch of step s is sampled with the weights after s - k steps (those at the start, for the first ones):
never with older ones, and never with newer ones that happen to be there, so which weights draw a row depends on no clock. One
thread pushes weights and samples, batch after batch: a push never falls into a generation, and every row of a batch has one version.

    trainer   | train 0  | train 1  | train 2  |          k = 1: batch 2 is sampled while step 1 trains,
    server    0 | push, 1 | push, 2 | push, 3 |           with the weights that step 1 started from

What the thread samples from is a copy of the weights (a snapshot), kept until its batches are there: the server's weights are checked
against it at the push, and its log-probabilities of some sampled rows against the server's (`mismatch/*`). The trainer's own
log-probabilities of a batch differ from the sampler's by what it has learned since: that is reported as `staleness/*`.

A commit holds the batches that are sampled and the weights that the others wait for, with the methods' states as they were
before those. A restart asks for the others again: the same problems, seeds and weights.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import Any

import torch

from pipelines.contract.card import Bound
from pipelines.contract.model_settings import Model
from pipelines.engine.policy import Policy
from pipelines.engine.server import ServerSampler
from pipelines.recipe.corrected import samples
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import take
from pipelines.rlvr.collect import Batch, Collector
from pipelines.rlvr.learner import Learner
from pipelines.rlvr.mismatch import Tokens
from pipelines.rlvr.windows import OPEN_ROWS

CHECKED_ROWS = 8
"""Rows of a batch whose log-probabilities are compared with those of the weights that sampled them."""
CLOSING_S = 5.0
"""Waited for the thread at the end."""


class Snapshot:
    """A copy of the weights, and the policy that they are.

    Args:
        model: the one that is trained.
        settings: for the sampling settings.
        dtype: of computation.
    """

    def __init__(self, model: Any, settings: Rlvr, dtype: str) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.policy = Policy(self.model, settings.sampling, dtype=dtype)
        self.step = 0
        """Number of steps that these weights have been trained for."""
        self.version = 0
        """Number of optimizer updates that they have had."""
        self.users = 0
        """Batches that wait for them."""

    @torch.no_grad()
    def load(self, weights: dict[str, torch.Tensor], step: int, version: int) -> None:
        """Take over weights by name."""
        for name, value in self.model.named_parameters():
            value.copy_(weights[name])
        self.step, self.version = step, version


@dataclass(eq=False)
class Job:
    """A batch that is sampled, or will be."""

    step: int
    snapshot: Snapshot | None
    """What it is sampled from; None when it is done."""
    batch: Batch | None = None
    compared: Tokens | None = None
    """Of some of its rows: the difference between the snapshot's log-probabilities and the server's."""
    state: dict[str, Any] | None = None
    """Of the methods that sample, after it."""
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    queued: bool = False


class Overlap:
    """Samples ahead of the trainer.

    Args:
        settings: the stage's section of the recipe.
        model_settings: the recipe's model section.
        collector: collects the batches; only this object's thread uses it.
        learner: its weights are sampled from.
        server: what decodes.
    """

    def __init__(
        self, settings: Rlvr, model_settings: Model, collector: Collector, learner: Learner, server: ServerSampler
    ) -> None:
        self.settings, self.model_settings = settings, model_settings
        self.collector, self.learner, self.server = collector, learner, server
        self._jobs: dict[int, Job] = {}
        """By step, those that no step has taken yet."""
        self._taken: Job | None = None
        self._next = 0
        """The first step without a job."""
        self._pushed: int | None = None
        """Version of the weights that the server has."""
        self._free: list[Snapshot] = []
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waited = 0.0

    def push_now(self, version: int) -> None:
        """Give the server the present weights, before the first batch."""
        self.collector.begin(version)
        self.server.push(self.learner.weights.full, self.collector.tokenizer)
        self._pushed = version

    def next_batch(self, step: int, version: int) -> Batch:
        """The batch of a step; `rlvr.staleness` batches after it are started with the present weights.

        Args:
            version: number of optimizer updates that the present weights have had.
        """
        self._start_jobs(step, version)
        job = self._jobs[step]
        self._wait(job)
        self._taken = self._jobs.pop(step)
        assert job.batch is not None
        job.batch.metrics["staleness/updates"] = float(version - job.batch.version)
        return job.batch

    def sampled_by(self, batch: Batch) -> Tokens | None:
        """What was compared with the weights that sampled a batch; None where the present weights did."""
        if batch.version == self.learner.updates_done:
            return None
        return self._taken.compared if self._taken is not None else None

    def take_waited(self) -> float:
        """Seconds that the trainer has waited for batches since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _start_jobs(self, step: int, version: int) -> None:
        self._next = max(self._next, step)
        last = min(step + self.settings.staleness, self.settings.steps - 1)
        if self._next <= last:
            snapshot = self._snapshot(dict(self.learner.weights.full.named_parameters()), step, version)
            for later in range(self._next, last + 1):
                snapshot.users += 1
                self._jobs[later] = Job(later, snapshot)
            self._next = last + 1
        for _, job in sorted(self._jobs.items()):
            if not job.queued:
                job.queued = True
                self._queue.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="rollouts ahead", daemon=True)
            self._thread.start()

    def _snapshot(self, weights: dict[str, torch.Tensor], step: int, version: int) -> Snapshot:
        if not self._free:
            self._free.append(Snapshot(self.learner.weights.full, self.settings, self.model_settings.dtype))
        snapshot = self._free.pop()
        snapshot.load(weights, step, version)
        return snapshot

    def _wait(self, job: Job) -> None:
        """Until the batch is there.

        Raises:
            BaseException: what the thread failed with.
        """
        began = time.perf_counter()
        job.done.wait()
        self._waited += time.perf_counter() - began
        if job.error is not None:
            raise job.error
        if job.snapshot is not None:
            job.snapshot.users -= 1
            if job.snapshot.users == 0:
                self._free.append(job.snapshot)
            job.snapshot = None

    def _work(self) -> None:
        """Sample one batch after the other; the first failure is the last batch."""
        while (job := self._queue.get()) is not None:
            try:
                self._sample(job)
            except BaseException as error:  # raised in the trainer's thread, which waits for the batch
                job.error = error
                for waiting in self._jobs.copy().values():
                    waiting.error = waiting.error or (None if waiting.done.is_set() else error)
                    waiting.done.set()
                return
            job.done.set()

    def _sample(self, job: Job) -> None:
        snapshot = job.snapshot
        assert snapshot is not None
        if self._pushed != snapshot.version:
            self.server.push(snapshot.model, self.collector.tokenizer)
            self._pushed = snapshot.version
        self.collector.scorer.weights = lambda: snapshot.model
        self.collector.begin(snapshot.version)
        batch = self.collector.collect(job.step)
        batch.metrics |= {**self.server.metrics, "staleness/steps": float(job.step - snapshot.step)}
        job.compared = self._compared(batch, snapshot.policy)
        job.state, job.batch = self._sampling_state(), batch

    @torch.no_grad()
    def _compared(self, batch: Batch, policy: Policy) -> Tokens | None:
        """The difference between the log-probabilities of the weights that sampled and the server's, for some rows."""
        current = [i for i, row in enumerate(batch.rows) if row.version == batch.version and row.score is not None]
        if not current:
            return None
        columns = self.collector.pack(batch.rows, batch.step, batch.version)
        rows = torch.tensor(current[:: -(-len(current) // CHECKED_ROWS)])
        chosen = take(columns, rows)
        chosen["mask"] = chosen["mask"] & ~chosen["teacher_forced"]
        policy.sampling = batch.sampling
        logp = policy.logp(chosen["token"].to(policy.device), chosen["mask"].to(policy.device)).logp.cpu()
        return Tokens.of(chosen, logp, chosen["token"], rows)

    def _parts(self) -> list[tuple[str, Bound]]:
        return [(key, part) for key, part in self.collector.update.parts() if samples(part)]

    def _sampling_state(self) -> dict[str, Any]:
        """What the methods that sample remember, copied, and the rows that go on."""
        state = {key: copy.deepcopy(part.fn.state_dict()) for key, part in self._parts()}
        return state | {OPEN_ROWS: self.collector.open.state_dict()}

    def state_dict(self, step: int, *, last: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is sampled ahead, and every method's state, for a commit.

        The next step's batch is waited for, as the step itself would. Later batches that are not there yet are
        named with the weights that they need.

        Args:
            step: steps done.
            last: the run is over.
        """
        jobs = [self._jobs[number] for number in sorted(self._jobs)]
        if jobs and not last:
            self._wait(jobs[0])
        done = list(takewhile(lambda job: job.done.is_set() and job.error is None, jobs))
        latest = done[-1] if done else self._taken
        state = latest.state if latest is not None and latest.state is not None else self._sampling_state()
        learned = {key: part.fn.state_dict() for key, part in self.collector.update.parts() if key not in state}
        waiting = [(job, job.snapshot) for job in jobs[len(done) :] if job.snapshot is not None]
        ahead = {
            "batches": [_plain(job) for job in done],
            "waiting": [[job.step, snapshot.step, snapshot.version] for job, snapshot in waiting],
            "weights": {snapshot.step: dict(snapshot.model.named_parameters()) for _, snapshot in waiting},
        }
        return ahead, learned | state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off; the methods have their states already."""
        remembered = self._sampling_state()
        for values in state["batches"]:
            batch = Batch.from_plain(values["batch"])
            compared = Tokens(**values["compared"]) if values["compared"] else None
            job = Job(batch.step, None, batch, compared, remembered, queued=True)
            job.done.set()
            self._jobs[batch.step] = job
        snapshots: dict[int, Snapshot] = {}
        for step, weights_step, version in state["waiting"]:
            if weights_step not in snapshots:
                snapshots[weights_step] = self._snapshot(state["weights"][weights_step], weights_step, version)
            snapshots[weights_step].users += 1
            self._jobs[step] = Job(step, snapshots[weights_step])
        self._next = max(self._jobs, default=-1) + 1

    def close(self) -> None:
        """End the thread; what it samples is not waited for."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSING_S)


def _plain(job: Job) -> dict[str, Any]:
    assert job.batch is not None
    tokens = job.compared
    compared = {entry.name: getattr(tokens, entry.name) for entry in fields(Tokens)} if tokens is not None else None
    return {"batch": job.batch.to_plain(), "compared": compared}


class Idle:
    """Shares of the time from the end of one step to the end of the next in which trainer and server waited.

    Args:
        server: what decodes.
    """

    def __init__(self, server: ServerSampler) -> None:
        self.server = server
        self._since: tuple[float, float] | None = None

    def begin(self) -> None:
        """At the start of a step; only the first one counts from here."""
        if self._since is None:
            self._since = time.perf_counter(), self.server.decoding_s

    def of_step(self, waited: float) -> dict[str, float]:
        """At the end of a step.

        Args:
            waited: seconds in which the trainer waited for rollouts.
        """
        assert self._since is not None
        now, decoded = time.perf_counter(), self.server.decoding_s
        elapsed = max(now - self._since[0], 1e-9)
        busy = decoded - self._since[1]
        self._since = now, decoded
        return {"time/trainer_idle_share": waited / elapsed, "time/sampler_idle_share": max(0.0, 1 - busy / elapsed)}
