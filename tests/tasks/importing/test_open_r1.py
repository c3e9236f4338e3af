"""open-r1 recipes as ours."""

from __future__ import annotations

import configurations as own
import pytest

from pipelines.base.errors import UserError
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


def test_defaults_are_of_the_trl_that_it_pins(tmp_path):
    """TRL 0.18.0 and transformers 4.52.3; the third of its default rewards, tag_count, is none of ours."""
    config = {"model_name_or_path": "org/small", "dataset_name": "org/maths"}
    result = own.read(tmp_path, config, trainer="open-r1", method="grpo", processes=1)
    recipe, rlvr = result.recipe, result.recipe.rlvr
    assert rlvr.divergence == {"kind": "k3", "weight": 0.04} and rlvr.loss_aggregation == {"kind": "token_mean"}
    assert (
        rlvr.sampling.max_tokens == 256 and recipe.curate.max_prompt_tokens == 512 and not rlvr.gradient_checkpointing
    )
    assert recipe.model.dtype == recipe.model.weights_dtype == "float32"
    assert [term.get("name") for term in rlvr.reward["terms"]] == [None, "format"]
    assert [(each.field, "tag_count" in each.why) for each in result.draft.left_out] == [("reward_funcs", True)]
    assert result.draft.origins["rlvr.divergence"] == ["open-r1's default of beta"]
    later = own.read(tmp_path, config, trainer="trl", method="grpo", processes=1).recipe
    assert later.rlvr.divergence is None and later.rlvr.sampling.max_tokens == 512 and later.model.dtype == "bfloat16"
    sft = own.read(tmp_path, config, trainer="open-r1", method="sft", processes=1, row_tokens=9).recipe
    assert sft.model.dtype == "float32" and not sft.sft.gradient_checkpointing and sft.sft.max_length == 1024


def test_weights_count_the_default_rewards(tmp_path):
    config = {"model_name_or_path": "org/small", "dataset_name": "org/maths", "reward_weights": [1.0, 0.5, 0.25]}
    terms = own.read(tmp_path, config, trainer="open-r1", method="grpo").recipe.rlvr.reward["terms"]
    assert [term["weight"] for term in terms] == [1.0, 0.5]
    with pytest.raises(UserError, match="reward_weights: 2 weights for 3 rewards"):
        own.read(tmp_path, config | {"reward_weights": [1, 2]}, trainer="open-r1", method="grpo")


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
