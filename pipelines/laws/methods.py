"""The laws of methods, by slot, tried on random columns (`example_columns`)."""

from __future__ import annotations

import copy
import doctest
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipelines.contract.card import CHECKED, Bound, Card
from pipelines.contract.catalogue import bind, load, settings_model, takes
from pipelines.contract.columns import COLUMNS, Phase
from pipelines.contract.method import BASES, Method
from pipelines.contract.monitor import Monitor
from pipelines.contract.rollout import GroupOutcome
from pipelines.laws import NotApplicable, coupling, example_columns, require
from pipelines.laws.doctests import NumberChecker
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr.algorithm import Update, assign_credit, immediate_reward
from pipelines.rlvr.common.part_rules import values_of_turns

ADVANTAGE, CREDIT, OBJECTIVE, DIVERGENCE = "rlvr.advantage", "rlvr.credit", "rlvr.objective", "rlvr.divergence"
CALLED = tuple(f"rlvr.{slot}" for slot in SLOTS if f"rlvr.{slot}" not in BASES)
"""Slots whose methods are called with columns."""
LOSSES = (OBJECTIVE, DIVERGENCE, "rlvr.auxiliary_loss")
VALUES = frozenset({"value", "turn_value", "mc_value"})
"""Columns that say what is still to come: of a critic, or of sampled continuations."""
ROWS, WIDTH, GROUPS = 12, 9, 3
SIZES: dict[str, Any] = {"rows": ROWS, "width": WIDTH, "groups": GROUPS}
"""Of the step that most laws are tried on."""
REPEATS = 25
"""Calls before and after a state is stored."""


@dataclass(frozen=True)
class Subject:
    """A method, with the settings that it is tried with."""

    slot: str
    """As in a plug-in's table: `rlvr.advantage`."""
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fn(self) -> Callable[..., Any]:
        """The method's function or class."""
        return load(self.slot, self.name)

    @property
    def card(self) -> Card:
        """What it says of itself."""
        return self.fn.card  # type: ignore[attr-defined, no-any-return]

    def bound(self) -> Bound:
        """The method as a recipe would bind it."""
        return bind(self.slot, {"kind": self.name, **self.settings})

    def ready(self, columns: Mapping[str, Any]) -> Bound:
        """The method after the hooks that come before its first call."""
        bound = self.bound()
        bound.fn.setup(example_columns.setup_context(sorted(set(columns["problem"].tolist()))))
        bound.fn.on_batch(columns)
        return bound

    def values(self, columns: Mapping[str, Any]) -> Tensor:
        """What the method returns for a step, without the share of each token that stays in the loss."""
        return _values(self.ready(columns)(columns))


Law = Callable[[Subject], None]
LAWS: dict[str, list[Law]] = {}
"""Slot → its laws; "" holds those of every slot."""


def _of(*slots: str) -> Callable[[Law], Law]:
    """Register a law of some slots."""

    def add(law: Law) -> Law:
        for slot in slots:
            LAWS.setdefault(slot, []).append(law)
        return law

    return add


def laws_of(slot: str) -> list[Law]:
    """All laws of a slot's methods; slots of other stages than RLVR have those that every method obeys."""
    return [*LAWS[""], *LAWS.get(slot, [])]


def _values(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _step(**sizes: int) -> dict[str, Any]:
    """The columns of a random step before credit is assigned."""
    return example_columns.random_step(**SIZES | sizes)


def _loss_step(**sizes: int) -> dict[str, Any]:
    """The columns of a random step up to the loss; what exists before credit is that of `_step`."""
    chosen: dict[str, Any] = SIZES | sizes
    return example_columns.random_step(**chosen, phase=Phase.LOSS) | example_columns.random_step(**chosen)


def _changed(columns: dict[str, Any], **changes: Tensor) -> dict[str, Any]:
    """The columns with others in their place, and what each token is paid as these have it."""
    columns = columns | changes
    return columns | {"immediate_reward": immediate_reward(columns)}


_close = torch.testing.assert_close


@_of("")
def declares_itself(method: Subject) -> None:
    """Says its paper, its title and how it was checked, and has a docstring with a worked example; its settings have defaults."""
    card, doc = method.card, method.fn.__doc__ or ""
    require(card.paper and card.title, "its card has no paper or no title")
    require(
        re.split(r" \(|,", card.checked)[0] in CHECKED,
        f"checked={card.checked!r} begins with none of {', '.join(CHECKED)}",
    )
    require(len(doc) > 40, "its docstring does not say what it computes")
    settings_model(method.fn)(**method.settings)
    require(inspect.isclass(method.fn) or ">>>" in doc, "its docstring has no worked example (>>>)")


@_of("")
def worked_example_is_right(method: Subject) -> None:
    """The examples in its docstring come out as they say; numbers to the decimals that are shown."""
    globs = dict(vars(sys.modules[method.fn.__module__]))
    tests = [t for t in doctest.DocTestFinder().find(method.fn, method.name, globs=globs) if t.examples]
    if not tests:
        raise NotApplicable("it has no example")
    output: list[str] = []
    runner = doctest.DocTestRunner(NumberChecker(), verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    failed = sum(runner.run(test, out=output.append).failed for test in tests)
    require(not failed, "".join(output).partition("Failed example:")[2])


@_of(ADVANTAGE)
def advantage_is_finite_and_has_its_shape(method: Subject) -> None:
    """Returns float32 [B] or [B, T], finite, and 0 outside the mask."""
    columns = _step()
    result, mask = method.values(columns), columns["mask"]
    require(
        result.shape in (mask.shape[:1], mask.shape),
        f"its shape is {tuple(result.shape)}; rows and tokens: {tuple(mask.shape)}",
    )
    require(result.dtype == torch.float32, f"its values are {result.dtype}")
    require(torch.isfinite(result).all(), "it has values that are not finite")
    require(result.ndim == 1 or (result[~mask] == 0).all(), "it has values outside the mask")


@_of(ADVANTAGE)
def row_order_does_not_matter(method: Subject) -> None:
    """The same rows in another order get the same values."""
    columns = _step()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))
    moved = {name: value[order] if isinstance(value, Tensor) else value for name, value in columns.items()}
    _close(method.values(columns)[order], method.values(moved))


@_of(ADVANTAGE)
def groups_do_not_leak(method: Subject) -> None:
    """Other rewards in other groups change nothing, unless the card says why (`crosses_groups`)."""
    if method.card.crosses_groups:
        raise NotApplicable(method.card.crosses_groups)
    columns = _step()
    own = columns["group"] == 0
    reward = torch.where(own, columns["reward"], 0.3 * columns["reward"] + 0.5)
    _close(method.values(columns)[own], method.values(_changed(columns, reward=reward, raw_reward=reward))[own])


@_of(ADVANTAGE)
def group_of_one_has_nothing_to_compare_with(method: Subject) -> None:
    """A row that is alone in its group gets 0, unless the card says why not (`group_of_one`, `crosses_groups`)."""
    if method.card.crosses_groups or method.card.group_of_one:
        raise NotApplicable(method.card.group_of_one or "compares with the batch")
    largest = float(method.values(_changed(_step(), group=torch.arange(ROWS))).abs().max())
    require(largest == 0, f"it gives such a row {largest:.6g}")


@_of(ADVANTAGE)
def unscored_rows_stay_out(method: Subject) -> None:
    """A row that could not be scored gets 0, and its reward changes nobody's value."""
    columns = _step()
    unscored = torch.arange(ROWS) == 4
    columns |= {"scored": ~unscored, "in_loss": ~unscored, "mask": columns["mask"] & ~unscored[:, None]}
    high, low = (
        method.values(_changed(columns, reward=torch.where(unscored, reward, columns["reward"])))
        for reward in (99.0, -5.0)
    )
    _close(high, low)
    require(high[4].abs().max() == 0, f"it gives such a row {high[4].abs().max():.6g}")


TURN_OF = torch.tensor([[-1, 0, 0, -1, 1, 1, 2, -1], [-1, 0, 0, 0, -1, 1, -1, -1], [-1, 0, -1, 1, 1, 1, 1, 2]])
"""The turn of each token of three episodes, [B, T]; -1 are tokens that are not the policy's."""
EARNED = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [0.0, 0.25, -1.0]])
"""The reward of each turn, [B, S]."""
BEYOND = torch.tensor([0.0, 2.0, 1.0])
"""What each row earned beyond its turns, [B]."""
LAST_TURN = (2, 1, 2)


def episodes(earned: Tensor = EARNED, *, charged: bool = False) -> dict[str, Any]:
    """Three episodes as columns.

    Args:
        earned: [B, S], the reward of each turn.
        charged: some tokens are paid and charged too, by a reward and a divergence.
    """
    mask = TURN_OF >= 0
    total = earned.sum(1) + BEYOND
    columns = example_columns.columns(mask, torch.zeros(3).long(), total, TURN_OF)
    columns |= {"turn_reward": earned.clone(), "mc_value": torch.where(mask, total[:, None], torch.nan)}
    columns["token_reward"] = torch.where(mask, (torch.arange(8) - 3) / 8, 0.0) if charged else torch.zeros(mask.shape)
    if not charged:
        columns["logp_ref"] = columns["logp_old"].clone()
    return columns


def still_to_come(columns: dict[str, Any], discount: float, *, of_turns: bool = False) -> Tensor:
    """Each token's exact value in `episodes`, or each turn's on all of its tokens, [B, T]: what is paid, summed backwards."""
    values = torch.zeros(TURN_OF.shape, dtype=torch.float64)
    for row, turns in enumerate(TURN_OF.tolist()):
        following, before = 0.0, -1
        for t in reversed(range(len(turns))):
            turn = turns[t]
            if turn < 0:
                continue
            ends = turn != before
            paid = float(columns["token_reward"][row, t] - 0.5 * (columns["logp_old"] - columns["logp_ref"])[row, t])
            if ends:
                paid += float(EARNED[row, turn]) + float(BEYOND[row]) * (turn == LAST_TURN[row])
            following = paid + (discount if ends or not of_turns else 1.0) * following
            values[row, t], before = following, turn
        if of_turns:
            starts = {turn: turns.index(turn) for turn in turns if turn >= 0}
            values[row] = torch.tensor([0.0 if turn < 0 else values[row, starts[turn]] for turn in turns])
    return values.float()


def credited(method: Subject, columns: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The columns after the loop assigned credit by an advantage that is not whitened, with a penalty in the reward."""
    has = settings_model(method.fn).model_fields
    chosen = {name: value for name, value in ({"whiten": False} | settings).items() if name in has}
    advantage = {"kind": method.name, **method.settings, **chosen}
    update = Update.of(Rlvr(advantage=advantage, divergence={"kind": "k1", "where": "reward", "weight": 0.5}))
    return assign_credit(update, columns)


def is_a_weight(method: Subject) -> bool:
    """Whether its values are weights of imitation: never negative, so not centred on what was expected."""
    return bool((method.values(_step()) >= 0).all())


def exact_critic_leaves_no_advantage(method: Subject, discount: float, *, charged: bool) -> None:
    """With values that are exact, in episodes without chance, no token gets an advantage."""
    reads = takes(method.fn)
    if not VALUES & set(reads):
        raise NotApplicable("it reads no value")
    if charged and "mc_value" in reads:
        raise NotApplicable("continuations are scored without what tokens are paid")
    if is_a_weight(method):
        raise NotApplicable("its values are weights, never negative")
    columns = episodes(charged=charged)
    exact = still_to_come(columns, discount, of_turns=method.card.check is values_of_turns or "turn_value" in reads)
    columns["value"] = exact
    of_turn = [(exact * own).sum(1) / own.sum(1).clamp(min=1) for own in (TURN_OF.eq(turn) for turn in range(3))]
    columns["turn_value"] = torch.stack(of_turn, 1)
    columns["turn_action_value"] = columns["turn_value"].clone()
    advantage = credited(method, columns, discount=discount)["advantage"]
    _close(advantage, torch.zeros(TURN_OF.shape), atol=1e-5, rtol=0)
    if "value" in reads:
        less = credited(method, columns | {"value": exact - 0.5}, discount=discount)["advantage"]
        require(less[TURN_OF == 2].min() > 0.1, "a critic that expected less is not surprised")


@_of(ADVANTAGE)
def exact_critic_leaves_nothing(method: Subject) -> None:
    """With values that are exact, in episodes without chance, no token gets an advantage."""
    for discount in (1.0, 0.9):
        exact_critic_leaves_no_advantage(method, discount, charged=False)
    if "mc_value" not in takes(method.fn):
        exact_critic_leaves_no_advantage(method, 0.9, charged=True)


def exact_critic_leaves_nothing_to_share_out(method: Subject, *, charged: bool) -> None:
    """With values that are exact, a credit part leaves the advantage of an episode without chance as it is."""
    if "value" not in takes(method.fn):
        raise NotApplicable("it reads no value")
    columns = episodes(charged=charged)
    columns["value"] = still_to_come(columns, 1.0)
    plain = credited(Subject(ADVANTAGE, "reinforce_pp"), columns)
    _close(_values(method.bound()(plain)), plain["advantage"], atol=1e-5, rtol=0)


@_of(CREDIT)
def exact_critic_shares_nothing_out(method: Subject) -> None:
    """With values that are exact, a credit part leaves the advantage of an episode without chance as it is."""
    for charged in (False, True):
        exact_critic_leaves_nothing_to_share_out(method, charged=charged)


@_of(ADVANTAGE)
def moving_a_reward_between_turns_moves_the_credit(method: Subject) -> None:
    """Where a turn's reward moves to a later turn and the sum stays, the turn that earns it gets more."""
    reads = takes(method.fn)
    if not {"turn_reward", "immediate_reward"} & set(reads):
        raise NotApplicable("it reads no rewards of turns")
    if is_a_weight(method):
        raise NotApplicable("its values are weights, never negative")
    earned = EARNED.clone()
    earned[0] = torch.tensor([0.0, 1.0, 0.5])
    no_value = {"value": torch.zeros(TURN_OF.shape)}
    early, late = (credited(method, episodes(e) | no_value, lam=1.0)["advantage"] for e in (EARNED, earned))
    moved = (late - early).abs()[0] > 1e-4
    require(moved[TURN_OF[0] >= 0].any(), "the credit stays where it was")
    if "group" not in reads:
        require((late > early)[0, TURN_OF[0] == 1].all(), "what the turn earned is not its credit")


@_of(ADVANTAGE, CREDIT)
def what_leaves_the_loss_has_no_advantage(method: Subject) -> None:
    """Where it returns a share of each token too, shares are from 0 to 1, and a token with share 0 has no advantage."""
    columns = _loss_step()
    result = method.ready(columns)(columns)
    if not isinstance(result, tuple):
        raise NotApplicable("every token stays in the loss")
    advantage, share = result
    require(((share >= 0) & (share <= 1)).all(), "a share is below 0 or above 1")
    require((advantage[share == 0] == 0).all(), "a token that left the loss has an advantage")


@_of(*CALLED)
def padding_does_not_matter(method: Subject) -> None:
    """Three columns of padding on the right change nothing."""
    columns = _loss_step()
    mask = columns["mask"]

    def wider(name: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.shape[:2] == mask.shape:
            last = (0, 0) * (value.ndim - 2)
            return torch.nn.functional.pad(value, (*last, 0, 3), value=COLUMNS[name].fill)
        return value

    narrow, wide = method.values(columns), method.values({name: wider(name, value) for name, value in columns.items()})
    if narrow.shape == mask.shape:
        narrow, wide = narrow * mask, wide[:, : narrow.shape[1]] * mask
    _close(narrow, wide)


@_of(*CALLED)
def inputs_are_left_alone(method: Subject) -> None:
    """No column that it is called with is changed in place."""
    columns = _loss_step()
    before = copy.deepcopy(columns)
    method.ready(columns)(columns)
    for name, value in before.items():
        if isinstance(value, Tensor):
            require(torch.equal(value.nan_to_num(-7), columns[name].nan_to_num(-7)), f"it changes the column {name}")


@_of(*(slot for slot in CALLED if slot not in LOSSES or slot == DIVERGENCE))
def couples_what_it_says(method: Subject) -> None:
    """Computed group by group, or row by row, it says the same as of the whole step, where its card says so (`couples`)."""
    if method.bound().couples == "batch":
        raise NotApplicable("it is called with the columns of all rows")
    for bound in coupling.choices(method.bound()):
        needs = coupling.needed(bound)
        require(
            coupling.fits(needs, bound.couples), f"with {bound.settings} it couples a {needs}, not a {bound.couples}"
        )


@_of(OBJECTIVE)
def on_policy_gradient_is_reinforce(method: Subject) -> None:
    """On policy its gradient by the log-probabilities is minus the advantage, unless the card says why not (`not_reinforce`)."""
    if method.card.not_reinforce:
        raise NotApplicable(method.card.not_reinforce)
    columns = _loss_step()
    mask, logp = columns["mask"], columns["logp_old"].clone().requires_grad_()
    if method.card.ratio_level in ("turn", "sequence"):  # one advantage a row
        columns["advantage"] = columns["advantage"].sum(1, keepdim=True) * mask
    method.ready(columns)(columns | {"logp": logp}).mul(mask).sum().backward()
    _close(logp.grad, -columns["advantage"] * mask)


@_of(OBJECTIVE)
def silent_at_zero_advantage(method: Subject) -> None:
    """A row without advantage has no gradient, where the card says so (`zero_gradient_at_zero_advantage`)."""
    if not method.card.zero_gradient_at_zero_advantage:
        raise NotApplicable("its zero-advantage rows have a gradient")
    columns = _loss_step()
    columns["advantage"] = columns["advantage"].clone()
    columns["advantage"][2] = 0
    logp = columns["logp"].clone().requires_grad_()
    method.ready(columns)(columns | {"logp": logp}).mul(columns["mask"]).sum().backward()
    require(logp.grad[2].abs().max() == 0, "its zero-advantage rows have a gradient")


@_of(DIVERGENCE)
def divergence_is_zero_at_home(method: Subject) -> None:
    """Where the policy is the reference the divergence is 0, and in the loss its gradient too."""
    columns = _loss_step()
    logp = columns["logp_ref"].clone().requires_grad_()
    home = method.bound()(columns | {"logp": logp}) * columns["mask"]
    _close(home, torch.zeros_like(home))
    if "loss" in method.card.legal_in:
        home.sum().backward()
        require(logp.grad.abs().max() < 1e-6, "its gradient at the reference is not 0")


@_of(*LOSSES)
def gradient_is_the_value_s_derivative(method: Subject) -> None:
    """Its gradient is the derivative of its value (central differences in float64), unless the card says why not (`stops_gradient`)."""
    if method.card.stops_gradient:
        raise NotApplicable(method.card.stops_gradient)
    columns = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in _loss_step(rows=6, groups=2).items()
    }
    bound = method.ready(columns)
    if hasattr(bound.fn, "anchor"):
        bound.fn.anchor = 0.1
    free = [name for name in ("logp", "entropy", "entropy_top_p", "logp_top") if name in bound.needs]

    def value(*tensors: Tensor) -> Tensor:
        return (bound(columns | dict(zip(free, tensors, strict=True))) * columns["weight"]).sum()

    inputs = [columns[name].clone().requires_grad_() for name in free]
    require(torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-6, rtol=1e-4), "its gradient is another")


@_of("rlvr.loss_aggregation")
def weights_are_not_negative_and_stay_on_the_mask(method: Subject) -> None:
    """Weights are 0 outside the mask, nowhere negative, and not all 0."""
    columns = _step() | {"advantage": _loss_step()["advantage"]}
    weight = method.values(columns)
    require((weight >= 0).all(), "a weight is negative")
    require((weight[~columns["mask"]] == 0).all(), "a token outside the mask has a weight")
    require(weight.sum() > 0, "all weights are 0")


def remembers(method: Subject) -> bool:
    """Whether its class keeps something between steps."""
    fn = method.fn
    bases = (Method, Monitor)
    return inspect.isclass(fn) and any(issubclass(fn, b) and fn.state_dict is not b.state_dict for b in bases)


@_of(*CALLED, "rlvr.curriculum")
def state_survives_json(method: Subject) -> None:
    """What it remembers goes through JSON, and with it another instance goes on alike."""
    if not remembers(method):
        raise NotApplicable("it remembers nothing")
    if method.slot == "rlvr.curriculum":
        _curriculum_goes_on(method)
        return
    columns = _loss_step()
    bound = method.ready(columns)
    begun, at_first = copy.deepcopy(bound.fn.state_dict()), method.ready(columns)(columns)
    for _ in range(REPEATS):
        bound.fn.on_batch(columns)
        bound(columns)
    again = method.bound()
    again.fn.load_state_dict(json.loads(json.dumps(bound.fn.state_dict())))
    last = at_first
    for _ in range(REPEATS):
        bound.fn.on_batch(columns)
        again.fn.on_batch(columns)
        last = bound(columns)
        _close(last, again(columns))
    require(bound.fn.state_dict() == again.fn.state_dict(), "their states differ afterwards")
    moved = bound.fn.state_dict() != begun
    idle = moved and method.slot == "rlvr.shaping" and torch.equal(last, at_first)
    require(not idle, "what it remembers makes no difference")


def _curriculum_goes_on(method: Subject) -> None:
    first, second = method.bound().fn, method.bound().fn
    first.setup(example_columns.setup_context(range(17)))
    proposed = first.propose(11, 4)
    first.observe([GroupOutcome(each.problem, 11, i) for i, each in enumerate(proposed)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    require(first.propose(23, 4) == second.propose(23, 4), "after a restart it proposes other problems")
