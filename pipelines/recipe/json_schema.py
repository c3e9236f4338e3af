"""The JSON schema of a recipe (draft 2020-12), for editors: the classes that check a recipe, with the names and settings of methods.

An editor knows less than `whetstone plan`: rules between fields are not in it. Names that a recipe's own plug-ins may bring
(`plugins`), and those that say where something is (`package.module:name`, a path), are left to `whetstone plan`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, models_json_schema

from pipelines.contract import catalogue
from pipelines.contract.card import DIVERGENCE, TERMS
from pipelines.contract.fields import LARGEST_SEED
from pipelines.recipe.monitors import Watch
from pipelines.recipe.read import Recipe, preset_names
from pipelines.recipe.repeat import Repeat
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import MONITORS, PROVIDERS, SLOTS
from pipelines.recipe.stage_kind import BASE, MODEL, Port, stage_kinds
from pipelines.verifiers import registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DOOR = r"[:/]|\.(py|ya?ml)$"
"""A name that says where something is: `package.module:name`, or a path."""
REFERENCE = "#/$defs/"
JsonObject = dict[str, Any]


@cache
def _classes_in(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text())
    return {statement.name: statement for statement in tree.body if isinstance(statement, ast.ClassDef)}


def explanations(cls: type[BaseModel]) -> dict[str, str]:
    """Field → the text below it in its class, in one line.

    >>> from pipelines.recipe.training import Optimizer
    >>> explanations(Optimizer)["final_share"]
    'The learning rate at the end, as a share of its peak.'
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            source = _classes_in(base.__module__).get(base.__name__)
            texts |= dict(_below(source.body)) if source else {}
    return texts


def _below(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            yield statement.target.id, " ".join(str(following.value.value).split())


class _Generator(GenerateJsonSchema):
    """pydantic's, with the texts below the fields as descriptions; without titles, which repeat the names."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of one class."""
        described = super().model_schema(schema)
        cls = schema["cls"]
        described.pop("title", None)
        described["description"] = " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())
        texts = explanations(cls)
        for name, about in described.get("properties", {}).items():
            about.pop("changes_result", None)
            if name in texts:
                about["description"] = texts[name]
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Never."""
        return False


def recipe_schema() -> JsonObject:
    """The schema of a recipe's file; `#/$defs/preset` in it is that of a preset's. Imports every method."""
    kinds = stage_kinds()
    classes: list[type[BaseModel]] = [Recipe, Repeat, *(kind.settings for kind in kinds.values())]
    modes: list[tuple[type[BaseModel], JsonSchemaMode]] = [(cls, "validation") for cls in classes]
    references, generated = models_json_schema(modes, schema_generator=_Generator)
    definitions = generated["$defs"]
    of_class = {cls: references[cls, "validation"]["$ref"].removeprefix(REFERENCE) for cls in classes}
    for slot in (
        *(f"rlvr.{slot}" for slot in SLOTS),
        PROVIDERS,
        MONITORS,
        *(s for k in kinds.values() for s in k.slots),
    ):
        definitions |= _slot(slot)
    for kind in kinds.values():
        _fill_slots(definitions[of_class[kind.settings]], kind.slots, definitions)
    definitions |= _names()
    for name, kind in kinds.items():
        definitions[f"stage.{name}"] = _stage(definitions[of_class[kind.settings]], kind.ports, name)
    definitions["stage"] = _one_of({name: f"stage.{name}" for name in sorted(kinds)})["anyOf"][1]
    definitions |= _known(kinds)
    definitions["preset"] = _preset(definitions[of_class[Rlvr]])
    recipe = definitions.pop(of_class[Recipe])
    _fill_recipe(recipe, of_class[Repeat])
    return {"$schema": DIALECT, "title": "A recipe of Whetstone", **recipe, "$defs": dict(sorted(definitions.items()))}


def text() -> str:
    """The schema as JSON, with a line for each definition."""
    schema = recipe_schema()
    definitions = schema.pop("$defs")
    lines = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in definitions.items()]
    head = [f"{json.dumps(name)}: {json.dumps(about)}" for name, about in schema.items()]
    return "{\n" + ",\n".join([*head, '"$defs": {\n' + ",\n".join(lines) + "\n}"]) + "\n}\n"


def _ref(name: str) -> JsonObject:
    return {"$ref": f"{REFERENCE}{name}"}


def _fill_recipe(recipe: JsonObject, repeat: str) -> None:
    """What pydantic cannot see: presets, rounds, stages by their kind; and names are checked where no plug-in may bring more."""
    fields = recipe["properties"]
    preset = _ref("name.preset")
    fields["presets"] |= {"anyOf": [preset, {"type": "array", "items": preset}, {"type": "null"}]}
    fields["presets"].pop("type", None)
    fields["presets"].pop("items", None)
    fields["repeat"] = {"anyOf": [_ref(repeat), {"type": "null"}]}
    fields["stages"] = {
        "anyOf": [{"type": "object", "additionalProperties": _ref("stage")}, {"type": "null"}],
        "description": fields["stages"]["description"],
    }
    recipe["if"] = {"required": ["plugins"], "properties": {"plugins": {"type": "array", "minItems": 1}}}
    recipe["else"] = _ref("known.recipe")


def _preset(rlvr: JsonObject) -> JsonObject:
    about = {name: {"type": "string"} for name in ("paper", "title", "about")}
    closed = {k: v for k, v in rlvr.items() if k != "description"}
    return {
        **closed,
        "properties": {**about, **rlvr["properties"]},
        "required": ["paper", "title"],
        **_ref("known.rlvr"),
    }


def _names() -> dict[str, JsonObject]:
    """Choices of names: what the tree and the installed plug-ins have, or where something is."""
    from reasoning_gym.factory import DATASETS

    listed = {
        "preset": preset_names(),
        "environment": catalogue.names("environments"),
        "verifier": registry.known(),
        "reasoning_gym": sorted(DATASETS),
    }
    return {f"name.{name}": _choice(names) for name, names in listed.items()}


def _choice(names: list[str]) -> JsonObject:
    return {"anyOf": [{"enum": names}, {"type": "string", "pattern": DOOR}]}


def _slot(slot: str) -> dict[str, JsonObject]:
    """A slot's definitions: its names, each method's settings, one method, and several of them."""
    names = catalogue.names(slot)
    definitions = {f"{slot}.{name}": _method(slot, name) for name in names}
    definitions[f"name.{slot}"] = _choice(names)
    definitions[slot] = _one_of({name: f"{slot}.{name}" for name in names})
    for name in names:
        shared = _term_settings(slot, name)
        if shared is not None:
            definitions |= _terms(slot, definitions, _properties(shared))
            definitions[f"{slot}.{name}"]["properties"]["terms"]["items"] = _ref(f"{slot}.term")
    known = _ref(f"known.{slot}")
    definitions[f"known.{slot}"] = {
        "if": {"type": "string"},
        "then": _ref(f"name.{slot}"),
        "properties": {"kind": _ref(f"name.{slot}"), "terms": {"items": known}},
        "items": known,
    }
    return definitions


def _one_of(definitions: dict[str, str]) -> JsonObject:
    """A method by its name, or as a section with its settings."""
    named = {"anyOf": [{"enum": list(definitions)}, {"type": "string"}]}
    section = _by_kind(definitions)
    section["properties"]["kind"] = named
    return {"anyOf": [named, section]}


def _term_settings(slot: str, name: str) -> type[BaseModel] | None:
    return getattr(catalogue.load(slot, name), "term_settings", None)


def _terms(slot: str, methods: dict[str, JsonObject], shared: JsonObject) -> dict[str, JsonObject]:
    """The methods of a slot as terms of one of them: with what a term says beside its method's own settings."""
    names = [name for name in catalogue.names(slot) if _term_settings(slot, name) is None]
    terms = {
        f"{slot}.term.{name}": methods[f"{slot}.{name}"]
        | {"properties": shared | methods[f"{slot}.{name}"]["properties"]}
        for name in names
    }
    return terms | {f"{slot}.term": _one_of({name: f"{slot}.term.{name}" for name in names})}


def _properties(cls: type[BaseModel]) -> JsonObject:
    """Field → its schema, without references."""
    schema = cls.model_json_schema(schema_generator=_Generator)
    return _inlined(schema["properties"], schema.get("$defs", {}))


def _by_kind(definitions: dict[str, str]) -> JsonObject:
    """A section whose other fields its `kind` decides on."""
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"type": "string"}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": _ref(definition)}
            for kind, definition in definitions.items()
        ],
    }


def _method(slot: str, name: str) -> JsonObject:
    """The settings of a method, beside them what its slot gives to all of them."""
    fn = catalogue.load(slot, name)
    schema = catalogue.settings_model(fn).model_json_schema(schema_generator=_Generator)
    inner = schema.pop("$defs", {})
    fields = {"kind": {"const": name}, **schema.get("properties", {})}
    if slot in TERMS:
        fields["weight"] = {"type": "number", "description": "Factor of the term in the loss."}
    if slot == DIVERGENCE:
        fields["where"] = {"enum": ["loss", "reward"], "default": "loss"}
    if slot == MONITORS:
        fields = _properties(Watch) | fields
    if "terms" in fields:
        fields["terms"] |= {"items": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["kind"]}]}}
    summary = " ".join((fn.__doc__ or "").strip().split("\n\n")[0].split())
    schema |= {"properties": fields, "description": f"{catalogue.card(fn).title}. {summary}"}
    return _inlined(schema, inner)


def _inlined(value: Any, inner: dict[str, Any]) -> Any:
    """A schema with its own definitions written out, since names of classes may repeat among methods."""
    if isinstance(value, dict):
        named = value.get("$ref", "")
        rest = {key: _inlined(each, inner) for key, each in value.items() if key != "$ref"}
        return rest if not named else {**_inlined(inner[named.removeprefix(REFERENCE)], inner), **rest}
    return [_inlined(each, inner) for each in value] if isinstance(value, list) else value


def _fill_slots(section: JsonObject, slots: tuple[str, ...], definitions: JsonObject) -> None:
    """The methods that a section chooses from, in place."""
    fields = section["properties"]
    for name, slot in _slots_of(fields, slots).items():
        types = {part.get("type") for part in fields[name].get("anyOf", ())}
        choices = [_ref(slot)]
        if "array" in types:
            item = f"{slot}.term" if f"{slot}.term" in definitions else slot
            choices.append({"type": "array", "items": _ref(item)})
        if "null" in types:
            choices.append({"type": "null"})
        fields[name] = {"anyOf": choices} | {k: v for k, v in fields[name].items() if k in ("default", "description")}


def _slots_of(fields: JsonObject, slots: tuple[str, ...]) -> dict[str, str]:
    """Field of a section → its slot in the catalogue."""
    named = {"loss": slots[0]} if slots else {}
    if "advantage" in fields:
        named |= {slot: f"rlvr.{slot}" for slot in SLOTS} | {"providers": PROVIDERS}
    return named | ({"monitors": MONITORS} if "monitors" in fields else {})


def _stage(settings: JsonObject, ports: dict[str, Port], kind: str) -> JsonObject:
    """A named stage: `kind`, its inputs, its seed and its settings."""
    fields: JsonObject = {"kind": {"const": kind}}
    for port, about in ports.items():
        text = f"The stage whose {' or '.join(about.takes)} it reads{f', or `{BASE}`' if MODEL in about.takes else ''}."
        name = {"type": "string"}
        many = {"anyOf": [name, {"type": "array", "items": name, "minItems": 1}, {"type": "null"}]}
        fields[port] = {**(many if about.many else {"type": ["string", "null"]}), "description": text}
        if about.endpoint:
            fields[port] = _with_endpoints(fields[port], settings["properties"][port], about.many)
    seed = {"type": ["integer", "null"], "minimum": 0, "maximum": LARGEST_SEED}
    return {**settings, "properties": {"seed": seed, **settings["properties"], **fields}}


def _with_endpoints(stages: JsonObject, section: JsonObject, many: bool) -> JsonObject:
    """What a port takes that names stages, and models behind servers beside them.

    Args:
        section: the field that holds the latter.
    """
    (endpoint,) = [each for each in (section["items"] if many else section)["anyOf"] if "$ref" in each]
    text = f"{stages['description']} Or a model behind a server: a section with `endpoint`."
    if not many:
        return {"anyOf": [{"type": "string"}, endpoint, {"type": "null"}], "description": text}
    each = {"anyOf": [{"type": "string"}, endpoint]}
    listed = {"type": "array", "items": each, "minItems": 1}
    return {"anyOf": [{"type": "string"}, endpoint, listed, {"type": "null"}], "description": text}


def _known(kinds: dict[str, Any]) -> dict[str, JsonObject]:
    """Which names there are, for recipes without plug-ins of their own: one definition for each section, stage and source."""
    definitions: dict[str, JsonObject] = {"known.source": _known_source()}
    for name, kind in kinds.items():
        fields = {
            field: _ref(f"known.{slot}") for field, slot in _slots_of(kind.settings.model_fields, kind.slots).items()
        }
        if "sources" in kind.settings.model_fields:
            fields["sources"] = {"items": _ref("known.source")}
        if "tasks" in kind.settings.model_fields:
            played = {"properties": {"task": _ref("name.environment")}}
            fields["tasks"] = {"items": {"properties": {"environment": played}}}
        definitions[f"known.{name}"] = {"properties": fields}
    stages: list[JsonObject] = [{"if": _is("kind", name), "then": _ref(f"known.{name}")} for name in kinds]
    stages.append({"properties": {"kind": _choice(sorted(kinds))}})
    sections = {name: _ref(f"known.{name}") for name in kinds if name in Recipe.model_fields}
    definitions["known.recipe"] = {"properties": {**sections, "stages": {"additionalProperties": {"allOf": stages}}}}
    return definitions


def _known_source() -> JsonObject:
    tasks = [
        {"if": _is("kind", kind), "then": {"properties": {"task": _ref(f"name.{kind}")}}}
        for kind in ("environment", "reasoning_gym")
    ]
    return {"properties": {"verifier": {"anyOf": [_ref("name.verifier"), {"type": "null"}]}}, "allOf": tasks}


def _is(field: str, value: str) -> JsonObject:
    return {"required": [field], "properties": {field: {"const": value}}}
