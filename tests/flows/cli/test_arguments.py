"""Arguments that mean nothing: one line with the nearest known word, before anything is read."""

from __future__ import annotations

import sys

import pytest

from flows.cli import main as cli
from flows.cli import stopping


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plam"], "argument COMMAND: there is no 'plam'. Did you mean 'plan'?"),
        (["plan", "x.yaml", "--untill", "sft"], "Did you mean '--until'?"),
        (["systems", "--status", "in-part"], "Did you mean 'in part'?"),
        (["plan", "x.yaml", "--memory", "--limit", "nan"], "argument --limit: nan: a number above 0."),
        (["plan", "x.yaml", "--memory", "--limit", "-3"], "argument --limit: -3: a number above 0."),
        (["plan", "x.yaml", "--memory", "--prompt-tokens", "0"], "argument --prompt-tokens: 0 is not between 1 and"),
        (
            ["plan", "x.yaml", "--limit", "3"],
            "--limit, --prompt-tokens, --gpus, --config: they say how --memory counts.",
        ),
        (["runs", "--limit", "-1"], "argument --limit: -1 is not between 1 and"),
        (["runs", "--limit", "all"], "argument --limit: 'all' is not a whole number."),
        (["deploy", "--gpus", "0"], "argument --gpus: 0 is not between 1 and"),
        (["promote", "x", "--ask", "--ask-hours", "-1"], "argument --ask-hours: -1: a number above 0."),
        (["rubric", "x.yaml", "y.jsonl", "--most", "0"], "argument --most: 0 is not between 1 and"),
        (["compare", "a", "b", "--html", "."], "--html: . is a folder"),
        (["lineage", "a", "--html", "nosuch/x.html"], "--html: there is no folder nosuch"),
        (["overoptimisation", "a", "--html", "nosuch/x.html"], "--html: there is no folder nosuch"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_is_read(home, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(stopping, "install", lambda: None)  # of pytest's own process
    monkeypatch.setattr(stopping, "exit_code", None)
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back afterwards
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setattr(sys, "argv", ["whetstone", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not home.exists()
