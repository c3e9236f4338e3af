"""A model's adapters by themselves, and what they belong to."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import UserError
from pipelines.base.files import read_object
from pipelines.recipe.model_path import ADAPTER, ADAPTER_CONFIG
from pipelines.recipe.stage_kind import MODEL
from tasks.export.trained import Trained
from tasks.store.known import makes

BASE = "base"
"""The folder, beside adapters and in an artifact, of the random model that they were trained on."""
RANDOM = f"../{BASE}"
"""What the adapters of an artifact name as their base where it is that model."""
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
"""Files of a model's folder that adapters have none of; the tokenizer and the template stay."""


def of(model: Trained) -> Path:
    """The folder of a model's adapters.

    Raises:
        UserError: its stage has trained none, or an earlier version has kept none.
    """
    folder = model.artifact.path / ADAPTER
    if folder.is_dir():
        return folder
    settings = (model.artifact.parts.get("settings") or {}).get(model.artifact.stage) or {}
    if settings.get("lora") is not None:
        why, fix = "trained adapters, and the version that made it did not keep them", "Run its recipe again."
    else:
        why, fix = "has no adapters: it was trained without `lora`", "Leave --adapter out for the whole model."
        run = model.run or {}
        stages = (run.get("summary") or {}).get("stages") or {}
        artifacts = {name: model.known.stage_of(run, name) for name in stages}
        having = [n for n, a in artifacts.items() if a and makes(a) == MODEL and (a.path / ADAPTER).is_dir()]
        fix = f"Name a stage that has some: {', '.join(f'RUN/{name}' for name in having)}." if having else fix
    raise UserError("--adapter", f"the stage {model.stage} ({model.artifact.name}) {why}", fix)


@dataclass(frozen=True)
class Base:
    """What adapters belong to, as others can name it."""

    name: str
    """A hub name, the name of an artifact, the last name of a folder or GGUF file of this machine, or `../base`."""
    revision: str | None
    """Of the hub name."""

    @property
    def is_random(self) -> bool:
        """Whether it is the random model that lies beside the adapters."""
        return self.name == RANDOM


def base(model: Trained) -> Base:
    """What a model's adapters belong to."""
    config = read_object(of(model) / ADAPTER_CONFIG) or {}
    named = str(config.get("base_model_name_or_path") or "")
    is_random = named == RANDOM and (model.artifact.path / BASE).is_dir()
    return Base(Path(named).name if is_folder(named) and not is_random else named, config.get("revision"))


def is_folder(path: str) -> bool:
    """Whether a model's path is a folder of this machine and no hub name."""
    return Path(path).is_absolute() or path.startswith((".", "~")) or Path(path).exists()


def write(model: Trained, to: Path, name: str) -> None:
    """Copy a model's adapters with its tokenizer, and the random model that they were trained on where nobody else has it.

    Args:
        name: what the export is called.
    """
    shutil.copytree(model.folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*WEIGHT_FILES))
    shutil.copytree(of(model), to, dirs_exist_ok=True)
    belongs = base(model)
    config = read_object(to / ADAPTER_CONFIG) or {}
    config["base_model_name_or_path"] = f"{name}/{BASE}" if belongs.is_random else belongs.name
    (to / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    if belongs.is_random:
        shutil.copytree(model.artifact.path / BASE, to / BASE)
