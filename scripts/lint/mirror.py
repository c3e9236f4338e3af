"""Tests mirror the tree: `tests/pipelines/rlvr/test_train.py` is about `pipelines/rlvr/train.py`.

A test file is named after a module or a package beside it, or after the folder that it stands in where its subject is the whole folder;
`test_train_tools.py` is about one side of `train.py`. Files about several modules are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts.lint.tree import PACKAGES, ROOT

SEVERAL = {
    "tests/flows": "backups external_graph faults mlflow_pages nights operations own_data pictures pipeline postgresql preference_graph "
    "reward_model_graph scoring_stages smollm2",
    "tests/pipelines/curate": "conventions published",
    "tests/pipelines/engine": "devices",
    "tests/pipelines/environments": "games",
    "tests/pipelines/monitor": "healthy_runs rules",
    "tests/pipelines/papers": "inclusion near_goals pictures reward_model_columns reweighted scored_columns tool_rewards",
    "tests/pipelines/papers/ragen": "worlds",
    "tests/pipelines/reward_model": "critiques preference_models process_recipe segments",
    "tests/pipelines/rlvr": "exact golden hooks laws masked plain_loop",
    "tests/pipelines/rlvr/shaping": "learned_bonuses",
    "tests/pipelines/verifiers": "form",
    "tests/tasks": "real_ray",
    "tests/tasks/keys": "graph_keys reuse_matrix",
    "tests/tasks/tracking": "graph",
}
"""Folder → subjects of its test files that are about several modules: whole runs, laws of all methods, games side by side."""


def is_mirrored(test: Path, root: Path) -> bool:
    """Whether the name of a test file names what it tests: its folder, or a module or package of the same place."""
    folder = root / test.parent.relative_to(root / "tests")
    words = test.stem.removeprefix("test_").split("_")
    for count in range(len(words), 0, -1):
        name = "_".join(words[:count])
        if name == folder.name and folder.is_dir():
            return True
        if any((folder / each).exists() for each in (f"{name}.py", f"_{name}.py", name)):
            return True
    return False


def check(root: Path = ROOT) -> Iterator[str]:
    """Every test file of the packages, and exceptions that nothing needs any more."""
    several = {f"{folder}/test_{name}.py" for folder, names in SEVERAL.items() for name in names.split()}
    for package in PACKAGES:
        for path in sorted((root / "tests" / package).rglob("test_*.py")):
            name = path.relative_to(root).as_posix()
            if is_mirrored(path, root):
                if name in several:
                    yield f"scripts/lint/mirror.py: {name} is no exception"
            elif name not in several:
                yield f"{name}: no module or package has this name; name it after what it tests, or list it in scripts/lint/mirror.py"
    if root == ROOT:
        yield from (f"scripts/lint/mirror.py: {name} is gone" for name in sorted(several) if not (root / name).exists())
