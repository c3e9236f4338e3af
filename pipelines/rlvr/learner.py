"""From columns to new weights: what needs a forward pass, the updates of a step, and the state they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.base.errors import PassTooLarge, out_of_memory
from pipelines.contract.method import PolicyUpdate, own_update
from pipelines.contract.model_settings import Model
from pipelines.contract.provider import ProviderContext
from pipelines.data.records import Problem
from pipelines.engine import distribution, parallel
from pipelines.engine.in_process import InProcess
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers
from pipelines.rlvr import algorithm, diagnostics
from pipelines.rlvr.mismatch import MismatchMonitor, Tokens, measure
from pipelines.rlvr.own_rows import PLACE, Rows
from pipelines.rlvr.passes import ForwardPasses, to_rows
from pipelines.rlvr.text_scorer import FrozenModels, TextScorer
from pipelines.stage.report import Report

if TYPE_CHECKING:
    from pipelines.engine.layout import Layout
    from pipelines.engine.sharded_files import Unread
    from pipelines.engine.tinker.engine import TinkerEngine

SHUFFLES = 2
"""RNG stream id of the order in which groups come to mini-batches."""
READ = (
    "token", "mask", "group", "logp_old", "logp_ref", "logp_sampler", "on_policy", "sampled_now", "teacher_top_id", PLACE,
    "cached_gradients",
)  # fmt: skip
"""Columns that the passes of an update read beside those of its loss, where they exist."""


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """Rows of one optimizer update."""

    update: PolicyUpdate
    rows: Tensor
    """int64 [N], indices into the update's columns."""
    schedule_index: int
    """Where the learning rate's schedule is."""
    first: bool
    """The first of the step's own."""
    compares: bool
    """Its log-probs are compared with the sampler's."""
    divisor: float | None = 1.0
    """Of its gradient; None where it is that of the divisor's loss."""


class Learner:
    """The policy that is trained, its optimizer, and the providers of columns.

    Args:
        settings: the stage's section of the recipe.
        model_settings: the recipe's model section.
        update: the bound methods.
        network: what is trained, on its device.
        start: model folder that it comes from.
        report: for events.
        seed: of adapters and of the order of mini-batches.
        world: the processes that share the work.
        tokenizer: of the policy; used by the thread that trains.
        problems: the column `problem` → the problem.
        engine: where the network is trained.
        unread: where the network's weights are, while it has no values.
    """

    def __init__(
        self,
        settings: Rlvr,
        model_settings: Model,
        update: algorithm.Update,
        *,
        network: Any,
        start: str,
        report: Report,
        seed: int,
        world: parallel.World,
        tokenizer: Any,
        problems: Mapping[int, Problem],
        engine: InProcess | TinkerEngine,
        unread: Unread | None = None,
    ) -> None:
        self.settings, self.update, self.report, self.seed, self.world = settings, update, report, seed, world
        self.model, self.engine = network, engine
        self.policy = engine.policy(self.model, settings.sampling, dtype=model_settings.dtype)
        self.policy.top_p_mass = update.column_options().get("entropy_top_p")
        self.passes = ForwardPasses(self.policy, settings, world)
        self.frozen = FrozenModels(model_settings)
        self.scorer = self.text_scorer(tokenizer, start, world)
        self.providers = {bound.name: bound.fn for bound in bind_providers(settings, update.bound())}
        context = ProviderContext(
            policy=self.policy,
            passes=self.passes,
            rlvr=settings,
            model=model_settings,
            start=start,
            seed=seed,
            outcome_tokens=partial(algorithm.critic_tokens, update),
            scorer=self.scorer,
            problems=problems,
            options=update.column_options(),
            reward_terms=update.reward.fn.term_names,
        )
        for provider in self.providers.values():
            provider.setup(context)
        self.weights = engine.weights(
            self.model, self.policy, world, unread=unread, keeps_copy=settings.full_copy, gradient_sync=settings.gradient_sync,
        )  # fmt: skip
        self.optimizer = engine.optimizer(self.model, settings.optimizer)
        self.warm_up = max((provider.warm_up for provider in self.providers.values()), default=0)
        """First steps in which the providers are fitted and the policy stands still: they have no place in its schedule."""
        self.places_of_step = settings.epochs * min(settings.mini_batches, settings.prompts)
        """Most places that a step takes in the schedule."""
        total = (settings.steps - self.warm_up) * self.places_of_step
        self.stepper = engine.stepper(self.optimizer, settings.optimizer, total, settings.max_bad_steps)
        self.updates_done = 0
        self.places_taken = 0
        """How far the schedule has come: the updates done, without those for which it has no place."""
        self.mismatch = MismatchMonitor(settings.mismatch, model_settings.dtype)
        self.compared: Tokens | None = None
        """The tokens of the step whose two log-probs were compared, of all processes."""
        self.sampled_by: Tokens | None = None
        """Where older weights sampled the step's rows: the difference between those weights' log-probs and the sampler's."""
        self.release_memory: Callable[[], None] = lambda: None
        """Called when memory runs out, for others to give back what they can do without."""

    def text_scorer(self, tokenizer: Any, start: str, world: parallel.World) -> TextScorer:
        """A scorer of text by the present weights and by frozen models; arguments as in `TextScorer`."""
        return TextScorer(
            self.settings, lambda: self.weights.full, tokenizer=tokenizer, start=start, frozen=self.frozen, world=world,
            budget=lambda: self.passes.budget, engine=self.engine,
        )  # fmt: skip

    @property
    def rows(self) -> Rows:
        """Whether other processes have other rows of the step."""
        return self.passes.rows

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Put the columns that a method asked for and only a forward pass gives into `columns`."""
        with torch.no_grad():
            if self.rows.any(bool(columns["teacher_forced"].any())):
                self._fill_teacher_forced(tokens, columns)
            if self.settings.old_logp == "trainer":
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

    def learn(self, updates: list[PolicyUpdate]) -> dict[str, float]:
        """All optimizer updates of the step, in the order of the list.

        The sampler-trainer mismatch is that of the weights that sampled, so it is measured before any update changes them.
        Where the step's own update comes first, the log-probs of its first pass are compared and the check costs nothing. Where
        a replay update comes first, or none at all (`warm_up`), the same rows (the step's own first mini-batch) are compared before it:
        with `old_logp: trainer` from that column, which holds the trainer's log-probs already, otherwise with one pass over them
        without gradient. Where older weights sampled the rows (`sampled_by`), what was compared with those is judged, and the
        difference to the present weights is measured as `staleness/*`.

        Where a step has more mini-batches than places in the learning rate's schedule (paraphrases bring more groups than prompts),
        they share its places, so that the schedule ends with the run.
        """
        self.compared = None
        metrics = self._judged(Tokens.join([self.sampled_by])) if self.sampled_by is not None else {}
        ratios = diagnostics.Ratios()
        total = 0.0
        own = own_update(updates)
        stands_still = own.columns["step"] < self.warm_up
        compared_before = stands_still or updates[0] is not own
        own_batches = self._mini_batches(own, updates.index(own))
        if compared_before:
            metrics |= self._mismatch_before(own.columns, own_batches[0])
        start, places = self.updates_done, min(len(own_batches), self.places_of_step)
        for place, update in enumerate([] if stands_still else updates):
            for number, part in enumerate(self._parts(update)):
                scheduled = not update.replayed and number == 0
                for rows in self._mini_batches(part, place):
                    done = self.updates_done - start
                    first = update is own and done == 0
                    schedule_index = self.places_taken + max(0, done - (not scheduled)) * places // len(own_batches)
                    batch = MiniBatch(part, rows, schedule_index, first=first, compares=first and not compared_before)
                    total += self._one_update(batch, ratios, metrics)
                    self.updates_done += scheduled
        self.places_taken += 0 if stands_still else places
        for provider in self.providers.values():
            metrics |= provider.update(own.columns["token"], own.columns)
        self.weights.refresh()
        return self._joined(metrics, ratios, total)

    def _parts(self, update: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """The update, or its parts; the weights are expected to be trained on each before the next is asked for."""
        if update.parts is None:
            yield update
            return
        columns, masks = dict(update.columns), [update.columns["mask"] & mask for mask in update.parts.masks]
        for mask, following in zip(masks, [*masks[1:], None], strict=True):
            narrowed = {"mask": mask, "loss_share": columns["loss_share"] * mask}
            yield replace(update, columns=columns | narrowed, parts=None)
            if following is None:
                return
            with torch.no_grad():
                present = self.passes.per_token(self.passes.log_probs, columns["token"], mask | following)
            columns["advantage"] = update.parts.carry(mask, columns["logp_old"], present)
            columns["logp_old"] = torch.where(following, present, columns["logp_old"])

    def _one_update(self, batch: MiniBatch, ratios: diagnostics.Ratios, metrics: dict[str, float]) -> float:
        """One step of the optimizer on some rows."""
        columns, rows = dict(batch.update.columns), batch.rows
        weighed = algorithm.weigh(
            self.update,
            algorithm.take(columns, rows),
            replayed_separately=batch.update.normalise_separately,
            rows=self.rows,
        )
        columns["weight"] = torch.zeros_like(columns["advantage"])
        columns["weight"][rows] = weighed["weight"]
        live = self._live(columns, rows)
        learns = self.rows.any(len(live) > 0)
        coupled = self._couple(columns["token"], columns, live) if self.update.batch_coupled() and learns else None
        columns, live = self.rows.balanced(columns, live, {*self.update.loss_columns(), *READ})
        batch, objective = replace(batch, rows=live), self.update.objective.fn
        if learns and objective.uses("divisor_loss"):
            divisor = replace(batch, first=False, compares=False, divisor=None)
            self._accumulate(divisor, columns, diagnostics.Ratios(), {})
            metrics["optimizer/clipping_bias"] = norm = self.stepper.take_norm()
            batch = replace(batch, divisor=max(objective.least, norm))
        total = self._accumulate(batch, columns, ratios, metrics)
        if learns:
            stepped = self.stepper.step(batch.schedule_index)
            metrics |= {f"optimizer/{k}": v for k, v in stepped.items()}
        return total if coupled is None else coupled / self.world.size

    def _live(self, columns: dict[str, Any], rows: Tensor) -> Tensor:
        """Those of the rows that a forward pass is made for."""
        live = columns["in_loss"][rows] & columns["mask"][rows].any(1)  # [N] of the rows
        if self.settings.skip_zero_advantage_rows and self.update.zero_advantage_rows_are_skippable():
            live &= (columns["advantage"][rows] != 0).any(1)
        return rows[live]

    def _couple(self, tokens: Tensor, columns: dict[str, Any], rows: Tensor) -> float:
        """The loss of the update, with its derivatives put into the columns for the passes to follow."""
        live = torch.zeros(len(tokens), 1, dtype=torch.bool)  # [B, 1]
        live[rows] = True
        tops = columns["teacher_top_id"].shape[2] if self.update.needs("logp_top") else 0
        width = 2 + self.update.needs("entropy_top_p") + tops
        with torch.no_grad():
            values = self.passes.per_token(partial(self._values, columns), tokens, columns["mask"] & live, values=width)
        taken = algorithm.take(columns, rows) | {"values": values[rows]}
        of_all, own = self.rows.gathered(taken, {*self.update.loss_columns(), "values"})
        total, cached_gradients = algorithm.cached_gradients(self.update, of_all, of_all.pop("values"))
        columns["cached_gradients"] = torch.zeros_like(values)
        columns["cached_gradients"][rows] = cached_gradients[own]
        return total

    def _values(self, columns: dict[str, Any], layout: Layout, ids: Tensor) -> Tensor:
        """What the policy says of a layout's tokens, float32 [M, C], as `algorithm.loss` takes it."""
        named = columns["teacher_top_id"].flatten(0, 1)[layout.target] if self.update.needs("logp_top") else None
        reads = self.update.needs("entropy") or self.update.needs("entropy_top_p")
        return self.passes.log_probs(layout, ids, entropy="gradient" if reads else "value", named=named)

    def _joined(self, metrics: dict[str, float], ratios: diagnostics.Ratios, total: float) -> dict[str, float]:
        """The step's metrics over all processes."""
        return metrics | ratios.summary(self.world) | {"loss/policy": self.world.total(total)}

    def _mini_batches(self, update: PolicyUpdate, place: int) -> list[Tensor]:
        """Row indices of each optimizer update; rows of one group stay together, a group without a row in the loss is left out.

        Args:
            update: a batch of the step.
            place: its index among the step's updates; a replay update shuffles with an RNG stream of its own.
        """
        columns = update.columns
        own_groups = columns["group"][columns["in_loss"]].unique()
        groups = torch.cat(self.rows.world.gather(own_groups)).unique()
        count = min(self.settings.mini_batches, len(groups)) if update.split else 1
        stream = (SHUFFLES, place) if update.replayed else (SHUFFLES,)
        batches: list[Tensor] = []
        for epoch in range(self.settings.epochs if update.split else 1):
            order = groups
            if self.settings.mini_batches > 1:
                draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, *stream)
                order = groups[torch.randperm(len(groups), generator=draw)]
            batches += [torch.isin(columns["group"], part).nonzero().squeeze(1) for part in order.tensor_split(count)]
        return batches

    def _accumulate(
        self, batch: MiniBatch, columns: dict[str, Any], ratios: diagnostics.Ratios, metrics: dict[str, float]
    ) -> float:
        """Gradients of one update. Where memory runs out they are computed again in smaller passes: the same sum."""
        while True:
            tried = diagnostics.Ratios()
            try:
                total = self._passes(batch, columns, tried, metrics)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if self.world.size > 1:  # the others wait for this process in a pass, and cannot be told
                    self.passes.shrink(int(columns["mask"].shape[1]))
                    raise PassTooLarge("memory ran out in a pass of one of several processes") from error
            else:
                ratios.extend(tried)
                return total
            self._halve(int(columns["mask"].shape[1]))  # here, where no error holds the tensors of the pass any more

    def _halve(self, widest: int) -> None:
        """Make the passes smaller after memory ran out."""
        self.optimizer.zero_grad(set_to_none=True)
        self.release_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.passes.shrink(widest)
        self.report.event("out of memory: the passes are made smaller", micro_batch_tokens=self.passes.budget)

    def _passes(
        self, batch: MiniBatch, columns: dict[str, Any], ratios: diagnostics.Ratios, metrics: dict[str, float]
    ) -> float:
        """Add up the gradients of some rows; where the batch says so, compare sampler and trainer."""
        tokens, rows = columns["token"], batch.rows
        total = 0.0
        compared: list[Tokens] = []
        layouts = self.passes.sharded(tokens, columns["mask"], rows)
        for layout, last in parallel.with_last(layouts):
            part = (layout.target // tokens.shape[1]).unique()  # [R], the rows of the pass
            scores = self._values(columns, layout, tokens.flatten()[layout.target])
            if layout.repeat:
                self.weights.backward(scores[:, 0].sum() * 0, last=last)
                continue
            taken = algorithm.take(columns, part)
            values = to_rows(scores, layout.target, part, tokens.shape)  # [R, T, C]
            if "cached_gradients" in taken and batch.divisor is not None:
                loss = (taken["cached_gradients"] * values).sum()
            else:
                loss = algorithm.loss(self.update, taken, values, of_divisor=batch.divisor is None)
            self.weights.backward(loss / (batch.divisor or 1), last=last)
            total += float(loss.detach())
            logp = values[..., 0]
            ratios.add(taken, logp, values[..., 1])
            if batch.compares:
                compared.append(Tokens.of(taken, logp, tokens[part], taken.get(PLACE, part)))
        if batch.compares:
            metrics |= self._mismatch(compared)
        if batch.first and layouts:
            own = rows if self.rows.divided else rows[self.world.rank :: self.world.size]
            metrics |= diagnostics.of_layouts(layouts, columns["mask"], own)
        return total

    def _mismatch_before(self, columns: dict[str, Any], rows: Tensor) -> dict[str, float]:
        """The mismatch of the step's own first mini-batch, with no update made yet; columns as in the step's own update."""
        live = self._live(columns, rows)
        tokens, mask = columns["token"], torch.zeros_like(columns["mask"])
        mask[live] = columns["mask"][live]
        logp = columns["logp_old"]
        if self.settings.old_logp != "trainer":
            with torch.no_grad():
                logp = self.passes.per_token(self.passes.log_probs, tokens, mask)
        taken = algorithm.take(columns, live)
        compared = Tokens.of(taken, logp[live], tokens[live], taken.get(PLACE, live))
        return self._mismatch([compared] if self.world.rank == 0 or self.rows.divided else [])

    def _mismatch(self, compared: list[Tokens]) -> dict[str, float]:
        """The step's sampler-trainer mismatch over all processes, judged before the weights change.

        Where older weights sampled the rows, it is how far the present ones are from those (`staleness/*`), and is not judged.
        """
        parts = self.world.gather_all(compared)
        self.compared = Tokens.join(parts) if parts else None
        if self.compared is None:
            return {}
        if self.sampled_by is None:
            return self._judged(self.compared)
        difference = self.compared.difference
        measured = measure(difference) if len(difference) else {}
        return {name.replace("mismatch/", "staleness/"): value for name, value in measured.items()}

    def differences(self, columns: dict[str, Any]) -> Tokens | None:
        """The tokens whose two log-probs are known after `learn`: with `old_logp: trainer` of all rows, else of the first mini-batch."""
        if "logp_sampler" not in columns:
            return self.compared
        places = columns.get(PLACE, torch.arange(len(columns["token"])))
        return Tokens.of(columns, columns["logp_old"], columns["token"], places)

    def _judged(self, tokens: Tokens) -> dict[str, float]:
        metrics, warning = self.mismatch.judge(tokens)
        if warning:
            self.report.event(warning)
        return metrics

    def state(self) -> dict[str, Any]:
        """Counters, and what is learned beside the weights, for a commit."""
        return {
            "updates": self.updates_done,
            "places": self.places_taken,
            "budget": self.passes.budget,
            "mismatch": self.mismatch.state_dict(),
            "providers": {name: provider.state_dict() for name, provider in self.providers.items()},
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up where `state` left off."""
        self.mismatch.load_state_dict(state["mismatch"])
        self.updates_done, self.places_taken = state["updates"], state["places"]
        self.passes.budget = state["budget"]
        for name, provider in self.providers.items():
            provider.load_state_dict(state["providers"][name])
