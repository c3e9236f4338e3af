"""`whetstone import`: the recipe that it writes, what it lists, and that the recipe can be planned."""

from __future__ import annotations

import json
from pathlib import Path

import configurations as own
import pytest
import toys
import yaml

from pipelines.recipe import shipped
from pipelines.recipe.read import read_recipe
from tasks.importing.read import imported

ROWS = "".join(json.dumps({"question": f"{n} + 1 =", "answer": str(n + 1)}) + "\n" for n in range(40))
PAIRS = "".join(
    json.dumps({"prompt": f"{n} + 1 =", "chosen": str(n + 1), "rejected": str(n)}) + "\n" for n in range(40)
)
VERL = """python3 -m verl.trainer.main_ppo data.train_files=rows.jsonl data.train_batch_size=8 actor_rollout_ref.rollout.n=4 \\
  actor_rollout_ref.model.path=org/small algorithm.adv_estimator=rloo trainer.total_training_steps=3
"""
SIZES = {"per_device_train_batch_size": 4, "max_steps": 4}
QUICK = ("grpo.yaml", "verl.sh")
"""Configurations whose plan CI asks for; the others are of the long suite."""
CONFIGURATIONS = {
    "grpo.yaml": {
        "model_name_or_path": "org/small", "dataset_name": "rows.jsonl", "num_generations": 4, "max_completion_length": 16,
    } | SIZES,
    "sft.yaml": {"model_name_or_path": "org/small", "dataset_name": "rows.jsonl", "max_length": 64, "packing": True} | SIZES,
    "dpo.yaml": {"model_name_or_path": "org/small", "dataset_name": "pairs.jsonl", "beta": 0.1, "loss_type": ["ipo"]} | SIZES,
    "open_r1_grpo.yaml": {
        "model_name_or_path": "org/small", "dataset_name": "rows.jsonl", "dataset_prompt_column": "question", "system_prompt": "Count.",
        "reward_funcs": ["format"], "num_generations": 4, "max_completion_length": 16,
    } | SIZES,
    "verl.sh": VERL,
    "axolotl.yaml": {
        "base_model": "org/small", "datasets": [{"path": "rows.jsonl", "type": "alpaca"}], "max_steps": 4, "sequence_len": 64,
        "learning_rate": 1e-4, "adapter": "lora", "val_set_size": 0.2,
    },
}  # fmt: skip


def write(folder: Path, name: str) -> Path:
    """A configuration, and the data that it names."""
    for file, text in (("rows.jsonl", ROWS), ("pairs.jsonl", PAIRS)):
        (folder / file).write_text(text)
    config = CONFIGURATIONS[name]
    text = config if isinstance(config, str) else yaml.safe_dump(config)
    (folder / name).write_text(
        text.replace("rows.jsonl", str(folder / "rows.jsonl")).replace("pairs.jsonl", str(folder / "pairs.jsonl"))
    )
    return folder / name


@pytest.mark.slow
def test_the_recipe_and_the_list(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(own.TRL_GRPO | {"reward_funcs": ["accuracy_reward"], "reward_weights": None}))
    recipe = tmp_path / "my.yaml"
    done = toys.whetstone("import", str(config), "beta=0.1", "--to", str(recipe), home=tmp_path / "home")
    assert (
        "use_vllm: true: how answers are decoded. Set rlvr.sampler" in done.stdout
        and f"next: whetstone plan {recipe}" in done.stdout
    )
    assert read_recipe(recipe).rlvr.divergence == {"kind": "k3", "weight": 0.1}
    again = toys.whetstone("import", str(config), "--to", str(recipe), home=tmp_path / "home", check=False)
    assert again.returncode == 2 and "this file is there already" in again.stderr


def test_json_and_what_plan_would_refuse(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(own.TRL_GRPO | {"epsilon": 1.5, "reward_funcs": ["no_module_here.f"], "reward_weights": [1]})
    )
    done = toys.whetstone("import", "--json", str(config), "--", "--beta", "0.5", home=tmp_path / "home", check=False)
    assert done.returncode == 2
    record = json.loads(done.stdout)
    assert {each["field"] for each in record["mapped"]} | {
        each["field"] for each in record["left_out"]
    } == own.TRL_GRPO.keys()
    assert all(each["why"] and each["instead"] for each in record["left_out"])
    assert "weight: 0.5" in record["recipe"] and record["problems"][0]["field"]


@pytest.mark.slow
@pytest.mark.few(len(QUICK), always=QUICK)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_can_be_planned(tmp_path, name):
    recipe = tmp_path / "my.yaml"
    shipped.create(recipe, imported(write(tmp_path, name)).text)
    done = toys.whetstone("plan", str(recipe), home=tmp_path / "home")
    assert "curate" in done.stdout
