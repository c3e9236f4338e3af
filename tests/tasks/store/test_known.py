"""What is said of how a model was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.store.artifacts import Artifact
from tasks.store.known import Known, training


@pytest.mark.parametrize(
    ("kind", "settings", "metrics", "words"),
    [
        ("rlvr", {"steps": 7, "split": "train", "advantage": {"kind": "grpo"}}, {}, ["7 steps of split train", "advantage grpo"]),
        ("external", {"steps": None, "split": "train", "trainer": "verl", "version": "0.9.1 at abc"}, {"steps": 100.0},
         ["100 steps of split train", "trainer verl 0.9.1 at abc"]),
        ("merge", {"method": "linear"}, {}, []),
    ],
)  # fmt: skip
def test_only_what_is_known_is_said(kind: str, settings: dict[str, Any], metrics: dict[str, float], words: list[str]):
    artifact = Artifact(kind, "k", Path("a"), "d", metrics=metrics, parts={"settings": {kind: settings}})
    assert training(artifact) == words


def test_an_empty_folder_says_how_runs_of_other_machines_are_named(home):
    home.mkdir(parents=True)
    assert "by their ids; `whetstone runs --remote` lists them" in str(Known().unknown("rlvr-0123456789abcdef"))
