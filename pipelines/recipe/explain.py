"""What is wrong with a recipe's fields, in the recipe's words."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from pipelines.base.errors import Problem, RecipeError, did_you_mean
from pipelines.base.secrets import redact
from pipelines.contract.fields import message, place
from pipelines.recipe.stage_kind import defined_at, stage_kinds

OTHER_NAMES = {
    "lr": "learning_rate", "warmup_steps": "warmup", "warmup_ratio": "warmup", "warmup_share": "warmup", "lr_scheduler_type": "schedule",
    "scheduler": "schedule", "adam_betas": "betas", "grad_clip": "max_grad_norm", "max_new_tokens": "max_tokens",
    "max_gen_toks": "max_tokens", "max_completion_length": "max_tokens", "num_generations": "group_size",
    "rollouts": "group_size", "num_epochs": "epochs",
    "num_train_epochs": "epochs", "max_steps": "steps", "max_seq_length": "max_length", "n": "k", "num_samples": "k", "r": "rank",
    "lora_alpha": "alpha", "lora_dropout": "dropout", "quantize": "load_in_4bit", "quantization": "load_in_4bit", "subset": "name",
    "question": "prompt", "save_every": "every", "k": "samples",
}  # fmt: skip
"""What other projects call a field → what it is called here."""
KL = (
    ("divergence", "Write divergence: {kind: k3, weight: 0.001}."),
    ("loss", "It is a setting of the loss, such as {kind: dpo, beta: 0.1}."),
)
CONFIG = (("config", "Settings of the architecture stand in `config`."),)
ADVICE = {
    "batch_size": (
        (
            "prompts",
            "A step has `prompts` problems with `group_size` rollouts each; `micro_batch_tokens` bounds a pass.",
        ),
        ("tokens_per_step", "It is counted in tokens: `tokens_per_step`; `micro_batch_tokens` bounds a pass."),
        ("pairs_per_step", "It is `pairs_per_step`; `micro_batch_tokens` bounds a pass."),
    ),
    "kl": KL,
    "kl_coef": KL,
    "beta": KL,
    "temperature": (("sampling", "Write sampling: {temperature: 0.7}."),),
    "max_tokens": (("sampling", "Write sampling: {max_gen_toks: 64}."),),
    "hidden_size": CONFIG,
    "num_hidden_layers": CONFIG,
    "algorithm": (("advantage", "Name a preset (presets: [grpo]), or its parts: advantage, objective, ..."),),
}
"""Names without a field of their own → a field that the section then has, and what to write."""
SECTIONS_WITHIN = ("optimizer", "sampling", "commit")
"""Sections in which fields are looked for that stand one level too high."""


def shown(value: Any) -> str:
    """A value as a message shows it: short, and without secrets."""
    return cut(redact(repr(value)[:4000]))


def cut(text: str) -> str:
    """At most 80 characters."""
    return text if len(text) <= 80 else text[:77] + "..."


def explain(error: ValidationError, body: dict[str, Any], model: type[BaseModel], prefix: str = "") -> RecipeError:
    """pydantic's complaints in the recipe's words, a record each: field, value, rule, fix. At most twenty of them.

    Args:
        body: what was validated; a named stage's fields are called NAME.FIELD.
        model: the class that it was validated as.
        prefix: the section that it is.
    """
    entries = error.errors(include_url=False)
    problems = []
    for entry in entries[:20]:
        loc = place(entry)
        stage = loc[1] if loc[:1] == ["stages"] and len(loc) > 1 else None
        shown_loc = loc[1:] if stage else [*([prefix] if prefix else []), *loc]
        where, value, fix = cut(".".join(shown_loc)) or "recipe", entry.get("input"), ""
        if entry["type"] == "extra_forbidden":
            text, fix = f"no such field{_defined(loc, body)}", _hint(loc, shown_loc, body, model)
        elif entry["type"] == "missing":
            text = "this field is required."
        elif entry["type"] in ("model_type", "dict_type"):
            text = f"expected a section with fields (got {shown(value)})."
            if isinstance(value, bool):
                fix = "Write {} for its defaults." if value else "Write null to leave it out."
        else:
            got = f" (got {shown(value)})" if isinstance(value, str | int | float | bool) or value is None else ""
            text = f"{message(entry)}{got}."
            if entry["type"] == "string_type" and isinstance(value, int | float):
                fix = "YAML reads it as a number or as true or false; put it in quotes."
        problems.append(
            Problem(where, text, fix, {name: entry[name] for name in ("type", "loc", "ctx") if name in entry})
        )
    if len(entries) > 20:
        problems.append(Problem("", f"... and {len(entries) - 20} more."))
    return RecipeError(problems=problems)


def _hint(loc: list[str], shown_loc: list[str], body: dict[str, Any], model: type[BaseModel]) -> str:
    """Where a field that is unknown here is known: in a section of this one, by another project's name, or under a like name."""
    name, above = loc[-1][:120], ".".join(shown_loc[:-1])
    known, inner = _known(loc[:-1], body, model), _sections(loc[:-1], body, model)
    own_name = OTHER_NAMES.get(name.casefold(), name)
    sections = [section for section, fields in inner.items() if own_name in fields]
    if own_name in known and own_name != name:
        return f"It is called {own_name} here."
    if sections:
        return f"It is {above + '.' if above else ''}{sections[0]}.{own_name}."
    advice = [text for field, text in ADVICE.get(name.casefold(), ()) if field in known]
    return advice[0] if advice else did_you_mean(name, known)


def _defined(loc: list[str], body: dict[str, Any]) -> str:
    """Where the fields of a named stage are defined, if a plug-in does that."""
    if loc[:1] != ["stages"] or len(loc) < 3:
        return ""
    kind = stage_kinds()[body["stages"][loc[1]]["kind"]]
    place = defined_at(kind)
    return f" in {kind.name} ({place})" if place else ""


def _sections(loc: list[str], body: dict[str, Any], model: type[BaseModel]) -> dict[str, list[str]]:
    """Section → its fields, of the sections that a section at a place has."""
    root: Any = model
    if loc[:1] == ["stages"] and len(loc) > 1:
        root, loc = stage_kinds()[body["stages"][loc[1]]["kind"]].settings, loc[2:]
    for key in loc:
        if not key.isdigit():
            root = (
                _model_in(root.model_fields[key].annotation) if root is not None and key in root.model_fields else None
            )
    if root is None:
        return {}
    inner = {name: _model_in(field.annotation) for name, field in root.model_fields.items() if name in SECTIONS_WITHIN}
    return {name: list(section.model_fields) for name, section in inner.items() if section is not None}


def _known(loc: list[str], body: dict[str, Any], model: type[BaseModel]) -> list[str]:
    """Names of the fields of the section at a place."""
    if loc[:1] == ["stages"] and len(loc) > 1:
        kind = stage_kinds()[body["stages"][loc[1]]["kind"]]
        ports = ["kind", "seed", *kind.ports] if len(loc) == 2 else []
        return [*_fields_at(loc[2:], kind.settings), *ports]
    return _fields_at(loc, model)


def _fields_at(loc: list[str], root: type[BaseModel]) -> list[str]:
    model: Any = root
    named = False  # whether the next key is one of a mapping of sections
    for key in loc:
        if key.isdigit() or named:
            named = False
            continue
        if model is None:
            return []
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        model, named = _model_in(annotation), get_origin(annotation) is dict
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        model = _model_in(argument)
        if model is not None:
            return model
    return None
