"""Commits: everything a run needs to go on, in one folder that appears by one rename."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import torch

from pipelines.files import atomic_folder, file_sha256, read_json, write_atomic

LATEST, STATE = "LATEST.json", "state.pt"


def save(folder: Path, step: int, state: dict[str, Any], *, keep_last: int = 2) -> None:
    """Commit a step. A crash at any instant leaves the previous commit or this one, never a part.

    Args:
        folder: where the commits live.
        step: steps done.
        state: tensors, numbers, strings, lists and dicts.
        keep_last: commits kept on disk.
    """
    name = f"step-{step:08d}"
    with atomic_folder(folder / name) as building:
        torch.save(state, building / STATE)
        write_atomic(building / "meta.json", f'{{"step": {step}, "sha256": "{file_sha256(building / STATE)}"}}')
    write_atomic(folder / LATEST, f'{{"name": "{name}", "step": {step}}}')
    for old in sorted(folder.glob("step-*"))[:-keep_last]:
        shutil.rmtree(old, ignore_errors=True)
    for scrap in folder.glob(".step-*"):
        shutil.rmtree(scrap, ignore_errors=True)


def load(folder: Path) -> dict[str, Any] | None:
    """The newest whole commit, or None; a damaged one is passed over in favour of the one before."""
    if not folder.exists():
        return None
    for path in sorted(folder.glob("step-*"), reverse=True):
        meta = read_json(path / "meta.json")
        if not isinstance(meta, dict) or not (path / STATE).exists():
            continue
        if file_sha256(path / STATE) != meta.get("sha256"):
            continue
        with contextlib.suppress(RuntimeError, EOFError):
            return torch.load(path / STATE, map_location="cpu", weights_only=True)
    return None


def trainable_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What training changes: all weights, or the adapters alone under LoRA."""
    names = {n for n, p in model.named_parameters() if p.requires_grad}
    return {n: t for n, t in model.state_dict().items() if n in names}
