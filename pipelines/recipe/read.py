"""Read a recipe: defaults, presets, the file, overrides; and say clearly what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError

from pipelines.contract.catalogue import Bound, bind, card, load, names
from pipelines.contract.fields import Seed, Strict
from pipelines.contract.monitor import Monitor
from pipelines.errors import RecipeError, did_you_mean
from pipelines.project import ROOT
from pipelines.recipe import settings as s
from pipelines.recipe import yaml_text
from pipelines.recipe.monitors import Watch
from pipelines.recipe.renamed import FIELDS, renamed, renamed_override
from pipelines.recipe.secrets import redact, secrets_in

PRESETS = ROOT / "recipes" / "presets"
STAGES = ("curate", "sft", "rlvr", "evaluate")
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


class Recipe(Strict):
    """A whole pipeline run, resolved and checked."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    seed: Seed = 0
    threads: int | None = s.free(None, ge=1, le=4096)
    """CPU threads per stage process; default: half the cores' hyper-threads, at least 1."""
    presets: list[str] = []
    sandbox: Literal["auto", "limits_only"] = "auto"
    """How programs of a model are confined. `auto`: namespaces, else landlock, else the run refuses to start. `limits_only`
    goes on without a wall: a program can then read and write whatever the user can."""
    model: s.Model
    curate: s.Curate
    sft: s.Sft | None = None
    rlvr: s.Rlvr | None = None
    evaluate: s.Evaluate | None = None
    tracking: s.Tracking = s.Tracking()

    def stages(self) -> list[str]:
        """The stages this recipe has, in order."""
        return [name for name in STAGES if getattr(self, name) is not None]

    def seed_of(self, stage: str) -> int:
        """The seed of a stage: its own where it has one, else the recipe's."""
        own = getattr(getattr(self, stage), "seed", None)
        return self.seed if own is None else own


def read_recipe(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """Read and check the fields of a recipe. Methods are checked by `check`, which imports torch.

    Args:
        path: a YAML file.
        overrides: `rlvr.steps=3` and the like; values are YAML.

    Raises:
        RecipeError: names the field and the fix.
    """
    body = yaml_text.load(Path(path))
    changes = [renamed_override(text) for text in overrides or []]
    for change in changes:
        if _field_of(change).split(".")[0] == "presets":
            apply_override(body, change)
    merged: dict[str, Any] = {}
    for preset in _presets(body):
        merged.update(read_preset(preset))
    for section in FIELDS:
        fields = body.get(section)
        if fields is not None and not isinstance(fields, dict):
            raise RecipeError(f"{section}: expected a section with fields (got {_shown(fields)}).")
        if fields is not None:
            body[section] = renamed(section, fields)
    if merged or body.get("rlvr") is not None:
        body["rlvr"] = {**merged, **(body.get("rlvr") or {})}
    for change in changes:
        if _field_of(change).split(".")[0] != "presets":
            apply_override(body, change)
    for field, secret in secrets_in(body):
        raise RecipeError(
            f"{field}: the address holds {secret}, and a recipe is stored and logged. Leave it out; keys come from "
            "environment variables (rlvr.sampler.api_key_env names one)."
        )
    try:
        return Recipe.model_validate(body)
    except ValidationError as error:
        raise RecipeError(explain(error)) from None


def _presets(body: dict[str, Any]) -> list[str]:
    """The presets that a recipe names, as a list; put back into the body that way."""
    named = body.get("presets")
    listed = [] if named is None else [named] if isinstance(named, str) else named
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
        raise RecipeError(f"presets: expected names of files in recipes/presets, such as [dapo] (got {_shown(named)}).")
    repeated = [n for n in listed if listed.count(n) > 1]
    if repeated:
        raise RecipeError(f"presets: {repeated[0][:60]!r} is named twice; once is enough.")
    body["presets"] = listed
    return listed


def _shown(value: Any) -> str:
    return _cut(redact(repr(value)[:4000]))


def _field_of(override: str) -> str:
    """The field of `field=value`; the last `--set` of a field counts."""
    return override.partition("=")[0].strip()


def preset_names() -> list[str]:
    """Every preset, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """The `rlvr` fields that a preset sets: one file is one paper."""
    known = preset_names()
    if name not in known:
        raise RecipeError(f"presets: no preset called {_shown(name)}. {did_you_mean(name[:120], known)}")
    path = PRESETS / f"{name}.yaml"
    body = yaml_text.load(path)
    return renamed("rlvr", {key: value for key, value in body.items() if key not in ("paper", "title", "about")})


def apply_override(body: dict[str, Any], override: str) -> None:
    """Set one dotted field in place; list entries by their number (`evaluate.tasks.0.limit=10`).

    >>> body = {"rlvr": {"advantage": "grpo"}}
    >>> apply_override(body, "rlvr.advantage.scale=none"); body
    {'rlvr': {'advantage': {'kind': 'grpo', 'scale': 'none'}}}
    """
    field, equals, text = override.partition("=")
    field = field.strip()
    if not equals:
        raise RecipeError(f"--set {_cut(override)}: write it as field=value, such as rlvr.steps=3.")
    *parents, last_key = field.split(".")
    if not all((*parents, last_key)) or len(parents) > yaml_text.DEEPEST:
        raise RecipeError(f"--set {_cut(field)}: not the name of a field; write it such as rlvr.optimizer.betas.")
    value = yaml_text.parse(text, f"--set {_cut(field)}")
    section: Any = body
    for level, key in enumerate(parents):
        section = _enter(section, key, field, level)
    section[_index(section, last_key, field)] = value


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _enter(holder: Any, key: str, field: str, level: int) -> Any:
    """The section under a key, made where it is absent; `grpo` becomes `{kind: grpo}` on the way."""
    index = _index(holder, key, field)
    child = holder[index] if isinstance(holder, list) else holder.get(index)
    path = field.split(".")
    if isinstance(child, str) and path[0] == "rlvr" and len(path) > 1 and path[1] in SLOTS and level <= 2:
        child = {"kind": child}
    elif isinstance(child, str) and path[:2] == ["evaluate", "tasks"] and level == 2:
        child = {"name": child}
    elif child is None:
        default = s.Rlvr.model_fields[key].default if level == 1 and path[0] == "rlvr" and key in SLOTS else None
        child = dict(default) if isinstance(default, dict) else {}
    elif not isinstance(child, dict | list):
        above = ".".join(path[: level + 1])
        raise RecipeError(f"--set {_cut(field)}: {_cut(above)} is a value ({_shown(child)}), not a section.")
    holder[index] = child
    return child


def _index(holder: Any, key: str, field: str) -> Any:
    if not isinstance(holder, list):
        return key
    if not re.fullmatch(r"[0-9]{1,9}", key) or int(key) >= len(holder):
        raise RecipeError(f"--set {_cut(field)}: {_cut(key)} is not an entry of a list of {len(holder)}.")
    return int(key)


def explain(error: ValidationError) -> str:
    """pydantic's complaints in the recipe's words: field, value, rule, fix. At most twenty of them."""
    entries = error.errors()
    lines = []
    for entry in entries[:20]:
        loc = [
            str(p) for p in entry["loc"] if not str(p).startswith(("function-", "list[", "literal[", "constrained-"))
        ]
        where = _cut(".".join(loc)) or "recipe"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: no such field. {did_you_mean(loc[-1][:120], _fields_at(loc[:-1]))}")
        elif entry["type"] == "missing":
            lines.append(f"{where}: this field is required.")
        elif entry["type"] in ("model_type", "dict_type"):
            lines.append(f"{where}: expected a section with fields (got {_shown(entry.get('input'))}).")
        else:
            value = entry.get("input")
            shown = f" (got {_shown(value)})" if isinstance(value, str | int | float | bool) or value is None else ""
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')}{shown}.")
    if len(entries) > 20:
        lines.append(f"... and {len(entries) - 20} more.")
    return "\n".join(lines)


def _fields_at(loc: list[str]) -> list[str]:
    model: Any = Recipe
    for key in loc:
        if key.isdigit():
            continue
        if model is None:
            return []
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        model = _model_in(annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        model = _model_in(argument)
        if model is not None:
            return model
    return None


def resolve(section: BaseModel) -> dict[str, Any]:
    """The fields of a section that can change a result, as plain values."""
    fields: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("changes_result") is False:
            continue
        fields[name] = _plain(getattr(section, name))
    return fields


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return resolve(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def bind_slots(rlvr: s.Rlvr) -> dict[str, Any]:
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
    return bound


def bound_list(bound: dict[str, Any]) -> list[Bound]:
    """The bound methods of all slots in one list."""
    methods: list[Bound] = []
    for value in bound.values():
        methods += value if isinstance(value, list) else [] if value is None else [value]
    return methods


@dataclass(frozen=True)
class Watched:
    """An entry of a section's `monitors`."""

    method: Bound
    about: Watch

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
        return self.about.patience or self.rule.patience


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
            about = Watch.model_validate(shared)
        except ValidationError as error:
            raise RecipeError("\n".join(f"{field}.{line}" for line in explain(error).split("\n"))) from None
        own = {name: value for name, value in spec.items() if name == "kind" or name not in shared}
        try:
            method = bind(MONITORS, own, field)
        except RecipeError:
            raise
        except ValueError as error:
            raise RecipeError(f"{field}.{error}.") from None
        watched.append(Watched(method, about))
    return watched


def bind_providers(rlvr: s.Rlvr, methods: list[Bound]) -> list[Bound]:
    """The providers of columns that these methods read: those of the recipe, and those that come by themselves.

    Raises:
        RecipeError: an unknown provider or setting, one named twice, or two that make one column.
    """
    needed = {column for method in methods for column in method.needs}
    needed |= {column for each in bind_monitors("rlvr", rlvr.monitors) for column in each.method.needs}
    chosen = [bind("rlvr.providers", spec) for spec in rlvr.providers]
    names_chosen = [method.name for method in chosen]
    for name in names(PROVIDERS):
        provider: Any = load(PROVIDERS, name)
        if provider.automatic and name not in names_chosen and needed & set(card(provider).makes):
            chosen.append(bind(PROVIDERS, name))
    columns = [column for method in chosen for column in method.card.makes]
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise RecipeError(f"rlvr.providers: {repeated[0]} is made twice; leave one provider of it.")
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
                    f"{method.slot}: {first_method.name} and {method.name} ask for different values of the column {column}. "
                    "Leave one of them out."
                )
            options[column], asked_by[column] = option, method
    return options
