"""Rounds: a list of stages that a recipe repeats, unrolled into `NAME-1`, `NAME-2`, ... before anything else sees them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.fields import Label, Strict
from pipelines.recipe.stage_kind import BASE, MODEL, stage_kinds


class Repeat(Strict):
    """Which stages are repeated, how often, and what the first round starts from."""

    rounds: int = Field(ge=1, le=1000)
    stages: list[Label] = Field(min_length=1, max_length=100)
    """In the order of a round."""
    start: dict[Label, Label] = {}
    """A repeated stage → what is read in its place by the first round, where a later round reads the round before it."""


def unrolled(stages: dict[str, dict[str, Any]], written: Any) -> dict[str, dict[str, Any]]:
    """The stages with those of `repeat` once for each round, as NAME-1, NAME-2, ...

    An input that names a repeated stage reads this round's where that stage comes earlier in the list, and the round before's where
    it comes later or is the stage itself; the first round then reads what `start` names. Without any such input the rounds are
    tied by their model: what reads the model that the first round starts from, reads the last model of the round before from the
    second round on. Outside of the list a repeated stage means its last round.

    Args:
        stages: name → fields as written.
        written: the `repeat` section.

    Raises:
        RecipeError: names the field and the fix.
    """
    repeat = _read(written, stages)
    place = {name: number for number, name in enumerate(repeat.stages)}
    backward = {ref for n in repeat.stages for ref in _named(stages[n]) if ref in place and place[ref] >= place[n]}
    for name in repeat.start:
        if name not in backward:
            raise RecipeError(
                f"repeat.start.{name}",
                f"no repeated stage reads {name} of the round before, so nothing would read this",
                f"Have one name {name} as its input, or leave `start` out: rounds are then tied by their model.",
            )
    start = dict(repeat.start) or _start(repeat, stages, place)
    carried = {} if backward or repeat.start else {outside: name for name, outside in start.items()}

    def reader(stage: str, number: int) -> Any:
        def name(ref: str) -> str:
            if ref in place and place[ref] < place[stage]:
                return f"{ref}-{number}"
            if ref in place:
                return f"{ref}-{number - 1}" if number > 1 else _first(stage, ref, start)
            return f"{carried[ref]}-{number - 1}" if ref in carried and number > 1 else ref

        return name

    out: dict[str, dict[str, Any]] = {}
    for name, outer in stages.items():
        if name == repeat.stages[0]:
            for number in range(1, repeat.rounds + 1):
                for repeated in repeat.stages:
                    fields = _with_base(stages[repeated])
                    out[f"{repeated}-{number}"] = _with_names(fields, reader(repeated, number))
        if name not in place:
            out[name] = _with_names(outer, lambda ref: f"{ref}-{repeat.rounds}" if ref in place else ref)
    return out


def _read(written: Any, stages: dict[str, Any]) -> Repeat:
    if not isinstance(written, dict):
        raise RecipeError("repeat", "expected a section with `rounds` and `stages`.")
    try:
        repeat = Repeat.model_validate(written)
    except ValidationError as error:
        from pipelines.recipe.explain import explain

        raise explain(error, {}, Repeat, "repeat") from None
    for field, names in (("stages", repeat.stages), ("start", repeat.start)):
        for name in names:
            if name not in stages:
                raise RecipeError(f"repeat.{field}", f"there is no stage called {name!r}", did_you_mean(name, stages))
    if len(set(repeat.stages)) < len(repeat.stages):
        raise RecipeError("repeat.stages", "a stage is named twice; once is enough.")
    for name in repeat.stages:
        rounds = [f"{name}-{number}" for number in range(1, repeat.rounds + 1)]
        taken = next((each for each in rounds if each in stages), None)
        if taken:
            raise RecipeError(f"stages.{taken}", f"is the name of a round of {name}", "Call one of them otherwise.")
    return repeat


def _start(repeat: Repeat, stages: dict[str, Any], place: dict[str, int]) -> dict[str, str]:
    """The last stage of the list that makes a model → the model outside of it that the list's models start from."""
    last, outside = None, None
    for name in repeat.stages:
        kind = stage_kinds().get(str(stages[name].get("kind")))
        if kind is None or kind.makes != MODEL:
            continue
        last = name
        ports = [p for p, about in kind.ports.items() if MODEL in about.takes and not about.many]
        read = [str(stages[name].get(p) or BASE) for p in ports]
        outside = outside or next((n for n in read if n not in place), None)
    return {last: outside} if last and outside else {}


def _first(stage: str, ref: str, start: dict[str, str]) -> str:
    if ref not in start:
        raise RecipeError(
            "repeat.start",
            f"{stage} reads {ref} of the round before, and the first round has none",
            f"Say what it reads instead: start: {{{ref}: NAME}}.",
        )
    return start[ref]


def _places(fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """(mapping, key) of every place that names a stage."""
    kind = stage_kinds().get(str(fields.get("kind")))
    if kind is None:
        return []
    return [(fields, port) for port in kind.ports if fields.get(port) is not None] + kind.link_fields(fields)


def _named(fields: dict[str, Any]) -> list[str]:
    values = [holder[key] for holder, key in _places(fields)]
    return [n for value in values for n in (value if isinstance(value, list) else [value]) if isinstance(n, str)]


def _with_base(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with `base` in the ports where it is left out, so that rounds after the first can read something else."""
    kind = stage_kinds().get(str(fields.get("kind")))
    ports = kind.ports.items() if kind else ()
    left_out = [p for p, about in ports if MODEL in about.takes and not about.many and fields.get(p) is None]
    return {**fields, **dict.fromkeys(left_out, BASE)}


def _with_names(fields: dict[str, Any], name: Any) -> dict[str, Any]:
    """A copy of a stage's fields in which the stages that it names are called otherwise."""
    copy = _copy(fields)
    for holder, key in _places(copy):
        value = holder[key]
        names = [name(n) if isinstance(n, str) else n for n in (value if isinstance(value, list) else [value])]
        holder[key] = names if isinstance(value, list) else names[0]
    return copy


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
