"""The file of gates beside a model, asked without loading anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import ModelError

FILE = "latent_gates.safetensors"
"""Beside the model's own files."""


def has_gates(path: str | Path | None) -> bool:
    """Whether a model folder holds gates; not for hub names."""
    return path is not None and (Path(path).expanduser() / FILE).is_file()


def refuse_gates(path: str | Path | None, field: str, instead: str) -> None:
    """Refuse to read a model without the gates that it was trained with.

    Args:
        path: of the model's folder; None for a fresh one.
        field: that says how thoughts are read.
        instead: of the gates, for the message.

    Raises:
        ModelError: the folder has gates.
    """
    if has_gates(path):
        raise ModelError(
            field,
            f"{path} was trained with gates ({FILE}), which {instead} would drop",
            "Leave that field out, or start from the model before it.",
        )


def check_gates(path: str | Path | None, config: Mapping[str, Any]) -> None:
    """The gates of a model folder, where it has some, fit the model's embeddings.

    Args:
        config: what the model's `config.json` holds.

    Raises:
        ModelError: they are of another size, or the file is damaged.
    """
    if not has_gates(path):
        return
    from safetensors import SafetensorError, safe_open

    file = Path(str(path)).expanduser() / FILE
    width = config.get("hidden_size")
    try:
        with safe_open(file, framework="numpy") as gates:  # type: ignore[no-untyped-call]
            shape = gates.get_slice("decay").get_shape() if "decay" in gates.keys() else None  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise misfit(file, width, str(error)) from None
    if shape is None or (isinstance(width, int) and shape != [width]):
        raise misfit(file, width, "it has no Lambda" if shape is None else f"they are for {shape[0]}")


def misfit(file: Path, width: int | None, why: str) -> ModelError:
    """The error of gates that cannot be read."""
    return ModelError(
        "latent_rl.gates",
        f"{file} does not hold gates for embeddings of {width} values ({' '.join(why.split())[:200]})",
        f"Copy the folder again from the stage that wrote it, or remove {FILE} to start with fresh gates.",
    )
