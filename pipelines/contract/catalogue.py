"""Find, check and bind methods. A method is a file: its folder is its slot, its stem is its name.

    pipelines/rlvr/advantage/gigpo.py  defines  gigpo  and is chosen by  `advantage: gigpo`

Positional parameters are columns of the batch, keyword-only parameters are settings. A method that remembers, samples or
wants to see rollouts is a class with the same `__call__` that inherits the hooks of `pipelines.contract.method`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from pipelines.contract.columns import columns_of
from pipelines.contract.fields import LARGEST, Strict, message, place
from pipelines.contract.method import BASES, FunctionMethod, Method
from pipelines.errors import RecipeError, did_you_mean

CHECKED = ("official code", "third-party code", "paper", "closed form", "reconstructed")
"""How a method's results were verified; "third-party code" may be followed by which in brackets."""


PROVENANCE = ("rule", "preferences", "step labels", "demonstrations", "judge", "reward model", "model", "policy")
"""What rewards are made from: a program, pairs of answers, labels of steps, somebody's solutions, a language model that is asked, a reward
model of which nothing more is known, a model's probabilities or embeddings, the policy's own answers, probabilities and states."""
DIVERGENCE = "rlvr.divergence"
TERMS = (DIVERGENCE, "rlvr.auxiliary_loss")
"""Slots whose methods are terms of a sum: there `weight` is the term's factor, elsewhere a setting like any other."""


@dataclass(frozen=True)
class Card:
    """What a method says about itself."""

    paper: str
    """arXiv id, DOI, or "folklore"."""
    title: str
    checked: str
    """One of `CHECKED`, possibly with a remark in brackets."""
    zero_gradient_at_zero_advantage: bool = False
    """For objectives: a row whose advantage is 0 everywhere gives zero gradient, so its forward may be skipped."""
    not_reinforce: str = ""
    """For objectives: why on policy its gradient is not REINFORCE's; empty where it is."""
    stops_gradient: str = ""
    """For objectives: where it stops a gradient on purpose, so that its gradient is not the derivative of its value; empty where not."""
    group_of_one: str = ""
    """Why a group of one may get something other than 0; empty where it gets 0."""
    zero_variance_groups: str = ""
    """"learns": gives groups without reward differences a signal; "drops": a filter that removes them."""
    crosses_groups: str = ""
    """Why rows of other groups may change a row's result; empty where, with the default settings, they may not."""
    bootstraps_unfinished: bool = False
    """For advantages: an unfinished row is worth what the critic says at its end, so it trains (with `rlvr.window` at every window), and
    the critic is not fitted to it."""
    turn_values: tuple[str, ...] = ()
    """For advantages that read one value a turn: their settings that a provider of values must be fitted with too."""
    token_values: tuple[str, ...] = ()
    """For advantages that read a value of each token: their settings that a provider of values must be fitted with too."""
    batch_coupled: bool = False
    """For objectives, divergences and auxiliary losses: its loss is no sum over rows; it is computed over a whole update at once."""
    normalise_separately: bool = False
    """For objectives: teacher-forced tokens have denominators of their own. What a replay adds says so itself (`PolicyUpdate`)."""
    shapes_turns: bool = False
    """For shaping: it returns the rewards of turns [B, S] instead of rows; what it adds to a row's turns is added to the row's reward."""
    requires: tuple[tuple[str, str], ...] = ()
    """(slot, method) pairs that the recipe must have too."""
    legal_in: tuple[str, ...] = ()
    """For divergences: the placements ("loss", "reward") where its gradient is correct."""
    makes: tuple[str, ...] = ()
    """Columns that exist because of it."""
    ratio_level: str = ""
    """For objectives: whose ratio it is, "token", "turn" or "sequence"; for credits: whose ratio they correct."""
    tries_out: bool = False
    """For curricula: it samples before it proposes."""
    updates_in_parts: bool = False
    """For replays: an update is made in parts, and all but the first start from the trainer's own log-probabilities."""
    own_group_size: bool = False
    """For rollouts: a group may have other rows than `group_size` says."""
    forces_rows: bool = False
    """For rollouts: some rows hold no token that the policy chose in its place, so a reward cannot tell their steps apart."""
    relabels: bool = False
    """For rollouts: the environment, or where there is none the verifier, must be able to say what a lost row did reach."""
    scores_rows: bool = False
    """For rollouts: it scores its rows itself, some of them by what no verifier of the record's can see."""
    labels_steps: bool = False
    """For rewards: the score is the verifier's, and all that it adds is columns, so something must read one."""
    telescopes: bool = False
    """For shaping of turns: with `discount: 1` a row gets the same in all, whatever it did, as every other row of its problem."""
    compares_steps: bool = False
    """For shaping: a row of a single step is paid nothing, whatever its value."""
    intrinsic: bool = False
    """For shaping: what it adds is a bonus for exploration, which does not depend on the reward; others may fuse it or choose it."""
    leaves_statistics: bool = False
    """For filters: a row it leaves out also leaves the statistics; others keep the row there and take it out of the loss alone."""
    reads: tuple[str, ...] = ()
    """Columns that its hooks want, beside those it is called with."""
    scores_epochs: bool = False
    """For losses of reward models: its `on_epoch` wants the columns of all training pairs, for each head, after each pass over them."""
    adaptive_temperature: bool = False
    """Its `sampling` hook gives each token a temperature of its own."""
    provenance: tuple[str, ...] = ()
    """What the rewards that it pays are made from, of `PROVENANCE`; empty where it pays none, or where its settings say it: a reward
    that names a judge, a reward model or a model to score with; any other is a rule."""
    reduces_to: str = ""
    """What it becomes for which settings."""


def method(*, paper: str, title: str, checked: str, **about: Any) -> Callable[[Callable], Callable]:
    """Attach the citation. The signature and the docstring are the rest of the declaration."""

    def attach(fn: Callable) -> Callable:
        fn.card = Card(paper=paper, title=title, checked=checked, **about)  # type: ignore[attr-defined]
        return fn

    return attach


def folder(slot: str) -> Path:
    """Where the methods of a slot (`rlvr.advantage`) live; found without importing anything."""
    return Path(__file__).parents[1].joinpath(*slot.split("."))


def names(slot: str) -> list[str]:
    """Every method of a slot, read from the folder; nothing is imported."""
    return sorted(p.stem for p in folder(slot).glob("*.py") if not p.stem.startswith("_"))


@cache
def load(slot: str, name: str, field: str | None = None) -> Callable:
    """Import one method and hold it to the contract.

    Args:
        field: where the recipe names it, for messages; default: the slot.

    Raises:
        RecipeError: no method of that name in the slot.
        TypeError: the method asks for something that is not a column, or lacks the base class of its slot.
    """
    if name not in names(slot):
        raise RecipeError(f"{field or slot}: no method called {name!r}. {did_you_mean(name, names(slot))}")
    fn = getattr(importlib.import_module(f"pipelines.{slot}.{name}"), name)
    base = BASES.get(slot, Method if inspect.isclass(fn) else None)
    if base is not None and not (inspect.isclass(fn) and issubclass(fn, base)):
        raise TypeError(f"{slot}/{name}.py: {name} must be a class that inherits from {base.__name__}")
    for column in (*needs(fn), *card(fn).makes):
        if column not in columns_of(slot):
            raise TypeError(f"{slot}/{name}.py: {column!r} is not a column; see pipelines/contract/columns.py")
    return fn


def card(fn: Callable) -> Card:
    """What the method says about itself."""
    return fn.card  # type: ignore[attr-defined]


def needs(fn: Callable) -> tuple[str, ...]:
    """Columns the method reads: its positional parameters, and those that its hooks want."""
    return tuple(dict.fromkeys([*takes(fn), *card(fn).reads]))


@cache
def takes(fn: Callable) -> tuple[str, ...]:
    """Columns the method is called with."""
    if inspect.isclass(fn):
        call = next((vars(c)["__call__"] for c in fn.__mro__ if "__call__" in vars(c)), None)
        if call is None:
            return ()
        fn = partial(call, None)
    return tuple(p.name for p in inspect.signature(fn).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)


@cache
def settings_model(fn: Callable) -> type[BaseModel]:
    """Settings of a method as a pydantic model, read from its keyword-only parameters."""
    source = fn.__init__ if inspect.isclass(fn) else fn  # type: ignore[misc]
    hints = inspect.get_annotations(source, eval_str=True)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in inspect.signature(source).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(fn.__name__, __base__=Strict, **fields)


@dataclass(frozen=True)
class Bound:
    """A method with its settings chosen."""

    slot: str
    name: str
    settings: dict[str, Any]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    fn: Any
    """A `Method`: the class's instance, or the function with its settings in a `FunctionMethod`."""
    card: Card
    weight: float = 1.0
    """Factor of a term in a sum (divergences, auxiliary losses); the method never sees it."""
    where: str = "loss"
    """Placement of a divergence: "loss" or "reward"."""

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        missing = [c for c in self.needs if columns.get(c) is None]
        if missing:
            raise RecipeError(f"{self.slot}: {self.name} needs {', '.join(missing)}, which nothing here produces.")
        return self.fn(**{c: columns[c] for c in self.takes})


def _weight(slot: str, value: Any) -> float:
    try:
        weight = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = float("nan")
    if not abs(weight) <= LARGEST:
        raise RecipeError(f"{slot}.weight: a finite number is wanted (got {str(value)[:60]!r}).")
    if slot == DIVERGENCE and weight < 0:
        raise RecipeError(
            f"{slot}.weight: {weight:g} pays the policy for leaving the reference. Use a number above 0, or 0 to measure the distance only."
        )
    return weight


def _where(slot: str, value: Any) -> str:
    if value not in ("loss", "reward"):
        raise RecipeError(f"{slot}.where: 'loss' or 'reward' is wanted (got {str(value)[:60]!r}).")
    return str(value)


def bind(slot: str, spec: str | Mapping[str, Any], field: str | None = None) -> Bound:
    """Turn `gigpo` or `{kind: gigpo, step_weight: 0.5}` into something to call.

    Args:
        field: where the recipe says so, for messages; default: the slot.

    Raises:
        RecipeError: unknown method, unknown setting or a value out of bounds; the message names the field.
    """
    fields = {"kind": spec} if isinstance(spec, str) else dict(spec)
    where_said = field or slot
    if "kind" not in fields:
        raise RecipeError(f"{where_said}: say which method with `kind`. Known: {', '.join(names(slot))}.")
    name = str(fields.pop("kind"))[:120]
    weight = _weight(slot, fields.pop("weight", 1.0)) if slot in TERMS else 1.0
    where = _where(slot, fields.pop("where", "loss")) if slot == DIVERGENCE else "loss"
    fn = load(slot, name, field)
    model = settings_model(fn)
    try:
        settings = model(**fields).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(place(first))[:120]
        allowed = ", ".join(model.model_fields) or "none"
        hint = did_you_mean(field_name, model.model_fields) if first["type"] == "extra_forbidden" else ""
        complaint = "no such setting" if first["type"] == "extra_forbidden" else message(first)
        text = f"{where_said}.{field_name}: {complaint}. {hint} Settings of {name}: {allowed}."
        raise RecipeError(" ".join(text.split())) from None
    instance = fn(**settings) if inspect.isclass(fn) else FunctionMethod(fn, settings)
    parts = instance.parts() if isinstance(instance, Method) else ()
    needed = tuple(dict.fromkeys([*needs(fn), *(column for part in parts for column in part.needs)]))
    taken = tuple(dict.fromkeys([*takes(fn), *(column for part in parts for column in part.takes)]))
    return Bound(slot, name, settings, needed, taken, instance, card(fn), weight, where)
