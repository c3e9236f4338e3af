"""Parts that are others for the prompts of some sources: rollouts, their token limits, objectives and divergences (`rlvr.by_source`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from pipelines import environments
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind
from pipelines.contract.columns import PerToken, task_number
from pipelines.contract.method import Composed, Rollout, metric_of
from pipelines.data.records import Role, Trajectory

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest

SLOT = "rlvr.rollout"
LOSSES = ("objective", "divergence")
"""Slots of the loss whose part may be another one for a source."""
COUPLING: tuple[Literal["batch", "group", "row"], ...] = ("batch", "group", "row")
"""What may change a row's result, the most first."""
OF_ONE_TURN = ("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "player", "episode")
"""Columns that a single answer has beside episodes: it is an episode of one turn, which is paid what the whole answer earns."""
Route = tuple[int, int]
"""A rollout's place in the list, and the tokens that it may draw; 0 for `sampling.max_tokens`."""


class DividedRollout(Composed, Rollout):
    """Sends each request to the rollout of its problem's source, with the source's token limit.

    Requests that share both are drawn together, the others one part after the other. Random numbers belong to groups, so what a group
    draws does not depend on how the requests are divided. Where some of the rollouts play episodes, the answers of the others are
    episodes of one turn.

    Args:
        rollouts: the stage's own first.
        routes: source → its route, for those that do not have (0, 0).
    """

    def __init__(self, rollouts: Sequence[Bound], routes: Mapping[str, Route]) -> None:
        self.rollouts, self.routes = list(rollouts), dict(routes)
        plays = ["turn" in each.card.makes for each in rollouts]
        self.answers = {place for place, each in enumerate(plays) if any(plays) and not each}
        """Rollouts of single answers beside others that play episodes."""
        for name in ("reads_samples", "reads_episodes", "reads_all_rows", "reads_network", "asks_policy"):
            setattr(self, name, any(getattr(each.fn, name) for each in rollouts))
        self.repeatable = all(each.fn.repeatable for each in rollouts)

    def parts(self) -> list[Bound]:
        """The rollouts, the stage's own first."""
        return self.rollouts

    def plays(self, source: str) -> bool:
        """Whether prompts of a source are episodes, where some are."""
        return self._place(source) not in self.answers

    def _place(self, source: str) -> int:
        return self.routes.get(source, (0, 0))[0]

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All trajectories of the requests, those of one group together."""
        by_route: dict[Route, list[RolloutRequest]] = {}
        for request in requests:
            by_route.setdefault(self.routes.get(request.problem.source, (0, 0)), []).append(request)
        rows: list[Trajectory] = []
        for (place, limit), asked in sorted(by_route.items(), key=lambda each: each[0]):
            sampling = context.sampling.model_copy(update={"max_tokens": limit or context.sampling.max_tokens})
            drawn = self.rollouts[place].fn.run(asked, replace(context, sampling=sampling))
            rows += [as_one_turn(row) for row in drawn] if place in self.answers else drawn
        return rows

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Give each rollout the rows of its own sources."""
        for place, part in enumerate(self.rollouts):
            if part.fn.uses("on_rollouts"):
                own = [row for row in rows if self._place(row.source) == place]
                others = [row for row in rows if self._place(row.source) != place]
                rows = sorted([*others, *part.fn.on_rollouts(own)], key=lambda row: row.group)
        return rows

    def metrics(self) -> dict[str, float]:
        """Those of the rollouts, with the names of these where there are several."""
        if len(self.rollouts) == 1:
            return dict(self.rollouts[0].fn.metrics())
        return {
            metric_of(each.name, name): value for each in self.rollouts for name, value in each.fn.metrics().items()
        }

    def lines(self) -> list[dict[str, Any]]:
        """Those of the rollouts."""
        return [line for each in self.rollouts for line in each.fn.lines()]

    def state_dict(self) -> dict[str, Any]:
        """What the rollouts remember, in their order."""
        return {"rollouts": [each.fn.state_dict() for each in self.rollouts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        for each, own in zip(self.rollouts, state["rollouts"], strict=True):
            each.fn.load_state_dict(own)


def as_one_turn(row: Trajectory) -> Trajectory:
    """A single answer as an episode of one turn that has been paid nothing yet, in place; its state is its prompt."""
    by_policy = [role in (Role.POLICY, Role.TEACHER_FORCED) for role in row.role]
    prompt = [token for token, role in zip(row.tokens, row.role, strict=True) if role == Role.PROMPT]
    row.turn = [0 if chosen else -1 for chosen in by_policy]
    row.turn_state = [environments.key_number(repr(prompt))]
    row.turn_reward, row.turn_belief, row.turn_valid, row.turn_observation = [0.0], [0.0], [1.0], [""]
    return row


def divided(default: Bound, own: Mapping[str, Any], max_tokens: int) -> Bound:
    """The stage's rollout with those of its sources; the stage's own where nothing differs.

    Args:
        default: the stage's own.
        own: source → its settings, `rlvr.by_source`.
        max_tokens: the stage's own.

    Raises:
        RecipeError: a source names an unknown rollout or setting.
    """
    rollouts, routes = [default], {}
    for source, settings in sorted(own.items()):  # states are kept by place, and the recipe's lines may change places
        place = 0
        if settings.rollout is not None:
            bound = bind(SLOT, settings.rollout, f"rlvr.by_source.{source}.rollout")
            alike = [n for n, each in enumerate(rollouts) if (each.name, each.settings) == (bound.name, bound.settings)]
            place = alike[0] if alike else len(rollouts)
            rollouts += [] if alike else [bound]
        limit = 0 if settings.max_tokens in (None, max_tokens) else settings.max_tokens
        if (place, limit) != (0, 0):
            routes[source] = (place, limit)
    if not routes:
        return default
    cards = [each.card for each in rollouts]
    return replace(
        default,
        name=default.name if len(rollouts) == 1 else "by_source",
        settings={},
        needs=_joined(rollouts, "needs"),
        takes=_joined(rollouts, "takes"),
        fn=DividedRollout(rollouts, routes),
        card=replace(
            default.card,
            check=None,
            requires=(),
            makes=_joined(cards, "makes"),
            reads=_joined(cards, "reads"),
            sets_group_size=any(card.sets_group_size for card in cards),
            forces_rows=any(card.forces_rows for card in cards),
            scores_rows=any(card.scores_rows for card in cards),
        ),
    )


class DividedLoss(Composed):
    """An objective or divergence that is another one for the rows of some sources.

    Each part is called with the columns of its own rows alone, as if the update had no others, so a source's loss per token is that of a
    run on these rows. What a token's loss counts is not decided here: `weight` comes from one `loss_aggregation` over the whole update.

    Args:
        losses: the stage's own first, where it has one.
        places: source → its loss's place in the list, for those that do not have the stage's own.
        default: place of the others; None where they have none, and their loss is 0.
    """

    def __init__(self, losses: Sequence[Bound], places: Mapping[str, int], default: int | None) -> None:
        self.losses, self.places, self.default = list(losses), dict(places), default

    def parts(self) -> list[Bound]:
        """The losses, the stage's own first."""
        return self.losses

    def of(self, source: str | None) -> Bound | None:
        """The loss of a source; with None that of sources without one of their own."""
        place = self.default if source is None else self.places.get(source, self.default)
        return None if place is None else self.losses[place]

    def __call__(self, **columns: Any) -> PerToken:
        """Loss per token [B, T], weights of divergences included."""
        place = torch.full_like(columns["task"], -1 if self.default is None else self.default)  # [B]
        for source, own in self.places.items():
            place[columns["task"] == task_number(source)] = own
        losses = torch.zeros_like(columns["logp"])
        for number, loss in enumerate(self.losses):
            rows = (place == number).nonzero().squeeze(1)
            if len(rows):
                own_columns = {name: v[rows] if isinstance(v, Tensor) else v for name, v in columns.items()}
                losses = losses.index_copy(0, rows, loss.weight * loss(own_columns))
        return losses


def divided_loss(slot: str, default: Bound | None, own: Mapping[str, Any]) -> Bound | None:
    """The stage's objective or divergence with those of its sources; the stage's own where nothing differs.

    Args:
        slot: of `LOSSES`.
        default: the stage's own.
        own: source → its settings, `rlvr.by_source`.

    Raises:
        RecipeError: a source names an unknown method or setting.
    """
    losses = [] if default is None else [default]
    places: dict[str, int] = {}
    for source, settings in sorted(own.items()):
        if (spec := getattr(settings, slot)) is not None:
            bound = bind(f"rlvr.{slot}", spec, f"rlvr.by_source.{source}.{slot}")
            alike = [n for n, each in enumerate(losses) if _chosen(each) == _chosen(bound)]
            places[source] = alike[0] if alike else len(losses)
            losses += [] if alike else [bound]
    if not any(place for place in places.values()) and default is not None:
        return default
    if not places:
        return None
    cards, levels = [each.card for each in losses], {each.ratio_level for each in losses}
    return replace(
        losses[0],
        name="by_source",
        settings={},
        weight=1.0,
        needs=tuple(dict.fromkeys([*_joined(losses, "needs"), "task", "logp"])),
        takes=tuple(dict.fromkeys([*_joined(losses, "takes"), "task", "logp"])),
        fn=DividedLoss(losses, places, None if default is None else 0),
        card=replace(
            losses[0].card,
            check=None,
            requires=(),
            makes=_joined(cards, "makes"),
            reads=_joined(cards, "reads"),
            couples=next(level for level in COUPLING if level in {each.couples for each in losses}),
            couples_batch_with=(),
            zero_gradient_at_zero_advantage=all(card.zero_gradient_at_zero_advantage for card in cards),
            ratio_level=levels.pop() if len(levels) == 1 else "",
        ),
    )


def _chosen(bound: Bound) -> tuple[Any, ...]:
    """What tells a bound loss from others of its slot."""
    return bound.name, bound.settings, bound.weight, bound.where


def _joined(parts: Sequence[Any], name: str) -> tuple[str, ...]:
    """The names that some parts list under a field, each once."""
    return tuple(dict.fromkeys(each for part in parts for each in getattr(part, name)))
