"""Models of the hub that are on this machine already."""

from __future__ import annotations

import os
from pathlib import Path

NEEDED = ("config.json", "tokenizer_config.json", "*.safetensors")


def downloaded(name: str, revision: str | None) -> Path | None:
    """The folder of a downloaded hub model with its configuration, tokenizer and weights; None where any of them is missing.

    Args:
        name: owner/name.
        revision: branch, tag or commit; None for `main`.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    if not isinstance(config, str | os.PathLike):  # unknown, or known to be missing
        return None
    folder = Path(config).parent
    return folder if all(any(folder.glob(pattern)) for pattern in NEEDED) else None
