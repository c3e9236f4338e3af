"""Pairs that a small model can learn to tell apart: chosen answers are made of a to d, rejected ones of e to h."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

PAIR_RECIPE = {"splits": {"train": 0.8, "heldout": 0.2}, "near_duplicates": None, "decontaminate": None}


def pairs_file(folder: Path, count: int = 240, **extra: Any) -> dict[str, Any]:
    """A source of pairs, `extra` in each row; 30 prompts have eight each."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        chosen, rejected = ("".join(draw.choices(letters, k=draw.randint(2, 6))) for letters in ("abcd", "efgh"))
        row = {"prompt": f"say {number % 30}", "chosen": chosen, "rejected": rejected}
        rows.append(row | {"margin": draw.randint(0, 4) / 4} | extra)
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "file", "path": str(path)}
