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


SFT = """
RATE = 3e-6
config = SFTConfig(output_dir="out", learning_rate=RATE, max_steps=10, packing=True, max_length=64)
trainer = SFTTrainer(model="org/small", args=config, train_dataset=load_dataset("org/rows"){more})
"""


def test_the_defaults_of_lora_are_those_of_peft(tmp_path):
    result = own.read(tmp_path, SFT.format(more=", peft_config=LoraConfig()"), name="train.py", processes=1)
    lora = result.recipe.sft.lora
    assert (lora.rank, lora.alpha, lora.dropout) == (8, 8, 0)
    stated = "LoraConfig(r=4, lora_dropout=0.1, bias='none', task_type='CAUSAL_LM', init_lora_weights=True)"
    result = own.read(tmp_path, SFT.format(more=f", peft_config={stated}"), name="train.py", processes=1)
    lora = result.recipe.sft.lora
    assert (lora.rank, lora.alpha, lora.dropout) == (4, 8, 0.1)
    assert [each.field for each in result.draft.left_out] == ["LoraConfig.task_type"]  # changes nothing, as is said


def test_arguments_that_no_field_is_for_are_listed(tmp_path):
    lora = "LoraConfig(rank_pattern={'q': 4}, alpha_pattern=PATTERN, init_lora_weights='pissa', bias='all')"
    more = f", ref_model=load('x'), optimizers=(a, b), formatting_func=None, peft_config={lora}"
    kinds = own.kinds(own.read(tmp_path, SFT.format(more=more), name="train.py"))
    names = ("rank_pattern", "alpha_pattern", "init_lora_weights", "bias")
    assert {kinds.get(name) for name in ("ref_model", "optimizers", *(f"LoraConfig.{each}" for each in names))} == {
        "left_out"
    }
    assert "train_dataset" not in kinds and "args" not in kinds and "formatting_func" not in kinds
    result = own.read(tmp_path, SCRIPT.replace("args=config", "args=config, tools=[search]"), name="train.py")
    (left,) = [each for each in result.draft.left_out if each.field == "tools"]
    assert left.value == "[search]" and "multi_turn" in left.instead


@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("'json', data_files='rows.jsonl', split='train'", ("file", "rows.jsonl")),
        ("'parquet', data_files=['rows.parquet']", ("file", "rows.parquet")),
        ("'json', data_files=FILE", ("file", "rows.json")),
        ("'org/rows'", ("hub", "org/rows")),
    ],
)
def test_files_of_a_data_set(tmp_path, call, source):
    text = "FILE = 'rows.json'\n" + SFT.format(more="").replace('"org/rows"', call)
    (read,) = own.read(tmp_path, text, name="train.py").recipe.curate.sources
    assert (read.kind, read.path) == source


@pytest.mark.parametrize(
    "call",
    [
        "'json', data_files=glob('*.jsonl')", "'json', data_files={'train': 'a.jsonl'}", "'json', data_files=['a.jsonl', 'b.jsonl']",
        "'json'", "'org/rows', data_files='a.jsonl'", "'text', data_files='a.txt'", "name",
    ],
)  # fmt: skip
def test_files_that_are_no_single_text_are_asked_for(tmp_path, call):
    text = SFT.format(more=", eval_dataset=load_dataset('org/held')").replace('"org/rows"', call)
    with pytest.raises(UserError, match="dataset_name: the configuration does not name the data"):
        own.read(tmp_path, text, name="train.py")
    assert own.read(tmp_path, text, "dataset_name=org/x", name="train.py").recipe.curate.sources[0].path == "org/x"


@pytest.mark.parametrize(
    "again",
    ["RATE = 1e-4", "def f(RATE): pass", "for RATE in (1, 2): pass", "RATE += 1", "with open('x') as RATE: pass"],
)
def test_a_name_that_is_bound_again_has_no_value(tmp_path, again):
    result = own.read(tmp_path, SFT.format(more="") + again + "\n", name="train.py")
    assert own.kinds(result)["learning_rate"] == "left_out" and result.recipe.sft.optimizer.learning_rate == 2e-5
    once = own.read(tmp_path, SFT.format(more=""), name="train.py").recipe
    assert once.sft.optimizer.learning_rate == 3e-6


@pytest.mark.parametrize("text", ["def (", "x = 1", "a = SFTConfig()\nb = DPOConfig()"])
def test_scripts_that_cannot_be_read(tmp_path, text):
    with pytest.raises(UserError, match=r"train\.py"):
        own.read(tmp_path, text, name="train.py")
