"""One batch of pairs and one model, given by formulas, for TRL's RewardTrainer and for ours; run as a script it writes TRL's side.

PYTHONPATH=tests:WHERE_TRL_IS python tests/pipelines/reward_model/trl_batch.py tests/pipelines/reward_model/trl.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

PAIRS = [
    {"chosen_ids": [5, 9, 11, 7, 2], "rejected_ids": [5, 9, 11, 8, 8, 6, 2], "margin": 0.5},
    {"chosen_ids": [5, 4, 12, 13, 14, 2], "rejected_ids": [5, 4, 12, 2], "margin": 0.0},
    {"chosen_ids": [6, 6, 10, 2], "rejected_ids": [6, 6, 15, 10, 2], "margin": 1.25},
    {"chosen_ids": [7, 3, 2], "rejected_ids": [7, 3, 9, 9, 9, 2], "margin": 0.25},
]
PROMPT = 2
"""Tokens of each prompt."""
CASES = {"plain": (False, None), "margin": (True, None), "centered": (False, 0.01), "both": (True, 0.1)}
"""name → whether the margins are used, and TRL's center_rewards_coefficient."""
CONFIG = {
    "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": True,
}  # fmt: skip


def set_weights(model: Any) -> None:
    """Values by a formula of the tensor's name and the place in it."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            place = torch.arange(weight.numel(), dtype=torch.float64)
            values = torch.sin(place * 0.37 + sum(map(ord, name)) % 17) * (0.3 if weight.ndim > 1 else 0.1)
            weight.copy_((values + (weight.ndim == 1)).view_as(weight).float())


def classifier() -> Any:
    """The model as transformers' sequence classifier."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.for_model("llama", num_labels=1, **CONFIG)
    model = AutoModelForSequenceClassification.from_config(config).float()
    set_weights(model)
    return model


def summary(gradients: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """name → norm, and the products with two fixed vectors: what tells gradients apart without keeping them."""
    told = {}
    for name, gradient in sorted(gradients.items()):
        flat = gradient.detach().double().flatten()
        place = torch.arange(len(flat), dtype=torch.float64)
        told[name] = [float(flat.norm()), float(flat @ torch.sin(place)), float(flat @ torch.cos(place * 0.7))]
    return told


def main(path: str) -> None:
    """Loss and gradient of TRL's own trainer, for each case."""
    import tempfile

    import trl
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer
    from trl.trainer.reward_trainer import DataCollatorForPreference

    from pipelines.engine.models import train_tokenizer

    cases = {}
    for name, (margins, center) in CASES.items():
        model = classifier()
        args = RewardConfig(
            output_dir=tempfile.mkdtemp(), center_rewards_coefficient=center, report_to=[], use_cpu=True, bf16=False,
            per_device_train_batch_size=len(PAIRS), gradient_checkpointing=False,
        )  # fmt: skip
        rows = [{k: v for k, v in pair.items() if margins or k != "margin"} for pair in PAIRS]
        trainer = RewardTrainer(
            model=model, args=args, processing_class=train_tokenizer("char", 64, ["abc"]),
            train_dataset=Dataset.from_list(rows), data_collator=DataCollatorForPreference(pad_token_id=0),
        )  # fmt: skip
        loss = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
        loss.backward()
        gradients = {n: p.grad for n, p in trainer.model.named_parameters()}
        cases[name] = {"loss": float(loss.detach()), "gradient": summary(gradients)}
    with open(path, "w") as handle:
        json.dump({"trl": trl.__version__, "cases": cases}, handle, indent=1, sort_keys=True)
        handle.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
