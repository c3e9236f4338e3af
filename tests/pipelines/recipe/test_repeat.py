"""Rounds: which stage of which round an input means."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import yaml

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe
from pipelines.recipe.repeat import unrolled

STAGES = {
    "data": {"kind": "curate"},
    "cold": {"kind": "sft", "data": "data"},
    "first": {"kind": "rlvr", "data": "data", "model": "cold"},
    "second": {"kind": "rlvr", "data": "data", "model": "first"},
    "scores": {"kind": "evaluate", "models": ["cold", "second"]},
}


def models(stages, /, **repeat):
    return {name: fields.get("model", fields.get("models")) for name, fields in unrolled(stages, repeat).items()}


def test_rounds_continue_with_the_last_model_of_the_round_before():
    assert models(STAGES, rounds=3, stages=["first", "second"]) == {
        "data": None, "cold": None, "first-1": "cold", "second-1": "first-1", "first-2": "second-1", "second-2": "first-2",
        "first-3": "second-2", "second-3": "first-3", "scores": ["cold", "second-3"],
    }  # fmt: skip


def test_rounds_that_start_from_the_recipes_own_model_continue_too():
    stages = {"data": {"kind": "curate"}, "rl": {"kind": "rlvr", "data": "data"}}
    assert models(stages, rounds=2, stages=["rl"]) == {"data": None, "rl-1": "base", "rl-2": "rl-1"}


def test_an_input_that_names_a_later_stage_reads_the_round_before():
    """Every round trains from `cold` again, on what the model of the round before has shown."""
    stages = STAGES | {
        "first": {"kind": "rlvr", "data": "data", "model": "second"},
        "second": {"kind": "sft", "data": "data", "model": "cold"},
    }
    assert models(stages, rounds=2, stages=["first", "second"]) == {
        "data": None, "cold": None, "first-1": "cold", "second-1": "cold", "first-2": "second-1", "second-2": "cold",
        "scores": ["cold", "second-2"],
    }  # fmt: skip


def test_start_says_what_the_first_round_reads():
    stages = STAGES | {"first": {"kind": "rlvr", "data": "data", "model": "second"}}
    assert models(stages, rounds=2, stages=["first", "second"], start={"second": "cold"})["first-1"] == "cold"
    with pytest.raises(RecipeError, match=r"repeat\.start: first reads second .* start: \{second: NAME\}"):
        unrolled(stages, {"rounds": 2, "stages": ["first", "second"]})


def test_a_start_that_nothing_reads_is_refused():
    """It would untie the rounds without a word."""
    with pytest.raises(RecipeError, match=r"repeat\.start\.first: no repeated stage reads first of the round before"):
        models(STAGES, rounds=2, stages=["first", "second"], start={"first": "cold"})
    with pytest.raises(RecipeError, match=r"repeat\.start: there is no stage called 'frist'. Did you mean 'first'"):
        models(STAGES, rounds=2, stages=["first", "second"], start={"frist": "cold"})


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(RecipeError, match="name of a round of first"):
        unrolled(STAGES | {"first-2": {"kind": "curate"}}, {"rounds": 2, "stages": ["first", "second"]})


@pytest.mark.slow
def test_many_rounds_are_read_in_time_that_grows_with_their_number(tmp_path):
    """Stages are put into order once: ten times the rounds are about ten times the calls of functions, and no square of them."""
    source = {"kind": "reasoning_gym", "task": "palindrome_generation", "size": 20}
    stages = {
        "scores": {"kind": "evaluate", "models": ["rl"], "tasks": ["palindromes"]},
        "data": {"kind": "curate", "sources": [source]},
        "cold": {"kind": "sft", "data": "data", "steps": 2},
        "drafts": {"kind": "sample", "data": "data", "model": "rl"},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold"},
    }
    path = tmp_path / "rounds.yaml"

    def calls(rounds):
        repeat = {"rounds": rounds, "stages": ["drafts", "rl"], "start": {"rl": "cold"}}
        body = {"name": "many", "model": {"fresh": {}}, "stages": stages, "repeat": repeat}
        path.write_text(yaml.safe_dump(body, sort_keys=False))
        counted = Counter()
        sys.setprofile(lambda frame, event, argument: counted.update([event]))
        try:
            recipe = read_recipe(path)
        finally:
            sys.setprofile(None)
        assert recipe.stage_names()[-3:] == [f"drafts-{rounds}", f"rl-{rounds}", "scores"]
        return counted["call"]

    calls(2)  # what is loaded and cached once
    few, many = calls(20), calls(200)
    assert 5 * few < many < 15 * few, (few, many)
