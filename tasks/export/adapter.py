"""A model's adapters by themselves, and what they belong to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pipelines.base.errors import UserError
from pipelines.base.files import read_object
from tasks.export.trained import Trained

CONFIG = "adapter_config.json"
BASE = "base"
"""The folder, beside adapters and in an artifact, of the random model that they were trained on."""
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
"""Files of a model's folder that adapters have none of; the tokenizer and the template stay."""


def of(model: Trained) -> Path:
    """The folder of a model's adapters.

    Raises:
        UserError: its stage has trained none, or an earlier version has kept none.
    """
    if model.adapter is not None:
        return model.adapter
    settings = (model.artifact.parts.get("settings") or {}).get(model.artifact.stage) or {}
    if settings.get("lora") is not None:
        why, fix = "trained adapters, and the version that made it did not keep them", "Run its recipe again."
    else:
        why, fix = "has no adapters: it was trained without `lora`", "Leave --adapter out for the whole model."
        others = ((model.run or {}).get("summary") or {}).get("stages") or {}
        keys = {name: str(about.get("key")) for name, about in others.items() if isinstance(about, dict)}
        having = [
            n
            for n, key in keys.items()
            for a in model.known.artifacts
            if a.key == key and (a.path / "adapter").is_dir()
        ]
        fix = f"Name a stage that has some: {', '.join(f'RUN/{name}' for name in having)}." if having else fix
    raise UserError("--adapter", f"the stage {model.stage} ({model.artifact.name}) {why}", fix)


def base(model: Trained) -> str:
    """What a model's adapters belong to, as others can name it: a hub name, the name of an artifact, the last name of a folder of this
    machine, or `base` for the random model that lies beside them."""
    named = str((read_object(of(model) / CONFIG) or {}).get("base_model_name_or_path") or "")
    if named == f"../{BASE}":
        return BASE
    return Path(named).name if is_folder(named) else named


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
    named = base(model)
    config = read_object(to / CONFIG) or {}
    config["base_model_name_or_path"] = f"{name}/{BASE}" if named == BASE else named
    (to / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))
    if named == BASE:
        shutil.copytree(model.artifact.path / BASE, to / BASE)
