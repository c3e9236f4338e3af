"""A configuration of another trainer as a recipe: which trainer it is of, its fields, and the checked text of the recipe."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.base.errors import Problem, RecipeError, UserError
from pipelines.recipe import yaml_text
from pipelines.recipe.read import Recipe, read_recipe
from tasks.importing import axolotl, open_r1, script, shell, trl, verl
from tasks.importing.draft import Draft, LeftOut
from tasks.importing.table import Config, Field, tables

TRAINERS = ("trl", "open-r1", "verl", "axolotl")
OPEN_R1 = r"(?i)open[-_]?r1"
"""The project's name in a command or in the name of a file."""
METHODS = ("grpo", "sft", "dpo")
"""Of TRL and open-r1."""
VERL = ("actor_rollout_ref", "algorithm", "critic", "custom_reward_function", "reward_model")


@dataclass(frozen=True)
class Options:
    """What a configuration does not say of its run."""

    trainer: str | None = None
    """One of `TRAINERS`; default: recognised."""
    method: str | None = None
    """One of `METHODS`; default: recognised."""
    processes: int | None = None
    """That it ran with; default: 1, which is then said."""
    rows: int | None = None
    """Of the data set."""
    row_tokens: int | None = None
    """Mean tokens of a row."""


@dataclass(frozen=True)
class Imported:
    """A recipe that was made of a configuration."""

    draft: Draft
    text: str
    """The recipe, with comments."""
    recipe: Recipe


def imported(file: Path, overrides: Sequence[str] = (), options: Options = Options()) -> Imported:
    """Read a configuration.

    Args:
        file: YAML, a shell script that starts the trainer, or a Python script that uses TRL.
        overrides: fields given on the command line there: `--field value`, `--field=value`, `field=value`.
        options: what the file does not say.

    Raises:
        UserError: it cannot be read, it is of no known trainer, or a value cannot be used; names the field there.
    """
    values, hints, unread = _values(file, options)
    values |= _overrides(list(overrides), "after the file")
    trainer = options.trainer or hints.get("trainer") or recognised(values, file)
    if trainer not in TRAINERS:
        raise UserError("--format", f"{trainer!r} is not imported", f"One of {', '.join(TRAINERS)}.")
    if trainer == "verl":
        values = _without_hydra(values)
    draft = _draft(values, trainer, options.method or hints.get("method"), file, options)
    for name, source in unread.items():
        draft.left_out.append(
            LeftOut(
                name, source, "its value is not written out in the script", f"Give it after the file: {name}=VALUE."
            )
        )
    text = draft.text(" ".join(file.name.split()))
    return Imported(draft, text, _checked(draft, text))


def _values(file: Path, options: Options) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Fields, what else the file says (trainer, method), and arguments that could not be read."""
    if file.suffix == ".py":
        values, method, unread = script.read(file)
        return values, {"trainer": "trl", "method": method}, unread
    if file.suffix in (".sh", ".bash", ".slurm"):
        return *_of_shell(file, options), {}
    return flattened(yaml_text.load(file)), {}, {}


def _of_shell(file: Path, options: Options) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields of the trainer's command in a script.

    Raises:
        UserError: no command of it starts a trainer.
    """
    for words in shell.commands(shell.read(file), str(file)):
        joined = " ".join(words)
        if re.search(r"\bverl\.\S*(main_ppo|main_dapo)|\bverl\b.*main_ppo|main_dapo", joined):
            start = next(n for n, word in enumerate(words) if re.search(r"main_ppo|main_dapo", word))
            own = shell.of_one(words[start:])
            return _overrides([w for w in own if "=" in w and re.match(r"[+~]*[A-Za-z_]\w*\.", w)], str(file)), {
                "trainer": "verl"
            }
        match = re.search(r"\btrl (grpo|sft|dpo)\b|\b(grpo|sft|dpo)\.py\b", joined)
        if match:
            method = match[1] or match[2]
            start = next(n for n, word in enumerate(words) if word == match[1] or word.endswith(f"{method}.py")) + 1
            stated = _overrides(shell.of_one(words[start:]), str(file))
            config = stated.pop("config", None)
            base = flattened(yaml_text.load(_beside(file, str(config)))) if config else {}
            trainer = "open-r1" if re.search(OPEN_R1, joined) else recognised(base | stated, file)
            return base | stated, {"trainer": trainer, "method": method}
    raise UserError(
        file, "no command in it starts verl.trainer.main_ppo, `trl METHOD` or a script called grpo.py, sft.py or dpo.py",
        "Give the configuration, and its overrides after it.",
    )  # fmt: skip


def _beside(file: Path, config: str) -> Path:
    """A configuration that a script names, from the working folder or one above the script."""
    for folder in (Path(), *file.resolve().parents):
        if (folder / config).is_file():
            return folder / config
    return Path(config)


def _overrides(words: list[str], where: str) -> dict[str, Any]:
    """Fields of a command line.

    Raises:
        UserError: a word belongs to no field.

    >>> _overrides(["--learning_rate", "1e-6", "--bf16", "a.b=[x, y]", "--reward_funcs", "f", "g"], "x")
    {'learning_rate': 1e-06, 'bf16': True, 'a.b': ['x', 'y'], 'reward_funcs': ['f', 'g']}
    """
    values: dict[str, Any] = {}
    name = None
    for word in words:
        match = re.fullmatch(r"(?:--|[+]{0,2}|~)([A-Za-z_][\w./-]*)=(.*)", word, re.S)
        if match:
            name = None
            key = match[1].replace("-", "_") if word.startswith("--") else match[1]
            values[key] = _parsed(match[2], key)
        elif re.fullmatch(r"--[A-Za-z_][\w.-]*", word):
            name = word[2:].replace("-", "_")
            values[name] = True
        elif name is not None:
            earlier = values[name]
            value = _parsed(word, name)
            values[name] = value if earlier is True else [*(earlier if isinstance(earlier, list) else [earlier]), value]
        elif not word.startswith(("$", "2>", ">", "|", "&")):
            raise UserError(where, f"{word[:60]!r} belongs to no field", "Write --field value, or field=value.")
    return values


def _parsed(text: str, name: str) -> Any:
    """A value as hydra and YAML read it; what is no YAML is text."""
    try:
        return yaml_text.parse(text, name) if text.strip() else None
    except RecipeError:
        return text


def _without_hydra(values: dict[str, Any]) -> dict[str, Any]:
    """Fields without those that refer to others: hydra's defaults say the same."""
    return {
        name: value
        for name, value in values.items()
        if not (isinstance(value, str) and value.startswith("${oc.select:"))
    }


def flattened(body: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested fields by their names with dots.

    >>> flattened({"a": {"b": 1}, "lr_scheduler_kwargs": {"min_lr": 0}})
    {'a.b': 1, 'lr_scheduler_kwargs': {'min_lr': 0}}
    """
    flat_fields: dict[str, Any] = {}
    for key, value in body.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, dict) and value and name not in _known():
            flat_fields |= flattened(value, name)
        else:
            flat_fields[name] = value
    return flat_fields


@cache
def _known() -> frozenset[str]:
    """Every field of every table, whose value stays whole; others that are sections are divided, and their fields named with dots."""
    every = [*open_r1.fields("grpo"), *open_r1.fields("sft"), *trl.fields("dpo"), *axolotl.fields(), *verl.fields()]
    return frozenset(name for field in every for name in field.names)


def recognised(values: dict[str, Any], file: Path) -> str:
    """Whose configuration it is, by its fields.

    Raises:
        UserError: it could be anybody's.
    """
    first = {name.split(".")[0] for name in values}
    if first & set(VERL) or {"data.train_files", "data.train_batch_size"} & set(values):
        return "verl"
    if "base_model" in first:
        return "axolotl"
    if (
        set(open_r1.OWN) & first
        and not {"reward_model_name_or_path"} & first
        and (re.search(OPEN_R1, file.name) or _names_of_open_r1(values))
    ):
        return "open-r1"
    known = {name for method in METHODS for field in trl.fields(method) for name in field.names}
    if first & known:
        return "trl"
    raise UserError(
        file,
        "its fields are those of no trainer that the import knows",
        f"Say whose it is: --format {'|'.join(TRAINERS)}.",
    )


def _names_of_open_r1(values: dict[str, Any]) -> bool:
    """Whether the rewards, or fields that TRL does not have, are open-r1's."""
    rewards = values.get("reward_funcs")
    listed = rewards if isinstance(rewards, list) else [rewards]
    own = set(open_r1.OWN) - {"reward_funcs"}
    return bool(own & set(values)) or any(
        name in open_r1.REWARDS or name == open_r1.OVERLONG for name in listed if isinstance(name, str)
    )


def method_of(values: dict[str, Any], file: Path) -> str:
    """TRL's method, by fields that only one has, else by the file's name.

    Raises:
        UserError: neither says.
    """
    own = {method: {name for field in tables("trl")[method] for name in field.names} for method in METHODS}
    own["grpo"] |= {field.key for field in tables("open_r1")["grpo"]}
    counts = {m: len(set(values) & (names - set().union(*(own[o] for o in own if o != m)))) for m, names in own.items()}
    best = [m for m, count in counts.items() if count == max(counts.values())]
    if len(best) == 1:
        return best[0]
    named = [m for m in METHODS if re.search(rf"(?<![a-z]){m}(?![a-z])", str(file).lower())]
    if len(named) == 1:
        return named[0]
    raise UserError(file, "its fields do not say which method it is for", f"Say it: --method {'|'.join(METHODS)}.")


def _draft(values: dict[str, Any], trainer: str, method: str | None, file: Path, options: Options) -> Draft:
    def config(fields: list[Field]) -> Config:
        return Config(values, fields, trainer, options.processes, options.rows, options.row_tokens)

    if trainer == "verl":
        return verl.build(config(verl.fields()))
    if trainer == "axolotl":
        return axolotl.build(config(axolotl.fields()))
    method = method or method_of(values, file)
    if method not in METHODS or (trainer == "open-r1" and method == "dpo"):
        raise UserError("--method", f"{method!r} is not imported of {trainer}", f"One of {', '.join(METHODS)}.")
    if trainer == "open-r1":
        return open_r1.build(config(open_r1.fields(method)), method)
    return trl.build(config(trl.fields(method)), method)


def _checked(draft: Draft, text: str) -> Recipe:
    """The recipe, read as any other.

    Raises:
        UserError: a value is out of bounds; names the field there.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recipe.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            return read_recipe(path)
        except RecipeError as error:
            raise in_their_words(error, draft) from None


def in_their_words(error: UserError, draft: Draft) -> UserError:
    """An error about fields of the recipe, with the names of the fields that these were made of in front."""
    return UserError(problems=[_renamed(problem, draft) for problem in error.problems])


def _renamed(problem: Problem, draft: Draft) -> Problem:
    for path in sorted(draft.origins, key=len, reverse=True):
        short = path.removeprefix("stages.")
        if draft.origins[path] and re.match(rf"{re.escape(short)}(?![\w])", problem.field.removeprefix("stages.")):
            return replace(problem, field=f"{', '.join(draft.origins[path])} ({problem.field})")
    return problem
