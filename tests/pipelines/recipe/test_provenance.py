"""What every reward is made from: read off recipes, for MLflow and the page of a run."""

from __future__ import annotations

import pytest
import toys

from pipelines.contract.card import PROVENANCE
from pipelines.contract.catalogue import card, load, names
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.provenance import SLOTS
from tasks.tracking import record

RECIPES = sorted((toys.ROOT / "recipes").glob("*.yaml"))


def told(path, stage="rlvr", *overrides):
    node = read_recipe(path, list(overrides)).node(stage)
    return [each.text for each in node.kind.provenance(node)]


@pytest.mark.parametrize(
    ("reward", "lines"),
    [
        ("verifier", ["reward: verifier: rule"]),
        ("{kind: judge, model: judge-1}", ["reward: judge: judge (judge-1)"]),
        ("{kind: judge, path: ./grader}", ["reward: judge: judge (./grader)"]),
        ("{kind: gen_prm, model: judge-1}", ["reward: gen_prm: rule, judge (judge-1)"]),
        ("{kind: arena_tournament, judge: {model: big}}", ["reward: arena_tournament: judge (big)"]),
        ("arena_tournament", ["reward: arena_tournament: rule"]),
        ("{kind: model, model: [./a, ./b]}", [f"reward: model: reward model (./{name})" for name in "ab"]),
        (
            "[verifier, {kind: listener, model: ./frozen, weight: 0.1}]",
            ["reward: verifier: rule", "reward: listener: model"],
        ),
    ],
)
def test_a_reward_says_where_it_comes_from(tmp_path, reward, lines):
    assert told(toys.recipe(tmp_path), "rlvr", f"rlvr.reward={reward}") == lines


def test_what_is_paid_beside_the_reward_is_told_too(tmp_path):
    lines = told(toys.recipe(tmp_path), "rlvr", "presets=[gail]")
    assert lines == ["reward: verifier: rule", "shaping: gail: demonstrations"]


def test_a_reward_model_is_followed_to_its_data():
    reward_model = toys.ROOT / "recipes" / "reward_model.yaml"
    pairs = "loss: bradley_terry, pairs of drafts by rule"
    assert told(reward_model, "scorer") == ["loss: bradley_terry: preferences (pairs of drafts by rule)"]
    assert told(reward_model, "plain") == [f"reward: model: preferences (scorer, {pairs})"]
    assert len(told(reward_model, "ensemble")) == 3
    steps = told(toys.ROOT / "recipes" / "process_model.yaml", "clip")
    assert steps[1] == "reward: process_model: step labels (scorer, loss: step_bce, steps of labels by rule)"
    dpo = toys.ROOT / "recipes" / "iterative_dpo.yaml"
    assert told(dpo, "dpo-1") == ["loss: dpo: preferences (pairs of drafts-1 by rule)"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_stage_that_learns_from_rewards_says_what_they_are_made_from(path):
    recipe = read_recipe(path, [])
    for name in recipe.stage_names():
        node = recipe.node(name)
        sources = [source for each in node.kind.provenance(node) for source in each.made_from]
        assert set(sources) <= set(PROVENANCE)
        assert bool(sources) == (node.kind.rewards or node.kind.name in ("preference", "reward_model"))
        assert set(record.reward_tags(node)) == (
            {"whetstone.reward_sources", "whetstone.rewards"} if sources else set()
        )


def test_cards_use_the_words_of_the_list():
    said = {
        (slot, name): card(load(f"rlvr.{slot}", name)).provenance for slot in SLOTS for name in names(f"rlvr.{slot}")
    }
    assert {word for words in said.values() for word in words} <= set(PROVENANCE)
    assert said["reward", "co_reward"] == ("policy",) and said["reward", "verifier"] == ()
