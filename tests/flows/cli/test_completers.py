"""What is offered agrees with what the commands take, and costs little."""

from __future__ import annotations

import argparse
import json
import os

import argcomplete
import pytest
import toys

from flows.cli import completers, main
from flows.cli.systems import find
from pipelines.recipe.read import preset_names


def options() -> list[tuple[str, argparse.Action]]:
    commands = next(a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction))
    return [(name, action) for name, command in commands.choices.items() for action in command._actions]


def test_tables_name_arguments_that_are_there():
    known = options()
    assert {action.dest for _, action in known} >= completers.BY_ARGUMENT.keys()
    assert {(name, action.dest) for name, action in known} >= completers.BY_COMMAND.keys()


def test_names_are_those_of_the_code():
    assert completers.presets(prefix="") == ["all", *preset_names()]
    assert {"rlvr.advantage", "sft.loss"} <= set(completers.slots())
    assert {"rloo", "grpo", "dapo"} <= set(completers.methods())
    for name in completers.systems():
        assert find(name).name.startswith(name)


def test_fields_that_have_a_value_can_be_set():
    from pipelines.recipe.read import Recipe

    none = argparse.Namespace()
    fields = completers.assignments("", none)
    assert {each.rstrip(".=") for each in fields} == set(Recipe.model_json_schema()["properties"]) | {"repeat"}
    assert "rlvr.steps=" in completers.assignments("rlvr.", none)
    assert completers.assignments("no.such.", none) == [] and completers.assignments("rlvr.steps=", none) == []


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with recipes, and a project folder that has had one run."""
    (tmp_path / "mine.yaml").write_text("name: mine\nstages:\n  cold: {kind: sft}\n  warm: {kind: rlvr, init: cold}\n")
    (tmp_path / "broken.yaml").write_text("stages: [: {")
    (tmp_path / "notes.txt").write_text("no recipe")
    run = {"run_id": "c0ffee12", "name": "mine", "experiment": "mine", "status": "FINISHED", "started": 1.0}
    (tmp_path / "index.jsonl").write_text(json.dumps(run | {"summary": {"stages": {"cold": {}, "warm": {}}}}) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path))
    return tmp_path


def offered(place, monkeypatch, words: str) -> list[str]:
    """What argcomplete answers a shell that asks about `whetstone WORDS`."""
    line = f"whetstone {words}"
    # It would write what it does to file descriptor 9, which is somebody else's here.
    monkeypatch.setattr(argcomplete.CompletionFinder, "_init_debug_stream", lambda self: None)
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    for name, value in (asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(place / "offered")}).items():
        monkeypatch.setenv(name, value)
    completers.answer(main.parser(main.COMMANDS.keys() & set(os.environ["COMP_LINE"].split())), leave=lambda code: None)
    return sorted(word.rstrip() for word in (place / "offered").read_text().split("\013") if word)


CASES = {
    "pl": ["plan"],
    "plan --pro": ["--prompt-tokens"],
    "plan mi": ["mine.yaml"],
    "plan no": [],
    "plan recipes/gsm8k": ["recipes/gsm8k.yaml", "recipes/gsm8k_tiny.yaml"],
    "new x.yaml --from gsm": ["gsm8k", "gsm8k_tiny"],
    "show c0": ["c0ffee12"],
    "lineage c0": ["c0ffee12"],
    "export c0": ["c0ffee12"],
    "export c0ffee12/": ["c0ffee12/cold", "c0ffee12/warm"],
    "export beef/": [],
    "run mine.yaml --only c": ["cold"],
    "run broken.yaml --only c": [],
    "run recipes/quickstart.yaml --until s": ["sft"],
    "run mine.yaml --set rlvr.optimizer.learn": ["rlvr.optimizer.learning_rate="],
    "run mine.yaml --set sft.commit": ["sft.commit.every=", "sft.commit.keep_best=", "sft.commit.keep_last="],
    "run mine.yaml --set stages.cold.commit.e": ["stages.cold.commit.every="],
    "run mine.yaml --set sandbox=": ["sandbox=auto", "sandbox=limits_only"],
    "run mine.yaml --set rlvr.advantage=rl": ["rlvr.advantage=rl_zvp", "rlvr.advantage=rloo"],
    "sweep mine.yaml --set rlvr.advantage=grpo,rlo": ["rlvr.advantage=grpo,rloo"],
    "sweep mine.yaml --presets grpo,dapo": ["grpo,dapo", "grpo,dapo_carry"],
    "methods rlo": ["rloo"],
    "methods --slot rlvr.adv": ["rlvr.advantage"],
    "systems ViS": ["ViSurf"],
    "claims ru": ["run"],
    "claims run Calib": ["CalibRL"],
    "verify --sandbox l": ["limits_only"],
    "verify --verifier pal": [],
    "verify --out note": ["notes.txt"],
    "export x --name note": [],
    "completion ": ["bash", "fish", "zsh"],
}
"""Words → what is offered in place of the last."""


@pytest.mark.parametrize("words", CASES)
def test_what_is_offered(place, monkeypatch, words):
    assert [
        word for word in offered(place, monkeypatch, words) if not word.startswith("--") or " --" in words
    ] == CASES[words]


def test_every_command_is_offered(place, monkeypatch):
    words = offered(place, monkeypatch, "")
    assert [word for word in words if not word.startswith("-")] == sorted(main.COMMANDS)


@pytest.mark.parametrize(
    "line",
    ["plan --set rlvr.", "show a", "run recipes/quickstart.yaml --only s", "sweep x.yaml --presets g", "systems V"],
)
def test_a_tab_imports_nothing_slow(line, tmp_path, monkeypatch):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path))
    code = f"""
import os
os.environ |= {{"_ARGCOMPLETE": "1", "COMP_LINE": "whetstone {line}", "COMP_POINT": "{10 + len(line)}",
    "_ARGCOMPLETE_STDOUT_FILENAME": {str(tmp_path / "offered")!r}}}
os._exit = lambda code: sys.exit(code)
from flows.cli import main
try: main.main()
except SystemExit: pass
"""
    assert not toys.loaded(code) & toys.HEAVY
    offered = (tmp_path / "offered").read_text().split("\013")
    assert any(line.split()[-1] in each for each in offered) == (line != "show a")
