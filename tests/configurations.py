"""Small configurations of other trainers, in their exact names; and how a test reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tasks.importing.read import Imported, Options, imported

TRL_GRPO: dict[str, Any] = {
    "model_name_or_path": "org/small", "dtype": "bfloat16", "dataset_name": "org/sums", "dataset_config": "main",
    "reward_funcs": ["accuracy_reward", "think_format_reward", "lab.rewards.brevity"], "reward_weights": [1.0, 0.5, 0.25],
    "learning_rate": 2e-6, "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}, "warmup_steps": 10,
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "steps_per_generation": 8, "num_generations": 4,
    "num_iterations": 2, "max_steps": 800, "beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0, "loss_type": "grpo",
    "scale_rewards": "batch", "max_prompt_length": 256, "max_completion_length": 1024, "temperature": 0.9, "top_k": 50,
    "output_dir": "runs/sums grpo", "logging_steps": 5, "report_to": "none", "use_vllm": True, "seed": 7,
}  # fmt: skip
TRL_SFT: dict[str, Any] = {
    "model_name_or_path": "org/small", "dataset_name": "rows.jsonl", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
    "max_length": 512, "packing": True, "assistant_only_loss": True, "num_train_epochs": 2, "use_peft": True, "lora_r": 16,
    "use_rslora": True, "lora_target_modules": ["all-linear"], "warmup_ratio": 0.1, "optim": "paged_adamw_8bit", "max_grad_norm": 0,
}  # fmt: skip
TRL_DPO: dict[str, Any] = {
    "model_name_or_path": "org/small", "dataset_name": "org/pairs", "beta": 0.05, "loss_type": ["robust"], "label_smoothing": 0.1,
    "rpo_alpha": 1.0, "eval_strategy": "steps", "eval_steps": 25, "load_best_model_at_end": True, "gradient_checkpointing": False,
}  # fmt: skip
OPEN_R1: dict[str, Any] = {
    "model_name_or_path": "org/small", "torch_dtype": "bfloat16", "attn_implementation": "sdpa", "bf16": True, "dataset_name": "org/maths",
    "dataset_prompt_column": "problem", "system_prompt": "Think in <think> tags.\nThen answer.",
    "reward_funcs": ["accuracy", "format", "tag_count", "soft_overlong_punishment"], "reward_weights": [1.0, 0.5, 0.25, 2.0],
    "max_completion_length": 2048, "max_completion_len": 2048, "soft_punish_cache": 512, "num_generations": 8, "num_train_epochs": 2,
    "per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "gradient_checkpointing_kwargs": {"use_reentrant": False},
    "hub_model_id": "me/small", "chat_template": "{% for m in messages %}{{ m.content }}\n{% endfor %}",
}  # fmt: skip
VERL = """#!/usr/bin/env bash
set -x
length=$((512 * 2))
files="['rows.parquet', 'others.parquet']"
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    algorithm.norm_adv_by_std_in_grpo=False \\
    data.train_files="$files" \\
    data.val_files=test.parquet \\
    data.train_batch_size=512 \\
    data.max_response_length=${length} \\
    actor_rollout_ref.model.path=org/small \\
    actor_rollout_ref.actor.optim.lr=2e-6 \\
    +actor_rollout_ref.actor.optim.lr_warmup_steps=5 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \\
    actor_rollout_ref.actor.ppo_epochs=2 \\
    actor_rollout_ref.actor.clip_ratio_low=0.2 \\
    actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.clip_ratio_c=10.0 \\
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.01 \\
    actor_rollout_ref.actor.entropy_coeff=0.001 \\
    actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.rollout.name=vllm \\
    algorithm.filter_groups.enable=True \\
    algorithm.filter_groups.max_num_gen_batches=10 \\
    reward_model.overlong_buffer.enable=True \\
    reward_model.overlong_buffer.len=256 \\
    trainer.logger='["console"]' \\
    trainer.n_gpus_per_node=8 \\
    trainer.total_epochs=3 $@   # a comment
"""
VERL_PPO: dict[str, Any] = {
    "data": {"train_files": "rows.parquet", "train_batch_size": 64},
    "actor_rollout_ref": {
        "model": {"path": "org/small", "lora_rank": 8, "lora_alpha": 32},
        "actor": {"ppo_mini_batch_size": 16, "optim": {"lr": 1e-6, "lr_warmup_steps_ratio": 0.2, "warmup_style": "cosine"}},
        "rollout": {"n": 1, "top_k": -1},
    },
    "algorithm": {
        "adv_estimator": "gae", "gamma": 0.99, "lam": 0.95, "use_kl_in_reward": True,
        "kl_penalty": "kl", "kl_ctrl": {"kl_coef": 0.005},
    },
    "critic": {"optim": {"lr": 2e-5}},
    "trainer": {"critic_warmup": 3, "total_training_steps": 40},
}  # fmt: skip
AXOLOTL: dict[str, Any] = {
    "base_model": "org/small", "datasets": [{"path": "org/chats", "type": "chat_template", "field_messages": "turns"}],
    "val_set_size": 0.1, "sequence_len": 1024, "sample_packing": True, "adapter": "lora", "lora_r": 32, "lora_alpha": 16,
    "lora_target_linear": True, "micro_batch_size": 2, "gradient_accumulation_steps": 4, "num_epochs": 3, "optimizer": "adamw_torch",
    "learning_rate": "2e-4", "cosine_min_lr_ratio": 0.1, "bf16": "auto", "gradient_checkpointing": "offload", "wandb_project": None,
    "output_dir": "./outputs/chats", "special_tokens": {"pad_token": "<pad>"},
}  # fmt: skip


def read(
    folder: Path, config: dict[str, Any] | str, *overrides: str, name: str = "config.yaml", **options: Any
) -> Imported:
    """Write a configuration and import it."""
    path = folder / name
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return imported(path, overrides, Options(**options))


def kinds(result: Imported) -> dict[str, str]:
    """Field of theirs → mapped or left_out; a field that is neither is not there."""
    return {each.field: "mapped" for each in result.draft.mapped} | {
        each.field: "left_out" for each in result.draft.left_out
    }
