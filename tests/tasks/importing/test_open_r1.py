"""open-r1 recipes as ours."""

from __future__ import annotations

import configurations as own

from pipelines.verifiers import registry


def test_grpo(tmp_path):
    result = own.read(tmp_path, own.OPEN_R1, processes=2, rows=1000)
    assert result.draft.config.trainer == "open-r1"
    recipe, rlvr = result.recipe, result.recipe.rlvr
    (source,) = recipe.curate.sources
    assert (
        source.columns == {"prompt": "problem", "answer": "solution"} and source.system == own.OPEN_R1["system_prompt"]
    )
    assert rlvr.prompts == 16 * 4 * 2 // 8 and rlvr.steps == 1000 // 16 * 2
    assert rlvr.shaping == [{"kind": "soft_overlong", "buffer": 0.25, "factor": 2.0}]
    assert [(term.get("name"), term["weight"]) for term in rlvr.reward["terms"]] == [(None, 1.0), ("format", 0.5)]
    assert recipe.model.chat_template == own.OPEN_R1["chat_template"]
    assert (
        own.kinds(result)["reward_funcs"] == "left_out"
        and own.kinds(result)["gradient_checkpointing_kwargs"] == "left_out"
    )
    (left,) = [each for each in result.draft.left_out if each.field == "reward_funcs"]
    assert "tag_count" in left.why and "my_rewards:tag_count" in left.instead


def test_the_form_is_theirs(tmp_path):
    term = own.read(tmp_path, own.OPEN_R1).recipe.rlvr.reward["terms"][1]
    verify = registry.load(term["verifier"]).verify
    whole = "<think>\nfour\nor five\n</think>\n<answer>\n5\n</answer>"
    assert verify(whole, term["answer"], term["info"]).score == 1
    assert verify(whole.replace("</think>\n", "</think>"), term["answer"], term["info"]).score == 0


def test_a_penalty_for_another_length_is_listed(tmp_path):
    result = own.read(tmp_path, own.OPEN_R1 | {"max_completion_len": 16384})
    assert result.recipe.rlvr.shaping == []
    left = [each.why.split()[0] for each in result.draft.left_out if each.field == "reward_funcs"]
    assert left == ["tag_count", "soft_overlong_punishment"]


def test_a_mixture(tmp_path):
    mixture = {
        "datasets": [{"id": "org/a", "config": "main", "split": "train", "weight": 0.5}, {"id": "org/b"}],
        "seed": 1,
    }
    config = {"model_name_or_path": "org/small", "dataset_mixture": mixture, "max_length": 64, "benchmarks": ["aime24"]}
    result = own.read(tmp_path, config, name="sft.yaml")
    assert [(each.path, each.name) for each in result.recipe.curate.sources] == [("org/a", "main"), ("org/b", None)]
    assert own.kinds(result)["dataset_mixture"] == "left_out" and own.kinds(result)["benchmarks"] == "left_out"
