"""TRL configurations as recipes: sizes, losses and what has no counterpart."""

from __future__ import annotations

import configurations as own
import pytest

from pipelines.base.errors import UserError
from tasks.importing.table import RUNTIME


def test_grpo(tmp_path):
    result = own.read(tmp_path, own.TRL_GRPO, processes=4)
    recipe, rlvr = result.recipe, result.recipe.rlvr
    # a draw: 8 a device x 8 passes x 4 processes = 256 completions, 64 groups of 4; an update is 8 x 2 x 4 = 64 of them
    assert (rlvr.prompts, rlvr.group_size, rlvr.mini_batches, rlvr.epochs) == (64, 4, 4, 2)
    assert rlvr.steps == 800 / (4 * 2)
    assert rlvr.advantage == {"kind": "grpo", "scale": "batch", "eps": 1e-4}
    assert rlvr.objective == {"kind": "clip", "low": 0.2, "high": 0.28, "dual": 3.0}
    assert rlvr.divergence == {"kind": "k3", "weight": 0.04} and rlvr.loss_aggregation == {"kind": "row_mean"}
    terms = rlvr.reward["terms"]
    assert [term["weight"] for term in terms] == [1.0, 0.5, 0.25]
    assert terms[0]["kind"] == "verifier" and "verifier" not in terms[0]
    assert terms[1]["verifier"] == "regex" and terms[2] == {
        "kind": "function",
        "path": "lab.rewards:brevity",
        "weight": 0.25,
    }
    assert (rlvr.sampling.max_tokens, rlvr.sampling.temperature, rlvr.sampling.top_k) == (1024, 0.9, 50)
    rate = rlvr.optimizer
    assert (rate.learning_rate, rate.schedule, rate.final_share, rate.warmup) == (2e-6, "cosine", 0.1, 10)
    assert rate.betas == (0.9, 0.999)
    (source,) = recipe.curate.sources
    assert (source.kind, source.path, source.name, source.verifier) == ("hub", "org/sums", "main", "math")
    assert source.columns == {"answer": "solution"} and recipe.curate.splits == {"train": 1.0}
    assert recipe.curate.max_prompt_tokens == 256 and recipe.curate.near_duplicates is None
    assert recipe.name == "sums-grpo" and recipe.seed == 7 and recipe.model.weights_dtype == "bfloat16"
    left = {each.field: each for each in result.draft.left_out}
    assert left.keys() == {"use_vllm", "logging_steps", "report_to"} and "sampler" in left["use_vllm"].instead
    assert result.draft.assumed == []


def test_one_generation_for_each_update_by_default(tmp_path):
    config = {key: value for key, value in own.TRL_GRPO.items() if key != "steps_per_generation"}
    rlvr = own.read(tmp_path, config).recipe.rlvr
    assert (rlvr.prompts, rlvr.mini_batches, rlvr.steps) == (8 * 2 // 4, 1, 400)


def test_generations_smaller_than_an_update_are_one_draw(tmp_path):
    rlvr = own.read(tmp_path, own.TRL_GRPO | {"gradient_accumulation_steps": 8, "steps_per_generation": 2}).recipe.rlvr
    assert (rlvr.prompts, rlvr.mini_batches) == (16, 1)


def test_a_draw_without_whole_groups_asks_for_the_processes(tmp_path):
    config = {
        "model_name_or_path": "a/b",
        "dataset_name": "a/c",
        "per_device_train_batch_size": 2,
        "num_generations": 16,
    }
    with pytest.raises(UserError, match=r"num_generations: a step has 2 completions on 1 process.*--processes"):
        own.read(tmp_path, config)
    assert own.read(tmp_path, config, processes=8).recipe.rlvr.prompts == 1


@pytest.mark.parametrize(
    ("kind", "aggregation"),
    [("bnpo", "token_mean"), ("dapo", "token_mean"), ("dr_grpo", "fixed_length"), ("grpo", "row_mean")],
)
def test_means(tmp_path, kind, aggregation):
    assert own.read(tmp_path, own.TRL_GRPO | {"loss_type": kind}).recipe.rlvr.loss_aggregation == {"kind": aggregation}


def test_the_bound_of_cispo_is_of_the_weight_itself(tmp_path):
    result = own.read(tmp_path, own.TRL_GRPO | {"loss_type": "cispo", "epsilon_high": 5.0})
    assert result.recipe.rlvr.objective == {"kind": "cispo", "high": 4.0}
    assert [each.why for each in result.draft.left_out if each.field == "delta"] == ["cispo does not read it there"]
    result = own.read(tmp_path, own.TRL_GRPO | {"loss_type": "cispo", "epsilon_high": 0.28})
    assert result.recipe.rlvr.objective == {"kind": "cispo"} and own.kinds(result)["epsilon_high"] == "left_out"


def test_losses_without_a_clip_have_their_own_settings(tmp_path):
    rlvr = own.read(
        tmp_path, own.TRL_GRPO | {"loss_type": "sapo", "sapo_temperature_neg": 1.2, "delta": None}
    ).recipe.rlvr
    assert rlvr.objective == {"kind": "sapo", "tau_pos": 1.0, "tau_neg": 1.2}
    assert rlvr.loss_aggregation == {"kind": "row_mean"}
    result = own.read(tmp_path, own.TRL_GRPO | {"loss_type": "vespo", "vespo_k_pos": 1.5, "delta": 4.0})
    assert result.recipe.rlvr.objective == {
        "kind": "vespo", "k_pos": 1.5, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0
    }  # fmt: skip
    assert own.kinds(result)["delta"] == "left_out"
    sequence = {"importance_sampling_level": "sequence", "delta": None}
    result = own.read(tmp_path, own.TRL_GRPO | sequence | {"loss_type": "luspo"})
    assert result.recipe.rlvr.objective["kind"] == "gspo"
    assert result.recipe.rlvr.loss_aggregation == {"kind": "fixed_length", "length": 1}
    result = own.read(tmp_path, own.TRL_GRPO | sequence | {"loss_type": "sapo"})
    assert own.kinds(result)["importance_sampling_level"] == "left_out"


def test_a_share_of_tokens_is_a_credit(tmp_path):
    assert own.read(
        tmp_path, own.TRL_GRPO | {"use_vllm": False} | {"top_entropy_quantile": 0.2}
    ).recipe.rlvr.credit == [{"kind": "high_entropy", "share": 0.2}]


def test_ratios_of_sequences_are_gspo(tmp_path):
    config = own.TRL_GRPO | {
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "delta": None,
    }
    result = own.read(tmp_path, config)
    assert result.recipe.rlvr.objective == {"kind": "gspo", "low": 3e-4, "high": 4e-4}
    assert own.kinds(result)["importance_sampling_level"] == "mapped"
    (left,) = [each for each in own.read(tmp_path, config | {"delta": 3.0}).draft.left_out if each.field == "delta"]
    assert "gspo" in left.why and "raise" not in left.instead
    result = own.read(tmp_path, config | {"loss_type": "cispo", "epsilon_high": 5.0})
    assert (
        result.recipe.rlvr.objective["kind"] == "cispo" and own.kinds(result)["importance_sampling_level"] == "left_out"
    )


@pytest.mark.parametrize(("loss", "kind"), [("dapo", "mapped"), ("grpo", "mapped"), ("dr_grpo", "left_out")])
def test_the_entropy_is_a_mean_over_tokens(tmp_path, loss, kind):
    result = own.read(tmp_path, own.TRL_GRPO | {"loss_type": loss, "entropy_coef": 0.01})
    assert own.kinds(result)["entropy_coef"] == kind
    assert result.recipe.rlvr.auxiliary_loss == [{"kind": "entropy", "weight": 0.01}]


def test_the_adaptive_entropy_is_skywork_s(tmp_path):
    config = own.TRL_GRPO | {
        "loss_type": "dapo",
        "use_adaptive_entropy": True,
        "entropy_coef": 0.01,
        "entropy_target": 0.3,
    }
    result = own.read(tmp_path, config)
    (part,) = result.recipe.rlvr.auxiliary_loss
    assert part == {"kind": "adaptive_entropy", "target": 0.3, "delta": 0.005, "start": 0.01, "least": 0.0, "most": 1.0}
    assert own.kinds(result)["use_adaptive_entropy"] == own.kinds(result)["entropy_target"] == "mapped"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dataset_text_field", "body"), ("eos_token", "<|end|>"), ("pad_token", "<pad>"), ("model_init_kwargs", {"rope_theta": 1e6}),
        ("group_by_length", True), ("train_sampling_strategy", "group_by_length"),
    ],
)  # fmt: skip
def test_what_changes_the_run_is_not_called_a_way_of_starting_it(tmp_path, field, value):
    result = own.read(tmp_path, own.TRL_SFT | {field: value})
    (left,) = [each for each in result.draft.left_out if each.field == field]
    assert left.why != RUNTIME and left.instead != "Nothing to do."


@pytest.mark.parametrize(("value", "scale"), [(True, "std"), (False, "none"), ("group", "std"), ("none", "none")])
def test_scales(tmp_path, value, scale):
    assert own.read(tmp_path, own.TRL_GRPO | {"scale_rewards": value}).recipe.rlvr.advantage["scale"] == scale


def test_the_weights_count_the_reward_model_first(tmp_path):
    config = own.TRL_GRPO | {
        "reward_model_name_or_path": "scorer", "reward_funcs": ["lab.rewards.brevity"], "reward_weights": [2.0, 0.5],
    }  # fmt: skip
    result = own.read(tmp_path, config)
    terms = result.recipe.rlvr.reward["terms"]
    assert [(term["kind"], term["weight"]) for term in terms] == [("model", 2.0), ("function", 0.5)]
    assert terms[0]["model"] == "./scorer" and own.kinds(result)["reward_model_name_or_path"] == "mapped"
    with pytest.raises(UserError, match="reward_weights: 1 weights for 2 rewards"):
        own.read(tmp_path, config | {"reward_weights": [1.0]})
    alone = own.read(tmp_path, config | {"reward_funcs": None, "reward_weights": None}).recipe.rlvr.reward
    assert alone == {"kind": "model", "model": "./scorer"}


def test_epochs_of_an_rl_run_need_the_rows(tmp_path):
    config = {key: value for key, value in own.TRL_GRPO.items() if key not in ("max_steps", "steps_per_generation")}
    config |= {"num_train_epochs": 1.5}
    assert own.read(tmp_path, config, rows=1003).recipe.rlvr.steps == 1003 // 4 * 3 // 2
    result = own.read(tmp_path, config)
    assert [each.field for each in result.draft.assumed] == ["rlvr.prompts", "rlvr.steps"]


def test_sft(tmp_path):
    result = own.read(tmp_path, own.TRL_SFT, processes=2)
    sft = result.recipe.sft
    assert (sft.tokens_per_step, sft.max_length, sft.epochs, sft.packing, sft.turns) == (
        4 * 2 * 2 * 512,
        512,
        2.0,
        True,
        "all",
    )
    assert sft.micro_batch_tokens == 4 * 512 and sft.heldout is None
    assert (sft.lora.rank, sft.lora.alpha, sft.lora.target_modules) == (16, 32, "all-linear")
    assert sft.lora.use_rslora and not sft.lora.use_dora
    assert (sft.optimizer.learning_rate, sft.optimizer.warmup, sft.optimizer.max_grad_norm) == (2e-5, 0.1, 1e6)
    assert result.recipe.curate.sources[0].kind == "file" and own.kinds(result)["optim"] == "left_out"


def test_rows_become_tokens(tmp_path):
    config = own.TRL_SFT | {"packing": False}
    assert own.read(tmp_path, config, processes=1, row_tokens=100).recipe.sft.tokens_per_step == 800
    result = own.read(tmp_path, config, processes=1)
    assert result.recipe.sft.tokens_per_step == 8 * 512 and "8 rows a step" in result.draft.assumed[0].why


def test_what_is_trained_of_a_conversation_is_said(tmp_path):
    config = {key: value for key, value in own.TRL_SFT.items() if key != "assistant_only_loss"}
    result = own.read(tmp_path, config, processes=1, method="sft")
    assert result.recipe.sft.turns == "last" and [each.field for each in result.draft.assumed] == ["sft.turns"]


def test_dpo(tmp_path):
    result = own.read(tmp_path, own.TRL_DPO, processes=8)
    stage = result.recipe.stages["preference"].settings
    assert stage.loss == {"kind": "robust_dpo", "beta": 0.05, "false_rate": 0.1}
    assert (stage.pairs_per_step, stage.sft_weight, stage.epochs) == (64, 1.0, 3.0)
    assert (stage.heldout, stage.evaluate_every, stage.checkpoint_selection) == ("heldout", 25, "best")
    sources = result.recipe.stages["data"].settings.sources
    assert [(each.split, each.splits) for each in sources] == [("train", ["train"]), ("test", ["heldout"])]


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        (["sigmoid"], {"kind": "dpo", "beta": 0.05, "label_smoothing": 0.1}),
        (["ipo"], {"kind": "ipo", "beta": 0.05}),
        (["apo_down"], {"kind": "apo", "anchor": "down", "beta": 0.05}),
        (["exo_pair"], {"kind": "exo", "label_smoothing": 0.1, "beta": 0.05}),
        (["nca_pair"], {"kind": "nca", "beta": 0.05}),
        (["sppo_hard"], {"kind": "sppo", "beta": 0.05}),
        (["bco_pair"], {"kind": "mpo", "preference": 0.0, "quality": 1.0, "generation": 0.0, "beta": 0.05}),
        (["aot_unpaired"], {"kind": "aot", "paired": False, "label_smoothing": 0.1, "beta": 0.05}),
        (["discopop"], {"kind": "discopop", "tau": 0.05, "beta": 0.05}),
        (
            ["sigmoid", "bco_pair", "sft"],
            {"kind": "mpo", "preference": 0.8, "quality": 0.2, "generation": 1.0, "beta": 0.05},
        ),
    ],
)
def test_losses_of_dpo(tmp_path, kind, loss):
    result = own.read(tmp_path, own.TRL_DPO | {"loss_type": kind, "loss_weights": [0.8, 0.2, 1.0]})
    assert result.recipe.stages["preference"].settings.loss == loss


@pytest.mark.parametrize(
    ("fields", "loss"),
    [
        ({"f_divergence_type": "js_divergence"}, {"kind": "f_dpo", "divergence": "jensen_shannon"}),
        ({"f_divergence_type": "forward_kl"}, {"kind": "f_dpo", "alpha": 1.0}),
        (
            {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.25},
            {"kind": "f_dpo", "alpha": 0.75},
        ),
        ({"ld_alpha": 0.3}, {"kind": "ld_dpo", "alpha": 0.3}),
        ({"use_weighting": True}, {"kind": "wpo"}),
    ],
)
def test_what_other_fields_make_of_dpo(tmp_path, fields, loss):
    result = own.read(tmp_path, own.TRL_DPO | {"loss_type": "sigmoid", "label_smoothing": 0.0} | fields)
    assert result.recipe.stages["preference"].settings.loss == loss | {"beta": 0.05}
    assert {own.kinds(result)[key] for key in fields} == {"mapped"}
    elsewhere = own.read(tmp_path, own.TRL_DPO | {"loss_type": "ipo"} | fields)
    assert own.kinds(elsewhere)[next(iter(fields))] == "left_out"


def test_a_reference_that_follows_and_sft_beside_a_loss(tmp_path):
    fields = {
        "loss_type": ["sigmoid", "sft"],
        "loss_weights": [1.0, 0.5],
        "sync_ref_model": True,
        "ref_model_sync_steps": 64,
    }
    config = {key: value for key, value in own.TRL_DPO.items() if key != "rpo_alpha"}
    result = own.read(tmp_path, config | fields)
    stage = result.recipe.stages["preference"].settings
    assert (stage.loss["kind"], stage.sft_weight, stage.reference_every) == ("dpo", 0.5, 64)
    assert "ref_model_mixup_alpha" in {each.field for each in result.draft.left_out}


def test_a_loss_that_is_none_of_ours_is_listed(tmp_path):
    result = own.read(tmp_path, own.TRL_DPO | {"loss_type": ["sigmoid", "hinge"]})
    assert (
        own.kinds(result)["loss_type"] == "left_out"
        and result.recipe.stages["preference"].settings.loss["kind"] == "dpo"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", "fast"), ("num_generations", 2.5), ("num_generations", 0), ("per_device_train_batch_size", True),
        ("reward_weights", [1.0]), ("scale_rewards", "some"), ("lr_scheduler_kwargs", [1]), ("warmup_steps", -1),
        ("max_completion_length", -5),
        ("beta", {"a": 1}), ("generation_batch_size", 64), ("temperature", "$TEMPERATURE"), ("reward_funcs", [[1]]),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_name_their_field(tmp_path, field, value):
    with pytest.raises(UserError, match=field):
        own.read(tmp_path, own.TRL_GRPO | {field: value})


@pytest.mark.parametrize("field", ["model_name_or_path", "dataset_name"])
def test_without_a_model_or_data_there_is_no_recipe(tmp_path, field):
    with pytest.raises(UserError, match=field):
        own.read(tmp_path, {key: value for key, value in own.TRL_GRPO.items() if key != field})


@pytest.mark.parametrize(
    ("more", "credit"),
    [
        ({}, {"kind": "masked_is", "level": "sequence", "low": None, "high": 3.0}),
        (
            {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_cap": 2.0},
            {"kind": "truncated_is", "level": "token", "cap": 2.0},
        ),
        (
            {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 0.5},
            {"kind": "masked_is", "level": "token", "low": 0.5, "high": 3.0},
        ),
    ],
)
def test_weights_against_the_engine(tmp_path, more, credit):
    rlvr = own.read(tmp_path, own.TRL_GRPO | {"use_vllm": True} | more).recipe.rlvr
    assert rlvr.old_logp == "trainer" and rlvr.credit == [credit]


def test_no_engine_needs_no_weights_and_tokens_none_of_rows(tmp_path):
    assert own.read(tmp_path, own.TRL_GRPO | {"use_vllm": False}).recipe.rlvr.old_logp == "sampler"
    more = {"use_vllm": True, "importance_sampling_level": "sequence", "vllm_importance_sampling_mode": "token_mask"}
    config = {key: value for key, value in own.TRL_GRPO.items() if key != "delta"}
    result = own.read(tmp_path, config | more)
    assert result.recipe.rlvr.credit == []
    assert any(each.field == "vllm_importance_sampling_mode" for each in result.draft.left_out)


def test_deepseek_s_mask_and_kl(tmp_path):
    rlvr = own.read(
        tmp_path, own.TRL_GRPO | {"off_policy_mask_threshold": 0.5, "use_bias_correction_kl": True}
    ).recipe.rlvr
    assert rlvr.objective == {"kind": "opsm", "delta": 0.5, "low": 0.2, "high": 0.28, "dual": 3.0}
    assert rlvr.divergence == {"kind": "unbiased_k3", "weight": 0.04}
