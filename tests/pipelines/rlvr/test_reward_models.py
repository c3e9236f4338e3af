"""What the classes of methods say about models, read from their files; stages of the recipe that are named there."""

from __future__ import annotations

import re

import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError
from pipelines.contract import catalogue
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr import reward_models
from tasks import keys


def test_what_is_read_from_the_file_is_what_the_class_says():
    some = {"model_paths": 0, "reward_models": 0, "language_models": 0, "players": 0}
    for slot in [f"rlvr.{slot}" for slot in (*SLOTS, "providers")]:
        for name in catalogue.names(slot):
            said = {attribute: getattr(catalogue.load(slot, name), attribute, ()) for attribute in some}
            for attribute, settings in said.items():
                assert reward_models.declared(slot, name, attribute) == settings, (slot, name)
            some = {attribute: count + bool(said[attribute]) for attribute, count in some.items()}
    assert all(some.values()), "each is used somewhere"


def graph(tmp_path, section, *, rename=None):
    """A recipe whose stage `rl` has these fields, beside SFT stages `cold` and `expert` and a reward model's."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    rlvr, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    pairs = [{"kind": "stage", "path": "drafts", "select": "pairs"}]
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr, **section},
        rename or "expert": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4},
        "pairs": {"kind": "curate", "sources": pairs, "splits": {"train": 0.8, "heldout": 0.2}},
        "scorer": {"kind": "reward_model", "data": "pairs", "model": "cold", "steps": 2},
    }  # fmt: skip
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return path


def sections(named):
    """Each setting of `model_paths` → the fields of a section whose method names a model in it, and where that is."""
    every = {}
    for slot in ("providers", *SLOTS):
        for name in catalogue.names(f"rlvr.{slot}"):
            for setting in reward_models.declared(f"rlvr.{slot}", name, "model_paths"):
                listed = slot == "providers"
                spec = {"kind": name, setting: named}
                label = f"{slot}.0.{setting}" if listed else f"{slot}.{setting}"
                every[name] = ({slot: [spec] if listed else spec}, label)
    return every


METHODS = sorted(sections("x"))


def test_all_that_score_by_a_frozen_model_are_meant():
    told = {"viper", "listener", "ra3", "eager", "lm_reward", "teacher", "semantic", "roboclip", "contrasting_goals", "uvd"}  # fmt: skip
    assert told <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_model_to_score_with_takes_a_stage(tmp_path, name):
    fields, label = sections("expert")[name]
    path = graph(tmp_path, fields)
    read = read_recipe(path)
    node = read.node("rl")
    assert node.inputs[label] == "expert" and list(read.graph).index("expert") < list(read.graph).index("rl")
    assert label not in node.kind.reads(node).models
    settings = reward_models.with_folders(node.kind.reads(node).settings["rlvr"], {label: "/artifact"})
    assert "/artifact/model" in [each.value for each in reward_models.named(settings)]

    def key(of, digest="digest"):
        parts = keys.key_parts(of, "rl", dict.fromkeys(of.node("rl").inputs, "same") | {label: digest})
        assert parts["inputs"][label] == digest
        return keys.stage_key(parts)

    assert key(read) != key(read, "another"), "what the stage made is in the key"

    def expert(*overrides):
        of = read_recipe(path, list(overrides))
        return keys.stage_key(keys.key_parts(of, "expert", dict.fromkeys(of.node("expert").inputs, "same")))

    assert expert() != expert("expert.steps=13")
    renamed = read_recipe(graph(tmp_path, sections("other")[name][0], rename="other"))
    assert key(renamed) == key(read), "its name is not"


@pytest.mark.parametrize("name", METHODS)
def test_a_name_of_nothing_is_refused_with_the_stages_that_would_do(tmp_path, name):
    field = re.escape(f"rl.{sections('')[name][1]}: ")
    for named, words in (
        ("zzz", r"there is no stage called 'zzz'\. Known: cold, expert\. A path or a hub name has a slash, such as \./NAME\.$"),
        ("expret", r"there is no stage called 'expret'\. Did you mean 'expert'\? A path"),
        ("scorer", r"scorer makes reward_model, and model is wanted\. Name one of: cold, expert\.$"),
    ):  # fmt: skip
        with pytest.raises(RecipeError, match=field + words):
            read_recipe(graph(tmp_path, sections(named)[name][0]))


def test_a_circle_through_a_model_to_score_with_is_refused(tmp_path):
    path = graph(tmp_path, {"reward": {"kind": "listener", "model": "expert"}})
    with pytest.raises(RecipeError, match="a circle"):
        read_recipe(path, ["expert.model=rl"])


def test_plain_sections_have_no_names_to_tell(tmp_path):
    words = r"rlvr\.reward\.model: 'sft' is to be a stage; name the stages under `stages`\. A path or a hub name has a slash"
    with pytest.raises(RecipeError, match=words):
        read_recipe(toys.recipe(tmp_path), ["rlvr.reward={kind: listener, model: sft}"])


def test_a_revision_beside_a_stage_is_refused(tmp_path):
    fields = {"providers": [{"kind": "teacher", "path": "expert", "revision": "x"}], "credit": ["distillation"]}
    with pytest.raises(RecipeError, match="revision is that of a hub name, and expert is a stage"):
        check(read_recipe(graph(tmp_path, fields)))
    fields["providers"][0]["path"] = "org/expert"
    check(read_recipe(graph(tmp_path, fields)))


@pytest.mark.parametrize("role", ["policy", "reference"])
def test_a_role_is_no_stage_and_may_not_be_mistaken_for_one(tmp_path, role):
    fields = {"reward": {"kind": "listener", "model": role}}
    read = read_recipe(graph(tmp_path, fields))
    check(read)
    assert "reward.model" not in read.node("rl").labels
    assert "reward.model" not in read.node("rl").kind.reads(read.node("rl")).models
    with pytest.raises(RecipeError, match=rf"rl\.reward\.model: {role} is the .* Call the stage otherwise"):
        check(read_recipe(graph(tmp_path, fields, rename=role)))


def test_rounds_score_with_the_model_of_their_own_round(tmp_path):
    path = graph(tmp_path, {"reward": ["verifier", {"kind": "listener", "model": "expert"}]})
    body = yaml.safe_load(path.read_text())
    body["stages"]["expert"]["model"] = "cold"
    path.write_text(yaml.safe_dump(body | {"repeat": {"rounds": 2, "stages": ["expert", "rl"]}}, sort_keys=False))
    read = read_recipe(path)
    for number in (1, 2):
        assert read.node(f"rl-{number}").inputs["reward.terms.1.model"] == f"expert-{number}"


def test_opponents_are_stages_paths_and_roles(tmp_path):
    """What a stage made and a path's files are in the key, a stage's name is not; in metrics an opponent is called by it."""

    def pool(stage):
        entries = [
            "policy",
            stage,
            {"player": stage, "weight": 2, "name": "often"},
            "random",
            str(tmp_path / "old/model"),
        ]
        return graph(tmp_path, {"rollout": {"kind": "multi_turn", "opponents": entries}}, rename=stage)

    read = read_recipe(pool("expert"))
    node = read.node("rl")
    labels = ["rollout.opponents.1", "rollout.opponents.2.player"]
    assert [node.inputs.get(label) for label in labels] == ["expert", "expert"]
    reads = node.kind.reads(node)
    assert [(label, each.path) for label, each in reads.models.items() if "opponents" in label] == [
        ("rollout.opponents.4", str(tmp_path / "old/model"))
    ]
    settings = reward_models.with_folders(reads.settings["rlvr"], dict.fromkeys(labels, "/artifact"))
    assert settings["rollout"]["opponents"][1:3] == [
        {"player": "/artifact/model", "name": "expert"}, {"player": "/artifact/model", "weight": 2, "name": "often"}
    ]  # fmt: skip

    def key(of, digest="digest"):
        parts = keys.key_parts(of, "rl", dict.fromkeys(of.node("rl").inputs, "same") | dict.fromkeys(labels, digest))
        return keys.stage_key(parts)

    (tmp_path / "old/model").mkdir(parents=True)
    assert key(read) != key(read, "another")
    assert key(read_recipe(pool("other"))) == key(read_recipe(pool("expert")))
    with pytest.raises(
        RecipeError, match=r"rl\.rollout\.opponents\.1: there is no stage called 'zzz'\. Known: cold, expert"
    ):
        read_recipe(pool("expert"), ["rl.rollout.opponents=[policy, zzz]"])
    with pytest.raises(
        RecipeError, match=r"random is legal moves at random here, and a stage of the recipe has this name too"
    ):
        check(read_recipe(pool("random")))
