"""From columns to new weights: what needs a forward pass, the updates of a step, and the state they leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from pipelines.contract.provider import ProviderContext
from pipelines.engine import distribution, models, optimizer, parallel
from pipelines.engine.policy import Policy, without_dropout
from pipelines.recipe.read import bind_providers
from pipelines.recipe.settings import Model, Rlvr
from pipelines.rlvr import algorithm, diagnostics
from pipelines.rlvr.mismatch import MismatchMonitor, Tokens
from pipelines.rlvr.passes import ForwardPasses, out_of_memory, to_rows
from pipelines.stage.report import Report

SHUFFLES = 2
"""RNG stream id of the order in which groups come to mini-batches."""


class Learner:
    """The policy that is trained, its optimizer, and the providers of columns.

    Args:
        rlvr: the recipe's section.
        model: the recipe's model section.
        update: the bound methods.
        start: model folder to start from.
        report: for events.
        seed: of adapters and of the order of mini-batches.
        world: the processes that share the work.
    """

    def __init__(
        self,
        rlvr: Rlvr,
        model: Model,
        update: algorithm.Update,
        *,
        start: str,
        report: Report,
        seed: int,
        world: parallel.World,
    ) -> None:
        self.rlvr, self.settings, self.update, self.report, self.seed, self.world = (
            rlvr, model, update, report, seed, world,
        )  # fmt: skip
        self.model = self._model(start)
        self.policy = Policy(self.model, rlvr.sampling, dtype=model.dtype)
        self.policy.top_p_mass = update.column_options().get("entropy_top_p")
        self.passes = ForwardPasses(self.policy, rlvr, world)
        self.providers = {bound.name: bound.fn for bound in bind_providers(rlvr, update.bound())}
        context = ProviderContext(
            policy=self.policy,
            passes=self.passes,
            rlvr=rlvr,
            model=model,
            start=start,
            seed=seed,
            outcome_tokens=partial(algorithm.critic_tokens, update),
            options=update.column_options(),
        )
        for provider in self.providers.values():
            provider.setup(context)
        self.weights = parallel.Weights(self.model, self.policy.scorer, self.policy.layers, world)
        self.optimizer = optimizer.make(self.model, rlvr.optimizer)
        total = rlvr.steps * rlvr.epochs * min(rlvr.mini_batches, rlvr.prompts)
        self.stepper = optimizer.Stepper(self.optimizer, rlvr.optimizer, total, rlvr.max_bad_steps)
        self.updates_done = 0
        self.mismatch = MismatchMonitor(rlvr.mismatch, model.dtype)
        self.release_memory: Callable[[], None] = lambda: None
        """Called when memory runs out, for others to give back what they can do without."""

    def _model(self, start: str) -> Any:
        model = models.load_model(start, self.settings)
        without_dropout(model)
        if self.rlvr.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(self.seed)
        if self.rlvr.lora:
            model = models.with_lora(model, self.rlvr.lora)
        model.to(models.device())  # type: ignore[arg-type]
        return model.train(self.rlvr.gradient_checkpointing)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Put the columns that a method asked for and only a forward pass gives into `columns`."""
        with torch.no_grad():
            if columns["teacher_forced"].any():
                self._fill_teacher_forced(tokens, columns)
            if self.rlvr.old_logp == "trainer":
                columns["logp_sampler"] = columns["logp_old"]
                columns["logp_old"] = self.passes.per_token(self.passes.log_probs, tokens, columns["mask"])
        for provider in self.providers.values():
            provider.fill(tokens, columns)

    def _fill_teacher_forced(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Tokens that the sampler did not choose have the trainer's own log-probabilities as the old ones."""
        forced = columns["teacher_forced"]
        values = self.passes.per_token(self.passes.log_probs, tokens, forced, values=2)
        columns["logp_old"] = torch.where(forced, values[..., 0], columns["logp_old"])
        if "entropy_old" in columns:
            columns["entropy_old"] = torch.where(forced, values[..., 1], columns["entropy_old"])

    def learn(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """All optimizer updates of the step."""
        numbers: dict[str, float] = {}
        ratios = diagnostics.Ratios()
        total = 0.0
        for epoch in range(self.rlvr.epochs):
            for part, rows in enumerate(self._mini_batches(columns, epoch)):
                first = epoch == 0 and part == 0
                total += self._one_update(tokens, columns, rows, ratios, numbers, self.updates_done, first)
                self.updates_done += 1
        for rows in further(columns):
            total += self._one_update(tokens, columns, rows, ratios, numbers, self.updates_done - 1, first=False)
        for provider in self.providers.values():
            numbers |= provider.update(tokens, columns)
        self.weights.refresh()
        return self._joined(numbers, ratios, total)

    def _one_update(
        self,
        tokens: Tensor,
        columns: dict[str, Any],
        rows: Tensor,
        ratios: diagnostics.Ratios,
        numbers: dict[str, float],
        number: int,
        first: bool,
    ) -> float:
        """One step of the optimizer on some rows, at the learning rate of that number."""
        weighed = algorithm.weigh(self.update, algorithm.take(columns, rows))
        full = dict(columns)
        full["weight"] = torch.zeros_like(columns["advantage"])
        full["weight"][rows] = weighed["weight"]
        live = columns["in_loss"][rows] & columns["mask"][rows].any(1)
        if self.rlvr.skip_zero_advantage_rows and self.update.zero_advantage_rows_are_skippable():
            live &= (columns["advantage"][rows] != 0).any(1)
        coupled = self._couple(tokens, full, rows[live]) if self.update.batch_coupled() and live.any() else None
        total = self._accumulate(tokens, full, rows[live], ratios, numbers, first)
        if live.any():
            stepped = self.stepper.step(number)
            numbers |= {f"optimizer/{k}": v for k, v in stepped.items()}
        return total if coupled is None else coupled / self.world.size

    def _couple(self, tokens: Tensor, columns: dict[str, Any], rows: Tensor) -> float:
        """The loss of the update, with its derivatives put into the columns for the passes to follow."""
        live = torch.zeros(len(tokens), 1, dtype=torch.bool)
        live[rows] = True
        kinds = 2 if self.policy.top_p_mass is None else 3
        with torch.no_grad():
            values = self.passes.per_token(self.passes.log_probs, tokens, columns["mask"] & live, values=kinds)
        total, slopes = algorithm.slopes(self.update, algorithm.take(columns, rows), values[rows])
        columns["slopes"] = torch.zeros_like(values)
        columns["slopes"][rows] = slopes
        return total

    def _joined(self, numbers: dict[str, float], ratios: diagnostics.Ratios, total: float) -> dict[str, float]:
        """The step's numbers over all processes."""
        parts = self.world.gather((numbers, ratios, total))
        joined = dict(numbers)
        for other, *_ in parts:
            joined |= {k: max(v, joined.get(k, v)) for k, v in other.items() if k.startswith("mismatch/")}
        every = diagnostics.Ratios()
        for _, more, _ in parts:
            every.extend(more)
        return joined | every.numbers() | {"loss/policy": sum(loss for *_, loss in parts)}

    def _mini_batches(self, columns: dict[str, Any], epoch: int) -> list[Tensor]:
        """Row indices of each update; rows of one group stay together, and a group without a row in the loss is left out."""
        here = torch.ones_like(columns["in_loss"]) if "update" not in columns else columns["update"] == 0
        groups = columns["group"][here & columns["in_loss"]].unique()
        if self.rlvr.mini_batches > 1:
            draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, SHUFFLES)
            groups = groups[torch.randperm(len(groups), generator=draw)]
        parts = groups.tensor_split(min(self.rlvr.mini_batches, len(groups)))
        return [(torch.isin(columns["group"], part) & here).nonzero().squeeze(1) for part in parts]

    def _accumulate(
        self,
        tokens: Tensor,
        columns: dict[str, Any],
        rows: Tensor,
        ratios: diagnostics.Ratios,
        numbers: dict[str, float],
        first: bool,
    ) -> float:
        """Gradients of one update. Where memory runs out they are computed again in smaller passes: the same sum."""
        while True:
            seen = diagnostics.Ratios()
            try:
                total = self._passes(tokens, columns, rows, seen, numbers, first)
            except RuntimeError as error:
                if not out_of_memory(error) or self.world.size > 1:
                    raise
                self._halve(int(columns["mask"].shape[1]))
            else:
                ratios.extend(seen)
                return total

    def _halve(self, widest: int) -> None:
        """Make the passes smaller after memory ran out."""
        self.optimizer.zero_grad(set_to_none=True)
        self.release_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.passes.shrink(widest)
        self.report.event("out of memory: the passes are made smaller", micro_batch_tokens=self.passes.budget)

    def _passes(
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
        compared: list[Tokens] = []
        reads = self.update.needs("entropy") or self.update.needs("entropy_top_p")
        wanted: Literal["value", "gradient"] = "gradient" if reads else "value"
        layouts = self.passes.sharded(tokens, columns["mask"], rows)
        for layout in layouts:
            part = (layout.target // tokens.shape[1]).unique()
            values, spread = self.policy.score(layout, tokens.flatten()[layout.target], entropy=wanted)
            if layout.repeat:
                (values.sum() * 0).backward()
                continue
            mine = algorithm.take(columns, part)
            assert spread is not None
            said = [values, *spread.view(len(values), -1).unbind(1)]
            logp, entropy, *top = (to_rows(x, layout.target, part, tokens.shape) for x in said)
            if "slopes" in mine:
                loss = (mine["slopes"] * torch.stack([logp, entropy, *top], -1)).sum()
            else:
                loss = algorithm.loss(self.update, mine, logp, entropy, *top)
            (loss * self.world.size).backward()
            total += float(loss.detach())
            ratios.add(mine, logp, entropy)
            if first:
                compared.append(Tokens.of(mine, logp, tokens[part], part))
        if first:
            numbers |= self._mismatch(compared)
        if first and layouts:
            numbers |= diagnostics.of_layouts(layouts, columns["mask"], rows[self.world.rank :: self.world.size])
        return total

    def _mismatch(self, compared: list[Tokens]) -> dict[str, float]:
        """The step's sampler-trainer mismatch over all processes, judged before the weights change."""
        parts = [part for rank in self.world.gather(compared) for part in rank]
        metrics, warning = self.mismatch.judge(Tokens.join(parts)) if parts else ({}, None)
        if warning:
            self.report.event(warning)
        return metrics

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and counters, for a commit; every process must call."""
        return {
            "updates": self.updates_done,
            "budget": self.passes.budget,
            "model": self.weights.state(),
            "optimizer": parallel.optimizer_state(self.optimizer),
            "stepper": self.stepper.state_dict(),
            "mismatch": self.mismatch.state_dict(),
            "providers": {name: provider.state_dict() for name, provider in self.providers.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up where `state` left off."""
        self.weights.load(state["model"])
        parallel.load_optimizer(self.optimizer, state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        self.mismatch.load_state_dict(state["mismatch"])
        self.updates_done, self.passes.budget = state["updates"], state["budget"]
        for name, provider in self.providers.items():
            provider.load_state_dict(state["providers"][name])

    def save(self, tokenizer: Any, folder: Any, state: dict[str, Any] | None, about: dict[str, Any]) -> None:
        """Write the model folder and what there is to know `about` it.

        Args:
            state: a commit whose weights are to be used instead of the present ones.
        """
        if state is not None:
            self.weights.load(state["model"])
        whole = self.weights.whole
        model = whole.merge_and_unload() if self.rlvr.lora else whole
        if self.world.rank == 0:
            base = {"base": self.settings.path, "trust_remote_code": self.settings.trust_remote_code}
            models.save_model(model, tokenizer, folder, {"stage": "rlvr", **base, **about})


def further(columns: dict[str, Any]) -> list[Tensor]:
    """Row numbers of the updates behind the step's own, as the column `update` numbers them."""
    if "update" not in columns:
        return []
    numbers = columns["update"]
    return [(numbers == n).nonzero().squeeze(1) for n in numbers[numbers > 0].unique().tolist()]
