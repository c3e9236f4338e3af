"""Python scripts that use TRL are read, never run."""

from __future__ import annotations

import configurations as own
import pytest

from pipelines.base.errors import UserError

SCRIPT = """
import os
from trl import GRPOConfig, GRPOTrainer
from peft import LoraConfig
from datasets import load_dataset
open("ran", "w")
RATE = 3e-6
def brevity(completions, **_): return [-len(c) for c in completions]
data = load_dataset("org/sums", "main", split="train")
config = GRPOConfig(output_dir="out", learning_rate=RATE, num_generations=4, max_steps=10, seed=int(os.environ["SEED"]), temperature=0.5)
trainer = GRPOTrainer(model="org/small", reward_funcs=[rewards.brevity, "org/scorer"], args=config, train_dataset=data,
                      peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"]))
"""


def test_literals_are_read_and_the_rest_is_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = own.read(tmp_path, SCRIPT, name="train.py")
    rlvr = result.recipe.rlvr
    assert (rlvr.optimizer.learning_rate, rlvr.group_size, rlvr.steps, rlvr.sampling.temperature) == (3e-6, 4, 10, 0.5)
    assert [term["kind"] for term in rlvr.reward["terms"]] == ["function", "model"] and rlvr.lora.rank == 4
    assert result.recipe.curate.sources[0].name == "main" and result.recipe.model.path == "org/small"
    assert own.kinds(result)["seed"] == "left_out" and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["def (", "x = 1", "a = SFTConfig()\nb = DPOConfig()"])
def test_scripts_that_cannot_be_read(tmp_path, text):
    with pytest.raises(UserError, match=r"train\.py"):
        own.read(tmp_path, text, name="train.py")
