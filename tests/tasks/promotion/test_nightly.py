"""The gate of nights, on a real registry: verdicts, looks that are paid for once, evidence, and what keeps it from deciding."""

from __future__ import annotations

import json
from pathlib import Path

import homes
import numpy as np
import pytest

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import Recipe, read_recipe
from tasks.promotion import nightly, promote
from tasks.store.known import Known
from tasks.tracking import registry as tracking_registry

RULE = {"primary": "sums", "guards": {}, "margin": 0.05, "alpha": 0.05, "looks": 30}


@pytest.fixture(scope="module", autouse=True)
def registry(tmp_path_factory):
    yield from homes.with_a_store_of_its_own(tmp_path_factory)


def scores(rate: float, seed: int, problems: int = 200) -> list[list[float]]:
    return (np.random.default_rng(seed).random((problems, 8)) < rate).astype(float).tolist()


def recipe(name: str, gate: str = "not_worse: {sums: 3}") -> Recipe:
    overrides = [f"name={name}", "evaluate.tasks=[sums, words]", f"gate={{{gate}}}"]
    return read_recipe("recipes/quickstart.yaml", overrides)


def night(name: str, rate: float, seed: int, **tasks) -> str:
    """A registered run of that night; returns its id."""
    answers = {"sums": scores(rate, seed), **tasks}
    return homes.registered(name, {"base": {"sums": scores(0.3, 7)}, "rlvr": answers}, seed=seed)


def look(read: Recipe, run_id: str) -> dict:
    known = Known()
    stage = known.stage_of(known.run(run_id), "evaluate")
    body = nightly.look(read, {"evaluate": stage}, run_id)
    assert body is not None
    return body


def crown(name: str, run_id: str) -> None:
    chosen = promote.candidate(run_id, name)
    promote.move(chosen, promote.look(chosen, RULE))


@pytest.mark.slow
def test_nights_against_a_champion():
    """Nothing to be worse than; the champion itself; equal, worse and better nights, each counted once."""
    from tasks.tracking.client import client

    read, first = recipe("nights"), night("nights", 0.6, 1)
    none = look(read, first)
    assert none["verdict"] == "no champion" and not none["failed"] and "whetstone promote RUN" in none["why"][0]
    assert "no champion yet, so it passes" in nightly.told(read)
    crown("nights", first)
    assert look(read, first)["why"] == ["this model is the champion"]
    assert "worse than champion version 1 of nights (sums by 3 points)" in nightly.told(read)
    better, worse, equal = night("nights", 0.9, 2), night("nights", 0.3, 3), night("nights", 0.6, 4)
    bodies = [look(read, run) for run in (better, worse, equal, worse)]
    assert [b["look"] for b in bodies] == [1, 2, 3, 2]
    assert [b["verdict"] for b in bodies] == ["not worse", "worse", "undecided", "worse"]
    assert [b["failed"] for b in bodies] == [False, True, False, True]
    assert "is worse by more than 3 points" in bodies[1]["why"][0] and "80 % power" in bodies[2]["why"][0]
    assert look(recipe("nights", "not_worse: {sums: 3}, undecided: fail"), equal)["failed"]
    looks = promote.looks_at(tracking_registry.ledger("nights"), "1", "gate")
    assert {n: about["verdict"] for n, about in looks.items()} == {1: "not worse", 2: "worse", 3: "undecided"}
    assert promote.status("nights")["looks"] == [], "looks of promotions have an alpha of their own"
    tags = client().get_run(worse).data.tags
    assert tags["whetstone.gate"] == "worse" and "look 2 at champion version 1 of nights" in tags["whetstone.gate.why"]
    stored = client().download_artifacts(worse, "gate/gate-1-look-2.json")
    assert json.loads(Path(stored).read_text())["tests"][0]["worse"] is True


def test_the_base_and_a_named_run_are_opponents_with_ledgers_of_their_own():
    worse = night("others", 0.1, 11)
    against_base = look(recipe("others", "against: base, not_worse: {sums: 3}"), worse)
    assert against_base["failed"] and against_base["against"] == "the base of its own chain"
    named = night("others", 0.7, 12)
    read = recipe("others", f"against: '{named[:10]}', not_worse: {{sums: 3}}")
    assert nightly.problems(read) == []
    assert look(read, worse)["failed"] and look(read, night("others", 0.7, 13))["look"] == 2
    marks = {key.split(".")[1][:4] for key in tracking_registry.ledger("others") if key.startswith("gate.")}
    assert marks == {"base", "run-"}


def test_a_first_night_has_its_ledger_before_a_model_is_registered():
    run_id, read = night("elsewhere", 0.1, 14), recipe("unregistered", "against: base, not_worse: {sums: 3}")
    assert look(read, run_id)["look"] == 1 and "unregistered" in tracking_registry.names()


def test_too_few_problems_cost_no_look():
    few = {"sums": scores(0.5, 1, problems=10)}
    run_id = homes.registered("few-nights", {"base": few, "rlvr": few}, seed=15)
    body = look(recipe("few-nights", "against: base, not_worse: {sums: 3}"), run_id)
    assert body["verdict"] == "undecided" and "look" not in body and "fewer than 20" in body["why"][0]
    assert not promote.looks_at(tracking_registry.ledger("few-nights"), "base", "gate")


def test_a_named_run_that_is_nowhere_is_an_error_of_plan_and_marks_the_run():
    read = recipe("nowhere", "against: no-such-run, not_worse: {sums: 3}")
    (problem,) = nightly.problems(read)
    assert problem.field == "gate.against" and "no-such-run" in f"{problem.problem} {nightly.told(read)}"
    body = look(read, night("nowhere", 0.5, 21))
    assert body["failed"] and body["verdict"] == "undecided"


def test_a_benchmark_that_was_not_asked_of_both_decides_nothing():
    first = night("partly", 0.6, 31)
    crown("partly", first)
    read = recipe("partly", "not_worse: {sums: 3, words: 3}")
    body = look(read, night("partly", 0.9, 32, words=scores(0.5, 33)))
    assert body["verdict"] == "undecided" and body["left_out"] == {
        "words": "the model it is compared with was not asked it"
    }
    assert "words: decides nothing" in body["why"][1]


def test_a_store_that_is_away_is_a_verdict_and_no_error(monkeypatch):
    read, run_id = recipe("away"), night("away", 0.6, 41)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    body = look(read, run_id)
    assert body["verdict"] == "undecided" and not body["failed"] and "127.0.0.1:9" in body["why"][0]


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("not_worse: {smus: 3}", r"gate.not_worse.smus: no evaluation .* Did you mean 'sums'"),
        ("not_worse: {sums: 0}", "gate.not_worse.sums"),
        ("not_worse: {}", "gate.not_worse"),
        ("not_worse: {sums: 3}, alpha: 0.7", "gate.alpha"),
    ],
)
def test_what_a_recipe_may_not_say(gate: str, words: str):
    with pytest.raises(RecipeError, match=words):
        recipe("refused", gate)


def test_the_base_has_to_be_evaluated():
    with pytest.raises(RecipeError, match=r"gate.against: the base is not evaluated. Add base to evaluate.checkpoints"):
        read_recipe(
            "recipes/quickstart.yaml",
            ["gate={against: base, not_worse: {palindromes: 2}}", "evaluate.checkpoints=[rlvr]"],
        )


def test_a_gate_is_in_no_stage_s_key():
    from tasks.pipeline import Pipeline
    from tasks.stages import plan

    bare = read_recipe("recipes/quickstart.yaml", ["name=keyed", "evaluate.tasks=[sums, words]"])
    gated = recipe("keyed")
    assert Pipeline.state_of(bare) == Pipeline.state_of(gated), "a run that was killed goes on when a gate is added"
    keys = [[p.key for p in plan(each)] for each in (bare, gated)]
    assert keys[0] == keys[1] and keys[0][0]
