"""The algorithm with blanks. Nothing here knows a method's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.card import Bound
from pipelines.contract.columns import Phase, phase_of
from pipelines.contract.method import Method, metric_of
from pipelines.contract.provider import Provider
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_slots, bound_list, column_options
from pipelines.rlvr.common.estimate import returns_to_go
from pipelines.rlvr.diagnostics import changed
from pipelines.rlvr.ops import to_tokens
from pipelines.rlvr.ops_turns import last_taken, turns_taken
from pipelines.rlvr.own_rows import ALONE, Rows
from pipelines.rlvr.turn_values import immediate_rewards

ROUNDING = 1e-6
"""Of the sum of the amounts that a difference is taken of: a smaller one is float32's rounding."""

ALL_ROWS = ("on_rollouts", "on_batch")
"""Hooks that are called with all rows of a draw or a step."""


Watch = Callable[[str, Bound, float, int], None]
"""Gets the field of a shaping or credit part, the part, the share of the step that it changed, and the step, from 0."""


@dataclass(frozen=True)
class Update:
    """The methods that turn a batch into a loss."""

    curriculum: Any
    prompting: Any
    rollout: Any
    reward: Any
    filter: Bound
    sampling_schedule: Any
    shaping: list[Bound]
    advantage: Bound
    credit: list[Bound]
    replay: Any
    objective: Bound
    divergence: Bound | None
    auxiliary_loss: list[Bound]
    loss_aggregation: Bound

    @classmethod
    def of(cls, settings: Rlvr) -> Update:
        """Bind every slot of the recipe's section."""
        bound = bind_slots(settings)
        return cls(**{f.name: bound[f.name] for f in fields(cls)})

    def bound(self) -> list[Bound]:
        """All methods, in the order of the slots."""
        return bound_list({f.name: getattr(self, f.name) for f in fields(self)})

    def needs(self, column: str) -> bool:
        """Whether some method reads the column."""
        return any(column in part.needs for part in self.bound())

    def methods(self) -> list[Method]:
        """Every part, in the order of the slots; hooks are called on all of them alike."""
        return [part.fn for part in self.bound()]

    def parts(self) -> list[tuple[str, Bound]]:
        """slot/position/name of each part, and the part."""
        return [(f"{part.slot}/{i}/{part.name}", part) for i, part in enumerate(self.bound())]

    def metrics(self, *, drawing: bool = False) -> dict[str, float]:
        """What the parts after the filter show of a step, or with `drawing` those up to it; of parts of one name, the last.

        What measures time (`time/...`) keeps its name, by which it is known to differ between equal runs.
        """
        return {
            metric_of(f"method/{part.name}", name): value
            for part in self._shown(drawing)
            for name, value in part.fn.metrics().items()
        }

    def lines(self, *, drawing: bool = False) -> list[dict[str, Any]]:
        """What these parts want kept of a step, with the method's name."""
        return [{"method": part.name, **line} for part in self._shown(drawing) for line in part.fn.lines()]

    def _shown(self, drawing: bool) -> list[Bound]:
        return [part for part in self.bound() if (phase_of(part.slot) <= Phase.FILTER) is drawing]

    def state_dict(self) -> dict[str, Any]:
        """slot/position/name → what the part remembers."""
        return {key: part.fn.state_dict() for key, part in self.parts()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        for key, part in self.parts():
            part.fn.load_state_dict(state[key])

    def reward_crosses_groups(self) -> bool:
        """Whether a row's score may depend on rows of other groups."""
        return any(part.card.crosses_groups for part in (self.reward, *self.reward.fn.parts()))

    def why_all(self, providers: Iterable[Provider]) -> str:
        """Why every process must have all rows of a step; empty where each can keep its own.

        Args:
            providers: of columns.
        """
        for part in self.bound():
            where = f"{part.slot}: {part.name}"
            if hooks := [hook for hook in ALL_ROWS if part.fn.uses(hook)]:
                return f"{where} gets all rows ({hooks[0]})"
            if phase_of(part.slot) > Phase.FILTER and part.fn.uses("connect"):
                return f"{where} asks a model about texts"
            if part.fn.reads_all_rows:
                return f"{where} reads all rows"
        if self.filter.couples == "batch":
            return f"{self.filter.slot}: {self.filter.name} compares rows of several groups"
        if self.reward_crosses_groups():
            return "the reward compares rows of several groups"
        reading = [type(provider).__name__ for provider in providers if provider.reads_all_rows]
        return f"rlvr.providers: {reading[0]} reads all rows" if reading else ""

    def column_options(self) -> dict[str, Any]:
        """Column → how it is to be made, as the parts ask for it."""
        return column_options(self.bound())

    def batch_coupled(self) -> bool:
        """Whether the loss is not a sum over rows."""
        return any(
            part is not None and part.card.batch_coupled
            for part in (self.objective, self.divergence, *self.auxiliary_loss)
        )

    def loss_columns(self) -> set[str]:
        """The columns that the parts of the loss read, beside what the policy says of the tokens."""
        parts = [part for part in (self.objective, self.divergence, *self.auxiliary_loss) if part is not None]
        return {name for part in parts for name in part.needs} | {"advantage", "weight", "mask"}

    def zero_advantage_rows_are_skippable(self) -> bool:
        """Whether a row whose advantage is 0 everywhere has zero gradient, whatever the policy says."""
        in_loss = self.divergence is not None and self.divergence.where == "loss"
        return self.objective.card.zero_gradient_at_zero_advantage and not in_loss and not self.auxiliary_loss


def filtered(update: Update, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with rows taken out of the loss by the filter; where its card says so, out of the statistics too."""
    kept = update.filter(columns)
    columns = columns | {"in_loss": columns["in_loss"] & kept}
    if update.filter.card.leaves_statistics:
        columns["scored"] = columns["scored"] & kept
        columns |= {name: columns[name] & kept[:, None] for name in ("mask", "teacher_forced")}
    return columns


@torch.no_grad()
def assign_credit(
    update: Update, columns: dict[str, Any], watch: Watch = lambda *change: None, rows: Rows = ALONE
) -> dict[str, Any]:
    """Run the slots that must see every rollout of the step: shaping, advantage, credit.

    Adds `advantage` [B, T] float32. Teacher-forced tokens in front of the policy's own are no choice of the row's: they start from
    0, and a credit part may give them something. Nothing here carries a gradient. In front of each of the three slots the rewards of a
    row's turns, less what its tokens are charged, add up to its reward, and `immediate_reward` says where all of it is paid. `watch` is
    called after each shaping and credit part. `rows` says whether other processes have other rows of the step.
    """
    columns = dict(columns)
    columns["token_penalty"] = torch.zeros_like(columns["logp_old"])
    columns["loss_share"] = columns["mask"].float()
    columns |= _payments(columns)
    for number, shape in enumerate(update.shaping):
        before, columns = columns, columns | _shaped(shape, columns, rows)
        share = rows.share(*changed(_paid_column(shape), before, columns))
        watch(f"{shape.slot}.{number}", shape, share, columns["step"])
        columns |= _payments(columns)
    if "token_reward" in columns:
        columns = _take_off(torch.where(columns["mask"], -columns["token_reward"], 0.0), columns)
    if update.divergence is not None and update.divergence.where == "reward":
        columns = charge(update.divergence, columns, rows)
    call = rows.call
    if "episode" in update.rollout.card.makes and rows.any(bool((columns["episode"] >= 0).any())):
        from pipelines.rlvr.episodes import Episodes  # few runs have episodes of several rows

        call = Episodes(rows).call
    columns = set_advantage(call(update.advantage, columns), columns)
    hints = columns["teacher_forced"] & (columns["mask"] & ~columns["teacher_forced"]).any(1, keepdim=True)
    columns["advantage"] = columns["advantage"] * ~hints
    for number, credit in enumerate(update.credit):
        before, columns = columns, set_advantage(rows.call(credit, columns), columns)
        share = rows.share(*changed("advantage", before, columns))
        watch(f"{credit.slot}.{number}", credit, share, columns["step"])
    return columns


def _paid_column(part: Bound) -> str:
    """What a shaping part pays, as its card says: `reward`, `turn_reward` or `token_reward`."""
    if "token_reward" in part.card.makes:
        return "token_reward"
    return "turn_reward" if part.card.shapes_turns else "reward"


def _shaped(part: Bound, columns: dict[str, Any], rows: Rows) -> dict[str, Any]:
    """`reward` as a shaping part makes it, `turn_reward` with what that adds to `reward`, or more `token_reward`.

    Unscored rows keep theirs.
    """
    result, scored, paid = rows.call(part, columns).float(), columns["scored"], _paid_column(part)
    if paid == "token_reward":
        return {"token_reward": columns.get("token_reward", 0.0) + result * scored[:, None]}
    if paid == "reward":
        return {"reward": torch.where(scored, result, columns["reward"])}
    turn_reward = torch.where(scored[:, None], result, columns["turn_reward"])
    return {"turn_reward": turn_reward, "reward": columns["reward"] + (turn_reward - columns["turn_reward"]).sum(1)}


def _payments(columns: dict[str, Any]) -> dict[str, Any]:
    """`turn_reward`, where rows have turns, and `immediate_reward` as the present `reward` and `token_penalty` have it."""
    turns = _paid_in_turns(columns)
    return turns | {"immediate_reward": immediate_reward(columns | turns)}


def immediate_reward(columns: dict[str, Any]) -> Tensor:
    """What each token is paid, float32 [B, T], as the other columns have it."""
    turn_reward, turn = columns.get("turn_reward"), columns.get("turn")
    return immediate_rewards(columns["reward"], turn_reward, turn, columns["mask"], columns["token_penalty"])


def _paid_in_turns(columns: dict[str, Any]) -> dict[str, Any]:
    """`turn_reward` with what scored rows earned beyond their turns on the last one: the return of a turn then has what was paid for the
    whole answer, an outcome, by a reward function, another term of a sum or a shaping part.

    What a float's rounding alone makes of the difference is left. `token_penalty` stays at its tokens.
    """
    turn_reward, turn = columns.get("turn_reward"), columns.get("turn")
    if turn_reward is None or turn is None:
        return {}
    earned, paid = columns["reward"].double() + columns["token_penalty"].double().sum(1), turn_reward.double()
    beyond = earned - paid.sum(1)  # [B]; paid is [B, S]
    known = columns["scored"] & (beyond.abs() > ROUNDING * (earned.abs() + paid.abs().sum(1)))
    last = last_taken(turns_taken(turn, columns["mask"], turn_reward.shape[1])) & known[:, None]
    return {"turn_reward": torch.where(last, paid + beyond[:, None], paid).float()}


def charge(penalty: Bound, columns: dict[str, Any], rows: Rows = ALONE) -> dict[str, Any]:
    """Take a divergence off the reward: what each token is charged into `token_penalty`, the row's sum off `reward`."""
    per_token = penalty.weight * rows.call(penalty, columns | {"logp": columns["logp_old"]}) * columns["mask"]
    return _take_off(per_token, columns)


def _take_off(per_token: Tensor, columns: dict[str, Any]) -> dict[str, Any]:
    """With more in `token_penalty`, float [B, T], at its tokens, and the row's sum of it off `reward`."""
    penalty, reward = columns["token_penalty"] + per_token, columns["reward"] - per_token.sum(1)
    columns = columns | {"token_penalty": penalty, "reward": reward}
    return columns | {"immediate_reward": immediate_reward(columns)}


def set_advantage(result: Tensor | tuple[Tensor, Tensor], columns: dict[str, Any]) -> dict[str, Any]:
    """Add `advantage` [B, T] from what an advantage or credit part returned, and where it says so `loss_share`.

    Args:
        result: [B] or [B, T], alone or with the share [B, T] of each token that stays in the loss; shares multiply.
    """
    values, share = result if isinstance(result, tuple) else (result, None)
    mask = columns["mask"]
    columns = columns | {"advantage": to_tokens(values, mask) if values.ndim == 1 else values * mask}
    if share is not None:
        columns["loss_share"] = columns["loss_share"] * share
    return columns


def critic_tokens(update: Update, columns: dict[str, Any]) -> Tensor:
    """bool [B, T], the tokens whose rewards still to come are known: the critic is fitted to them."""
    used = columns["mask"] & columns["scored"][:, None]
    return used & ~columns["unfinished"][:, None] if update.advantage.bootstraps else used


def returns(columns: dict[str, Any], discount: float = 1.0) -> Tensor:
    """Reward still to come from each token in `mask` on, float32 [B, T], with `discount` for each such token: what a critic is fitted to.

    It is a sum of the rewards that the advantages read (`immediate_reward`), wherever those are paid.
    """
    return returns_to_go(immediate_reward(columns), columns["mask"], discount).float()


def term_returns(columns: dict[str, Any]) -> Tensor:
    """What each named term of the reward still pays from each token in `mask` on, float32 [B, T, C].

    A term is paid where its turns were (`turn_reward_terms`), the rest of it on the row's last turn or token: as in `immediate_reward`, of
    which these are parts. What shaping, a divergence or `token_reward` pay belongs to no term.
    """
    terms, mask, turn = columns["reward_terms"], columns["mask"], columns.get("turn")
    none, count = torch.zeros(mask.shape), terms.shape[1]
    of_turns: list[Tensor | None] = [None] * count
    if turn is not None and "turn_reward" in columns:
        width = columns["turn_reward"].shape[1]
        stored = columns.get("turn_reward_terms", torch.zeros(len(terms), 0))
        stored = torch.nn.functional.pad(stored, (0, width * count - stored.shape[1]))
        of_turns = list(stored.view(-1, width, count).unbind(2))
    paid = [
        immediate_rewards(own, by_turn, turn, mask, none)
        for own, by_turn in zip(terms.unbind(1), of_turns, strict=True)
    ]
    return torch.stack([returns_to_go(each, mask, 1.0) for each in paid], -1).float()


@torch.no_grad()
def weigh(
    update: Update, columns: dict[str, Any], *, replayed_separately: bool = False, rows: Rows = ALONE
) -> dict[str, Any]:
    """Add `weight` [B, T]: what each token's loss counts in this optimizer update. Sums over any slices add up.

    Args:
        replayed_separately: replayed rows have denominators of their own.
        rows: whether other processes have other rows of the update.
    """
    if replayed_separately:
        separate = columns["replayed"][:, None] & columns["mask"]
    elif update.objective.card.normalise_separately:
        separate = columns["teacher_forced"]
    else:
        return columns | {"weight": rows.call(update.loss_aggregation, columns)}
    return columns | {"weight": sum(split_weights(update.loss_aggregation, columns, separate, rows))}


def split_weights(
    aggregation: Bound, columns: dict[str, Any], separate: Tensor, rows: Rows = ALONE
) -> tuple[Tensor, Tensor]:
    """Weights [B, T] of two parts of the tokens with denominators of their own: those in `separate` (bool [B, T]), and the others.

    A row belongs to the parts that have a token of it.
    """
    weights = []
    for part in (separate, ~separate):
        inside = part & columns["mask"]
        within = columns | {"loss_share": columns["loss_share"] * inside, "in_loss": columns["in_loss"] & inside.any(1)}
        weights.append(rows.call(aggregation, within))
    return weights[0], weights[1]


def loss(update: Update, columns: dict[str, Any], values: Tensor, *, of_divisor: bool = False) -> Tensor:
    """Loss of any slice of rows, or its objective's `divisor_loss`. Losses of the slices add up to the loss of the optimizer update.

    Args:
        columns: with `advantage` and `weight`.
        values: float32 [B, T, C] with gradient, what the policy says of each token: `logp`, `entropy`, where a part of the loss reads it
            `entropy_top_p`, and `logp_top`.
    """
    tops = 3 if update.needs("entropy_top_p") else 2
    named = dict(zip(("logp", "entropy", "entropy_top_p"), values[..., :tops].unbind(-1), strict=False))
    columns = columns | named | {"logp_top": values[..., tops:]}
    if of_divisor:
        return (update.objective.fn.divisor_loss(columns) * columns["weight"]).sum()
    per_token = update.objective(columns)  # [B, T]
    if update.divergence is not None and update.divergence.where == "loss":
        per_token = per_token + update.divergence.weight * update.divergence(columns)
    for auxiliary in update.auxiliary_loss:
        per_token = per_token + auxiliary.weight * auxiliary(columns)
    return (per_token * columns["weight"]).sum()


def cached_gradients(update: Update, columns: dict[str, Any], values: Tensor) -> tuple[float, Tensor]:
    """The loss of a whole update, and its derivatives by what the policy says of each token.

    A loss that couples rows cannot be added up from slices. Its derivatives can: with them as constant factors, the slices'
    linear losses have exactly its gradient (gradient caching, 2101.06983).

    Args:
        columns: every row of the update, with `advantage` and `weight`.
        values: float32 [B, T, C], as of `loss`.

    Returns:
        the loss, and float32 [B, T, C].
    """
    with torch.enable_grad():
        free = values.detach().requires_grad_()  # [B, T, C]
        total = loss(update, columns, free)
        return float(total.detach()), torch.autograd.grad(total, free)[0]


def take(columns: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """The columns of some rows; numbers that belong to the whole step stay as they are."""
    return {k: v[rows] if isinstance(v, Tensor) else v for k, v in columns.items()}
