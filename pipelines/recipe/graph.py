"""The stages of a recipe as a graph: names, kinds, settings and inputs."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, SerializationInfo, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.fields import LARGEST_SEED, Settings
from pipelines.recipe.stage_kind import BASE, MODEL, Node, Port, Stage, kind_named, stage_kinds


def parse(value: Any) -> Stage:
    """A stage as a recipe writes it: `{kind: sft, data: NAME, ...}`.

    Raises:
        ValidationError: with the fields' places.
        ValueError: it is no section.
    """
    if isinstance(value, Stage):
        return value
    if not isinstance(value, dict):
        raise ValueError("a stage is a section with `kind`, its inputs and its settings")
    if not isinstance(value.get("kind"), str):
        raise _error("kind", f"say which kind of stage it is: {', '.join(stage_kinds())}", value.get("kind"))
    if value["kind"] not in stage_kinds():
        known = did_you_mean(value["kind"][:80], stage_kinds())
        raise _error("kind", f"there is no such kind of stage. {known}".rstrip("."), value["kind"])
    kind = kind_named(value["kind"])
    inputs, endpoints, places = {}, {}, {}
    for port, about in kind.ports.items():
        text = value.get(port)
        if text is None:
            continue
        names = text if isinstance(text, list) else [text]
        if about.endpoint and any(isinstance(name, dict) for name in names):
            endpoints[port] = [name if isinstance(name, dict) else None for name in names] if about.many else text
            places[port] = tuple(place for place, name in enumerate(names) if isinstance(name, dict))
            names = [name for name in names if not isinstance(name, dict)]
            if not about.many or not names:
                continue
        if not all(isinstance(n, str) for n in names) or (isinstance(text, list) and not about.many) or not names:
            wanted = "names of stages, such as [cold, short]" if about.many else "the name of a stage"
            raise _error(port, f"{wanted} is wanted", text)
        if len(set(names)) < len(names):
            raise _error(port, "a stage is named twice", text)
        inputs[port] = tuple(names)
    rest = {k: v for k, v in value.items() if k != "kind" and k not in kind.ports} | endpoints
    seed = None
    if "seed" not in kind.settings.model_fields:
        seed = rest.pop("seed", None)
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED):
            raise _error("seed", "a whole number from 0 is wanted", seed)
    return Stage(kind.name, kind.settings.model_validate(rest), inputs, seed, places)


def _error(name: str, message: str, value: Any) -> ValidationError:
    text = message.replace("{", "{{").replace("}", "}}")
    details = InitErrorDetails(type=PydanticCustomError("stage", text), loc=(name,), input=value)  # type: ignore[arg-type]
    return ValidationError.from_exception_data("stage", [details])


def _written(stage: Stage, info: SerializationInfo) -> dict[str, Any]:
    ports = kind_named(stage.kind).ports
    inputs = {port: list(names) if ports[port].many else names[0] for port, names in stage.inputs.items()}
    fields = stage.settings.model_dump(mode=info.mode, exclude_defaults=info.exclude_defaults)
    for port in ports.keys() & fields.keys():
        asked, read = fields.pop(port), inputs.get(port)
        written = _listed(list(read or []), asked, stage.places.get(port, ())) if ports[port].many else asked or read
        inputs |= {port: written} if written else {}
    return {"kind": stage.kind, **inputs, **({} if stage.seed is None else {"seed": stage.seed}), **fields}


def endpoints(node: Node, port: str) -> list[tuple[int, Any]]:
    """The models behind servers of a port that takes several, each with its place in the recipe's list."""
    asked = getattr(node.settings, port)
    return list(zip(node.stage.places.get(port, range(len(asked))), asked, strict=True))


def _listed(names: list[str], endpoints: list[Any], places: tuple[int, ...]) -> list[Any]:
    """Names of stages and models behind servers as the recipe lists them.

    >>> _listed(["base", "sft"], ["gpt"], (1,)), _listed(["base"], ["gpt"], ())
    (['base', 'gpt', 'sft'], ['base', 'gpt'])
    """
    written = [*names]
    for number, each in enumerate(endpoints):
        written.insert(places[number] if places else len(written), each)
    return written


StageField = Annotated[Stage, PlainValidator(parse), PlainSerializer(_written)]


def arranged(stages: dict[str, Stage]) -> dict[str, Stage]:
    """The stages with their left-out inputs filled in, each after those that it reads, else in the order of the recipe.

    Raises:
        RecipeError: an input names no stage or one that makes something else, is missing, or stages read each other in a circle.
    """
    written, stages = stages, _completed(stages)
    for name, stage in stages.items():
        kind = kind_named(stage.kind)
        for port, about in kind.ports.items():
            _check_port(name, port, about, stage, stages)
        for label, source in kind.links(stage.settings).items():
            _check_link(name, label, source, stages)
    ordered = _sorted(stages)
    place = {name: number for number, name in enumerate([BASE, *ordered])}
    for name, stage in ordered.items():  # inputs that were left out come in the order of the graph
        named = written[name].inputs
        inputs = {p: v if p in named else tuple(sorted(v, key=place.__getitem__)) for p, v in stage.inputs.items()}
        ordered[name] = replace(stage, inputs=inputs)
    return ordered


def _sorted(stages: dict[str, Stage]) -> dict[str, Stage]:
    """The stages, each after those that it reads; of those that may come next always the first of the recipe.

    Raises:
        RecipeError: they read each other in a circle.
    """
    waits_for = {name: set(_read_by(stage)) for name, stage in stages.items()}
    readers: dict[str, list[str]] = {name: [] for name in stages}
    for name, read in waits_for.items():
        for source in read:
            readers[source].append(name)
    place = {name: number for number, name in enumerate(stages)}
    ready = [place[name] for name, read in waits_for.items() if not read]
    names, ordered = list(stages), {}
    while ready:
        name = names[heapq.heappop(ready)]
        ordered[name] = stages[name]
        for reader in readers[name]:
            waits_for[reader].discard(name)
            if not waits_for[reader]:
                heapq.heappush(ready, place[reader])
    if len(ordered) < len(stages):
        raise RecipeError(_circle({name: read for name, read in waits_for.items() if name not in ordered}))
    return ordered


def _completed(stages: dict[str, Stage]) -> dict[str, Stage]:
    makes = {name: kind_named(stage.kind).makes for name, stage in stages.items()}
    completed = {}
    for name, stage in stages.items():
        kind = kind_named(stage.kind)
        missing = {
            port: names
            for port, names in kind.default_inputs(makes).items()
            if port not in stage.inputs and not (kind.ports[port].endpoint and getattr(stage.settings, port))
        }
        completed[name] = replace(stage, inputs={**stage.inputs, **missing})
    return completed


def _read_by(stage: Stage) -> list[str]:
    named = [n for names in stage.inputs.values() for n in names if n != BASE]
    return named + list(kind_named(stage.kind).links(stage.settings).values())


def _check_port(name: str, port: str, about: Port, stage: Stage, stages: dict[str, Stage]) -> None:
    named, field_name = stage.inputs.get(port, ()), f"{name}.{port}"

    def fitting() -> list[str]:
        return _making(about.takes, name, stages)

    if not named and about.required and not (about.endpoint and getattr(stage.settings, port)):
        such = f"such as {fitting()[0]}" if fitting() else f"and none here makes {_or(about.takes)}: add one"
        raise RecipeError(field_name, f"is missing: name the stage whose {_or(about.takes)} it reads, {such}.")
    for source in named:
        if source == BASE and MODEL in about.takes:
            continue
        if source not in stages:
            hint = did_you_mean(source[:80], [*fitting(), *([BASE] if MODEL in about.takes else [])])
            raise RecipeError(field_name, f"there is no stage called {source[:80]!r}", hint)
        makes = kind_named(stages[source].kind).makes
        if makes not in about.takes:
            fix = f"Name one of: {', '.join(fitting())}" if fitting() else "Add a stage that makes it"
            raise RecipeError(
                field_name,
                f"{source} is a stage of kind {stages[source].kind}, which makes {makes}, and {_or(about.takes)} is wanted",
                f"{fix}.",
            )


def _making(takes: tuple[str, ...], name: str, stages: dict[str, Stage]) -> list[str]:
    """The other stages that make what is wanted."""
    return [other for other, stage in stages.items() if other != name and kind_named(stage.kind).makes in takes]


def _check_link(name: str, label: str, source: str, stages: dict[str, Stage]) -> None:
    kind = kind_named(stages[name].kind)
    takes = kind.takes(stages[name].settings, label)
    if source not in stages:
        known = _making(takes, name, stages)
        raise RecipeError(
            f"{name}.{label}",
            f"there is no stage called {source[:80]!r}",
            f"{did_you_mean(source[:80], known)} {kind.link_hint(label)}".rstrip(),
        )
    makes = kind_named(stages[source].kind).makes
    if makes not in takes:
        known = _making(takes, name, stages)
        fix = f"Name one of: {', '.join(known)}" if known else "Add a stage that makes it"
        raise RecipeError(f"{name}.{label}", f"{source} makes {makes}, and {_or(takes)} is wanted", f"{fix}.")


def _or(words: tuple[str, ...]) -> str:
    return " or ".join(words)


def _circle(reads: dict[str, set[str]]) -> str:
    """Where stages read each other in a circle, in words."""
    path = [next(iter(reads))]
    while path.count(path[-1]) == 1:
        path.append(sorted(reads[path[-1]])[0])
    circle = path[path.index(path[-1]) :]
    return (
        f"stages: {' reads '.join(circle)}: a circle. Let {circle[-2]} read another stage, or make rounds of them with "
        f"`repeat`."
    )


def of_sections(sections: dict[str, Settings], checkpoints: Collection[str] | None) -> dict[str, Stage]:
    """The chain that plain sections mean: each reads the newest data and continues with the newest model before it.

    Args:
        sections: kind → settings, in the order of the chain; a stage has the name of its kind.
        checkpoints: of the models and `base`, those that a stage of several models reads; None: all.
    """
    stages: dict[str, Stage] = {}
    newest: dict[str, str] = {}
    models = [BASE]
    for name, settings in sections.items():
        kind = kind_named(name)
        inputs: dict[str, tuple[str, ...]] = {}
        for port, about in kind.ports.items():
            source = next((newest[what] for what in about.takes if what in newest), None)
            if about.many:
                inputs[port] = tuple(m for m in models if checkpoints is None or m in checkpoints)
            elif source is not None:
                inputs[port] = (source,)
        stages[name] = Stage(name, settings, inputs)
        newest[kind.makes] = name
        models += [name] if kind.makes == MODEL else []
    return stages
