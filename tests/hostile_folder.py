"""A working folder of somebody's whose files have the names of our packages, of a library and of a module of Python's own."""

from __future__ import annotations

from pathlib import Path

FILES = (
    "tasks.py",
    "pipelines.py",
    "flows/__init__.py",
    "evaluation/__init__.py",
    "tests/__init__.py",
    "yaml.py",
    "queue.py",
)
REWARD = """
from own_helpers import length

def short(completions, **columns):
    return [-length(str(completion)) / 100 for completion in completions]
"""


def make(folder: Path) -> Path:
    """The folder; importing any of the files in it ends the process, other than the reward function `own_rewards:short`."""
    for name in FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise SystemExit('{name} of the working folder was imported')\n")
    (folder / "own_rewards.py").write_text(REWARD)
    (folder / "own_helpers.py").write_text("length = len\n")
    return folder
