"""`whetstone plan --memory`: the table, JSON, and the exit code."""

from __future__ import annotations

import json

import pytest
import toys

from flows.cli import main as cli
from flows.cli import memory
from flows.cli import plan as plan_command
from pipelines.base.errors import UserError
from pipelines.recipe.read import read_recipe
from tasks.preflight import memory as check_memory


def plan(tmp_path, monkeypatch, capsys, *arguments):
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    code = plan_command.command(cli.parser().parse_args(["plan", str(toys.recipe(tmp_path)), "--memory", *arguments]))
    return code, capsys.readouterr().out


@pytest.mark.slow
def test_table_and_json(tmp_path, monkeypatch, capsys):
    code, text = plan(tmp_path, monkeypatch, capsys, "--limit", "4")
    assert code == 0 and "over the limit" not in text
    assert text.startswith("sft: at most 0.") and "\nrlvr: at most 0." in text and "largest saving: --set 'sft." in text
    code, text = plan(tmp_path, monkeypatch, capsys, "--limit", "0.1", "--only", "rlvr")
    assert code == 1 and "over the limit of 0.10 GB; no settings are enough" in text and "sft:" not in text
    code, text = plan(tmp_path, monkeypatch, capsys, "--json", "--prompt-tokens", "20", "--limit", "4")
    body = json.loads(text)
    assert body["limit"] == 4 * 10**9 and [stage["stage"] for stage in body["stages"]] == ["sft", "rlvr"]
    for stage in body["stages"]:
        assert stage["peak"] == stage["process"] + max(stage["phases"].values())
        assert all(lever["peak"] < stage["peak"] for lever in stage["levers"])


QWEN_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_another_machine_and_a_model_that_is_not_here(tmp_path, monkeypatch, capsys):
    """The recipe for one node fits eight GPUs of 80 GB, by the configuration alone; one GPU is told what would be enough."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    arguments = ["plan", "recipes/node_7b.yaml", "--memory", "--json", "--config", str(tmp_path), "--gpus"]
    assert plan_command.command(cli.parser().parse_args([*arguments, "8xH100"])) == 0
    stages = {stage["stage"]: stage for stage in json.loads(capsys.readouterr().out)["stages"]}
    assert set(stages) == {"cold", "drafts", "dpo", "rl"} and stages["rl"]["processes"] == 6
    assert all(stage["step_s"]["training"] > 0 for name, stage in stages.items() if name != "drafts")
    assert stages["rl"]["cache"] == 0 and stages["rl"]["step_s"]["decoding"] > 0, "servers decode"
    assert (
        plan_command.command(
            cli.parser().parse_args([*arguments, "1x80", "--set", "cold.processes=1", "--only", "cold"])
        )
        == 1
    )
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert stage["fitting"]["peak"] <= 80e9 < stage["peak"]


QWEN_VL_3B = {
    "model_type": "qwen2_5_vl", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 128000, "tie_word_embeddings": True,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 14,
    },
}  # fmt: skip


@pytest.mark.slow
def test_a_model_that_sees_and_is_not_here(tmp_path, monkeypatch, capsys):
    """By its configuration, with the parameters of its vision tower; the recipe for a pretrained one fits a GPU of 80 GB."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    (tmp_path / "config.json").write_text(json.dumps(QWEN_VL_3B))
    arguments = [
        "plan",
        "recipes/vision_pretrained.yaml",
        "--memory",
        "--json",
        "--gpus",
        "1xH100",
        "--config",
        str(tmp_path),
    ]
    assert plan_command.command(cli.parser().parse_args(arguments)) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert stage["weights"] == pytest.approx(2 * 3.75e9, rel=0.01), "two bytes each, which the decoder shares"


def test_servers_on_the_gpus_that_are_left_are_proposed_with_their_time(tmp_path, capsys):
    shape = check_memory.Shape(
        8 * 10**9, layers=28, hidden=3584, intermediate=18944, heads=28, key_heads=4, head_size=128, vocabulary=152064
    )
    lines = [
        "model.dtype=bfloat16", "model.weights_dtype=bfloat16", "rlvr.prompts=64", "rlvr.group_size=8", "rlvr.decode_rows=32",
        "rlvr.lora=16", "rlvr.gradient_checkpointing=true",
    ]  # fmt: skip

    def told(gpus, *more):
        node = read_recipe(toys.recipe(tmp_path), [*lines, *more]).node("rlvr")
        target = memory.Machine.of(gpus)
        body = memory._planned(node, shape, 256, target, target.limit)
        memory._table(body, target.limit, target)
        return body.get("served_step_s"), capsys.readouterr().out

    served, text = told("8xH200", "rlvr.processes=2")
    assert served["servers"] == 6 and "--set 'rlvr.sampler={serve: {count: 6}}'" in text
    assert told("2xH200", "rlvr.processes=2")[0] is None, "no GPU is left"
    assert told("8xH200", "rlvr.processes=2", "rlvr.sampler={url: 'http://x:1', weights: /w}")[0] is None


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ("H100", "not a number of GPUs"),
        ("0x80", "not a number"),
        ("8xH10", "Did you mean 'H100'"),
        ("8xVoodoo", "Known: A10, A100"),
    ],
)
def test_a_machine_that_is_none(gpus, words):
    with pytest.raises(UserError, match=words):
        memory.Machine.of(gpus)


def test_a_machine_by_its_gpus():
    named, sized = memory.Machine.of("8xH100"), memory.Machine.of("2x24")
    assert (named.device.cards, named.limit, named.card[0]) == (8, 80 * 10**9, "H100")
    assert (sized.device.cards, sized.limit, sized.card) == (2, 24 * 10**9, None) and sized.device.gpu
