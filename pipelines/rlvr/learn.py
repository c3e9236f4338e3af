"""From columns to new weights: what needs a forward pass, the updates of a step, and the state they leave."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from pipelines.contract.method import HiddenStatistics
from pipelines.engine import distribution, models, optimizer, parallel
from pipelines.engine.critic import Critic
from pipelines.engine.layout import Layout, best_layouts
from pipelines.engine.policy import Policy, without_dropout
from pipelines.errors import Interrupted
from pipelines.recipe.settings import Model, Rlvr
from pipelines.rlvr import algorithm, diagnostics
from pipelines.rlvr.mismatch import MismatchMonitor, Tokens
from pipelines.stage.report import Report

SHUFFLES = 2
"""Purpose number of the stream that deals groups to mini-batches."""


class Learner:
    """The policy that is trained, its optimizer, and where asked for a reference and a critic.

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
        self.reference = self._reference()
        self.critic = self._critic()
        self.weights = parallel.Weights(self.model, self.policy.scorer, self.policy.layers, world)
        self.optimizer = optimizer.make(self.model, rlvr.optimizer)
        total = rlvr.steps * rlvr.epochs * min(rlvr.mini_batches, rlvr.prompts)
        self.stepper = optimizer.Stepper(self.optimizer, rlvr.optimizer, total, rlvr.max_bad_steps)
        self.updates_done = 0
        self.mismatch = MismatchMonitor(rlvr.mismatch, model.dtype)
        self.budget = rlvr.micro_batch_tokens
        """Tokens of a forward pass; halved when memory runs out."""
        self.spare: Callable[[], None] = lambda: None
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

    def _reference(self) -> Policy | None:
        """The policy at the start: adapters switched off, or a frozen copy; only where a method reads `logp_ref`."""
        if not self.update.needs("logp_ref"):
            return None
        if self.rlvr.lora:
            return self.policy
        frozen = copy.deepcopy(self.model).requires_grad_(False)
        return Policy(frozen, self.rlvr.sampling, dtype=self.settings.dtype)

    def _critic(self) -> tuple[Critic, torch.optim.Optimizer] | None:
        """A value network and its optimizer, where a method reads `value`."""
        wanted = self.rlvr.critic
        if not self.update.needs("value") or wanted is None:
            return None
        torch.manual_seed(self.seed)
        made = Critic(self.policy.decoder, self.policy.head.in_features, dtype=self.settings.dtype)
        return made, torch.optim.AdamW(made.parameters(), lr=wanted.learning_rate, weight_decay=0.0)

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Put the columns that a method asked for and only a forward pass gives into `columns`."""
        mask = columns["mask"]
        with torch.no_grad():
            if columns["teacher_forced"].any():
                self._fill_forced(tokens, columns)
            if self.reference is not None:
                reference = self.reference
                with reference.reference():
                    columns["logp_ref"] = self._forward(lambda one, ids: reference.score(one, ids)[0], tokens, mask)
            if self.rlvr.old_logp == "trainer":
                recomputed = self._forward(lambda one, ids: self.policy.score(one, ids)[0], tokens, mask)
                columns["logp_sampler"], columns["logp_old"] = columns["logp_old"], recomputed
            if self.critic is not None:
                critic = self.critic[0]
                columns["value"] = self._forward(lambda one, ids: critic(one), tokens, mask)
        hidden = self.update.column_options().get("hidden_stats")
        if hidden is not None:
            columns["hidden_stats"] = self.read_hidden(tokens, mask, hidden)

    def _fill_forced(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """What the sampler would have reported of tokens that it did not choose: the trainer's own values."""
        forced = columns["teacher_forced"]
        own = self._forward(self._said, tokens, forced, kinds=2)
        columns["logp_old"] = torch.where(forced, own[..., 0], columns["logp_old"])
        if "entropy_old" in columns:
            columns["entropy_old"] = torch.where(forced, own[..., 1], columns["entropy_old"])

    def _said(self, layout: Layout, ids: Tensor) -> Tensor:
        """Log-probability and entropies of the layout's tokens, [M, 2 or 3], without gradient."""
        value, spread = self.policy.score(layout, ids, entropy="value")
        assert spread is not None
        return torch.cat([value[:, None], spread.view(len(value), -1)], 1)

    def _forward(self, score: Any, tokens: Tensor, mask: Tensor, kinds: int = 1) -> Tensor:
        """Numbers per scored token as [B, T] on the CPU, [B, T, kinds] for several; each process computes its share."""
        out = torch.zeros(mask.numel(), kinds)
        for layout in self._dealt(tokens, mask, mask.any(1).nonzero().squeeze(1)):
            values = score(layout, tokens.flatten()[layout.target]).cpu()
            if not layout.repeat:
                out[layout.target] = values.view(len(values), -1)[:, :kinds]
        out = sum(self.world.gather(out))  # everybody has zeros where others computed
        return out.view(mask.shape) if kinds == 1 else out.view(*mask.shape, kinds)

    def read_hidden(self, tokens: Tensor, mask: Tensor, statistics: HiddenStatistics) -> Tensor:
        """Statistics of each row's hidden states [n, hidden], float32 [B, K]; 0 for a row without tokens.

        The states are those before the row's masked tokens.
        """
        found: dict[int, list[float]] = {}
        for layout in self._dealt(tokens, mask, mask.any(1).nonzero().squeeze(1)):
            hidden = self.policy.hidden(layout, statistics.layer).cpu()
            rows = layout.target // tokens.shape[1]
            for row in [] if layout.repeat else rows.unique().tolist():
                mine = (rows == row).nonzero().squeeze(1)
                found[row] = statistics.reduce(hidden[mine[layout.target[mine].argsort()]])
        for part in self.world.gather(found):
            found |= part
        width = max((len(v) for v in found.values()), default=1)
        return torch.tensor([found.get(row, [0.0] * width) for row in range(len(tokens))])

    def layouts(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[Layout]:
        """Rows laid out for forward passes within the token budget, common prefixes computed once where it pays."""
        allow = self.policy.takes_masks and self.rlvr.share_prefixes
        whole = self.policy.takes_prefixes and self.world.size == 1 and not self.rlvr.gradient_checkpointing
        layouts = best_layouts(tokens, mask, rows, self.budget, allow_trees=allow, allow_prefixes=whole)
        if 0 < len(layouts) < self.world.size:
            smaller = max(1, sum(layout.size for layout in layouts) // self.world.size)
            layouts = best_layouts(tokens, mask, rows, min(self.budget, smaller), allow_trees=allow)
        return layouts

    def _dealt(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[Layout]:
        """This process's layouts. All processes get equally many: passes are collective, so some are repeats."""
        every = self.layouts(tokens, mask, rows)
        mine = self.world.share(every)
        if every and len(mine) < -(-len(every) // self.world.size):
            mine.append(replace(every[0], repeat=True))
        return mine

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
        if self.critic is not None:
            numbers |= self._fit_critic(tokens, columns)
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
            values = self._forward(self._said, tokens, columns["mask"] & live, kinds=kinds)
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
        self.optimizer.zero_grad(set_to_none=True)
        self.spare()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.budget <= widest:
            raise Interrupted(
                f"out of memory with one row of {widest} tokens in a pass. Use gradient_checkpointing, lora, dtype: bfloat16, "
                "or lower sampling.max_tokens."
            )
        self.budget = max(widest, self.budget // 2)
        self.report.event("out of memory: the passes are made smaller", micro_batch_tokens=self.budget)

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
        layouts = self._dealt(tokens, columns["mask"], rows)
        for layout in layouts:
            part = (layout.target // tokens.shape[1]).unique()
            values, spread = self.policy.score(layout, tokens.flatten()[layout.target], entropy=wanted)
            if layout.repeat:
                (values.sum() * 0).backward()
                continue
            mine = algorithm.take(columns, part)
            assert spread is not None
            said = [values, *spread.view(len(values), -1).unbind(1)]
            logp, entropy, *top = (self._rows(x, layout.target, part, tokens.shape) for x in said)
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

    @staticmethod
    def _rows(values: Tensor, target: Tensor, part: Tensor, shape: torch.Size) -> Tensor:
        """Scored tokens as [rows, T] on the CPU, where the columns live; gradients flow back to their device."""
        place = torch.searchsorted(part, target // shape[1]) * shape[1] + target % shape[1]
        flat = torch.zeros(len(part) * shape[1]).scatter(0, place, values.cpu())
        return flat.view(len(part), shape[1])

    def _fit_critic(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Regress the values on the rewards still to come, undiscounted: unbiased, whatever lambda the policy uses."""
        assert self.critic is not None and self.rlvr.critic is not None
        critic, stepper = self.critic
        mask = algorithm.critic_tokens(self.update, columns)
        target = algorithm.returns(columns).flatten()
        rows = mask.any(1).nonzero().squeeze(1)
        total = 0.0
        for _ in range(self.rlvr.critic.epochs):
            total = 0.0
            for layout in self.layouts(tokens, mask, rows):
                error = critic(layout) - target[layout.target].to(critic.device)
                loss = 0.5 * error.square().sum() / mask.sum()
                loss.backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(critic.parameters(), self.rlvr.optimizer.max_grad_norm)
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        return {"critic/loss": total, "critic/value_mean": float(columns["value"][mask].mean()) if mask.any() else 0.0}

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and counters, for a commit; every process must call."""
        state = {
            "updates": self.updates_done,
            "budget": self.budget,
            "model": self.weights.state(),
            "optimizer": parallel.optimizer_state(self.optimizer),
            "stepper": self.stepper.state_dict(),
            "mismatch": self.mismatch.state_dict(),
        }
        if self.critic is not None:
            state |= {"critic": self.critic[0].state_dict(), "critic_optimizer": self.critic[1].state_dict()}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up where `state` left off."""
        self.weights.load(state["model"])
        parallel.load_optimizer(self.optimizer, state["optimizer"])
        self.stepper.load_state_dict(state["stepper"])
        self.mismatch.load_state_dict(state["mismatch"])
        self.updates_done, self.budget = state["updates"], state["budget"]
        if self.critic is not None:
            self.critic[0].load_state_dict(state["critic"])
            self.critic[1].load_state_dict(state["critic_optimizer"])

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


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the GPU or the CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
