"""Find, check and bind methods. A method of the core is a file: its folder is its slot, its stem is its name.

    pipelines/rlvr/advantage/gigpo.py  defines  gigpo  and is chosen by  `advantage: gigpo`

Positional parameters are columns of the batch, keyword-only parameters are settings. A method that remembers, samples or
wants to see rollouts is a class with the same `__call__` that inherits the hooks of `pipelines.contract.method`. Methods of one paper
alone, and people's own, come from plug-ins (`pipelines.base.plugins`).
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, create_model

from pipelines.base import plugins
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.plugins import Origin
from pipelines.contract.card import DIVERGENCE, TERMS, Bound, Card
from pipelines.contract.columns import columns_of, register, withdraw
from pipelines.contract.fields import LARGEST, Strict, message, place
from pipelines.contract.method import BASES, FunctionMethod, Method


def method(*, paper: str, title: str, checked: str, **fields: Any) -> Callable[[Callable], Callable]:
    """Attach the citation. The signature and the docstring are the rest of the declaration."""

    def attach(fn: Callable) -> Callable:
        fn.card = Card(paper=paper, title=title, checked=checked, **fields)  # type: ignore[attr-defined]
        return fn

    return attach


def folder(slot: str) -> Path:
    """Where the project's own methods of a slot (`rlvr.advantage`) live; found without importing anything."""
    return Path(__file__).parents[1].joinpath(*slot.split("."))


def names(slot: str) -> list[str]:
    """Every method of a slot: the files of its folder, and what plug-ins bring. No method is imported."""
    return plugins.names(slot)


def origin(slot: str, name: str) -> Origin | None:
    """Where a method is defined, without importing it; None where there is none of that name."""
    if name in plugins.core_names(slot):
        return Origin("", f"pipelines.{slot}.{name}", name)
    return plugins.origins().get(slot, {}).get(name)


def source_file(slot: str, name: str) -> Path | None:
    """The file that defines a method, without importing it; None where there is no such method, or no such file."""
    where = origin(slot, name)
    if where is None:
        return None
    if where.fn is not None:
        return Path(inspect.getfile(where.fn))
    spec = importlib.util.find_spec(where.module)
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


@cache
def load(slot: str, name: str, field: str | None = None) -> Callable:
    """Import one method and hold it to the contract.

    Args:
        field: where the recipe names it, for messages; default: the slot.

    Raises:
        RecipeError: no method of that name in the slot; or one of the user's asks for something that is not a column, or lacks a card
            or the base class of its slot.
        TypeError: one of the project's own does.
    """
    where = origin(slot, name)
    if where is None:
        raise RecipeError(field or slot, f"no method called {name!r}", did_you_mean(name, names(slot)))
    fn = where.load()

    def refused(problem: str, fix: str = "") -> Exception:
        if where.plugin and not where.module.startswith("pipelines."):
            return RecipeError(field or slot, f"{where.plugin}: {problem}", fix)
        return TypeError(f"{where.plugin or f'{slot}/{name}.py'}: {problem}. {fix}".rstrip())

    if not isinstance(getattr(fn, "card", None), Card):
        raise refused(f"{where.attribute} has no card", "Decorate it with @method(paper=..., title=..., checked=...).")
    if where.plugin:
        register(getattr(sys.modules[fn.__module__], "COLUMNS", {}), where.plugin)
    base = BASES.get(slot, Method if inspect.isclass(fn) else None)
    if base is not None and not (inspect.isclass(fn) and issubclass(fn, base)):
        raise refused(f"{where.attribute} must be a class that inherits from {base.__name__}")
    for column in (*needs(fn), *card(fn).makes):
        if column not in columns_of(slot):
            raise refused(
                f"{where.attribute} reads {column!r}, which is no column", did_you_mean(column, columns_of(slot))
            )
    return fn


def _forget(plugin: str) -> None:
    """A plug-in's file has changed: its methods and columns are to be read again."""
    load.cache_clear()
    withdraw(plugin)


plugins.forgotten.append(_forget)


def load_plugins() -> None:
    """Import every method of the plug-ins, so that the table of columns has theirs too."""
    for slot, methods in plugins.origins().items():
        for name in methods if slot not in plugins.WITHOUT_CARD else ():
            load(slot, name)


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
    """Settings of a method as a pydantic model: its keyword-only parameters, and the fields of `shared_settings` of its class."""
    source = fn.__init__ if inspect.isclass(fn) else fn  # type: ignore[misc]
    hints = inspect.get_annotations(source, eval_str=True)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in inspect.signature(source).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(fn.__name__, __base__=getattr(fn, "shared_settings", Strict), **fields)


def _weight(slot: str, value: Any) -> float:
    try:
        weight = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        weight = float("nan")
    if not abs(weight) <= LARGEST:
        raise RecipeError(f"{slot}.weight", f"a finite number is wanted (got {str(value)[:60]!r}).")
    if slot == DIVERGENCE and weight < 0:
        raise RecipeError(
            f"{slot}.weight",
            f"{weight:g} pays the policy for leaving the reference",
            "Use a number above 0, or 0 to measure the distance only.",
        )
    return weight


def _where(slot: str, value: Any) -> str:
    if value not in ("loss", "reward"):
        raise RecipeError(f"{slot}.where", f"'loss' or 'reward' is wanted (got {str(value)[:60]!r}).")
    return str(value)


def first_refusal(error: ValidationError, model: type[BaseModel]) -> tuple[str, str, str]:
    """The first field that a model of `settings_model` refuses: its name, what is refused of it, and for an unknown one a hint."""
    first = error.errors()[0]
    field = ".".join(place(first))[:120]
    if first["type"] == "extra_forbidden":
        return field, "no such setting", did_you_mean(field, model.model_fields)
    return field, " ".join(message(first).split()), ""


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
        raise RecipeError(where_said, "say which method with `kind`", f"Known: {', '.join(names(slot))}.")
    name = str(fields.pop("kind"))[:120]
    weight = _weight(slot, fields.pop("weight", 1.0)) if slot in TERMS else 1.0
    where = _where(slot, fields.pop("where", "loss")) if slot == DIVERGENCE else "loss"
    fn = load(slot, name, field)
    model = settings_model(fn)
    try:
        settings = model(**fields).model_dump()
    except ValidationError as error:
        field_name, complaint, near = first_refusal(error, model)
        allowed = ", ".join(model.model_fields) or "none"
        hint = f"{near} " if near else ""
        raise RecipeError(f"{where_said}.{field_name}", complaint, f"{hint}Settings of {name}: {allowed}.") from None
    instance = fn(**settings) if inspect.isclass(fn) else FunctionMethod(fn, settings)
    parts = instance.parts() if isinstance(instance, Method) else ()
    needed = tuple(dict.fromkeys([*needs(fn), *(column for part in parts for column in part.needs)]))
    taken = tuple(dict.fromkeys([*takes(fn), *(column for part in parts for column in part.takes)]))
    return Bound(slot, name, settings, needed, taken, instance, card(fn), weight, where)
