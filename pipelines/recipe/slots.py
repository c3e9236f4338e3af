"""The slots of an rlvr section: which methods fill them, bound to their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pipelines.base.errors import RecipeError, UserError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind
from pipelines.contract.columns import COLUMNS, Phase, phase_of
from pipelines.contract.monitor import Monitor
from pipelines.recipe.monitors import Watch
from pipelines.recipe.settings import Rlvr

SLOTS = (
    "curriculum",
    "prompting",
    "rollout",
    "reward",
    "filter",
    "sampling_schedule",
    "shaping",
    "advantage",
    "credit",
    "replay",
    "objective",
    "divergence",
    "auxiliary_loss",
    "loss_aggregation",
)
PROVIDERS = "rlvr.providers"
MONITORS = "monitor"


def bind_slots(rlvr: Rlvr) -> dict[str, Any]:
    """Every slot's method(s), bound; lists stay lists, an absent divergence is None.

    Raises:
        RecipeError: an unknown method or setting.
    """
    bound: dict[str, Any] = {}
    for slot in SLOTS:
        spec = getattr(rlvr, slot)
        if isinstance(spec, list):
            bound[slot] = [bind(f"rlvr.{slot}", entry) for entry in spec]
        else:
            bound[slot] = None if spec is None else bind(f"rlvr.{slot}", spec)
    if rlvr.by_source:
        from pipelines.contract.by_source import LOSSES, divided, divided_loss

        bound["rollout"] = divided(bound["rollout"], rlvr.by_source, rlvr.sampling.max_tokens)
        bound |= {slot: divided_loss(slot, bound[slot], rlvr.by_source) for slot in LOSSES}
    return bound


def terms_of(field: str, spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(field, settings) of a method, and of each of its `terms` where it is made of several."""
    yield field, spec
    for number, term in enumerate(spec.get("terms") or []):
        yield f"{field}.terms.{number}", {"kind": term} if isinstance(term, str) else term


def bound_list(bound: Mapping[str, Any]) -> list[Bound]:
    """The bound methods of all slots in one list."""
    methods: list[Bound] = []
    for value in bound.values():
        methods += value if isinstance(value, list) else [] if value is None else [value]
    return methods


def learning(methods: list[Bound]) -> list[Bound]:
    """Those that make something of what rows are paid: the advantage and all later phases, without shaping."""
    others = ("rlvr.shaping", PROVIDERS)
    return [each for each in methods if each.slot not in others and phase_of(each.slot) >= Phase.ADVANTAGE]


@dataclass(frozen=True)
class Watched:
    """An entry of a section's `monitors`."""

    method: Bound
    options: Watch

    @property
    def rule(self) -> Monitor:
        """The rule itself."""
        return self.method.fn

    @property
    def name(self) -> str:
        """What it is called in alarms."""
        return self.rule.label or self.method.name

    @property
    def patience(self) -> int:
        """Steps in a row that are an alarm."""
        return self.options.patience or self.rule.patience


def bind_monitors(section: str, specs: list[dict[str, Any]]) -> list[Watched]:
    """The rules of `rlvr.monitors` or `sft.monitors`, with what is done about them.

    Raises:
        RecipeError: an unknown rule or setting, or a limit that cannot be.
    """
    watched = []
    for number, spec in enumerate(specs):
        field = f"{section}.monitors.{number}"
        shared = {name: value for name, value in spec.items() if name in Watch.model_fields}
        try:
            options = Watch.model_validate(shared)
        except ValidationError as error:
            from pipelines.recipe.explain import explain

            raise explain(error, shared, Watch, field) from None
        own = {name: value for name, value in spec.items() if name == "kind" or name not in shared}
        try:
            method = bind(MONITORS, own, field)
        except RecipeError:
            raise
        except UserError as error:
            raise RecipeError(problems=error.inside(field).problems) from None
        except ValueError as error:
            raise RecipeError(field, error) from None
        watched.append(Watched(method, options))
    return watched


def bind_providers(rlvr: Rlvr, methods: list[Bound]) -> list[Bound]:
    """The providers of columns that these methods read: those of the recipe, and those that come by themselves.

    Raises:
        RecipeError: an unknown provider or setting, one named twice, or two that make one column.
    """
    needed = {column for method in methods for column in method.needs}
    needed |= {column for each in bind_monitors("rlvr", rlvr.monitors) for column in each.method.needs}
    chosen = [bind("rlvr.providers", spec) for spec in rlvr.providers]
    names_chosen = [method.name for method in chosen]
    for name in sorted({COLUMNS[column].automatic for column in needed} - {"", *names_chosen}):
        chosen.append(bind(PROVIDERS, name))
    columns = [column for method in chosen for column in method.card.makes]
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise RecipeError("rlvr.providers", f"{repeated[0]} is made twice; leave one provider of it.")
    return [method for method in chosen if needed & set(method.card.makes)]


def column_options(methods: list[Bound]) -> dict[str, Any]:
    """Column → how it is to be made, as the methods ask for it.

    Raises:
        RecipeError: two of them ask for one column in different ways.
    """
    options: dict[str, Any] = {}
    asked_by: dict[str, Bound] = {}
    for method in methods:
        for column, option in method.fn.column_options().items():
            if column in options and options[column] != option:
                first_method = asked_by[column]
                raise RecipeError(
                    method.slot,
                    f"{first_method.name} and {method.name} ask for different values of the column {column}",
                    "Leave one of them out.",
                )
            options[column], asked_by[column] = option, method
    return options
