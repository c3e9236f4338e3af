"""Imports go down: no circle among files or rooms, none of the core imports a paper, and the quickstart loads little."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest
import toys

CORE = ("flows", "tasks", "evaluation", "pipelines")


MOST = {"stages": (200, 28_000), "stages and plan": (315, 42_000)}
"""Files and lines of the project that the quickstart may load: its four stage processes, and `whetstone plan` beside them."""
LOADED = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps([f for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None)) and f.startswith(sys.argv[2])]))
"""
PLAN = """
import json, sys
from pathlib import Path
from flows.cli import main
try:
    main.main(["plan", sys.argv[1]])
except SystemExit:
    pass
print(json.dumps([f for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None)) and f.startswith(sys.argv[2])]))
"""


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root: Path, packages: Iterable[str] = CORE) -> dict[str, set[str]]:
    """Module → modules of `packages` that its text imports, wherever: in functions and under TYPE_CHECKING too.

    A module's own packages, which Python loads before it, are no imports of its text.
    """
    files = {name_of(path, root): path for package in packages for path in (root / package).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                named |= {inner if (inner := f"{base}.{alias.name}") in files else base for alias in node.names}
        graph[module] = (named & files.keys()) - {module}
    return graph


def rooms(graph: Mapping[str, set[str]], root: Path) -> dict[str, set[str]]:
    """The graph of folders: `pipelines.rlvr` with all below it, `tasks.keys`, and `tasks` for the files that lie in it."""

    def room(module: str) -> str:
        parts = module.split(".")
        return ".".join(parts[:2]) if root.joinpath(*parts[:2]).is_dir() else parts[0]

    between: dict[str, set[str]] = {}
    for module, targets in graph.items():
        between.setdefault(room(module), set()).update(room(target) for target in targets)
    return {name: targets - {name} for name, targets in between.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        queue = [*graph[start]]
        while queue:
            node = queue.pop()
            if node not in seen:
                seen.add(node)
                queue += graph.get(node, ())
        reached[start] = seen
    return [
        list(knot) for knot in sorted({tuple(sorted(b for b in reached[a] if a in reached[b])) for a in graph}) if knot
    ]


@cache
def project_graph() -> dict[str, set[str]]:
    """Of the project; seconds of work, which those who only collect the tests need not wait for."""
    return imports(toys.ROOT)


@pytest.mark.slow
def test_no_file_imports_what_imports_it():
    assert circles(project_graph()) == []


def test_no_room_imports_what_imports_it():
    assert circles(rooms(project_graph(), toys.ROOT)) == []


def test_every_room_of_pipelines_imports_lower_floors_alone():
    contracts = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (floors,) = (each for each in contracts if each.get("containers") == ["pipelines"])
    height = {
        f"pipelines.{name.strip()}": number
        for number, floor in enumerate(reversed(floors["layers"]))
        for name in floor.split("|")
    }
    between = rooms(project_graph(), toys.ROOT)
    assert height.keys() == {name for name in between if name.startswith("pipelines.")}
    up = [(a, b) for a in height for b in between[a] if b not in height or height[b] >= height[a]]
    assert up == []


@pytest.mark.parametrize("page", ["README.md", "docs/design.md"])
def test_the_file_tree_names_every_room(page):
    """One line a room, and no room that is gone."""
    text = (toys.ROOT / page).read_text()
    (tree,) = re.findall(r"^```text\n(flows/\n.*?)^```$", text, re.M | re.S)
    named: list[str] = []
    top = ""
    for line in tree.splitlines():
        entries = re.findall(r"(?:^ *|(?<=/)  )(\w+)/", line)
        if not line.startswith(" "):
            top = entries[0]
        else:
            named += [f"{top}.{entry}" for entry in entries]
    assert sorted(named) == sorted(name for name in rooms(project_graph(), toys.ROOT) if "." in name)


def test_nothing_of_the_core_imports_a_paper():
    core = {module for module in project_graph() if not module.startswith("pipelines.papers")}
    assert [(a, b) for a in core for b in project_graph()[a] if b not in core] == []


@pytest.mark.parametrize(
    "text",
    [
        "import top.b.two", "from top.b import two", "from top.b.two import x", "from ..b import two", "from ..b.two import x",
        "def f():\n    from top.b import two", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import top.b.two",
    ],
)  # fmt: skip
def test_a_circle_is_found_however_it_is_written(tmp_path, text):
    for name, body in (("a/one.py", text), ("b/two.py", "from top.a import one"), ("b/three.py", "import top.a.one")):
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).write_text(body)
    graph = imports(tmp_path, ["top"])
    assert circles(graph) == [["top.a.one", "top.b.two"]]
    assert circles(rooms(graph, tmp_path)) == [["top.a", "top.b"]]
    (tmp_path / "top" / "b" / "two.py").write_text("")
    assert circles(imports(tmp_path, ["top"])) == [] and circles(rooms(imports(tmp_path, ["top"]), tmp_path)) != []


def loaded(script: str, *arguments: str, home: Path) -> set[Path]:
    """Files of the project that a process has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, f"{toys.ROOT}{os.sep}"], capture_output=True, text=True, check=True,
        cwd=toys.ROOT, env=toys.environment(WHETSTONE_HOME=str(home)),
    )  # fmt: skip
    files = {Path(name) for name in json.loads(done.stdout.splitlines()[-1])}
    return {path for path in files if path.relative_to(toys.ROOT).parts[0] in CORE}


@pytest.mark.slow
def test_what_the_quickstart_loads(tmp_path):
    """The four processes with the parts, verifiers and benchmarks that the recipe names, and `whetstone plan`.

    What a stage imports while it works, such as the workers' side of verifiers, is not run here: a whole run loads a few files more.
    """
    from pipelines.recipe.read import read_recipe
    from tasks import keys

    path = toys.ROOT / "recipes" / "quickstart.yaml"
    recipe = read_recipe(path, [])
    files: dict[str, set[Path]] = {}
    for stage in ("curate", "sft", "rlvr", "evaluate"):
        node = recipe.node(stage)
        parts = [name for name in keys.node_reads(recipe, stage).modules if "benchmarks" not in name]
        modules = [f"{node.kind.module}.__main__", *node.kind.imports(node), *parts]
        files[stage] = loaded(LOADED, json.dumps(modules), home=tmp_path)
    files["stages"] = set().union(*files.values())
    files["plan"] = loaded(PLAN, str(path), home=tmp_path)
    files["stages and plan"] = files["stages"] | files["plan"]
    lines = {file: len(file.read_text().splitlines()) for file in files["stages and plan"]}
    size = {name: (len(each), sum(lines[file] for file in each)) for name, each in files.items()}
    for name, (count, total) in size.items():
        print(f"{name}: {count} files, {total} lines")
    for name, (most_files, most_lines) in MOST.items():
        assert size[name][0] <= most_files and size[name][1] <= most_lines, f"{name}: {size[name]}"
