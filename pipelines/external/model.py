"""The model that a trainer has left: found, whole, finite, and loadable with its tokenizer."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from pipelines.base.errors import ModelError, UserError
from pipelines.contract.model_settings import Model
from pipelines.engine import model_files, models

FIELD = "external.result"
BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt", "tokenizer.model", "added_tokens.json", "chat_template.jinja",
)  # fmt: skip
"""Files that are taken from the model that was trained where the trainer has written weights alone."""
LEFT_OUT = (
    "STABLE",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
    "whetstone.json",
)


def step_of(path: Path) -> tuple[int, ...]:
    """The numbers in a path, for the order of checkpoints.

    >>> sorted([Path("a/step_10"), Path("a/step_9")], key=step_of)[-1].name
    'step_10'
    """
    return tuple(map(int, re.findall(r"\d+", str(path))))


def newest(folder: Path, pattern: str | None) -> Path | None:
    """Of the folders that a glob names, the one with the largest number."""
    folders = [path for path in folder.glob(pattern) if path.is_dir()] if pattern else []
    return max(folders, key=step_of, default=None)


def take(folder: Path | None, where: str, start: str, out: Path, settings: Model, about: dict[str, Any]) -> None:
    """Check the folder and copy it, as hard links where that is possible.

    Args:
        folder: what the trainer left; None where nothing was there.
        where: where it was looked for, for the message.
        start: the model that was trained; a folder or hub name.
        out: where it goes.
        settings: how models of the recipe are loaded.
        about: for `whetstone.json`.

    Raises:
        UserError: there is none, it is not whole, or it holds NaN.
    """
    if folder is None:
        raise UserError(
            FIELD,
            f"the trainer ended without a model folder at {where}",
            "Have it save in Hugging Face's format at the end, or correct the glob.",
        )
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.name not in LEFT_OUT and not any(part.startswith(".") for part in name.parts):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            _link(path.resolve(), out / name)
    _complete(out, start)
    try:
        model_files.check_folder(out)
        model_files.check_language_model(out)
        _check_finite(out)
        tokenizer = models.load_tokenizer(out, settings)
    except ModelError as error:
        raise _told(error, out, folder) from None
    about = about | {"template": models.template_identity(tokenizer)}
    (out / "whetstone.json").write_text(json.dumps(about, indent=1, sort_keys=True))


def _complete(out: Path, start: str) -> None:
    """Take what is not there from the model that was trained; of a hub model what has been downloaded, or can be."""
    from transformers.utils.hub import cached_file

    lenient = {
        f"_raise_exceptions_for_{each}": False for each in ("missing_entries", "connection_errors", "gated_repo")
    }
    for name in BESIDE:
        if not (out / name).exists() and (file := cached_file(start, name, **lenient)) is not None:
            shutil.copyfile(file, out / name)


def _told(error: ModelError, out: Path, folder: Path) -> UserError:
    problem = error.problems[0]
    return UserError(
        FIELD,
        problem.problem.replace(str(out), str(folder)),
        "Have the trainer write the whole folder again, or correct its settings.",
    )


def _link(path: Path, link: Path) -> None:
    try:
        os.link(path, link)
    except OSError:
        shutil.copyfile(path, link)


def _check_finite(folder: Path) -> None:
    """Raises ModelError where a tensor holds NaN; one tensor is in memory at a time."""
    from safetensors import safe_open

    for path in model_files.weight_files(folder, model_files.check_json(folder)):
        if path.suffix != ".safetensors":
            raise ModelError(FIELD, f"{path} is no safetensors file", "Have the trainer save safetensors.")
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                weight = tensors.get_tensor(name)
                if weight.is_floating_point() and not model_files.finite(weight):
                    raise ModelError(FIELD, f"{path}: {name} holds NaN or infinite values")
