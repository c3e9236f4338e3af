"""What a recipe, a key and a plan ask of a stage that another trainer does; imported where a recipe has one."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import Problem, RecipeError
from pipelines.external import config
from pipelines.external.adapter import adapter
from pipelines.external.config import PLACEHOLDERS, check_names
from pipelines.external.generic import check_columns
from pipelines.external.installed import ABSENT, resolved_python, trainer_version
from pipelines.external.settings import External
from pipelines.recipe.resolve import resolve
from pipelines.recipe.stage_checks import (
    base_files,
    check_episodes,
    check_heldout,
    check_split,
    check_trained,
    model_settings,
    verifiers_used,
)
from pipelines.recipe.stage_kind import VERIFIERS, Node, Reads


def reads(node: Node) -> Reads:
    """The model, the trainer's configuration by its content, its version, and the verifiers that score."""
    own: External = node.settings
    model, in_key = model_settings(node)
    in_key["external", "version"] = trainer_version(own)
    files = _scripts(own)
    if isinstance(own.config, str) and Path(own.config).expanduser().is_file():
        files["external.config"] = str(Path(own.config).expanduser())
        in_key["external", "config"] = Path(own.config).suffix
    return Reads(
        {"external": resolve(own), "model": model},
        in_key=in_key,
        files=files,
        models=base_files(node),
        modules=[f"pipelines.external.{own.trainer}", "pipelines.external.judge"],
        verifies=True,
        verifiers=verifiers_used(node),
        libraries=(*VERIFIERS, "pyarrow"),
    )


def check(node: Node) -> None:
    """The splits exist, one answer is scored at a time, there is a model to start from, and placeholders are known.

    Raises:
        RecipeError: the first thing that is wrong.
    """
    own: External = node.settings
    for field in ("split", "heldout"):
        check_split(node, f"external.{field}", getattr(own, field))
    check_heldout("external", own)
    check_trained(node)
    check_episodes(node, "external.split", "an external trainer", own.split, plays=False)
    for name in ("revision", "chat_template"):
        if node.reads_base and getattr(node.recipe.model, name) is not None:
            raise RecipeError(
                f"model.{name}",
                "an external trainer is told the model's folder or name alone",
                "Name a folder that has what you want.",
            )
    suffixes = adapter(own.trainer).suffixes
    if suffixes and isinstance(own.config, str) and Path(own.config).suffix not in suffixes:
        raise RecipeError(
            "external.config", f"{own.config} is in no form that {own.trainer} reads", f"Give a {suffixes[0]} file."
        )
    _check_placeholders(own)


def problems(node: Node) -> Iterator[Problem]:
    """The trainer is not installed, its command is not there, or its configuration cannot be read."""
    own: External = node.settings
    trainer, where = adapter(own.trainer), resolved_python(own.python)
    programs = {
        "command": (own.command or trainer.command)[0],
        "export": own.export[0] if own.export else "{python}",
    }
    for field, program in programs.items():
        told = where if program == "{python}" else program
        if "{" not in told and shutil.which(str(Path(told).expanduser())) is None:
            asked = f"{node.name}.{'python' if program == '{python}' else field}"
            yield Problem(asked, f"there is no program {told}", "Install the trainer, and name its Python here.")
            return
    if trainer_version(own) == ABSENT:
        package = own.package or trainer.package
        yield Problem(
            f"{node.name}.python",
            f"the package {package} is not installed in the environment of {where}",
            "Name the Python of the trainer's environment, or state `version`.",
        )
    if own.metrics.kind == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        yield Problem(
            f"{node.name}.metrics.kind",
            "it needs the package tensorboard, which is not installed",
            f"Run: {install_hint('tensorboard')}",
        )
    yield from _config_problems(node, own)


def _scripts(own: External) -> dict[str, str]:
    """Label in the key → file that a command names, from the working folder, where the command is run."""
    named = [part for command in (own.command, own.export, own.overrides) for part in command or () if "{" not in part]
    return {f"external/{part}": part for part in named if Path(part).suffix and Path(part).is_file()}


def _check_placeholders(own: External) -> None:
    """Placeholders of the fields are known; `{checkpoint}` and `{export}` only once there are any."""
    before = {*PLACEHOLDERS} - {"checkpoint", "export"}
    fields: dict[str, Any] = {
        "command": own.command, "overrides": own.overrides, "resume_arguments": own.resume_arguments, "environment": own.environment,
    }  # fmt: skip
    for name, value in fields.items():
        check_names(f"external.{name}", value, before)
    check_names("external.export", own.export)
    if own.columns is not None:
        check_columns(own.columns)


def _config_problems(node: Node, own: External) -> Iterator[Problem]:
    """What is wrong with the trainer's configuration as a file."""
    if isinstance(own.config, str) and not Path(own.config).expanduser().is_file():
        yield Problem(
            f"{node.name}.config", f"there is no file {own.config}", "Paths are relative to the working folder."
        )
        return
    try:
        fields, text = config.of(own.config)
        check_names("external.config", text if fields is None else fields, {*PLACEHOLDERS} - {"checkpoint", "export"})
    except RecipeError as error:
        yield from error.moved("external", node.name).problems
