"""The loop: problems, rollouts, scores, credit, update, commit. It knows no method's name."""

from __future__ import annotations

import copy
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipelines.base.files import REPORT
from pipelines.base.user_functions import load_function
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.method import PolicyUpdate, own_update
from pipelines.contract.monitor import StepRollouts
from pipelines.contract.rollout import Allocation, Sampler, SetupContext
from pipelines.data import dataset
from pipelines.data.records import Stop, Trajectory
from pipelines.engine import distribution, models, parallel
from pipelines.engine.loop import Loop
from pipelines.engine.policy import causal_lm
from pipelines.engine.sampler import TorchSampler, context_of
from pipelines.recipe.corrected import samples as samples_with
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers
from pipelines.rlvr import algorithm, diagnostics, gold_answers, info_fields, scoring, stored
from pipelines.rlvr.collect import SETUP, Batch, Collector
from pipelines.rlvr.diagnostics import Outcome
from pipelines.rlvr.effects import Effects
from pipelines.rlvr.learner import Learner
from pipelines.rlvr.output_log import DRAWS, METHODS, MONITORED, OutputLog, draws
from pipelines.rlvr.output_log import ROLLOUTS as ROLLOUTS_FILE
from pipelines.rlvr.own_rows import PLACE, Rows
from pipelines.rlvr.pack import pack, padded
from pipelines.rlvr.windows import OPEN_ROWS
from pipelines.stage.launch import halved

if TYPE_CHECKING:
    from pipelines.engine.server import ServerSampler
    from pipelines.rlvr.overlap import Idle, Overlap

REPLAY = 3
"""RNG stream id of the draws from stored rows."""
BRANCH = 1 << 20
"""Put in front of the number of rollbacks in the RNG streams of rollouts."""
SMOOTH = 10
"""Steps over which the mean reward is taken when the best weights are looked for."""
PHASES = ("rollout", "credit", "update", "metrics", "commit")
"""Parts of a step, in order, as `phase` hears of them."""


class Trainer(Loop):
    """One RLVR run; arguments as in `Loop`. Its input `samples`, if it has one, is the artifact of a sample stage."""

    section = "rlvr"
    settings: Rlvr

    def prepare(self, data: Path) -> None:
        """Read the problems, and make what samples, scores and learns."""
        rlvr, model, start = self.settings, self.model_settings, str(self.origin)
        self.total = rlvr.steps
        self.update = algorithm.Update.of(rlvr)
        self.problems = dataset.read_split(data, rlvr.split)
        gold_answers.require(self.problems, rlvr.reward, rlvr.split)
        if rlvr.by_source or rlvr.reward.get("terms"):
            from pipelines.rlvr import by_source

            by_source.require(self.problems, rlvr)
        info_fields.require(self.problems, rlvr)
        self.by_uid = {p.uid: p for p in self.problems}
        self.sources = {p.source for p in self.problems}
        network = self.load_network().train(rlvr.gradient_checkpointing)
        self.learner = Learner(
            rlvr, model, self.update, network=network, unread=self.unread, start=start,
            report=self.report, seed=self.seed, world=self.world, tokenizer=self.tokenizer,
            problems={int(p.uid[:15], 16): p for p in self.problems}, engine=self.engine,
        )  # fmt: skip
        self.weights, self.optimizer, self.stepper = self.learner.weights, self.learner.optimizer, self.learner.stepper
        decoded = causal_lm(self.weights.full if self.weights.has_full else self.weights.outline)
        stop = models.stop_ids(decoded, self.tokenizer)
        self.server = self._server(stop, context_of(decoded), start) if rlvr.sampler else None
        of_engine = self.engine.sampler(stop, context_of(decoded))
        self.sampler: Sampler = self.server or of_engine or self._own_sampler(decoded, stop)
        self.log = OutputLog(self.work / "out" / REPORT)
        hidden = [each.method.settings.get("function") for each in self.monitors.watched]
        self.hidden_functions = {name: load_function(name, "rlvr.monitors") for name in hidden if name}
        self.effects = Effects(rlvr.no_effect_steps, self.report.event)
        self.monitor_scorer = self.learner.text_scorer(self.tokenizer, start, parallel.World())  # one process measures
        self.spent: dict[str, float] = {"tokens": 0, "seconds": 0.0}
        """Completion tokens sampled and seconds of steps so far."""
        self.recent: list[float] = []
        self._set_up = False
        self.collector = self._collector(start)
        if "samples" in self.inputs:
            rows = stored.read(self.inputs["samples"], self.by_uid, self.tokenizer)
            self.collector.stored = rows.__getitem__
        self.why_all = self.update.why_all(self.learner.providers.values())
        """Why every process has all rows of a step; empty where each has its own."""
        if not self.why_all:
            self.collector.rows = Rows(self.world)
        self.idle: Idle | None = None
        self.overlap: Overlap | None = None
        if self.server is not None:
            from pipelines.rlvr.overlap import Idle, Overlap

            self.idle = Idle(self.server)
            if rlvr.staleness:
                self.overlap = Overlap(rlvr, model, self.collector, self.learner, self.server)

    def needs_values(self) -> str:
        """A method's provider may copy the policy at the start, too."""
        providers = bind_providers(self.settings, self.update.bound())
        return super().needs_values() or ", ".join(f"{bound.name} starts from the policy" for bound in providers)

    def _own_sampler(self, decoded: Any, stop: list[int]) -> TorchSampler:
        """The sampler in this process."""
        own = TorchSampler(
            decoded, stop=stop, pad=self.tokenizer.pad_token_id, dtype=self.model_settings.dtype, rows=self.settings.decode_rows,
            fixed=None if self.settings.cuda_graphs else False,
        )  # fmt: skip
        self.learner.release_memory = own.release
        return own

    def _server(self, stop: list[int], context: int, start: str) -> ServerSampler:
        """The sampler on a decoding server; its code is loaded only where a recipe names one."""
        from pipelines.engine.server import ServerSampler

        assert self.settings.sampler is not None
        return ServerSampler(
            self.settings.sampler, stop=stop, context=context, dtype=self.model_settings.dtype, work=self.work, event=self.report.event,
            base=models.local(start), lora_rank=self.settings.lora.rank if self.settings.lora else 0, world=self.world,
        )  # fmt: skip

    def _collector(self, start: str) -> Collector:
        """The sampling side of a step, its scorer of text, and the methods connected to theirs.

        Args:
            start: model folder that the run started from.
        """
        tokenizer = copy.deepcopy(self.tokenizer) if self.settings.staleness else self.tokenizer
        collector = Collector(
            self.settings, self.update, self.problems, tokenizer=tokenizer, sampler=self.sampler,
            scorer=self.learner.text_scorer(tokenizer, start, parallel.World()), seed=self.seed, world=self.world,
        )  # fmt: skip
        for part in self.update.bound():
            part.fn.connect(collector.scorer if samples_with(part) else self.learner.scorer)
        return collector

    @property
    def resumes(self) -> str:
        """What a restart promises: "bitwise" the same weights, or each prompt and number "exactly_once".

        A server is not reproducible, and neither are a GPU's kernels, nor rollouts that go by the clock.
        """
        alone = self.server is None and not self.engine.remote and self.update.rollout.fn.repeatable
        return "bitwise" if alone and self.device.type == "cpu" else "exactly_once"

    @property
    def commits_start(self) -> bool:
        """False: the first step commits what the methods' `setup` has made."""
        return False

    def close(self) -> None:
        """End the decoding server, and what samples ahead."""
        super().close()
        if self.server is not None:
            self.server.close()
        if self.overlap is not None:
            self.overlap.close()

    def begin(self) -> None:
        """A run from its start begins its outputs anew.

        A split with fewer problems than a step draws is soon known by heart, and the training reward does not show it: an event warns.
        """
        if self.world.size > 1:
            self.report.event(
                f"every process has all rows: {self.why_all}" if self.why_all else "each process keeps its own rows"
            )
        if halved():
            self.report.event(
                "out of memory in a process: all started again, with smaller passes",
                micro_batch_tokens=self.learner.passes.budget,
            )
        if self.resumed:
            return
        if self.world.rank == 0:
            self.log.rewind({})
        count, wanted = len(self.problems), self.settings.prompts
        if count < wanted:
            text = f"the split {self.settings.split} has {count} problems and a step draws {wanted} (rlvr.prompts), so the policy may "
            text += "learn their answers by heart"
            self.report.event(text, step=0, monitor="problems", action="warn")

    def make_step(self, step: int) -> dict[str, float]:
        """One step, and what it costs."""
        before = self.world.received["bytes"]
        metrics = self.step(step)
        self._spend(metrics)
        if self.world.size > 1:
            received = self.world.gather(self.world.received["bytes"] - before)
            metrics["ranks/received_bytes"] = sum(received) / len(received)
        return metrics

    def note(self, metrics: dict[str, float]) -> str:
        """The reward."""
        return f"reward {metrics['reward/mean']:.3f}" if "reward/mean" in metrics else "no row has ended"

    def finish(self, steps: int) -> None:
        """Say why the run has fewer steps than the recipe."""
        if steps < self.total and not self.monitors.ended:
            self.report.event("the budget is spent", step=steps, **self.spent)

    def about(self) -> dict[str, Any]:
        """How exact a restart is, and the system prompt that the model was trained with, too."""
        system = self.update.prompting.fn.system_prompt
        return super().about() | {"resume": self.resumes} | ({"system_prompt": system} if system else {})

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """Completion tokens, and some metrics of the last step."""
        wanted = ("reward/mean", "rollout/length_mean", "policy/entropy")
        shown = {name.replace("/", "_"): metrics[name] for name in wanted if name in metrics}
        return {"tokens_sampled": float(self.spent["tokens"]), **shown}

    def describe_best(self, state: dict[str, Any]) -> dict[str, Any]:
        """Its mean reward."""
        return {"reward": state["best"]}

    def _measured(self, sampled: list[Trajectory], held: Rows) -> dict[str, float]:
        """What the monitors measure on the step's rollouts; one process does it for all."""
        if not self.monitors.measures or not sampled:
            return {}
        fields = self.monitors.row_fields
        rollouts = StepRollouts(
            rows=held.on_first(sampled if fields is None else [row.only(fields) for row in sampled]),
            verify=lambda name, rows: scoring.hidden_scores(name, rows, self.by_uid),
            call=lambda name, rows: scoring.hidden_values(
                name, self.hidden_functions[name], rows, self.by_uid, self.settings.reward_timeout_s
            ),
            scorer=self.monitor_scorer,
        )
        return self.world.gather(self.monitors.measure(rollouts) if self.world.rank == 0 else {})[0]

    def branch_off(self) -> None:
        """After a rollback, rollouts have other random numbers too."""
        super().branch_off()
        self.collector.branch = (BRANCH, self.monitors.rollbacks) if self.monitors.rollbacks else ()

    def ended(self, steps: int) -> bool:
        """As in `Loop`, or the budget is spent."""
        limits = {"tokens": self.settings.budget.tokens, "seconds": self.settings.budget.seconds}
        spent = any(limit is not None and self.spent[what] >= limit for what, limit in limits.items())
        return spent or super().ended(steps)

    def _spend(self, metrics: dict[str, float]) -> None:
        """Add a step's cost beside what it drew; every process must come to the same sum."""
        self.spent["tokens"] += round(metrics.get("tried/tokens", 0.0))
        self.spent["seconds"] += self.world.gather(metrics["time/step_s"])[0]
        metrics |= {"tokens/sampled_so_far": float(self.spent["tokens"]), "time/so_far_s": self.spent["seconds"]}

    def score(self, step: int, metrics: dict[str, float]) -> float | None:
        """Mean reward of the last `SMOOTH` steps that have one."""
        if "reward/mean" not in metrics:
            return None
        self.recent = [*self.recent, metrics["reward/mean"]][-SMOOTH:]
        return sum(self.recent) / len(self.recent) if len(self.recent) >= min(SMOOTH, self.total) else None

    def step(self, step: int) -> dict[str, float]:
        """One step: sample, score, assign credit, update."""
        self.phase("rollout", step)
        began = time.perf_counter()
        if self.idle is not None:
            self.idle.begin()
        batch = self._batch(step)
        waited = time.perf_counter() - began
        self.learner.passes.rows = held = batch.held
        rows, sampled = batch.rows, batch.sampled or batch.rows  # a step that carried problems fill
        sampled = [row for row in sampled if row.stop != Stop.WINDOW]
        outcomes = held.of_all(map(Outcome.of, sampled))
        metrics = diagnostics.of_rollouts(outcomes) | batch.metrics | self._measured(sampled, held)
        if len(self.sources) > 1:
            from pipelines.rlvr.source_metrics import of_sources

            metrics |= of_sources(outcomes, self.sources)
        metrics["time/rollout_s"] = batch.seconds
        drawn = outcomes if batch.sampled else []
        tokens = sum(row.sampled_count for row in drawn)
        self.spent["tokens"] += tokens
        metrics["rollout/tokens_per_s"] = tokens / batch.seconds
        self.phase("credit", step)
        columns = self.collector.filtered(self.collector.pack(rows, step, batch.version, held)) if rows else None
        if columns is not None and held.any(bool(columns["in_loss"].any())):
            metrics |= self._train(batch, columns)
        else:
            columns = None
            self.report.event("no row to learn from: nothing was scored or kept", step=step + 1)
        self._log(draws(step + 1, drawn), self._entries(step + 1, batch, sampled, columns), batch.lines)
        metrics["time/step_s"] = time.perf_counter() - began
        if self.idle is not None:
            metrics |= self.idle.of_step(waited if self.overlap is None else self.overlap.take_waited())
        self.phase("metrics", step)
        return metrics

    def _train(self, batch: Batch, columns: dict[str, Any]) -> dict[str, float]:
        """Credit and updates of a batch; `columns` get what is computed on the way."""
        if batch.held.divided:
            columns[PLACE] = batch.held.gathered(columns, ())[1]
        self.learner.fill(columns["token"], columns)
        credited = time.perf_counter()
        columns |= algorithm.assign_credit(self.update, columns, self.effects.add, batch.held)
        metrics = {"time/credit_s": time.perf_counter() - credited}
        metrics |= diagnostics.of_columns(columns, batch.held.world) | self.update.metrics() | self.effects.metrics
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
        """Everything sampled in the step, and the rows that it goes on with, of all processes."""
        batch = self._batch(step)
        sampled, rows = batch.held.exchanged(batch.sampled, batch.rows)
        return sampled, rows

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
            self.server.push(self._pushed(), self.tokenizer)
        self.learner.policy.sampling = self.collector.begin(self.learner.updates_done)
        self._setup()
        batch = self.collector.collect(step)
        batch.metrics |= self.server.metrics if self.server is not None else {}
        return batch

    def _pushed(self) -> Any:
        """The weights as a server is given them."""
        if self.weights.has_full:
            return self.weights.full
        from pipelines.engine.pushed import ShardedWeights

        return ShardedWeights(self.weights)

    def _setup(self) -> None:
        """Once in a run, before its first step: the methods' `setup`."""
        if self._set_up:
            return
        self._set_up = True
        context = SetupContext(
            problems=len(self.problems), seed=self.seed, prompts=lambda: self.collector.rendered(self.problems),
            rollouts=self._setup_rollouts, columns=lambda rows: pack(rows, step=0, total_steps=self.settings.steps),
            hidden=self._setup_hidden, sources=[problem.source for problem in self.problems],
        )  # fmt: skip
        for method in self.update.methods():
            method.setup(context)
        if self.monitors.acts:
            self._commit(0)  # what a first alarm can go back to

    def _setup_rollouts(self, problems: list[int], count: int) -> list[Trajectory]:
        self.report.event("before the first step: rollouts of the starting policy", problems=len(problems), each=count)
        rows: list[Trajectory] = []
        for at in range(0, len(problems), self.settings.prompts):
            part = [Allocation(problem, count) for problem in problems[at : at + self.settings.prompts]]
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
        return sorted(rows, key=lambda row: (row.uid, row.group))[: self.settings.log_rollouts]

    def _advantages(
        self, sampled: list[Trajectory], rows: list[Trajectory], columns: dict[str, Any]
    ) -> dict[int, list[float]]:
        """`id` of each row to be logged that was trained on → advantage [T]; `columns` are those of `rows`."""
        place = {id(row): i for i, row in enumerate(rows) if columns["in_loss"][i]}
        chosen = [row for row in self._logged(sampled) if id(row) in place]
        return {id(row): columns["advantage"][place[id(row)], : len(row.tokens)].tolist() for row in chosen}

    def _entries(
        self, step: int, batch: Batch, sampled: list[Trajectory], columns: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        """What is logged of the sampled rollouts, on the first process; `columns` are those of a step that trained."""
        if not self.settings.log_rollouts or (self.world.rank > 0 and not batch.held.divided):
            return []
        from pipelines.rlvr import rollout_log

        advantages: dict[int, list[float]] = {}
        mismatches: dict[int, list[float | None]] = {}
        if columns is not None:
            advantages = self._advantages(sampled, batch.rows, columns)
            compared, places = self.learner.differences(columns), columns.get(PLACE)
            mismatches = rollout_log.differences(compared, batch.rows, advantages, places)
        decode = partial(rollout_log.written, self.tokenizer)
        own = rollout_log.entries(step, self._logged(sampled), self.by_uid, advantages, mismatches, decode)
        entries = chain.from_iterable(batch.held.world.gather_first(own))
        return sorted(entries, key=lambda entry: (entry["uid"], entry["group"]))[: self.settings.log_rollouts]

    def _log(self, drawn: dict[str, Any], entries: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
        """Add a step to the outputs: what it drew, `entries` of its rollouts, and `lines` of its methods."""
        step = drawn["step"]
        monitored = self.monitors.lines(step)
        if self.world.rank > 0:
            return
        self.log.append(DRAWS, [drawn])
        if monitored:
            self.log.append(MONITORED, monitored)
        if lines:
            self.log.append(METHODS, [{"step": step, **line} for line in lines])
        if entries:
            self.log.append(ROLLOUTS_FILE, entries)

    def extra_state(self, step: int) -> dict[str, Any]:
        """What learner, methods and outputs have come to, and what is sampled ahead."""
        ahead: dict[str, Any] = {}
        if self.overlap is not None:
            ahead, methods = self.overlap.state_dict(step, last=self.ended(step))
        else:
            methods = self.update.state_dict() | {OPEN_ROWS: self.collector.open.state_dict()}
        return {
            "spent": dict(self.spent),
            "recent": self.recent,
            **self.learner.state(),
            "methods": methods,
            "overlap": ahead,
            "effects": self.effects.state_dict(),
            "log_bytes": self.log.sizes(),
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave, apart from what a rollback does not undo: the rows that the forgotten steps drew go."""
        if self.world.rank == 0:
            self.log.rewind(state["log_bytes"])
        self.learner.load_state(state)
        self.update.load_state_dict(state["methods"])
        self.collector.open.load_state_dict(state["methods"][OPEN_ROWS])
        self._set_up = True
        self.collector.forget()
        self.recent = state["recent"]
        self.effects.load_state_dict(state["effects"])

    def load_resumed_state(self, state: dict[str, Any]) -> None:
        """What is spent stays spent after a rollback, which runs with staleness do not have."""
        self.spent = dict(state["spent"])
        if self.overlap is not None:
            self.overlap.load_state_dict(state["overlap"])
