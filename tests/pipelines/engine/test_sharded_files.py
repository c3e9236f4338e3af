"""Models that several processes read shard by shard and write tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import torch
import toys
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.engine import models, sharded_files
from pipelines.engine.policy import Policy
from pipelines.engine.sharded_files import WholeModel

SCRIPT = Path(__file__).parent / "sharded_start.py"
FAMILIES = {"llama": {"tie_word_embeddings": True}, "qwen2": {}, "gpt2": {}}
VOCABULARY = 101
"""Rows that two processes cannot divide evenly."""


def saved(folder: Path, family: str, layers: int = 2, **options) -> Path:
    sizes = toys.FAMILIES[family] | {"n_layer" if family == "gpt2" else "num_hidden_layers": layers} | FAMILIES[family]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / family, **options)
    models.train_tokenizer("char", VOCABULARY, ["abcdefghijklmnopqrstuvwxyz 0123456789"]).save_pretrained(
        folder / family
    )
    return folder / family


def check_traffic(measured):
    """Once an update instead of once a pass; matrices in bfloat16 where passes multiply by that."""
    gathers, sums = "_allgather_base_", "_reduce_scatter_base_"
    for dtype, groups in (("float32", 9), ("bfloat16", 17)):  # blocks, their matrices, and the rest
        assert measured[f"{dtype} pass"][0][sums] == 3 * groups and measured[f"{dtype} update"][0][sums] == groups
        assert measured[f"{dtype} pass"][1][sums] == 3 * measured[f"{dtype} update"][1][sums]
    assert measured["bfloat16 pass"][1][gathers] < 0.6 * measured["float32 pass"][1][gathers]
    assert measured["bfloat16 pass"][1][sums] == measured["float32 pass"][1][sums], "gradients are summed in float32"


@pytest.mark.slow
def test_two_processes_hold_their_shards_and_one_tensor(tmp_path):
    """Weights, buffers and logits are those of one process to the bit, and so is the folder that is written."""
    for family in FAMILIES:
        saved(tmp_path, family, layers=8, max_shard_size="400KB" if family == "qwen2" else "50GB")
    ranks.run_ranks(SCRIPT, [tmp_path, *FAMILIES], 2, tmp_path / "ranks")
    for rank in (0, 1):
        measured = torch.load(tmp_path / f"measured{rank}.pt", weights_only=False)
        check_traffic(measured.pop("traffic"))
        for family, bytes_ in measured.items():
            tensor = 4 * bytes_["largest"]  # as it is read, and as it is looked through in float64
            assert bytes_["shard"] < 0.55 * bytes_["whole"], family
            assert bytes_["reading"] < bytes_["shard"] + tensor < 0.75 * bytes_["whole"], family
            for what in ("writing", "pushing"):  # a tensor is written or sent while the next one is gathered
                assert bytes_[what] < 1.5 * tensor < 0.3 * bytes_["whole"], (family, what)
            assert bytes_["probing"] < 0.5 * bytes_["whole"], f"{family}: the ends, a block, and what it computes"
    for family in FAMILIES:
        path = tmp_path / family
        one = models.load_model(path, Model(path=str(path)))
        models.save_model(one, models.load_tokenizer(path), tmp_path / "one", {})
        for file in (tmp_path / "one").iterdir():
            assert file.read_bytes() == (tmp_path / "out" / family / file.name).read_bytes(), (family, file.name)


def test_a_model_in_several_files_is_written_as_transformers_does(tmp_path, monkeypatch):
    model = toys.model("qwen2")
    limit = sum(weight.nbytes for weight in model.parameters()) // 3
    monkeypatch.setattr(sharded_files, "SHARD_BYTES", limit)
    model.save_pretrained(tmp_path / "whole", max_shard_size=limit)
    (tmp_path / "parts").mkdir()
    values = dict(model.named_parameters())
    sharded_files.write(
        sharded_files.without_values(model), tmp_path / "parts", lambda name: values[name].detach(), first=True
    )
    written = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert "model.safetensors.index.json" in written and "model.safetensors" not in written


def outlined(folder: Path, **fields):
    return sharded_files.outline(folder, Model(path=str(folder), **fields))


def test_an_outline_that_is_filled_is_the_model(tmp_path):
    folder = saved(tmp_path, "llama")
    network, unread = outlined(folder, dtype="bfloat16", weights_dtype="bfloat16")
    assert all(weight.is_meta and weight.dtype == torch.bfloat16 for weight in network.parameters())
    policy = Policy(network, Sampling(), dtype="bfloat16")
    sharded_files.allocate(network, policy.device)
    assert network.lm_head.weight is network.model.embed_tokens.weight
    assert unread.fill(network) == []
    policy.check_head()
    whole = models.load_model(folder, Model(path=str(folder), dtype="bfloat16", weights_dtype="bfloat16"))
    for (name, value), (other, expected) in zip(
        [*network.named_parameters(), *network.named_buffers()],
        [*whole.named_parameters(), *whole.named_buffers()], strict=True,
    ):  # fmt: skip
        assert name == other and value.dtype == expected.dtype and torch.equal(value, expected)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    folder = saved(tmp_path, "qwen2")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    network, unread = outlined(folder)
    sharded_files.allocate(network, torch.device("cpu"))
    broken = unread.fill(network)
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        unread.refuse(broken)


def renamed(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.other.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def reshaped(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:3].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def pickled(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("change", "why"), [(renamed, "model.norm.weight"), (reshaped, "model.norm.weight"), (pickled, "safetensors")]
)
def test_what_cannot_be_read_by_rows_says_why(tmp_path, change, why):
    folder = saved(tmp_path, "qwen2")
    change(folder)
    with pytest.raises(WholeModel, match=why):
        outlined(folder)


def test_experts_are_stored_otherwise_than_they_are_in_memory():
    config = AutoConfig.for_model(
        "mixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        num_local_experts=2, vocab_size=20,
    )  # fmt: skip
    assert not sharded_files.stored_as_they_are(AutoModelForCausalLM.from_config(config))
    assert sharded_files.stored_as_they_are(toys.model("qwen2"))
