"""What the shell offers where somebody presses Tab (`whetstone completion`): commands, options, and the values of arguments.

argcomplete calls the command line itself for each Tab, so nothing here imports what is slow: names and fields are read from the JSON schema
of recipes that comes with the project, runs from the file that lists them, stages from the recipe on the command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILES = ("FILE", "FOLDER", "OUT", "PLUGIN")
"""How an argument that names a file is called (`metavar`)."""
Completer = Callable[..., Any]
JsonObject = dict[str, Any]


def answer(parser: argparse.ArgumentParser, leave: Callable[[int], Any] = os._exit) -> None:
    """Write what may stand at the cursor to where the shell reads it, and leave the process with an exit code."""
    import argcomplete

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                for option in command._actions:
                    _attach(name, option)
    argcomplete.autocomplete(parser, always_complete_options="long", exit_method=leave)


def _attach(command: str, action: argparse.Action) -> None:
    """Give an argument its values: by its name; else files, where it is one; else none."""
    known = BY_COMMAND.get((command, action.dest)) or BY_ARGUMENT.get(action.dest)
    is_file = action.type is Path or action.metavar in FILES
    if known or not (is_file or action.choices):
        action.completer = known or nothing  # type: ignore[attr-defined]


def nothing(**_: Any) -> list[str]:
    """For numbers and names that nobody knows yet."""
    return []


def recipes(prefix: str, **_: Any) -> list[str]:
    """YAML files and folders, and the recipes that come with the project."""
    from argcomplete.completers import FilesCompleter

    from pipelines.recipe import shipped

    return [*FilesCompleter(("yaml", "yml"))(prefix), *(f"recipes/{name}.yaml" for name in shipped.names())]


def recipe_names(**_: Any) -> list[str]:
    """What `whetstone new --from` takes."""
    from pipelines.recipe import shipped

    return shipped.names()


def runs(**_: Any) -> dict[str, str]:
    """Ids of pipeline runs of the project folder, with their names."""
    from tasks.store import index

    return {run["run_id"]: f"{run['status']} {run['name']}" for run in index.runs()} if index.path().is_file() else {}


def models(prefix: str, **_: Any) -> dict[str, str]:
    """RUN[/STAGE]: runs; behind a run's id its stages."""
    run_id, slash, _rest = prefix.partition("/")
    if not slash:
        return runs()
    from tasks.store import index

    known: JsonObject = next((run for run in index.runs() if run["run_id"].startswith(run_id)), {})
    return {f"{run_id}/{stage}": "" for stage in (known.get("summary") or {}).get("stages", {})}


def stages(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The stages of the recipe on the command line."""
    return list(_stage_kinds(parsed_args))


def _stage_kinds(arguments: argparse.Namespace) -> dict[str, str]:
    """Stage → kind."""
    import yaml

    from pipelines.recipe import shipped

    with contextlib.suppress(OSError, ValueError, yaml.YAMLError, TypeError, AttributeError):
        body = yaml.safe_load(shipped.find(arguments.recipe).read_text())
        named = body.get("stages") or {name: {"kind": name} for name in body if f"stage.{name}" in _definitions()}
        return {str(name): str(stage.get("kind")) for name, stage in named.items()}
    return {}


@cache
def _schema() -> JsonObject:
    from pipelines.recipe import shipped

    with contextlib.suppress(OSError, ValueError):
        body: JsonObject = json.loads(shipped.SCHEMA.read_text())
        return body
    return {}


def _definitions() -> JsonObject:
    return _schema().get("$defs", {})  # type: ignore[no-any-return]


def _names(kind: str) -> list[str]:
    return list(_values(_definitions().get(f"name.{kind}", {})))


def presets(prefix: str, **_: Any) -> list[str]:
    """Comma separated names of presets."""
    return _after_comma(prefix, ["all", *_names("preset")])


def methods(**_: Any) -> list[str]:
    """Methods of all slots, and presets."""
    return sorted({name for kind in ("preset", *slots()) for name in _names(kind)})


def slots(**_: Any) -> list[str]:
    """Slots, such as `rlvr.advantage`."""
    places = [name.removeprefix("name.") for name in _definitions() if name.startswith("name.")]
    return [place for place in places if "." in place]


def verifiers(**_: Any) -> list[str]:
    """Verifiers by name."""
    return _names("verifier")


def environments(**_: Any) -> list[str]:
    """Environments by name."""
    return _names("environment")


def systems(**_: Any) -> list[str]:
    """Published systems; the name without what stands in brackets is enough."""
    text = Path(__file__).with_name("systems.yaml").read_text()
    return [name.strip("\"'").split(" (")[0] for name in re.findall(r"^- name: (.*)$", text, re.M)]


def claims(**_: Any) -> list[str]:
    """Systems of which a claim was tried, and the word that runs what is missing."""
    text = Path(__file__).with_name("claims.yaml").read_text()
    return ["run", *(name.strip("\"'") for name in re.findall(r"^- system: (.*)$", text, re.M))]


def assignments(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """FIELD=VALUE[,VALUE]: fields of a recipe, a section at a time; behind `=` the values of those that have a list of them."""
    field, equals, value = prefix.partition("=")
    root = dict(_schema())
    if named := _stage_kinds(parsed_args):
        kinds = {name: {"$ref": f"#/$defs/stage.{kind}"} for name, kind in named.items()}
        root["properties"] = {**root.get("properties", {}), "stages": {"properties": kinds}}
    if equals:
        return [f"{field}={each}" for each in _after_comma(value, [*_values(_field(root, field.split(".")))])]
    *sections, _last = field.split(".")
    offered = _below(_field(root, sections), "".join(f"{name}." for name in sections))
    while len(chosen := [each for each in offered if each.startswith(field)]) == 1 and chosen[0].endswith("."):
        offered = _below(_field(root, chosen[0].split(".")[:-1]), chosen[0])  # one section alone: what is in it
    return offered


def _after_comma(prefix: str, values: list[str]) -> list[str]:
    before = prefix[: prefix.rfind(",") + 1]
    return [before + value for value in values]


def _below(node: Mapping[str, Any], place: str) -> list[str]:
    """The fields of a section: those with fields of their own end with a dot, or may have a value too."""
    offered = []
    for name, field in _properties(node).items():
        if _properties(field):
            offered.append(f"{place}{name}.")
        if not _properties(field) or any(True for _ in _values(field)):
            offered.append(f"{place}{name}=")
    return offered


def _field(node: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    for name in names:
        node = _properties(node).get(name, {})
    return node


def _forms(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A field's schema, and everything else that it may be; settings that depend on a method's name are not among them."""
    if "$ref" in node:
        yield from _forms(_definitions().get(node["$ref"].rpartition("/")[2], {}))
    yield node
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _forms(each)


def _properties(node: Mapping[str, Any]) -> JsonObject:
    return {name: field for form in _forms(node) for name, field in form.get("properties", {}).items()}


def _values(node: Mapping[str, Any]) -> Iterator[str]:
    """The values that a field can have where they are a list of words."""
    for form in _forms(node):
        yield from (str(value) for value in form.get("enum", ()) if isinstance(value, str))
        if form.get("type") == "boolean":
            yield from ("true", "false")


BY_ARGUMENT: dict[str, Completer] = {
    "recipe": recipes, "run": runs, "runs": runs, "names": runs, "model": models, "source": recipe_names, "presets": presets,
    "set": assignments, "tune": assignments, "start": stages, "until": stages, "only": stages, "stage": stages,
    "slot": slots, "verifier": verifiers,
}  # fmt: skip
"""Argument → its values, in every command that has it."""
BY_COMMAND: dict[tuple[str, str], Completer] = {
    ("methods", "name"): methods, ("environments", "name"): environments, ("systems", "name"): systems, ("lineage", "name"): runs,
    ("claims", "names"): claims,
}  # fmt: skip
"""Command and argument → its values."""
