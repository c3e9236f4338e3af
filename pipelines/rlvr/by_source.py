"""Settings by source (`rlvr.by_source`) and terms of a reward that some sources alone pay: rules, and groups of other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipelines.base.errors import DataError, RecipeError, did_you_mean
from pipelines.contract.by_source import LOSSES, OF_ONE_TURN, DividedLoss
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, card, load
from pipelines.contract.columns import COLUMNS
from pipelines.contract.rollout import Allocation
from pipelines.data.records import Problem
from pipelines.recipe.check import check_losses
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers, bind_slots, bound_list, terms_of
from pipelines.recipe.stage_checks import check_episodes, check_sources, feeding

FIELD = "rlvr.by_source"
OF_ALL_ROWS = (
    "connect",
    "setup",
    "sampling",
    "on_rollouts",
    "on_batch",
    "divisor_loss",
    "metrics",
    "lines",
    "state_dict",
)
"""Hooks of a part that is not for the rows of some sources alone: what it is told, keeps or shows is of the whole step."""


def sized(allocations: Sequence[Allocation], problems: Sequence[Problem], rlvr: Rlvr) -> list[Allocation]:
    """What a curriculum proposes, with as many rollouts as the problems' sources have.

    A problem that got another number than the stage's `group_size` gets as many times its source's; never 1 where it had more.
    """
    sizes = {name: own.group_size for name, own in rlvr.by_source.items() if own.group_size is not None}
    scaled = []
    for each in allocations:
        own = sizes.get(problems[each.problem].source, rlvr.group_size)
        rollouts = max(min(each.rollouts, own, 2), round(each.rollouts * own / rlvr.group_size))
        scaled.append(replace(each, rollouts=rollouts))
    return scaled


def named_sources(rlvr: Rlvr) -> Iterator[tuple[str, list[str]]]:
    """(field, sources) wherever the section names sources."""
    if rlvr.by_source:
        yield FIELD, list(rlvr.by_source)
    for where, term in _terms(rlvr):
        if term.get("sources"):
            yield f"{where}.sources", list(term["sources"])


def _terms(rlvr: Rlvr) -> list[tuple[str, dict[str, Any]]]:
    """(field, settings) of each term of the reward."""
    return list(terms_of("rlvr.reward", rlvr.reward))[1:]


def _unpaid(rlvr: Rlvr, sources: Sequence[str]) -> str | None:
    """A source whose prompts no term of the reward pays."""
    limits = [term.get("sources") for _, term in _terms(rlvr)]
    if not limits or not all(limits):
        return None
    return next((source for source in sources if not any(source in limit for limit in limits if limit)), None)


def _no_term(source: str) -> tuple[str, str, str]:
    problem = f"no term pays prompts of the source {source[:80]!r}"
    return "rlvr.reward", problem, "Give one of them its name in `sources`, or leave `sources` out of one."


def require(problems: Sequence[Problem], rlvr: Rlvr) -> None:
    """The sources that the section names have problems in the split, and each source of it is paid by some term.

    Raises:
        DataError: names the field and the sources that there are.
    """
    sources = sorted({problem.source for problem in problems})
    for field, names in named_sources(rlvr):
        if unknown := [name for name in names if name not in sources]:
            problem = f"no record of {rlvr.split} is of the source {unknown[0][:80]!r}"
            raise DataError(field, problem, did_you_mean(unknown[0][:80], sources))
    if (unpaid := _unpaid(rlvr, sources)) is not None:
        raise DataError(*_no_term(unpaid))


def check(node: Any) -> None:
    """What `by_source` and the terms' `sources` say fits the data, and the other methods of the stage.

    Raises:
        RecipeError: the reason and the fix.
    """
    rlvr: Rlvr = node.settings
    for field, names in named_sources(rlvr):
        check_sources(node, field, names)
    known = [source for _, source in feeding(node, rlvr.split)]
    if all(source.task is not None for source in known):
        unpaid = _unpaid(rlvr, [source.label for source in known])
        if unpaid is not None:
            raise RecipeError(*_no_term(unpaid))
    if not rlvr.by_source:
        return
    drawn = [own for own in rlvr.by_source.values() if own.max_tokens or own.group_size or own.rollout]
    if rlvr.window is not None and drawn:
        problem = "a window counts rows in groups of one size and cuts them at one max_tokens"
        raise RecipeError(FIELD, problem, "Leave rlvr.window out, or by_source.")
    bound = bind_slots(rlvr)
    for source, own in rlvr.by_source.items():
        if own.rollout is not None:
            _check_rollout(node, source, str(own.rollout["kind"]), own.rollout)
    _check_losses(rlvr, bound)
    _check_columns(rlvr, bound)


def _check_rollout(node: Any, source: str, kind: str, settings: dict[str, Any]) -> None:
    """A source's own rollout suits its problems, and names nothing that is looked up for the whole stage."""
    field = f"{FIELD}.{source}.rollout"
    rollout: Any = load("rlvr.rollout", kind, field)
    if rollout.reads_samples:
        raise RecipeError(
            field, f"{kind} reads stored completions, and `samples` names those of the whole stage", "Use another one."
        )
    _check_looked_up(field, kind, rollout, settings)
    plays = "turn_reward" in card(rollout).makes
    others = [each.label for _, each in feeding(node, node.settings.split) if each.label != source]
    check_episodes(node, field, kind, node.settings.split, plays, others)


def _check_looked_up(field: str, kind: str, part: Any, settings: dict[str, Any]) -> None:
    """A source's own part names nothing that is looked up for the whole stage."""
    looked_up = [*part.model_paths, *part.reward_models, *part.players, *part.info_fields, "judge"]
    if named := [name for name in looked_up if settings.get(name) is not None]:
        slot = field.rpartition(".")[2]
        raise RecipeError(
            f"{field}.{named[0]}",
            f"models, judges and fields of the records' info are looked up for the stage's own {slot}",
            f"Use {kind} for the whole stage (rlvr.{slot}), or leave {named[0]} out.",
        )


def _check_losses(rlvr: Rlvr, bound: dict[str, Any]) -> None:
    """Losses that differ by source are sums over their own rows, stand in one place, and fit the other methods of the stage each."""
    own: list[tuple[str, Bound]] = []
    for slot in LOSSES:
        if not _divided(bound[slot]):
            continue
        if (spec := getattr(rlvr, slot)) is not None:
            own.append((f"rlvr.{slot}", bind(f"rlvr.{slot}", spec)))
        for source, settings in rlvr.by_source.items():
            if (spec := getattr(settings, slot)) is not None:
                part = bind(f"rlvr.{slot}", spec)
                own.append((f"{FIELD}.{source}.{slot}", part))
                _check_looked_up(own[-1][0], part.name, part.fn, part.settings)
    for field, part in own:
        if reason := _undivided(part):
            raise RecipeError(
                field,
                f"{part.name} {reason}, and sources differ here",
                "Choose another method, or one for all sources.",
            )
        if part.slot.endswith("divergence") and part.where != bound["divergence"].where:
            places = f"{part.where} and {bound['divergence'].where}"
            raise RecipeError(
                field, f"the divergences of the sources are in {places}", "Give all of them the same `where`."
            )
    for name in [None, *rlvr.by_source]:
        of_source = {slot: bound[slot].fn.of(name) if _divided(bound[slot]) else bound[slot] for slot in LOSSES}
        check_losses(bound | of_source)


def _divided(part: Bound | None) -> bool:
    return part is not None and isinstance(part.fn, DividedLoss)


def _undivided(part: Bound) -> str:
    """Why a loss cannot be that of some sources' rows alone; empty where it can."""
    if part.card.batch_coupled:
        return "compares all rows of an update"
    if part.card.normalise_separately:
        return "has denominators of its own"
    hooks = [hook for hook in OF_ALL_ROWS if part.fn.uses(hook)]
    return f"works with all rows of a step ({hooks[0]})" if hooks else ""


def _check_columns(rlvr: Rlvr, bound: dict[str, Any]) -> None:
    """What methods read exists in steps that draw from one source alone; rewards of turns are for episodes."""
    rollouts = bound["rollout"].fn.parts()
    if len(rollouts) < 2:
        return
    columns = [set(each.card.makes) for each in rollouts]
    lacking = {c for c in set.union(*columns) - set.intersection(*columns) - {*OF_ONE_TURN} if COLUMNS[c].field}
    methods = bound_list(bound)
    for method in [*methods, *bind_providers(rlvr, methods)]:
        if needed := sorted(lacking & set(method.needs)):
            without = next(each.name for each, makes in zip(rollouts, columns, strict=True) if needed[0] not in makes)
            raise RecipeError(
                method.slot,
                f"{method.name} reads {needed[0]}, and rows of rollout: {without} have none",
                "Choose another method, or rollouts that all make it.",
            )
    if not bound["rollout"].fn.answers:
        return
    divided = bound["rollout"].fn
    rewards = bound["reward"].fn.parts() or [bound["reward"]]
    for term, reward in zip([term for _, term in _terms(rlvr)] or [{}], rewards, strict=True):
        limited = term.get("sources") or []
        plays = bool(limited) and all(divided.plays(source) for source in limited)
        if (reward.fn.pays_turns or reward.fn.reads_calls) and not plays:
            raise RecipeError(
                "rlvr.reward",
                f"{reward.name} reads the turns of episodes, and some sources have single answers",
                "Make it a term of the reward with `sources: [...]`, those whose rollout plays episodes.",
            )
