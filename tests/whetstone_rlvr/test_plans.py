"""A plan says what `whetstone plan` says, as objects, and leaves nothing behind."""

from __future__ import annotations

import json

import homes
import pytest
import toys

from flows.cli import main
from whetstone_rlvr import UserError, plan


def command(capsys, *words):
    """What the command prints."""
    with pytest.raises(SystemExit):
        main.main(["plan", *words])
    return capsys.readouterr().out


@pytest.mark.slow
def test_it_says_what_the_command_says(home, tmp_path, capsys):
    path = toys.recipe(tmp_path)
    told = plan(path, set={"rlvr.steps": 3}, until="rlvr")
    assert repr(told) == command(capsys, str(path), "--set", "rlvr.steps=3", "--until", "rlvr").rstrip("\n")
    listed = json.loads(command(capsys, str(path), "--set", "rlvr.steps=3", "--until", "rlvr", "--json"))
    assert told.frame().astype(object).where(told.frame().notna(), None).to_dict("records") == listed
    assert told.ok and told.recipe.rlvr.steps == 3 and [*told.stages] == ["curate", "sft", "rlvr"]
    assert told.stages["curate"].key and not told.stages["curate"].reused and told.stages["sft"].key is None
    assert not home.exists(), "only a run makes the project folder"


@pytest.mark.slow
@pytest.mark.long
def test_all_that_would_stop_a_run_is_listed(home, tmp_path):
    sources = [{"kind": "file", "path": str(tmp_path / "nowhere.jsonl")}]
    told = plan(toys.recipe(tmp_path, curate={"sources": sources}, rlvr={"steps": 3, "advantage": "grppo"}))
    assert not told.ok and {"rlvr.advantage", "curate.sources.0.path"} <= {p.field for p in told.problems}
    assert f"{len(told.problems)} problems" in repr(told) and "Did you mean 'grpo'?" in repr(told)
    one = plan(toys.recipe(tmp_path, rlvr={"steps": 3, "advantage": "grppo"}))
    assert "\n1 problem\n" in repr(one) and [p.field for p in one.problems] == ["rlvr.advantage"]


@pytest.mark.parametrize(
    "choice",
    [{"until": "rlrv"}, {"start": "x"}, {"only": "x"}, {"only": ["sft", "x"]}, {"start": "rlvr", "until": "sft"}],
)
def test_stages_that_are_not_there(home, tmp_path, choice):
    with pytest.raises(UserError, match=r"^(start|until|only)="):
        plan(toys.recipe(tmp_path), **choice)


def test_a_disk_that_cannot_be_read_is_a_user_error(home, tmp_path, monkeypatch):
    homes.stage("sft", {}, {"model/weights": "x"}, "r" * 32)

    def refuse(*_, **__):
        raise OSError(5, "Input/output error", str(home / "runs"))

    monkeypatch.setattr("tasks.stages.plan", refuse)
    monkeypatch.setattr("tasks.pipeline.plan", refuse)
    with pytest.raises(UserError, match="the disk or the network share is failing"):
        plan(toys.recipe(tmp_path))
