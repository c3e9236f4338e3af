"""The loop: problems, rollouts, scores, credit, update, commit. It knows no method's name."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pipelines.contract.method import HiddenStatistics, PolicyUpdate, own_update
from pipelines.contract.rollout import Allocation, Sampler, SetupContext
from pipelines.data import dataset
from pipelines.data.records import Trajectory
from pipelines.engine import checkpoint, distribution, models, parallel
from pipelines.engine.policy import causal_lm
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server import ServerSampler
from pipelines.recipe.settings import Model, Rlvr
from pipelines.rlvr import algorithm, diagnostics, rollout_log
from pipelines.rlvr.collect import SETUP, Batch, Collector
from pipelines.rlvr.learner import Learner
from pipelines.rlvr.output_log import DRAWS, OutputLog, draws
from pipelines.rlvr.output_log import ROLLOUTS as ROLLOUTS_FILE
from pipelines.rlvr.overlap import Idle, Overlap
from pipelines.rlvr.pack import pack, padded
from pipelines.stage.report import Report

REPLAY = 3
"""RNG stream id of the draws from stored rows."""
SMOOTH = 10
"""Steps over which the mean reward is taken when the best weights are looked for."""
PHASES = ("rollout", "credit", "update", "metrics", "commit")
"""Parts of a step, in order."""
PER_PROCESS = ("rlvr.prompting", "rlvr.rollout", "rlvr.reward")
"""Slots that see the rollouts of their own process alone, so what they remember differs from rank to rank."""


class Trainer:
    """One RLVR run; arguments as in `pipelines.sft.run.Trainer`, plus the model folder to start from."""

    def __init__(
        self, rlvr: Rlvr, model: Model, *, start: str, data: Path, out: Path, work: Path, report: Report, seed: int
    ) -> None:
        self.rlvr, self.settings, self.out, self.work, self.report, self.seed = rlvr, model, out, work, report, seed
        self.update = algorithm.Update.of(rlvr)
        self.tokenizer = models.load_tokenizer(start, model)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, "rlvr")
        self.problems = dataset.read_split(data, rlvr.split)
        self.by_uid = {p.uid: p for p in self.problems}
        self.device = models.device()
        self.world = parallel.World.join()
        self.learner = Learner(rlvr, model, self.update, start=start, report=report, seed=seed, world=self.world)
        decoded = causal_lm(self.learner.weights.full)
        stop = models.stop_ids(decoded, self.tokenizer)
        own = TorchSampler(
            decoded,
            stop=stop,
            pad=self.tokenizer.pad_token_id,
            dtype=model.dtype,
            rows=rlvr.decode_rows,
            fixed=None if rlvr.cuda_graphs else False,
        )
        self.learner.release_memory = own.release
        self.server: ServerSampler | None = None
        if rlvr.sampler:
            self.server = ServerSampler(
                rlvr.sampler, stop=stop, context=own.context, dtype=model.dtype, work=work, event=report.event
            )
        self.sampler: Sampler = self.server or own
        self.log = OutputLog(work / "out")
        self.start_step = 0
        best = rlvr.commit.keep_best if rlvr.checkpoint_selection == "best" else 0
        self.committer = checkpoint.Committer(
            work / "checkpoints", keep_last=rlvr.commit.keep_last, keep_best=best, written=report.publish
        )
        self.phase: Callable[[str, int], None] = lambda name, step: None
        """Called when a part of a step begins, with one of `PHASES`."""
        self.spent: dict[str, float] = {"tokens": 0, "seconds": 0.0}
        """Completion tokens sampled and seconds of steps so far."""
        self.recent: list[float] = []
        self.best = float("-inf")
        self._set_up = False
        self.collector = Collector(
            rlvr,
            self.update,
            self.problems,
            tokenizer=copy.deepcopy(self.tokenizer) if rlvr.staleness else self.tokenizer,
            sampler=self.sampler,
            seed=seed,
            world=self.world,
            device=self.device,
        )
        self.idle = Idle(self.server) if self.server is not None else None
        self.overlap: Overlap | None = None
        if self.server is not None and rlvr.staleness:
            self.overlap = Overlap(rlvr, model, self.collector, self.learner, self.server)

    @property
    def resumes(self) -> str:
        """What a restart promises: "bitwise" the same weights, or each prompt and number "exactly_once".

        A decoding server is not reproducible, and neither are a GPU's kernels.
        """
        return "bitwise" if self.server is None and self.device.type == "cpu" else "exactly_once"

    def run(self) -> dict[str, float]:
        """Train from the last commit to the end, and write the model folder."""
        try:
            return self._run()
        finally:
            if self.server is not None:
                self.server.close()
            if self.overlap is not None:
                self.overlap.close()

    def _run(self) -> dict[str, float]:
        self._resume()
        metrics: dict[str, float] = {}
        step = self.start_step
        while not self._ended(step):
            metrics = self.step(step)
            self._spend(metrics)
            self.report.metrics(step + 1, metrics)
            note = f"reward {metrics['reward/mean']:.3f}"
            self.report.progress(step + 1, self.rlvr.steps, note)
            score = self._score(metrics["reward/mean"])
            if (step + 1) % self.rlvr.commit.every == 0 or self._ended(step + 1) or score is not None:
                self.phase("commit", step)
                self._commit(step + 1, score)
            step += 1
        if step < self.rlvr.steps:
            self.report.event("the budget is spent", step=step, **self.spent)
        self.committer.wait()
        state = checkpoint.best(self.committer.folder) if self.rlvr.checkpoint_selection == "best" else None
        if state is not None:
            self.report.event("the best weights are handed on", step=state["step"], reward=state["best"])
        about: dict[str, Any] = {"resume": self.resumes}
        if self.update.prompting.fn.system_prompt:
            about["system_prompt"] = self.update.prompting.fn.system_prompt
        self.learner.save(self.tokenizer, self.out / "model", state, about)
        wanted = ("reward/mean", "rollout/length_mean", "policy/entropy")
        done = {"steps": float(step), "tokens_sampled": float(self.spent["tokens"])}
        return {**done, **{k.replace("/", "_"): metrics[k] for k in wanted if k in metrics}}

    def _ended(self, steps: int) -> bool:
        """Whether a run that has done so many steps is over."""
        budget = self.rlvr.budget
        limits = {"tokens": budget.tokens, "seconds": budget.seconds}
        over = any(limit is not None and self.spent[what] >= limit for what, limit in limits.items())
        return over or steps >= self.rlvr.steps

    def _spend(self, metrics: dict[str, float]) -> None:
        """Add a step's cost; every process must come to the same sum."""
        rows, length = metrics["rollout/rows"], metrics["rollout/length_mean"]
        self.spent["tokens"] += round(rows * length)
        self.spent["seconds"] += self.world.gather(metrics["time/step_s"])[0]
        metrics |= {"tokens/sampled_so_far": float(self.spent["tokens"]), "time/so_far_s": self.spent["seconds"]}

    def _score(self, reward: float) -> float | None:
        """Mean reward of the last `SMOOTH` steps where it is the best so far and the best weights are asked for."""
        self.recent = [*self.recent, reward][-SMOOTH:]
        mean = sum(self.recent) / len(self.recent)
        if (
            self.rlvr.checkpoint_selection == "last"
            or len(self.recent) < min(SMOOTH, self.rlvr.steps)
            or mean <= self.best
        ):
            return None
        self.best = mean
        return mean

    def step(self, step: int) -> dict[str, float]:
        """One step: sample, score, assign credit, update."""
        self.phase("rollout", step)
        began = time.perf_counter()
        if self.idle is not None:
            self.idle.begin()
        batch = self._batch(step)
        waited = time.perf_counter() - began
        rows, sampled = batch.rows, batch.sampled or batch.rows  # a step that carried problems fill
        metrics = diagnostics.of_rollouts(sampled) | batch.metrics
        metrics["time/rollout_s"] = batch.seconds
        metrics["rollout/tokens_per_s"] = metrics["rollout/length_mean"] * len(sampled) / batch.seconds
        advantages: dict[int, list[float]] = {}
        self.phase("credit", step)
        columns = self.collector.filtered(self.collector.pack(rows, step, batch.version)) if rows else None
        if columns is not None and columns["in_loss"].any():
            metrics |= self._train(batch, columns)
            advantages = self._advantages(sampled, rows, columns)
        else:
            self.report.event("no row to learn from: nothing was scored or kept", step=step + 1)
        self._log(step, sampled, advantages)
        metrics["time/step_s"] = time.perf_counter() - began
        if self.idle is not None:
            metrics |= self.idle.of_step(waited if self.overlap is None else self.overlap.take_waited())
        self.phase("metrics", step)
        return metrics

    def _train(self, batch: Batch, columns: dict[str, Any]) -> dict[str, float]:
        """Credit and updates of a batch; `columns` get what is computed on the way."""
        self.learner.fill(columns["token"], columns)
        credited = time.perf_counter()
        columns |= algorithm.assign_credit(self.update, columns)
        metrics = {"time/credit_s": time.perf_counter() - credited} | diagnostics.of_columns(columns)
        updates = self._updates(columns, batch.step)
        metrics["replay/rows"] = float(sum(len(update.columns["group"]) for update in updates) - len(batch.rows))
        self.phase("update", batch.step)
        trained = time.perf_counter()
        if self.overlap is not None:
            self.learner.sampled_by = self.overlap.sampled_by(batch)
        metrics |= self.learner.learn(updates)
        metrics["time/train_s"] = time.perf_counter() - trained
        metrics["train/tokens_per_s"] = metrics["tokens/trained"] / metrics["time/train_s"]
        return metrics

    def collect(self, step: int) -> tuple[list[Trajectory], list[Trajectory]]:
        """Everything sampled in the step, and the rows that it goes on with."""
        batch = self._batch(step)
        return batch.sampled, batch.rows

    def _batch(self, step: int) -> Batch:
        """What the step trains on: collected now, or while the steps before it trained."""
        if self.overlap is not None:
            if not self._set_up:  # a method may ask for rollouts of the starting policy
                self.overlap.push_now(self.learner.updates_done)
                self._setup()
            batch = self.overlap.next_batch(step, self.learner.updates_done)
            self.learner.policy.sampling = batch.sampling
            return batch
        if self.server is not None:
            self.server.push(self.learner.weights.full, self.tokenizer)
        self.learner.policy.sampling = self.collector.begin(self.learner.updates_done)
        self._setup()
        batch = self.collector.collect(step)
        batch.metrics = dict(self.server.metrics) if self.server is not None else {}
        return batch

    def _setup(self) -> None:
        """Once in a run, before its first step: the methods' `setup`."""
        if self._set_up:
            return
        self._set_up = True
        context = SetupContext(
            problems=len(self.problems),
            seed=self.seed,
            prompts=lambda: self.collector.rendered(self.problems),
            rollouts=self._setup_rollouts,
            columns=lambda rows: pack(rows, step=0, total_steps=self.rlvr.steps),
            hidden=self._setup_hidden,
        )
        for method in self.update.methods():
            method.setup(context)

    def _setup_rollouts(self, problems: list[int], count: int) -> list[Trajectory]:
        self.report.event("before the first step: rollouts of the starting policy", problems=len(problems), each=count)
        rows: list[Trajectory] = []
        for at in range(0, len(problems), self.rlvr.prompts):
            part = [Allocation(problem, count) for problem in problems[at : at + self.rlvr.prompts]]
            sampled = self.collector.sample(part, at, (at, SETUP))
            rows += [row for row in sampled if row.group < at + len(part)]  # no paraphrases
        return rows

    def _setup_hidden(self, sequences: list[list[int]], statistics: HiddenStatistics) -> list[list[float]]:
        tokens = padded(sequences, max(map(len, sequences)), 0, torch.int64)
        mask = torch.arange(tokens.shape[1]) < torch.tensor([len(s) for s in sequences])[:, None]
        mask[:, 0] = False
        return self.learner.passes.hidden_statistics(tokens, mask, statistics).tolist()

    def _pack(self, rows: list[Trajectory], step: int) -> dict[str, Any]:
        return self.collector.pack(rows, step, self.learner.updates_done)

    def _filtered(self, columns: dict[str, Any]) -> dict[str, Any]:
        return self.collector.filtered(columns)

    def _updates(self, columns: dict[str, Any], step: int) -> list[PolicyUpdate]:
        """The step's updates, as the replay part says; the methods hear of the step's own."""
        draw = distribution.generator(torch.device("cpu"), self.seed, step, REPLAY)
        updates: list[PolicyUpdate] = self.update.replay.fn.updates(columns, draw)
        own = own_update(updates)
        for method in self.update.methods():
            method.on_batch(own.columns)
        return updates

    def _logged(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The rollouts to log: those of the lowest uids, so that a problem is logged whenever it is met."""
        return sorted(rows, key=lambda row: (row.uid, row.group))[: self.rlvr.log_rollouts]

    def _advantages(
        self, sampled: list[Trajectory], rows: list[Trajectory], columns: dict[str, Any]
    ) -> dict[int, list[float]]:
        """`id` of each row to be logged that was trained on → advantage [T]; `columns` are those of `rows`."""
        place = {id(row): i for i, row in enumerate(rows) if columns["in_loss"][i]}
        chosen = [row for row in self._logged(sampled) if id(row) in place]
        return {id(row): columns["advantage"][place[id(row)], : len(row.tokens)].tolist() for row in chosen}

    def _log(self, step: int, rows: list[Trajectory], advantages: dict[int, list[float]]) -> None:
        if self.world.rank > 0:
            return
        self.log.append(DRAWS, [draws(step + 1, rows)])
        if self.rlvr.log_rollouts:
            chosen = self._logged(rows)
            self.log.append(
                ROLLOUTS_FILE,
                rollout_log.entries(
                    step + 1, chosen, self.by_uid, advantages, lambda ids: str(self.tokenizer.decode(ids))
                ),
            )

    def _resume(self) -> None:
        state = checkpoint.load(self.work / "checkpoints")
        if self.world.rank == 0:
            self.log.rewind(state["log_bytes"] if state else {})
        if state is None:
            self.report.rewind(0)
            return
        self.learner.load_state(state)
        self.update.load_state_dict(state["methods"] | state["methods_of_ranks"][self.world.rank])
        if self.overlap is not None:
            self.overlap.load_state_dict(state["overlap"])
        self._set_up = True
        self.start_step = state["step"]
        self.spent = dict(state["spent"])
        self.recent, self.best = state["recent"], state["best"]
        self.report.rewind(state["cursor"] if self.world.rank == 0 else 0)
        self.report.event("resumed from a commit", step=self.start_step)

    def _commit(self, step: int, score: float | None = None) -> None:
        ahead: dict[str, Any] = {}
        methods = self.update.state_dict() if self.overlap is None else {}
        if self.overlap is not None:
            ahead, methods = self.overlap.state_dict(step, last=self._ended(step))
        own = {name: state for name, state in methods.items() if name.split("/")[0] in PER_PROCESS}
        state = {
            "step": step,
            "spent": dict(self.spent),
            "recent": self.recent,
            "best": self.best,
            **self.learner.state(),
            "methods": methods,
            "methods_of_ranks": self.world.gather(own),
            "overlap": ahead,
            "log_bytes": self.log.sizes(),
            "cursor": self.report.cursor(),
        }
        if self.world.rank == 0:
            self.committer.submit(step, state, score)
