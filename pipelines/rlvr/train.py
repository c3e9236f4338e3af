"""The loop: problems, rollouts, scores, credit, update, commit. It knows no method's name."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pipelines import dataset, models
from pipelines.columns import Batch
from pipelines.engine import checkpoint, distribution, optimizer, shared
from pipelines.engine.policy import Policy, without_dropout
from pipelines.engine.sampler import Sampler, TorchSampler
from pipelines.records import Problem, Trajectory
from pipelines.report import Report
from pipelines.rlvr import diagnostics, scoring
from pipelines.rlvr import step as algorithm
from pipelines.rlvr.pack import pack
from pipelines.settings import Model, Rlvr, Sampling

ROLLOUTS = 1
"""Purpose number of the sampler's random stream."""
SMOOTH = 10
"""Steps over which the mean reward is taken when the best weights are looked for."""
PHASES = ("rollout", "credit", "update", "metrics", "commit")
"""Parts of a step, in order."""


@dataclass(frozen=True)
class Asked:
    """A problem sent to the rollout."""

    problem: Problem
    prompt: list[int]
    group: int


@dataclass(frozen=True)
class Context:
    """What a rollout strategy works with."""

    sampler: Sampler
    sampling: Sampling
    group_size: int
    generator: torch.Generator
    entropy: bool
    version: int
    tokenizer: Any

    def decode(self, tokens: list[int]) -> str:
        """Text of a completion, special tokens left out; for verifiers and logs only."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class Trainer:
    """One RLVR run; arguments as in `pipelines.sft.run.Trainer`, plus the model folder to start from."""

    def __init__(
        self, rlvr: Rlvr, model: Model, *, start: str, data: Path, out: Path, work: Path, report: Report, seed: int
    ) -> None:
        self.rlvr, self.settings, self.out, self.work, self.report, self.seed = rlvr, model, out, work, report, seed
        self.update = algorithm.Update.of(rlvr)
        self.functions = scoring.load_functions(rlvr.reward_functions)
        self.tokenizer = models.load_tokenizer(start, model)
        models.check_template(dataset.about(data).get("template"), self.tokenizer, "rlvr")
        self.problems = dataset.read_split(data, rlvr.split)
        self.by_uid = {p.uid: p for p in self.problems}
        self.device = models.device()
        self.model = self._model(start)
        self.policy = Policy(self.model, rlvr.sampling, dtype=model.dtype)
        self.reference = self._reference()
        stop = models.stop_ids(self.policy.causal, self.tokenizer)
        self.sampler: Sampler = TorchSampler(
            self.policy.causal, stop=stop, pad=self.tokenizer.pad_token_id, dtype=model.dtype, rows=rlvr.decode_rows
        )
        self.optimizer = optimizer.make(self.model, rlvr.optimizer)
        self.updates = rlvr.steps * rlvr.epochs * rlvr.mini_batches
        self.stepper = optimizer.Stepper(self.optimizer, rlvr.optimizer, self.updates, rlvr.max_bad_steps)
        self.curriculum = self.update.curriculum.fn
        self.curriculum.start(len(self.problems), seed)
        self.start_step, self.updates_done = 0, 0
        best = rlvr.commit.keep_best if rlvr.deliver == "best" else 0
        self.committer = checkpoint.Committer(
            work / "checkpoints", keep_last=rlvr.commit.keep_last, keep_best=best, written=report.publish
        )
        self.phase: Callable[[str, int], None] = lambda name, step: None
        """Called when a part of a step begins, with one of `PHASES`."""
        self.recent: list[float] = []
        self.best = float("-inf")
        self._packed: tuple[list[int], Tensor, Batch, list[Trajectory]] | None = None

    def _model(self, start: str) -> Any:
        model = models.load_model(start, self.settings)
        without_dropout(model)
        if self.rlvr.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(self.seed)
        if self.rlvr.lora:
            model = models.with_lora(model, self.rlvr.lora)
        model.to(self.device)  # type: ignore[arg-type]
        return model.train(self.rlvr.gradient_checkpointing)

    def _reference(self) -> Policy | None:
        """The policy at the start: adapters switched off, or a frozen copy; only where a method reads `logp_ref`."""
        if not self.update.needs("logp_ref"):
            return None
        if self.rlvr.lora:
            return self.policy
        return Policy(copy.deepcopy(self.model).requires_grad_(False), self.rlvr.sampling, dtype=self.settings.dtype)

    def run(self) -> dict[str, float]:
        """Train from the last commit to the end, and write the model folder."""
        self._resume()
        numbers: dict[str, float] = {}
        for step in range(self.start_step, self.rlvr.steps):
            numbers = self.step(step)
            self.report.metrics(step + 1, numbers)
            note = f"reward {numbers['reward/mean']:.3f}"
            self.report.progress(step + 1, self.rlvr.steps, note)
            score = self._score(numbers["reward/mean"])
            if (step + 1) % self.rlvr.commit.every == 0 or step + 1 == self.rlvr.steps or score is not None:
                self.phase("commit", step)
                self._commit(step + 1, score)
        self.committer.wait()
        if self.rlvr.deliver == "best" and (state := checkpoint.best(self.committer.folder)) is not None:
            self.model.load_state_dict(state["model"], strict=False)
            self.report.event("the best weights are handed on", step=state["step"], reward=state["best"])
        model = self.model.merge_and_unload() if self.rlvr.lora else self.model
        models.save_model(model, self.tokenizer, self.out / "model", {"stage": "rlvr", "base": self.settings.path})
        wanted = ("reward/mean", "rollout/length_mean", "policy/entropy")
        return {"steps": float(self.rlvr.steps), **{k.replace("/", "_"): numbers[k] for k in wanted if k in numbers}}

    def _score(self, reward: float) -> float | None:
        """Mean reward of the last `SMOOTH` steps where it is the best so far and the best weights are asked for."""
        self.recent = [*self.recent, reward][-SMOOTH:]
        mean = sum(self.recent) / len(self.recent)
        if self.rlvr.deliver == "last" or len(self.recent) < min(SMOOTH, self.rlvr.steps) or mean <= self.best:
            return None
        self.best = mean
        return mean

    def step(self, step: int) -> dict[str, float]:
        """One step: sample, score, assign credit, update."""
        self.phase("rollout", step)
        began = time.perf_counter()
        sampled, kept = self.collect(step)
        numbers = diagnostics.of_rollouts(sampled)
        numbers["time/rollout_s"] = time.perf_counter() - began
        numbers["rollout/tokens_per_s"] = numbers["rollout/length_mean"] * len(sampled) / numbers["time/rollout_s"]
        self._log(step, sampled)
        self.phase("credit", step)
        if any(t.score is not None for t in kept):
            tokens, batch = self._pack(kept, step)
            self.fill(tokens, batch)
            credited = time.perf_counter()
            columns = algorithm.assign_credit(self.update, batch)
            numbers["time/credit_s"] = time.perf_counter() - credited
            numbers |= diagnostics.of_columns(columns)
            self.phase("update", step)
            trained = time.perf_counter()
            numbers |= self.learn(tokens, columns)
            numbers["time/train_s"] = time.perf_counter() - trained
            numbers["train/tokens_per_s"] = numbers["tokens/trained"] / numbers["time/train_s"]
        else:
            self.report.event("no row to learn from: nothing was scored or kept", step=step + 1)
        numbers["time/step_s"] = time.perf_counter() - began
        self.phase("metrics", step)
        return numbers

    def collect(self, step: int) -> tuple[list[Trajectory], list[Trajectory]]:
        """Everything sampled in the step, and the rows that `keep` lets train."""
        sampled: list[Trajectory] = []
        kept: list[Trajectory] = []
        for draw in range(self.rlvr.max_draws):
            have = len({t.group for t in kept})
            if have >= self.rlvr.prompts:
                break
            rows = self._rollouts(step, draw, first_group=len({t.group for t in sampled}))
            sampled += rows
            chosen = self._keep(rows, step)
            groups = sorted({t.group for t in chosen})[: self.rlvr.prompts - have]
            kept += [t for t in chosen if t.group in groups]
        return sampled, kept

    def _rollouts(self, step: int, draw: int, first_group: int) -> list[Trajectory]:
        numbers = self.curriculum.propose(self.rlvr.prompts)
        prompts = models.render_prompts(self.tokenizer, [self.problems[n].prompt for n in numbers])
        asked = [
            Asked(self.problems[n], prompt, first_group + i)
            for i, (n, prompt) in enumerate(zip(numbers, prompts, strict=True))
        ]
        context = Context(
            sampler=self.sampler,
            sampling=self.rlvr.sampling,
            group_size=self.rlvr.group_size,
            generator=distribution.generator(self.device, self.seed, step, draw, ROLLOUTS),
            entropy=self.update.needs("entropy_old"),
            version=self.updates_done,
            tokenizer=self.tokenizer,
        )
        rows = self.update.rollout.fn.run(asked, context)
        scoring.score(rows, self.by_uid, self.functions)
        by_group: dict[int, list[float]] = {}
        for row in rows:
            by_group.setdefault(row.group, []).append(float(bool(row.correct)))
        means = {g: sum(v) / len(v) for g, v in by_group.items()}
        self.curriculum.observe(numbers, [means.get(a.group, 0.0) for a in asked])
        return rows

    def _keep(self, rows: list[Trajectory], step: int) -> list[Trajectory]:
        _, batch = self._pack(rows, step)
        keep = self.update.keep(algorithm.columns_of(batch)).tolist()
        return [row for row, yes in zip(rows, keep, strict=True) if yes]

    def _pack(self, rows: list[Trajectory], step: int) -> tuple[Tensor, Batch]:
        """Columns of rows; where every row was kept they are those that `keep` has seen."""
        same = [id(row) for row in rows]
        if self._packed is None or self._packed[0] != same:
            self._packed = (same, *pack(rows, step=step, total_steps=self.rlvr.steps), rows)
        return self._packed[1], copy.copy(self._packed[2])

    def fill(self, tokens: Tensor, batch: Batch) -> None:
        """Compute the columns that a method asked for and only a forward pass gives."""
        if self.reference is not None:
            with self.policy.reference(), torch.no_grad():
                batch.logp_ref = self._forward(self.reference, tokens, batch.mask)
        if self.update.needs("logp_start"):
            with torch.no_grad():
                batch.logp_start = self._forward(self.policy, tokens, batch.mask)

    def _forward(self, policy: Policy, tokens: Tensor, mask: Tensor) -> Tensor:
        out = torch.zeros(mask.numel())
        for layout in self.layouts(tokens, mask, mask.any(1).nonzero().squeeze(1)):
            out[layout.target] = policy.score(layout, tokens.flatten()[layout.target])[0].cpu()
        return out.view(mask.shape)

    def layouts(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[shared.Layout]:
        """Rows laid out for forward passes within the token budget, common prefixes computed once where it pays."""
        allow = self.policy.takes_masks and self.rlvr.share_prefixes
        return shared.best(tokens, mask, rows, self.rlvr.micro_batch_tokens, allow_shared=allow)

    def learn(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """All optimizer updates of the step."""
        numbers: dict[str, float] = {}
        ratios = diagnostics.Ratios()
        free = self.rlvr.skip_silent_rows and self.update.silent_rows_are_free()
        total = 0.0
        for epoch in range(self.rlvr.epochs):
            for part, rows in enumerate(self._mini_batches(columns, epoch)):
                weighed = algorithm.weigh(self.update, algorithm.take(columns, rows))
                full = dict(columns)
                full["weight"] = torch.zeros_like(columns["advantage"])
                full["weight"][rows] = weighed["weight"]
                live = columns["in_loss"][rows] & columns["mask"][rows].any(1)
                if free:
                    live &= (columns["advantage"][rows] != 0).any(1)
                first = epoch == 0 and part == 0
                total += self._accumulate(tokens, full, rows[live], ratios, numbers, first)
                if live.any():
                    stepped = self.stepper.step(self.updates_done)
                    numbers |= {f"optimizer/{k}": v for k, v in stepped.items()}
                self.updates_done += 1
        return numbers | ratios.numbers() | {"loss/policy": total}

    def _mini_batches(self, columns: dict[str, Any], epoch: int) -> list[Tensor]:
        """Row numbers of each update; rows of one group stay together."""
        groups = columns["group"].unique()
        if self.rlvr.mini_batches > 1:
            draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, 2)
            groups = groups[torch.randperm(len(groups), generator=draw)]
        parts = groups.tensor_split(min(self.rlvr.mini_batches, len(groups)))
        return [torch.isin(columns["group"], part).nonzero().squeeze(1) for part in parts]

    def _accumulate(
        self,
        tokens: Tensor,
        columns: dict[str, Any],
        rows: Tensor,
        ratios: diagnostics.Ratios,
        numbers: dict[str, float],
        first: bool,
    ) -> float:
        """Add up the gradients of some rows; on the first update of a step, check sampler against trainer."""
        total = 0.0
        wanted: Literal["value", "gradient"] = "gradient" if self.update.needs("entropy") else "value"
        for layout in (layouts := self.layouts(tokens, columns["mask"], rows)):
            part = (layout.target // tokens.shape[1]).unique()
            values, spread = self.policy.score(layout, tokens.flatten()[layout.target], entropy=wanted)
            mine = algorithm.take(columns, part)
            logp, entropy = (self._rows(x, layout.target, part, tokens.shape) for x in (values, spread))
            loss = algorithm.loss(self.update, mine, logp, entropy)
            loss.backward()
            total += float(loss.detach())
            ratios.add(mine, logp, entropy)
            if first:
                found, warning = diagnostics.agreement(
                    self.rlvr.agreement, self.settings.dtype, mine, logp.detach(), tokens[part]
                )
                for key, value in found.items():
                    numbers[key] = max(value, numbers.get(key, 0.0))
                if warning:
                    self.report.event(warning)
        if first and layouts:
            numbers |= diagnostics.of_layouts(layouts, columns["mask"], rows)
        return total

    @staticmethod
    def _rows(values: Tensor | None, target: Tensor, part: Tensor, shape: torch.Size) -> Tensor:
        """Scored tokens as [rows, T] on the CPU, where the columns live; gradients flow back to their device."""
        assert values is not None
        place = torch.searchsorted(part, target // shape[1]) * shape[1] + target % shape[1]
        flat = torch.zeros(len(part) * shape[1]).scatter(0, place, values.cpu())
        return flat.view(len(part), shape[1])

    def _log(self, step: int, rows: list[Trajectory]) -> None:
        if self.rlvr.log_rollouts:
            with open(self.work / "out" / "rollouts.jsonl", "a") as handle:
                for row in rows[: self.rlvr.log_rollouts]:
                    body = asdict(row)
                    short = {k: body[k] for k in ("uid", "group", "text", "score", "correct", "status", "parts")}
                    handle.write(json.dumps({"step": step + 1, **short}, default=str) + "\n")

    def _resume(self) -> None:
        state = checkpoint.load(self.work / "checkpoints")
        (self.work / "out").mkdir(parents=True, exist_ok=True)
        log = self.work / "out" / "rollouts.jsonl"
        if state is None:
            self.report.rewind(0)
            log.unlink(missing_ok=True)
            return
        self.model.load_state_dict(state["model"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        for name, memory in self.update.remembering().items():
            memory.load_state_dict(state["memories"][name])
        self.start_step, self.updates_done = state["step"], state["updates"]
        self.recent, self.best = state["recent"], state["best"]
        if log.exists():
            with open(log, "ab") as handle:
                handle.truncate(state["log_bytes"])
        self.report.rewind(state["cursor"])
        self.report.event("resumed from a commit", step=self.start_step)

    def _commit(self, step: int, score: float | None = None) -> None:
        log = self.work / "out" / "rollouts.jsonl"
        state = {
            "step": step,
            "updates": self.updates_done,
            "recent": self.recent,
            "best": self.best,
            "model": checkpoint.trainable_state(self.model),
            "optimizer": self.optimizer.state_dict(),
            "stepper": self.stepper.state_dict(),
            "memories": {name: memory.state_dict() for name, memory in self.update.remembering().items()},
            "log_bytes": log.stat().st_size if log.exists() else 0,
            "cursor": self.report.cursor(),
        }
        self.committer.submit(step, state, score)
