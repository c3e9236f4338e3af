"""Read a recipe: defaults, presets, the file, overrides; and say clearly what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pipelines.base import plugins
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.project import resource
from pipelines.base.secrets import secrets_in
from pipelines.contract.fields import Label, Line, Seed, Strict
from pipelines.contract.model_settings import Model
from pipelines.recipe import references, shipped, yaml_text
from pipelines.recipe import settings as s
from pipelines.recipe.explain import cut as _cut
from pipelines.recipe.explain import explain
from pipelines.recipe.explain import shown as _shown
from pipelines.recipe.graph import StageField, arranged, of_sections
from pipelines.recipe.launch import Launch
from pipelines.recipe.repeat import unrolled
from pipelines.recipe.sandbox import Sandbox
from pipelines.recipe.slots import SLOTS
from pipelines.recipe.stage_kind import BASE, SCORES, Node, Stage, stage_kinds
from pipelines.recipe.training import lora_fields

PRESETS = resource("recipes") / "presets"
SECTIONS = ("curate", "sft", "rlvr", "evaluate")
"""The plain sections: a chain of one stage each, in this order."""
FIRST = ("plugins", "presets")
"""Fields that say what other fields may hold; they are read first."""


class Recipe(Strict):
    """A whole pipeline run, resolved and checked."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    seed: Seed = 0
    threads: int | None = s.free(None, ge=1, le=4096)
    """CPU threads per stage process; default: half the cores' hyper-threads, at least 1."""
    presets: list[str] = []
    plugins: list[Line] = []
    """Where methods of one's own come from: `.py` files, or modules that can be imported, each with a table `PARTS` (docs/plugins.md)."""
    sandbox: Sandbox = "auto"
    """How programs of a model are confined. `auto`: namespaces, else landlock, else the run refuses to start. With
    `limits_only` programs are not confined: they can read and write whatever the user can. `{url: ...}`: a server runs them."""
    concurrent_stages: int = s.free(1, ge=1, le=64)
    """How many stages that do not depend on each other run at the same time; two trainings on few cores are slower together."""
    model: Model
    curate: s.Curate | None = None
    """Required where the recipe has no `stages`."""
    sft: s.Sft | None = None
    rlvr: s.Rlvr | None = None
    evaluate: s.Evaluate | None = None
    stages: dict[Label, StageField] = {}
    """Instead of the four sections: any number of named stages."""
    tracking: s.Tracking = s.Tracking()
    gate: s.Gate | None = s.free(None)
    """After the evaluation: is the model worse than the champion?"""
    notify: s.Notify | None = s.free(None)
    """Messages to people, by webhook and mail."""
    launch: Launch | None = s.free(None)
    """Stages that run as jobs of a cluster's scheduler."""

    @property
    def graph(self) -> dict[str, Stage]:
        """Name → stage, each after those that it reads."""
        if self.stages:
            return self.stages
        sections = {name: getattr(self, name) for name in SECTIONS if getattr(self, name) is not None}
        return of_sections(sections, self.evaluate.checkpoints if self.evaluate else None)

    def stage_names(self) -> list[str]:
        """The stages this recipe has, in order."""
        return list(self.stages) or [name for name in SECTIONS if getattr(self, name) is not None]

    def node(self, name: str) -> Node:
        """A stage with what it sees of the others."""
        return Node(self, name, self.graph[name])

    def nodes(self) -> list[Node]:
        """All stages, in order."""
        return [Node(self, name, stage) for name, stage in self.graph.items()]

    @property
    def base_maker(self) -> str | None:
        """The stage that keeps the fresh base model beside its own; None where the base is a folder or nobody makes it."""
        makers = [n for n in self.nodes() if n.kind.makes_base and n.reads_base]
        return makers[0].name if makers and self.model.fresh is not None else None


def read_recipe(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """Read and check the fields of a recipe. Methods are checked by `check`, which imports torch.

    Args:
        path: a YAML file; `recipes/NAME.yaml` is the project's own where the working folder has none.
        overrides: `rlvr.steps=3` and the like; values are YAML.

    Raises:
        RecipeError: names the field and the fix.
    """
    return resolve(yaml_text.load(shipped.find(path)), overrides)


def resolve(body: dict[str, Any], overrides: list[str] | None = None) -> Recipe:
    """The recipe that the fields of a file are, with its presets and overrides; `body` is changed.

    Raises:
        RecipeError: as `read_recipe`.
    """
    named = _named_stages(body)
    changes = [_unprefixed(text) if named is not None else text for text in overrides or []]
    for change in changes:
        if _field_of(change).split(".")[0] in FIRST:
            apply_override(body, change)
    plugins.activate(_plugins(body))
    merged: dict[str, Any] = {}
    for preset in _presets(body):
        merged.update(read_preset(preset))
    changes = [change for change in changes if _field_of(change).split(".")[0] not in FIRST]
    if named is not None:
        _read_named(body, named, merged, changes)
    else:
        _read_sections(body, merged, changes)
    references.activate(_sections(body))
    for field, secret in secrets_in(body):
        raise RecipeError(
            field,
            f"the address holds {secret}, and a recipe is stored and logged",
            "Leave it out; keys come from environment variables (rlvr.sampler.api_key_env names one).",
        )
    try:
        recipe = Recipe.model_validate(body)
    except ValidationError as error:
        raise explain(error, body, Recipe) from None
    if not recipe.stages and recipe.curate is None:
        raise RecipeError(
            "curate", "this field is required", "Add the section, or name the recipe's stages in `stages`."
        )
    recipe = recipe.model_copy(update={"stages": arranged(recipe.stages)}) if recipe.stages else _unlinked(recipe)
    _check_gate(recipe)
    if recipe.launch is not None:
        from pipelines.recipe import launch_check

        launch_check.check(recipe.launch, {node.name: node for node in recipe.nodes()})
    return recipe


def _check_gate(recipe: Recipe) -> None:
    """The benchmarks of a recipe's gate are evaluated, and the base where it is asked for.

    Raises:
        RecipeError: names the field and the fix.
    """
    if recipe.gate is None:
        return
    evaluations = [node for node in recipe.nodes() if node.kind.makes == SCORES]
    tasks = [task.name for node in evaluations for task in getattr(node.settings, "tasks", ())]
    if not tasks:
        raise RecipeError("gate", "this recipe has no evaluation", "Add the section evaluate, or leave the gate out.")
    for name in recipe.gate.not_worse:
        if name not in tasks:
            raise RecipeError(
                f"gate.not_worse.{name}", "no evaluation asks a benchmark of this name", did_you_mean(name, tasks)
            )
    if recipe.gate.against == BASE and not any(BASE in node.labels for node in evaluations):
        raise RecipeError("gate.against", "the base is not evaluated", "Add base to evaluate.checkpoints.")


def _sections(body: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """The name of each stage → its kind and its fields, as they are written."""
    named = body.get("stages") or {
        name: {"kind": name, **body[name]} for name in SECTIONS if isinstance(body.get(name), dict)
    }
    return {name: (str(fields.get("kind")), fields) for name, fields in named.items() if isinstance(fields, dict)}


def _unlinked(recipe: Recipe) -> Recipe:
    """A recipe of plain sections, whose stages have no names that a setting could tell.

    Raises:
        RecipeError: a setting names a stage.
    """
    for node in recipe.nodes():
        for label, name in node.kind.links(node.settings).items():
            hint = f"name the stages under `stages`. {node.kind.link_hint(label)}".rstrip()
            raise RecipeError(f"{node.name}.{label}", f"{name[:80]!r} is to be a stage; {hint}")
    return recipe


def _read_sections(body: dict[str, Any], preset: dict[str, Any], changes: list[str]) -> None:
    """Presets and overrides of the four plain sections, in place."""
    for section in ("sft", "rlvr"):
        fields = body.get(section)
        if fields is not None and not isinstance(fields, dict):
            raise RecipeError(section, f"expected a section with fields (got {_shown(fields)}).")
    if preset or body.get("rlvr") is not None:
        body["rlvr"] = {**preset, **(body.get("rlvr") or {})}
    for change in changes:
        apply_override(body, change)


def _named_stages(body: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The `stages` section; None where the recipe has plain sections.

    Raises:
        RecipeError: it is no section, it has a name that is taken, or there are plain sections beside it.
    """
    named = body.get("stages")
    if named is None or named == {}:
        if body.get("repeat") is not None:
            raise RecipeError("repeat", "repeats named stages, and this recipe has none; write it with `stages`.")
        body.pop("repeat", None)
        body.pop("stages", None)
        return None
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named):
        raise RecipeError(
            "stages", f"expected a section of stages, such as cold: {{kind: sft, ...}} (got {_shown(named)})."
        )
    beside = [name for name in SECTIONS if body.get(name) is not None]
    if beside:
        raise RecipeError(beside[0], "a recipe has either `stages` or plain sections", "Move it into stages.")
    for name, fields in named.items():
        if (name in Recipe.model_fields and name not in SECTIONS) or name in ("base", "repeat"):
            raise RecipeError(
                f"stages.{name}", "this name means something else in a recipe", "Call the stage otherwise."
            )
        if not isinstance(fields, dict):
            raise RecipeError(name, f"expected a section with `kind` and fields (got {_shown(fields)}).")
    for name in SECTIONS:
        body.pop(name, None)  # sections that are null
    return named


def _unprefixed(change: str) -> str:
    return change.strip().removeprefix("stages.")


def _read_named(
    body: dict[str, Any], named: dict[str, dict[str, Any]], preset: dict[str, Any], changes: list[str]
) -> None:
    """Presets, overrides and rounds of named stages, in place."""
    body["plugins"] = _plugins(body)
    references.activate_kinds(named, body["plugins"])
    for name, fields in named.items():
        kind = stage_kinds().get(str(fields.get("kind")))
        if kind is not None and kind.methods:
            named[name] = {**preset, **fields}
    for change in changes:
        _override_named(body, named, change)
    references.activate_kinds(named, body["plugins"])
    named = {name: fields for name, fields in named.items() if fields is not None}
    body["stages"] = unrolled(named, body["repeat"]) if body.get("repeat") is not None else named
    body.pop("repeat", None)


def _override_named(body: dict[str, Any], named: dict[str, Any], change: str) -> None:
    """Set a field of a named stage (`short.sampling.max_tokens=64`), or of the recipe."""
    name, dot, rest = change.partition(".")
    if "=" in name:
        dot = ""
    if not dot or name not in named:
        known = [*named, *(f for f in Recipe.model_fields if f not in SECTIONS), "repeat"]
        first = name.partition("=")[0].strip()
        if first not in known:
            raise RecipeError(
                f"--set {_cut(first)}", "there is no stage or section called so", did_you_mean(first[:80], known)
            )
        apply_override(named if first in named else body, change)
        return
    fields = named[name]
    kind = str((fields or {}).get("kind"))
    holder = {kind: fields}
    try:
        apply_override(holder, f"{kind}.{rest}")
    except RecipeError as error:
        raise error.moved(kind, name) from None
    named[name] = holder[kind]


def _plugins(body: dict[str, Any]) -> list[str]:
    named = body.get("plugins") or []
    if not isinstance(named, list) or not all(isinstance(name, str) and name for name in named):
        raise RecipeError("plugins", "a list of files and modules is wanted, such as [my_method.py].")
    return named


def _presets(body: dict[str, Any]) -> list[str]:
    """The presets that a recipe names, as a list; put back into the body that way."""
    named = body.get("presets")
    listed = [] if named is None else [named] if isinstance(named, str) else named
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
        raise RecipeError(
            "presets",
            f"expected names of presets (`whetstone methods` lists them), such as [dapo] (got {_shown(named)}).",
        )
    repeated = [n for n in listed if listed.count(n) > 1]
    if repeated:
        raise RecipeError("presets", f"{repeated[0][:60]!r} is named twice; once is enough.")
    body["presets"] = listed
    return listed


def _field_of(override: str) -> str:
    """The field of `field=value`; the last `--set` of a field counts."""
    return override.partition("=")[0].strip()


def preset_names() -> list[str]:
    """Every preset, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """The `rlvr` fields that a preset sets: one file is one paper.

    Args:
        name: of one of the project's, or the path of a YAML file of one's own (`./my_preset.yaml`).
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        if not path.is_file():
            raise RecipeError(
                "presets", f"there is no file {_shown(name)}", "Paths are relative to the working folder."
            )
    else:
        path, known = PRESETS / f"{name}.yaml", preset_names()
        if name not in known:
            raise RecipeError("presets", f"no preset called {_shown(name)}", did_you_mean(name[:120], known))
    body = yaml_text.load(path)
    if "rlvr" in body:
        raise RecipeError(
            "presets", f"{_shown(name)} has a section rlvr", "A preset has that section's fields at its top level."
        )
    return {key: value for key, value in body.items() if key not in ("paper", "title", "about")}


def apply_override(body: dict[str, Any], override: str) -> None:
    """Set one dotted field in place; list entries by their number (`evaluate.tasks.0.limit=10`).

    >>> body = {"rlvr": {"advantage": "grpo"}}
    >>> apply_override(body, "rlvr.advantage.scale=none"); body
    {'rlvr': {'advantage': {'kind': 'grpo', 'scale': 'none'}}}
    >>> body = {"sft": {"lora": 8}}
    >>> apply_override(body, "sft.lora.alpha=4"); body
    {'sft': {'lora': {'rank': 8, 'alpha': 4}}}
    """
    field, equals, text = override.partition("=")
    field = field.strip()
    if not equals:
        raise RecipeError(f"--set {_cut(override)}", "write it as field=value, such as rlvr.steps=3.")
    *parents, last_key = field.split(".")
    if not all((*parents, last_key)) or len(parents) > yaml_text.DEEPEST:
        raise RecipeError(f"--set {_cut(override)}", "not the name of a field; write it such as rlvr.optimizer.betas.")
    value = yaml_text.parse(text, f"--set {_cut(field)}")
    if not parents and value == {} and body.get(last_key):
        raise RecipeError(
            f"--set {_cut(field)}={{}}",
            f"an empty section in place of {_cut(field)} would take back all that the recipe says in it "
            f"({', '.join(list(body[last_key])[:4])})",
            f"Change the fields themselves ({_cut(field)}.FIELD=VALUE), or write {_cut(field)}=null to leave it out.",
        )
    section: Any = body
    for level, key in enumerate(parents):
        section = _enter(section, key, field, level)
    section[_index(section, last_key, field)] = value


def _enter(holder: Any, key: str, field: str, level: int) -> Any:
    """The section under a key, made where it is absent; a short form (`grpo`, `lora: 8`) becomes a section on the way."""
    index = _index(holder, key, field)
    child = holder[index] if isinstance(holder, list) else holder.get(index)
    path = field.split(".")
    if key == "lora":
        child = lora_fields(child)
    elif key == "serve" and isinstance(child, bool):
        child = {} if child else None
    if isinstance(child, str) and path[0] == "rlvr" and len(path) > 1 and path[1] in SLOTS and level <= 2:
        child = {"kind": child}
    elif isinstance(child, str) and path[:2] == ["evaluate", "tasks"] and level == 2:
        child = {"name": child}
    elif child is None:
        default = s.Rlvr.model_fields[key].default if level == 1 and path[0] == "rlvr" and key in SLOTS else None
        child = dict(default) if isinstance(default, dict) else {}
    elif not isinstance(child, dict | list):
        above = ".".join(path[: level + 1])
        raise RecipeError(f"--set {_cut(field)}", f"{_cut(above)} is a value ({_shown(child)}), not a section.")
    holder[index] = child
    return child


def _index(holder: Any, key: str, field: str) -> Any:
    if not isinstance(holder, list):
        return key
    if not re.fullmatch(r"[0-9]{1,9}", key) or int(key) >= len(holder):
        raise RecipeError(f"--set {_cut(field)}", f"{_cut(key)} is not an entry of a list of {len(holder)}.")
    return int(key)
