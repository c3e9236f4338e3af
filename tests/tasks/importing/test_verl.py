"""verl configurations as recipes: scripts with overrides, and YAML."""

from __future__ import annotations

import configurations as own
import pytest

from pipelines.base import project
from pipelines.base.errors import UserError


def test_a_script(tmp_path):
    result = own.read(tmp_path, own.VERL, name="run.sh", rows=5000)
    rlvr = result.recipe.rlvr
    assert (rlvr.prompts, rlvr.group_size, rlvr.mini_batches, rlvr.epochs, rlvr.steps) == (512, 16, 4, 2, 27)
    assert [each.path for each in result.recipe.curate.sources] == ["rows.parquet", "others.parquet"]
    assert (
        rlvr.sampling.max_tokens == 1024
        and rlvr.optimizer.learning_rate == 2e-6
        and rlvr.optimizer.weight_decay == 0.01
    )
    assert rlvr.optimizer.warmup == 5 * 4 * 2  # theirs counts steps, ours updates
    assert rlvr.advantage == {"kind": "grpo", "scale": "none"}
    assert rlvr.objective == {"kind": "clip", "low": 0.2, "high": 0.28, "dual": 10.0}
    assert rlvr.loss_aggregation == {"kind": "fixed_length", "length": 1}
    assert rlvr.divergence == {"kind": "k3", "weight": 0.01} and rlvr.auxiliary_loss == [
        {"kind": "entropy", "weight": 0.001}
    ]
    assert rlvr.filter == {"kind": "mixed"} and rlvr.sampling_schedule == {"kind": "dynamic", "max_draws": 10}
    assert rlvr.shaping == [{"kind": "soft_overlong", "buffer": 0.25, "factor": 1.0}]
    left = {each.field: each.instead for each in result.draft.left_out}
    assert "evaluate.tasks" in left["data.val_files"] and "processes" in left["trainer.n_gpus_per_node"]


def test_yaml_with_a_critic(tmp_path):
    result = own.read(tmp_path, own.VERL_PPO, "actor_rollout_ref.rollout.temperature=0.7")
    rlvr = result.recipe.rlvr
    assert rlvr.advantage == {"kind": "gae", "discount": 0.99, "lam": 0.95}
    assert rlvr.providers == [
        {"kind": "critic", "learning_rate": 2e-5, "epochs": 1, "discount": 0.99, "warm_up": 2, "value_clip": 0.5}
    ]
    assert rlvr.divergence == {"kind": "k1", "where": "reward", "weight": 0.005}
    assert (rlvr.steps, rlvr.group_size, rlvr.mini_batches, rlvr.sampling.temperature, rlvr.sampling.top_k) == (
        40,
        1,
        4,
        0.7,
        0,
    )
    assert rlvr.optimizer.schedule == "cosine" and rlvr.optimizer.warmup == 0.2
    assert rlvr.lora.rank == 8 and rlvr.lora.alpha == 32 and rlvr.lora.target_modules == "all-linear"
    assert result.draft.left_out == []


@pytest.mark.parametrize(
    ("estimator", "kind"),
    [
        ("rloo", "rloo"),
        ("reinforce_plus_plus", "reinforce_pp"),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
        ("grpo", "grpo"),
    ],
)
def test_advantages(tmp_path, estimator, kind):
    result = own.read(tmp_path, own.VERL_PPO, f"algorithm.adv_estimator={estimator}")
    assert result.recipe.rlvr.advantage["kind"] == kind and result.recipe.rlvr.providers == []


def test_an_estimator_of_somebody_s_own_has_no_counterpart(tmp_path):
    result = own.read(tmp_path, own.VERL_PPO, "algorithm.adv_estimator=my_estimator")
    assert own.kinds(result)["algorithm.adv_estimator"] == "left_out" and result.recipe.rlvr.advantage == {
        "kind": "rloo"
    }


def test_one_clip_ratio_is_both(tmp_path):
    objective = own.read(tmp_path, own.VERL_PPO, "actor_rollout_ref.actor.clip_ratio=0.1").recipe.rlvr.objective
    assert objective == {"kind": "clip", "low": 0.1, "high": 0.1, "dual": 3.0}


@pytest.mark.parametrize(
    ("mode", "objective", "mean"),
    [
        ("gspo", {"kind": "gspo", "low": 0.2, "high": 0.2}, "row_mean"),
        ("cispo", {"kind": "cispo", "low": 0.2, "high": 0.2}, "token_mean"),
        ("gpg", {"kind": "reinforce"}, "token_mean"),
        ("sapo", {"kind": "sapo", "tau_pos": 1.0, "tau_neg": 1.05}, "row_mean"),
        (
            "clip_cov",
            {"kind": "clip_cov", "low": 0.2, "high": 0.2, "share": 0.0002, "least": 1.0, "most": 5.0},
            "token_mean",
        ),
        ("kl_cov", {"kind": "kl_cov", "share": 0.0002, "coef": 1.0}, "token_mean"),
        ("geo_mean", {"kind": "gmpo", "low": 0.2, "high": 0.2}, "row_mean"),
        ("dppo_kl", {"kind": "dppo", "divergence": "kl", "low": 0.2, "high": 0.2, "largest": 3.0}, "token_mean"),
    ],
)
def test_objectives(tmp_path, mode, objective, mean):
    rlvr = own.read(tmp_path, own.VERL_PPO, f"actor_rollout_ref.actor.policy_loss.loss_mode={mode}").recipe.rlvr
    assert rlvr.objective == objective and rlvr.loss_aggregation == {"kind": mean}


@pytest.mark.parametrize(
    ("name", "advantage", "rollout"),
    [
        ("remax", {"kind": "remax"}, "remax"),
        ("optimal_token_baseline", {"kind": "otb", "zero_tail": False}, "single_turn"),
        ("tir_optimal_token_baseline", {"kind": "otb", "zero_tail": True}, "single_turn"),
    ],
)
def test_baselines(tmp_path, name, advantage, rollout):
    rlvr = own.read(tmp_path, own.VERL_PPO, f"algorithm.adv_estimator={name}").recipe.rlvr
    assert rlvr.advantage == advantage and rlvr.rollout == {"kind": rollout}


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (1, 0), (2, 1), (10, 9)])
def test_the_critics_warmup_is_the_first_step_that_updates_the_policy(tmp_path, warmup, steps):
    recipe = own.read(tmp_path, own.VERL_PPO, f"trainer.critic_warmup={warmup}").recipe
    assert recipe.rlvr.providers[0]["warm_up"] == steps


@pytest.mark.parametrize(
    ("name", "loss", "in_reward"),
    [
        ("k3+", "k2", "k3"),
        ("kl+", "k2", "k1"),
        ("low_var_kl", "k3", "k3"),
        ("k1", None, "k1"),
        ("k2+", "k2", None),
        ("mse", "k2", None),
    ],
)
def test_a_plus_is_the_gradient_of_k2(tmp_path, name, loss, in_reward):
    """In the reward, which has no gradient, an estimator with a plus has the value of the one without."""
    plain = own.VERL_PPO | {"algorithm": {"adv_estimator": "rloo"}}
    actor = "actor_rollout_ref.actor"
    divergence = own.read(
        tmp_path, plain, f"{actor}.use_kl_loss=True", f"{actor}.kl_loss_type={name}"
    ).recipe.rlvr.divergence
    assert divergence == (loss and {"kind": loss, "weight": 0.001})
    divergence = own.read(tmp_path, own.VERL_PPO, f"algorithm.kl_penalty={name}").recipe.rlvr.divergence
    assert divergence == (in_reward and {"kind": in_reward, "where": "reward", "weight": 0.005})


def test_the_size_of_a_draw(tmp_path):
    """With filter_groups it is the loader's batch alone; without, nothing cuts that batch, and it is the step's."""
    result = own.read(tmp_path, own.VERL, "data.gen_batch_size=1280", name="run.sh", rows=5000)
    rlvr = result.recipe.rlvr
    assert (rlvr.prompts, rlvr.mini_batches, rlvr.steps) == (512, 4, 5000 // 1280 * 3)
    assert rlvr.sampling_schedule == {"kind": "dynamic", "max_draws": 25}
    assert own.kinds(result)["data.gen_batch_size"] == "mapped"
    filtered = "algorithm.filter_groups"
    rlvr = own.read(
        tmp_path, own.VERL, "data.gen_batch_size=256", f"{filtered}.max_num_gen_batches=3", name="run.sh", rows=5000
    ).recipe.rlvr
    assert rlvr.sampling_schedule["max_draws"] == 2
    rlvr = own.read(
        tmp_path, own.VERL, "data.gen_batch_size=256", f"{filtered}.enable=False", name="run.sh", rows=5000
    ).recipe.rlvr
    assert (rlvr.prompts, rlvr.mini_batches, rlvr.steps) == (256, 2, 5000 // 256 * 3)


def test_a_plain_kl_as_a_loss_is_refused_in_words(tmp_path):
    config = own.VERL_PPO | {"algorithm": {"adv_estimator": "rloo"}}
    result = own.read(
        tmp_path, config, "actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_type=kl"
    )
    assert (
        result.recipe.rlvr.divergence is None
        and own.kinds(result)["actor_rollout_ref.actor.kl_loss_type"] == "left_out"
    )


@pytest.mark.parametrize(
    "override",
    [
        "data.train_batch_size=many",
        "algorithm.lam=[1, 2]",
        "actor_rollout_ref.rollout.n=0",
        "data.max_response_length=$LENGTH",
    ],
)
def test_values_of_the_wrong_kind_name_their_field(tmp_path, override):
    with pytest.raises(UserError, match=override.partition("=")[0]):
        own.read(tmp_path, own.VERL_PPO, override)


def corrected(tmp_path, *more):
    return own.read(tmp_path, own.VERL_PPO, *(f"algorithm.rollout_correction.{each}" for each in more))


def test_rollout_correction(tmp_path):
    rlvr = corrected(tmp_path, "rollout_is=sequence", "rollout_is_threshold=3.0").recipe.rlvr
    assert (rlvr.old_logp, rlvr.credit) == ("trainer", [{"kind": "truncated_is", "level": "sequence", "cap": 3.0}])
    rlvr = corrected(tmp_path, "rollout_is=token", "rollout_rs=seq_mean_k1", "rollout_rs_threshold=0.5_4.0").recipe.rlvr
    assert rlvr.credit == [
        {"kind": "rejection", "over": "mean", "high": 2.0, "low": 0.25},  # of trainer / sampler
        {"kind": "truncated_is", "level": "token", "cap": 2.0},
    ]
    rlvr = corrected(tmp_path, "rollout_rs='seq_mean_k3,seq_max_k2'", "rollout_rs_threshold='0.01,0.5'").recipe.rlvr
    assert rlvr.credit == [
        {"kind": "rejection", "over": "mean", "measure": "k3", "high": 0.01},
        {"kind": "rejection", "over": "worst", "measure": "k2", "high": 0.5},
    ]


def test_a_rollout_correction_that_cannot_be_read_is_left(tmp_path):
    for more in (
        ["rollout_rs=seq_median_k1", "rollout_rs_threshold=2.0"],
        ["rollout_rs=seq_mean_k3"],
        ["rollout_is=row"],
    ):
        result = corrected(tmp_path, *more)
        assert result.recipe.rlvr.credit == [] and result.recipe.rlvr.old_logp == "sampler"
        assert any("rollout_correction.rollout_" in each.field for each in result.draft.left_out)
    result = corrected(tmp_path, "bypass_mode=true", "rollout_is=token")
    assert result.recipe.rlvr.old_logp == "sampler" and result.recipe.rlvr.credit == []


def test_pages_are_named_where_an_installed_package_has_them(tmp_path, monkeypatch):
    draft = own.read(tmp_path, own.VERL, name="run.sh", rows=5000).draft
    assert "(docs/evaluation.md)" in "\n".join(draft.lines())
    monkeypatch.setattr(project, "is_checkout", lambda: False)
    assert f"({project.ROOT}/pipelines/shipped/docs/evaluation.md)" in "\n".join(draft.lines())
