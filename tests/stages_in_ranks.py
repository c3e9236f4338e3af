"""Run by tests/ranks.py: stages of one module after the other, in this rank.

python stages_in_ranks.py MODULE WORK...
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import torch


def main() -> None:
    torch.set_num_threads(1)
    work = importlib.import_module(f"{sys.argv[1]}.__main__").work
    for folder in map(Path, sys.argv[2:]):
        work(json.loads((folder / "job.json").read_text()), folder)


if __name__ == "__main__":
    main()
