"""The distribution's name is ours, and hints fetch no stranger's code."""

from __future__ import annotations

import importlib.metadata
import tomllib

import toys

from pipelines.base import distribution


def test_the_name_and_the_version_are_those_of_pyproject():
    project = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())["project"]
    assert (distribution.NAME, distribution.version()) == (project["name"], project["version"])


def test_hints_of_a_source_tree(monkeypatch, tmp_path):
    monkeypatch.chdir(toys.ROOT)
    assert distribution.install_hint("gguf") == 'pip install -e ".[gguf]"'
    monkeypatch.chdir(tmp_path)
    assert distribution.install_hint("gguf") == f'pip install -e "{toys.ROOT}[gguf]"'


def test_hints_of_an_installed_package_name_libraries(monkeypatch):
    lines = ["torch>=2.6", 'gguf>=0.10; extra == "gguf"', 'gguf>=0.10; extra == "dev"', "mcp>=2 ; extra == 'mcp'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines if name == "whetstone-rlvr" else None)
    monkeypatch.setattr(distribution, "is_checkout", lambda: False)
    assert distribution.install_hint("gguf") == 'pip install "gguf>=0.10"'
    assert distribution.install_hint("mcp") == 'pip install "mcp>=2"'
    assert distribution.libraries("dev") == ["gguf>=0.10"] and distribution.libraries("none") == []


def test_every_extra_that_a_hint_names_is_there():
    extras = tomllib.loads((toys.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    import re

    for room in ("flows", "tasks", "pipelines", "evaluation"):
        for path in (toys.ROOT / room).rglob("*.py"):
            assert {*re.findall(r"install_hint\(['\"](\w+)['\"]\)", path.read_text())} <= {*extras}, path
