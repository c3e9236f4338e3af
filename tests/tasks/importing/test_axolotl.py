"""axolotl configurations as recipes."""

from __future__ import annotations

import configurations as own
import pytest

from pipelines.base.errors import UserError

PAIRS = {key: value for key, value in own.AXOLOTL.items() if key != "sample_packing"}


def test_sft(tmp_path):
    result = own.read(tmp_path, own.AXOLOTL, processes=1)
    recipe, sft = result.recipe, result.recipe.sft
    assert (sft.tokens_per_step, sft.max_length, sft.epochs, sft.packing, sft.turns) == (
        2 * 4 * 1024,
        1024,
        3.0,
        True,
        "all",
    )
    assert (
        sft.lora.rank == 32
        and sft.lora.alpha == 16
        and sft.lora.dropout == 0
        and sft.lora.target_modules == "all-linear"
    )
    assert (sft.optimizer.learning_rate, sft.optimizer.final_share, sft.optimizer.warmup) == (2e-4, 0.1, 0.03)
    assert (
        sft.gradient_checkpointing
        and sft.heldout == "heldout"
        and recipe.curate.splits == {"train": 0.9, "heldout": 0.1}
    )
    assert recipe.curate.sources[0].columns == {"prompt": "turns"} and recipe.model.dtype == "bfloat16"
    assert own.kinds(result)["special_tokens"] == "left_out" and own.kinds(result)["wandb_project"] == "mapped"


def test_raw_texts_and_files(tmp_path):
    rows = [
        {"path": "json", "data_files": ["a.jsonl"], "type": "alpaca"},
        {"path": "org/books", "type": "completion", "field": "body"},
    ]
    sources = own.read(tmp_path, own.AXOLOTL | {"datasets": rows}).recipe.curate.sources
    assert (sources[0].kind, sources[0].path) == ("file", "a.jsonl")
    assert (sources[1].kind, sources[1].text_column) == ("hub", "body")


@pytest.mark.parametrize(
    ("rl", "more", "loss"),
    [
        ("dpo", {"rl_beta": 0.2}, {"kind": "dpo", "beta": 0.2}),
        ("ipo", {}, {"kind": "ipo", "beta": 0.1}),
        ("orpo", {"orpo_alpha": 0.2}, {"kind": "orpo", "weight": 0.2}),
        ("orpo", {"orpo_alpha": 0.2, "rl_beta": 0.3}, {"kind": "orpo", "weight": 0.3}),
        ("orpo", {"trl": {"beta": 0.4}}, {"kind": "orpo", "weight": 0.4}),
        ("orpo", {}, {"kind": "orpo", "weight": 0.1}),
        (
            "kto",
            {"kto_desirable_weight": 0.5},
            {"kind": "kto", "beta": 0.1, "desirable_weight": 0.5, "undesirable_weight": 1.0},
        ),
        ("simpo", {"rl_beta": 2.0, "simpo_gamma": 1.5}, {"kind": "simpo", "beta": 2.0, "gamma": 1.5}),
    ],
)
def test_preferences(tmp_path, rl, more, loss):
    stage = own.read(tmp_path, PAIRS | {"rl": rl} | more).recipe.stages["preference"].settings
    assert stage.loss == loss and stage.pairs_per_step == 8 and stage.sft_weight == (1.0 if rl == "simpo" else 0.0)


def test_what_weights_are_stored_in_is_said(tmp_path):
    """bf16 stores weights in bfloat16 there; the recipe has float32, which is said, unless torch_dtype names bfloat16 too."""
    result = own.read(tmp_path, own.AXOLOTL, processes=1)
    (assumed,) = [each for each in result.draft.assumed if each.field == "model.weights_dtype"]
    assert (assumed.value, result.recipe.model.weights_dtype) == (
        "float32",
        "float32",
    ) and "bfloat16" in assumed.instead
    for more in ({"torch_dtype": "bfloat16"}, {"bf16": False}):
        assert all(each.field != "model.weights_dtype" for each in own.read(tmp_path, own.AXOLOTL | more).draft.assumed)


@pytest.mark.parametrize(
    ("more", "warmup", "assumed"),
    [
        ({}, 0.03, True), ({"max_steps": 1000}, 30, False), ({"max_steps": 10_000}, 100, False), ({"warmup_ratio": 0.1}, 0.1, False),
        ({"warmup_steps": 7, "max_steps": 1000}, 7, False), ({"warmup_ratio": 0.1, "max_steps": 1000}, 0.1, False),
        ({"lr_scheduler": "constant"}, 0, False), ({"lr_scheduler": "constant", "max_steps": 1000}, 0, False),
    ],
)  # fmt: skip
def test_the_default_warmup_has_at_most_100_updates(tmp_path, more, warmup, assumed):
    result = own.read(tmp_path, own.AXOLOTL | more, processes=1)
    assert result.recipe.sft.optimizer.warmup == warmup
    assert any(each.field == "sft.optimizer.warmup" for each in result.draft.assumed) == assumed
    assert own.kinds(result).get("lr_scheduler") != "left_out"


def test_grpo_is_in_the_section_trl(tmp_path):
    section = {
        "num_generations": 4,
        "max_completion_length": 64,
        "reward_funcs": ["my_rewards.brevity"],
        "beta": 0.01,
        "loss_type": "dr_grpo",
    }
    result = own.read(tmp_path, PAIRS | {"rl": "grpo", "trl": section, "max_steps": 9}, processes=1)
    rlvr = result.recipe.rlvr
    assert (rlvr.prompts, rlvr.group_size, rlvr.steps, rlvr.sampling.max_tokens) == (2, 4, 9, 64)
    assert rlvr.loss_aggregation == {"kind": "fixed_length"} and rlvr.divergence == {"kind": "k3", "weight": 0.01}
    assert rlvr.reward == {"kind": "function", "path": "my_rewards:brevity"}


@pytest.mark.parametrize(
    ("field", "value"), [("bf16", 7), ("adapter", "ia3"), ("rl", "ppo"), ("datasets", "org/x"), ("val_set_size", "a"),
        ("lora_r", 0), ("sequence_len", 1)]
)  # fmt: skip
def test_values_of_the_wrong_kind_name_their_field(tmp_path, field, value):
    with pytest.raises(UserError, match=field):
        own.read(tmp_path, own.AXOLOTL | {field: value})


@pytest.mark.parametrize(
    ("changes", "four_bits"),
    [
        ({"adapter": "qlora"}, True),
        ({"adapter": "qlora", "load_in_4bit": True}, True),
        ({"load_in_4bit": True}, True),
        ({}, False),
    ],
)
def test_qlora(tmp_path, changes, four_bits):
    result = own.read(tmp_path, own.AXOLOTL | {"adapter": "lora"} | changes, processes=1)
    assert result.recipe.sft.lora.load_in_4bit is four_bits
    assert {own.kinds(result)[key] for key in changes} <= {"mapped"}


@pytest.mark.parametrize(("named", "kind"), [("muon", "muon"), ("adamw_torch_fused", "adamw"), ("lion_8bit", "adamw")])
def test_muon_and_adamw_are_optimizers_here_and_no_other_is(tmp_path, named, kind):
    result = own.read(tmp_path, own.AXOLOTL | {"optimizer": named}, processes=1)
    assert result.recipe.sft.optimizer.kind == kind
    assert (own.kinds(result).get("optimizer") == "left_out") == (named == "lion_8bit")
