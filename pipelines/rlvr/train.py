"""The loop: problems, rollouts, scores, credit, update, commit. It knows no method's name."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipelines.base.files import REPORT
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.method import PolicyUpdate, own_update
from pipelines.contract.model_settings import Model
from pipelines.contract.monitor import StepRollouts
from pipelines.contract.rollout import Allocation, Sampler, SetupContext
from pipelines.data import dataset
from pipelines.data.records import Stop, Trajectory
from pipelines.engine import checkpoint, distribution, models, parallel
from pipelines.engine.policy import causal_lm
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.corrected import samples as samples_with
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm, diagnostics, gold_answers, info_fields, rollout_log, scoring, stored
from pipelines.rlvr.collect import SETUP, Batch, Collector
from pipelines.rlvr.effects import Effects
from pipelines.rlvr.learner import Learner
from pipelines.rlvr.output_log import DRAWS, METHODS, MONITORED, OutputLog, draws
from pipelines.rlvr.output_log import ROLLOUTS as ROLLOUTS_FILE
from pipelines.rlvr.pack import pack, padded
from pipelines.rlvr.windows import OPEN_ROWS
from pipelines.stage.monitors import Alarm, Monitors
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.engine.server import ServerSampler
    from pipelines.rlvr.overlap import Idle, Overlap

REPLAY = 3
"""RNG stream id of the draws from stored rows."""
BRANCH = 1 << 20
"""Put in front of the number of rollbacks in the sampler's RNG streams: no rank has this number."""
SMOOTH = 10
"""Steps over which the mean reward is taken when the best weights are looked for."""
PHASES = ("rollout", "credit", "update", "metrics", "commit")
"""Parts of a step, in order."""
PER_PROCESS = ("rlvr.prompting", "rlvr.rollout", "rlvr.reward")
"""Slots that see the rollouts of their own process alone, so what they remember differs from rank to rank."""


class Trainer:
    """One RLVR run; arguments as in `pipelines.sft.run.Trainer`, plus the model folder to start from and the artifact of a sample stage."""

    def __init__(
        self, rlvr: Rlvr, model: Model, *, start: str, data: Path, out: Path, work: Path, report: Report, seed: int,
        samples: Path | None = None,
    ) -> None:  # fmt: skip
        self.rlvr, self.settings, self.out, self.work, self.report, self.seed = rlvr, model, out, work, report, seed
        self.update = algorithm.Update.of(rlvr)
        self.tokenizer = models.load_tokenizer(start, model)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, "rlvr")
        self.problems = dataset.read_split(data, rlvr.split)
        gold_answers.require(self.problems, rlvr.reward, rlvr.split)
        info_fields.require(self.problems, rlvr)
        self.by_uid = {p.uid: p for p in self.problems}
        self.device = models.device()
        self.world = parallel.World.join()
        self.learner = Learner(
            rlvr, model, self.update, start=start, report=report, seed=seed, world=self.world, tokenizer=self.tokenizer,
            problems={int(p.uid[:15], 16): p for p in self.problems},
        )  # fmt: skip
        decoded = causal_lm(self.learner.weights.full)
        stop = models.stop_ids(decoded, self.tokenizer)
        own = TorchSampler(
            decoded, stop=stop, pad=self.tokenizer.pad_token_id, dtype=model.dtype, rows=rlvr.decode_rows,
            fixed=None if rlvr.cuda_graphs else False,
        )  # fmt: skip
        self.learner.release_memory = own.release
        self.server = self._server(stop, own.context, start) if rlvr.sampler else None
        self.sampler: Sampler = self.server or own
        self.log = OutputLog(work / "out" / REPORT)
        self.start_step = 0
        best = rlvr.commit.keep_best if rlvr.checkpoint_selection == "best" else 0
        self.monitors = self._monitors()
        self.effects = Effects(rlvr.no_effect_steps, report.event)
        self.monitor_scorer = self.learner.text_scorer(self.tokenizer, start, parallel.World())  # one process measures
        self.committer = checkpoint.Committer(
            work / "checkpoints", keep_last=rlvr.commit.keep_last, keep_best=best, written=report.publish,
            keep_good=int(self.monitors.acts),
        )  # fmt: skip
        self.phase: Callable[[str, int], None] = lambda name, step: None
        """Called when a part of a step begins, with one of `PHASES`."""
        self.spent: dict[str, float] = {"tokens": 0, "seconds": 0.0}
        """Completion tokens sampled and seconds of steps so far."""
        self.recent: list[float] = []
        self.best = float("-inf")
        self._set_up = False
        self.collector = self._collector(start)
        if samples is not None:
            rows = stored.read(samples, self.by_uid, self.tokenizer)
            self.collector.stored = rows.__getitem__
        self.idle: Idle | None = None
        self.overlap: Overlap | None = None
        if self.server is not None:
            from pipelines.rlvr.overlap import Idle, Overlap

            self.idle = Idle(self.server)
            if rlvr.staleness:
                self.overlap = Overlap(rlvr, model, self.collector, self.learner, self.server)

    def _server(self, stop: list[int], context: int, start: str) -> ServerSampler:
        """The sampler on a decoding server; its code is loaded only where a recipe names one."""
        from pipelines.engine.server import ServerSampler

        assert self.rlvr.sampler is not None
        return ServerSampler(
            self.rlvr.sampler,
            stop=stop,
            context=context,
            dtype=self.settings.dtype,
            work=self.work,
            event=self.report.event,
            base=models.local(start),
            lora_rank=self.rlvr.lora.rank if self.rlvr.lora else 0,
            world=self.world,
        )

    def _monitors(self) -> Monitors:
        """The run's monitors; functions of theirs that cannot be loaded are known now."""
        monitors = Monitors("rlvr", self.rlvr.monitors, self.rlvr.rollback)
        for each in monitors.watched:
            if each.method.settings.get("function"):
                scoring.load_function(each.method.settings["function"], "rlvr.monitors")
        return monitors

    def _collector(self, start: str) -> Collector:
        """The sampling side of a step, its scorer of text, and the methods connected to theirs.

        Args:
            start: model folder that the run started from.
        """
        tokenizer = copy.deepcopy(self.tokenizer) if self.rlvr.staleness else self.tokenizer
        collector = Collector(
            self.rlvr,
            self.update,
            self.problems,
            tokenizer=tokenizer,
            sampler=self.sampler,
            scorer=self.learner.text_scorer(tokenizer, start, parallel.World()),
            seed=self.seed,
            world=self.world,
            device=self.device,
        )
        for part in self.update.bound():
            part.fn.connect(collector.scorer if samples_with(part) else self.learner.scorer)
        return collector

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
            alarm = self._watch(step + 1, metrics)
            note = f"reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else "no row has ended"
            self.report.progress(step + 1, self.rlvr.steps, note)
            if alarm is not None and alarm.action == "rollback":
                step = self._go_back(alarm)
                continue
            score = self._score(metrics["reward/mean"]) if "reward/mean" in metrics else None
            if (step + 1) % self.rlvr.commit.every == 0 or self._ended(step + 1) or score is not None:
                self.phase("commit", step)
                self._commit(step + 1, score)
            step += 1
        self.committer.wait()
        self.monitors.check_stopped()
        if step < self.rlvr.steps and not self.monitors.ended:
            self.report.event("the budget is spent", step=step, **self.spent)
        state = checkpoint.selected(
            self.committer.folder, self.monitors.ended, self.rlvr.checkpoint_selection, self.report,
            lambda best: {"reward": best["best"]},
        )  # fmt: skip
        about: dict[str, Any] = {"resume": self.resumes}
        if self.update.prompting.fn.system_prompt:
            about["system_prompt"] = self.update.prompting.fn.system_prompt
        self.learner.save(self.tokenizer, self.out / "model", state, about)
        wanted = ("reward/mean", "rollout/length_mean", "policy/entropy")
        done = {"steps": float(step), "tokens_sampled": float(self.spent["tokens"])}
        return {**done, **{k.replace("/", "_"): metrics[k] for k in wanted if k in metrics}}

    def _watch(self, step: int, metrics: dict[str, float]) -> Alarm | None:
        """Report a step, let the monitors judge it, and report their alarms; what is to be done now, the same on every process."""
        alarms = self.monitors.judge(step, metrics) if self.world.rank == 0 else []
        alarms = self.world.gather(alarms)[0] if self.monitors.watched else []
        return self.monitors.report(self.report, step, metrics, alarms)

    def _measured(self, sampled: list[Trajectory]) -> dict[str, float]:
        """What the monitors measure on the step's rollouts; one process does it for all."""
        if not self.monitors.measures or not sampled:
            return {}
        rollouts = StepRollouts(
            rows=sampled,
            verify=lambda name, rows: scoring.hidden_scores(name, rows, self.by_uid),
            call=lambda name, rows: scoring.hidden_values(name, rows, self.by_uid, self.rlvr.reward_timeout_s),
            scorer=self.monitor_scorer,
        )
        return self.world.gather(self.monitors.measure(rollouts) if self.world.rank == 0 else {})[0]

    def _go_back(self, alarm: Alarm) -> int:
        """Go on from the last good commit, on another branch of random numbers; returns its step.

        What was spent stays spent, and what was reported stays reported; the rows that the forgotten steps drew do not.
        """
        self.committer.wait()
        raised, rollbacks, spent = self.monitors.raised, self.monitors.rollbacks + 1, dict(self.spent)
        self.world.gather(None)  # nobody reads before the first process has written
        state = checkpoint.last_good(self.committer.folder)
        assert state is not None, "the first step commits the start"
        self._restore(state)
        self.spent = spent
        self.monitors.went_back(state["step"], raised, rollbacks)
        self._branch_off()
        self.monitors.report_rollback(self.report, alarm, state["step"])
        self._commit(state["step"])
        return int(state["step"])

    def _branch_off(self) -> None:
        """What is different after a rollback: the random numbers of rollouts, and the learning rate."""
        self.learner.stepper.scale = self.monitors.learning_rate_scale
        self.collector.branch = (BRANCH, self.monitors.rollbacks) if self.monitors.rollbacks else ()

    def _ended(self, steps: int) -> bool:
        """Whether a run that has done so many steps is over."""
        if self.monitors.ended:
            return True
        budget = self.rlvr.budget
        limits = {"tokens": budget.tokens, "seconds": budget.seconds}
        over = any(limit is not None and self.spent[what] >= limit for what, limit in limits.items())
        return over or steps >= self.rlvr.steps

    def _spend(self, metrics: dict[str, float]) -> None:
        """Add a step's cost beside what it drew; every process must come to the same sum."""
        self.spent["tokens"] += round(metrics.get("tried/tokens", 0.0))
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
        sampled = [row for row in sampled if row.stop != Stop.WINDOW]
        metrics = diagnostics.of_rollouts(sampled) | batch.metrics | self._measured(sampled)
        metrics["time/rollout_s"] = batch.seconds
        drawn = [row for row in batch.sampled if row.stop != Stop.WINDOW]
        tokens = sum(row.sampled_count for row in drawn)
        self.spent["tokens"] += tokens
        metrics["rollout/tokens_per_s"] = tokens / batch.seconds
        advantages: dict[int, list[float]] = {}
        self.phase("credit", step)
        columns = self.collector.filtered(self.collector.pack(rows, step, batch.version)) if rows else None
        if columns is not None and columns["in_loss"].any():
            metrics |= self._train(batch, columns)
            advantages = self._advantages(sampled, rows, columns)
        else:
            self.report.event("no row to learn from: nothing was scored or kept", step=step + 1)
        self._log(draws(step + 1, drawn), sampled, advantages, batch.lines)
        metrics["time/step_s"] = time.perf_counter() - began
        if self.idle is not None:
            metrics |= self.idle.of_step(waited if self.overlap is None else self.overlap.take_waited())
        self.phase("metrics", step)
        return metrics

    def _train(self, batch: Batch, columns: dict[str, Any]) -> dict[str, float]:
        """Credit and updates of a batch; `columns` get what is computed on the way."""
        self.learner.fill(columns["token"], columns)
        credited = time.perf_counter()
        columns |= algorithm.assign_credit(self.update, columns, self.effects.add)
        metrics = {"time/credit_s": time.perf_counter() - credited}
        metrics |= diagnostics.of_columns(columns) | self.update.metrics() | self.effects.metrics
        if self.effects.metrics:
            metrics["signal/changed_share"] = max(self.effects.metrics.values())
        batch.lines += self.update.lines()
        updates = self._updates(columns, batch.step)
        metrics["replay/rows"] = float(sum(int(update.columns["replayed"].sum()) for update in updates))
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
        batch.metrics |= self.server.metrics if self.server is not None else {}
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
        if self.monitors.acts:
            self._commit(0)  # what a first alarm can go back to

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

    def _log(
        self,
        drawn: dict[str, Any],
        rows: list[Trajectory],
        advantages: dict[int, list[float]],
        lines: list[dict[str, Any]],
    ) -> None:
        """Add a step to the outputs: what it drew, its rollouts, and `lines` of its methods."""
        step = drawn["step"]
        monitored = self.monitors.lines(step)
        if self.world.rank > 0:
            return
        self.log.append(DRAWS, [drawn])
        if monitored:
            self.log.append(MONITORED, monitored)
        if lines:
            self.log.append(METHODS, [{"step": step, **line} for line in lines])
        if self.rlvr.log_rollouts:
            chosen = self._logged(rows)
            self.log.append(
                ROLLOUTS_FILE,
                rollout_log.entries(step, chosen, self.by_uid, advantages, lambda ids: str(self.tokenizer.decode(ids))),
            )

    def _resume(self) -> None:
        state = checkpoint.load(self.work / "checkpoints")
        if state is None:
            if self.world.rank == 0:
                self.log.rewind({})
            self.report.rewind(0)
            self._warn_of_few_problems()
            return
        self._restore(state)
        if self.overlap is not None:
            self.overlap.load_state_dict(state["overlap"])
        self.start_step = state["step"]
        self.report.rewind(state["cursor"] if self.world.rank == 0 else 0)
        self.monitors.check_stopped()
        self.report.event("resumed from a commit", step=self.start_step)

    def _warn_of_few_problems(self) -> None:
        """A split with fewer problems than a step draws is soon known by heart, and the training reward does not tell."""
        count, wanted = len(self.problems), self.rlvr.prompts
        if count < wanted:
            text = (
                f"the split {self.rlvr.split} has {count} problems and a step draws {wanted} (rlvr.prompts), so the policy may "
                "learn their answers by heart"
            )
            self.report.event(text, step=0, monitor="problems", action="warn")

    def _restore(self, state: dict[str, Any]) -> None:
        """Everything as a commit has it, the spool and what is sampled ahead apart."""
        if self.world.rank == 0:
            self.log.rewind(state["log_bytes"])
        self.learner.load_state(state)
        self.update.load_state_dict(state["methods"] | state["methods_of_ranks"][self.world.rank])
        self.collector.open.load_state_dict(state["methods"][OPEN_ROWS])
        self._set_up = True
        self.collector.forget()
        self.spent = dict(state["spent"])
        self.recent, self.best = state["recent"], state["best"]
        self.monitors.load_state_dict(state["monitors"])
        self.effects.load_state_dict(state["effects"])
        self._branch_off()

    def _commit(self, step: int, score: float | None = None) -> None:
        ahead: dict[str, Any] = {}
        if self.overlap is not None:
            ahead, methods = self.overlap.state_dict(step, last=self._ended(step))
        else:
            methods = self.update.state_dict() | {OPEN_ROWS: self.collector.open.state_dict()}
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
            "monitors": self.monitors.state_dict(),
            "effects": self.effects.state_dict(),
            "log_bytes": self.log.sizes(),
            "cursor": self.report.cursor(),
        }
        if self.world.rank == 0:
            branch = (self.monitors.rollbacks, self.monitors.origin)
            self.committer.submit(step, state, score, good=self.monitors.healthy, branch=branch)
