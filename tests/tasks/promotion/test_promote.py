"""`champion` moves only through the gate: on a real registry, with looks that are counted, evidence that stays and a way back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import homes
import numpy as np
import pytest

from pipelines.base.errors import UserError
from tasks.promotion import promote as promotion
from tasks.promotion.promote import GateError
from tasks.tracking import registry as tracking_registry

RULE = {"primary": None, "guards": None, "margin": 0.05, "alpha": 0.05, "looks": 30}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    yield from homes.with_a_store_of_its_own(tmp_path_factory)


def scores(rate: float, seed: int, problems: int = 200, answers: int = 8) -> list[list[float]]:
    draw = np.random.default_rng(seed)
    return (draw.random((problems, answers)) < rate).astype(float).tolist()


def candidate(name: str, rate: float, seed: int, other: float = 0.6) -> promotion.Candidate:
    """A registered model whose pass rates on two benchmarks are these."""
    answers = {"sums": scores(rate, seed), "words": scores(other, seed + 1000, problems=600)}
    base = {"sums": scores(0.1, 7), "words": scores(0.6, 8, problems=600)}
    run_id = homes.registered(name, {"base": base, "rlvr": answers}, seed=seed)
    return promotion.candidate(run_id, name)


def look_and_move(chosen: promotion.Candidate, **rule) -> dict:
    evidence = promotion.look(chosen, RULE | rule)
    if evidence["promote"]:
        promotion.move(chosen, evidence)
    return evidence


def champion(name: str) -> str | None:
    current = tracking_registry.champion(name)
    return current[0] if current else None


@pytest.mark.slow
def test_the_way_of_a_champion(registry):
    """First against the base, then better, then equal and refused, then back."""
    first = candidate("way", 0.4, 1)
    evidence = look_and_move(first)
    assert evidence["promote"] and evidence["champion"]["version"] is None and champion("way") == first.version
    better = candidate("way", 0.6, 2)
    assert look_and_move(better)["look"] == 1 and champion("way") == better.version
    equal = candidate("way", 0.6, 3)
    refused = look_and_move(equal)
    assert not refused["promote"] and champion("way") == better.version
    with pytest.raises(GateError, match="is the champion already"):
        promotion.look(better, RULE)
    with pytest.raises(GateError, match="does not promote"):
        promotion.move(equal, refused)
    status = promotion.status("way")
    assert status["champion"] == better.version and status["champions"] == [first.version, better.version]
    assert [(one["look"], one["promote"]) for one in status["looks"]] == [(1, False)] and 0 < status["spent"] < 0.001
    assert promotion.rollback("way") == {"name": "way", "from": better.version, "to": first.version}
    assert champion("way") == first.version
    with pytest.raises(GateError, match="was rolled back"):
        promotion.look(better, RULE)
    assert promotion.status("way")["looks"][0]["look"] == 1, "looks at the old champion stay counted"
    assert promotion.rollback("way")["to"] is None and champion("way") is None
    with pytest.raises(GateError, match="no promotion of ours"):
        promotion.rollback("way")


@pytest.mark.slow
def test_a_model_of_another_projects_trainer_is_promoted(registry):
    answers = {"cold": {"sums": scores(0.2, 7)}, "rl": {"sums": scores(0.5, 5)}, "base": {"sums": scores(0.1, 8)}}
    chosen = promotion.candidate(homes.registered("tuned", answers, seed=5, label="rl", kind="external"), "tuned")
    assert (chosen.model.stage, chosen.subject.checkpoint) == ("external", "rl")
    assert look_and_move(chosen)["promote"] and champion("tuned") == chosen.version


def test_a_name_that_is_not_registered_is_a_typing_error_unless_said_otherwise(registry):
    run_id = homes.registered(
        "production", {"base": {"sums": scores(0.1, 7)}, "rlvr": {"sums": scores(0.5, 5)}}, seed=5
    )
    with pytest.raises(
        GateError, match=r"--name prodution: .* Did you mean 'production'.* If it is a new one, --new-name registers it"
    ):
        promotion.candidate(run_id, "prodution")
    assert "prodution" not in tracking_registry.names()
    assert (
        promotion.candidate(run_id, "staging", new_name=True).version == "1" and "staging" in tracking_registry.names()
    )
    assert promotion.candidate(run_id, "staging").name == "staging"


def test_the_same_candidate_is_one_look_and_another_is_the_next(registry):
    assert look_and_move(candidate("looks", 0.5, 11))["promote"]
    equal = candidate("looks", 0.5, 12)
    numbers = [promotion.look(equal, RULE)["look"] for _ in range(3)] + [
        look_and_move(candidate("looks", 0.5, 13))["look"]
    ]
    assert numbers == [1, 1, 1, 2]


def test_the_rule_is_fixed_with_the_first_look(registry):
    look_and_move(candidate("rule", 0.5, 21))
    look_and_move(candidate("rule", 0.5, 22))
    with pytest.raises(GateError, match="rule may only change with the champion"):
        promotion.look(candidate("rule", 0.9, 23), RULE | {"alpha": 0.4})
    assert champion("rule") == "1"


def test_a_guard_that_lost_stops_a_gain(registry):
    look_and_move(candidate("guard", 0.4, 31))
    evidence = look_and_move(candidate("guard", 0.8, 32, other=0.45))
    assert evidence["primary"]["passed"] and not evidence["promote"] and champion("guard") == "1"


def test_evidence_stays_in_mlflow_and_in_the_home(registry, tmp_path):
    from tasks.environment import home
    from tasks.tracking.client import client

    chosen = candidate("evidence", 0.5, 41)
    evidence = look_and_move(chosen)
    stored = client().download_artifacts(chosen.run_id, "promotion/champion-0-look-1.json", str(tmp_path))
    assert json.loads(Path(stored).read_text()) == evidence
    assert "may be promoted" in client().get_run(chosen.run_id).data.tags["whetstone.promotion"]
    assert (home() / "promotions/evidence/champion-0-look-1.json").exists()
    tags = tracking_registry.version_tags("evidence", chosen.version)
    assert tags["whetstone.artifact"] == chosen.subject.artifact and "points" in tags["whetstone.evidence"]


def test_a_tampered_model_or_evaluation_is_not_promoted(registry):
    chosen = candidate("tampered", 0.9, 51)
    evidence = promotion.look(chosen, RULE)
    (chosen.model.path / "model/weights").write_text("another model")
    with pytest.raises(UserError, match=r"model/weights is damaged"):
        promotion.move(chosen, evidence)
    with pytest.raises(UserError, match=r"model/weights is damaged"):
        promotion.candidate(chosen.run_id, "tampered")
    other = candidate("tampered", 0.9, 52)
    samples = other.evaluated.artifact.path / "samples/rlvr/sums.jsonl"
    samples.write_text(samples.read_text().replace("[0.0", "[1.0"))
    with pytest.raises(UserError, match=r"sums.jsonl is damaged"):
        promotion.candidate(other.run_id, "tampered")
    assert champion("tampered") is None


def test_a_champion_given_by_hand_gets_the_alias_back(registry):
    look_and_move(candidate("hand", 0.3, 51))
    by_hand, better = candidate("hand", 0.4, 52), candidate("hand", 0.8, 53)
    tags = {"whetstone.artifact": by_hand.subject.artifact}
    tracking_registry.set_champion("hand", by_hand.version, tags)
    assert look_and_move(better)["promote"]
    assert promotion.rollback("hand")["to"] == by_hand.version and champion("hand") == by_hand.version


def test_the_primary_benchmark_is_the_recipe_s_first(registry):
    answers = {"words": scores(0.6, 8), "sums": scores(0.6, 9)}
    run_id = homes.registered("order", {"base": answers, "rlvr": answers}, seed=54)
    assert promotion.look(promotion.candidate(run_id, "order"), RULE)["primary"]["task"] == "words"


def test_the_model_of_a_second_stage_of_its_kind_can_be_promoted(registry):
    answers = {"sums": scores(0.6, 10)}
    run_id = homes.registered("rounds", {"base": {"sums": scores(0.1, 11)}, "rlvr-2": answers}, seed=55, label="rlvr-2")
    assert look_and_move(promotion.candidate(run_id, "rounds"))["promote"]


@pytest.mark.slow
def test_a_champion_that_changed_meanwhile_is_looked_at_again(registry):
    look_and_move(candidate("race", 0.3, 61))
    one, two = candidate("race", 0.6, 62), candidate("race", 0.7, 63)
    looks = [promotion.look(c, RULE) for c in (one, two)]
    promotion.move(two, looks[1])
    with pytest.raises(GateError, match="another champion by now"):
        promotion.move(one, looks[0])


def test_a_champion_whose_model_is_elsewhere_is_found_by_its_run(registry):
    """Its answers decide, and they are those of the run's evaluation; a candidate's model has to be had."""
    first = candidate("elsewhere", 0.4, 41)
    assert look_and_move(first)["promote"]
    shutil.rmtree(first.model.path)
    better = candidate("elsewhere", 0.6, 42)
    evidence = promotion.look(better, RULE)
    assert evidence["promote"] and evidence["champion"]["evaluation"] == first.evaluated.artifact.path.name
    shutil.rmtree(better.model.path)
    with pytest.raises(GateError, match="the model of rlvr is not here, and MLflow has no copy of it"):
        promotion.candidate(str(better.run_id), "elsewhere")


@pytest.mark.parametrize(
    ("rule", "words"),
    [({"primary": "wrods"}, "--primary wrods.*Did you mean 'words'"), ({"guards": {"x": 0.1}}, "--guard x")],
)
def test_misspelt_benchmarks(registry, rule: dict, words: str):
    chosen = candidate("misspelt", 0.5, 71)
    with pytest.raises(GateError, match=words):
        promotion.look(chosen, RULE | rule)


def test_too_few_problems_decide_nothing(registry):
    few: Sequence = scores(0.9, 1, problems=10)
    run_id = homes.registered("few", {"base": {"sums": few}, "rlvr": {"sums": few}}, seed=81)
    with pytest.raises(GateError, match=r"no benchmark has 20 problems.*sums: 10 problems were asked"):
        promotion.look(promotion.candidate(run_id, "few"), RULE)


def test_a_benchmark_that_is_left_out_is_in_the_evidence_with_the_reason(registry):
    """Neither the primary benchmark nor a guard is passed over in silence."""
    from tasks.tracking.client import client

    base = {"few": scores(0.5, 1, problems=10), "sums": scores(0.1, 2), "old": scores(0.5, 3)}
    trained = {"few": scores(0.5, 4, problems=10), "sums": scores(0.6, 5), "new": scores(0.5, 6)}
    chosen = promotion.candidate(homes.registered("left", {"base": base, "rlvr": trained}, seed=82), "left")
    evidence = promotion.look(chosen, RULE)
    assert evidence["promote"] and evidence["primary"]["task"] == "sums" and not evidence["guards"]
    assert evidence["left_out"] == {
        "few": "10 problems were asked of both alike, and fewer than 20 decide nothing",
        "new": "the model it is compared with was not asked it",
        "old": "the candidate was not asked it",
    }
    assert [line for line in evidence["why"] if "left out" in line] == [
        f"{task}: left out, because {reason}" for task, reason in evidence["left_out"].items()
    ]
    assert "few: left out" in client().get_run(chosen.run_id).data.tags["whetstone.promotion"]
    named = promotion.look(chosen, RULE | {"primary": "sums", "guards": {}})
    assert not any("left out" in line for line in named["why"]), "all benchmarks of the rule were named"
    with pytest.raises(GateError, match=r"^--guard few: 10 problems were asked of both alike, and fewer than 20"):
        promotion.look(chosen, RULE | {"guards": {"few": 0.1}})


def test_names(registry):
    homes.registered("nearest", {"rlvr": {"sums": scores(0.5, 71)}}, seed=71)
    with pytest.raises(GateError, match="Did you mean 'nearest'"):
        promotion.rollback("naerest")


def test_where_no_base_was_evaluated_the_message_says_how_to_get_one(registry):
    run_id = homes.registered("baseless", {"rlvr": {"sums": scores(0.5, 91)}}, seed=91)
    with pytest.raises(GateError) as refused:
        promotion.look(promotion.candidate(run_id, "baseless"), RULE)
    (problem,) = refused.value.problems
    assert (
        problem.field == "baseless"
        and "is compared with the base" in problem.problem
        and "rlvr alone" in problem.problem
    )
    assert problem.fix.startswith("Add base to evaluate.checkpoints of the recipe, run it again")
