"""Damaged model folders: each loads correctly or is refused with a ModelError that names the file or the tensors.

The check of a folder that loads is the model's own output: random weights anywhere would change it.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import models
from pipelines.engine.adapters import with_lora
from pipelines.recipe.training import Lora

pytestmark = pytest.mark.hostile
PROMPT = torch.tensor([[1, 5, 6, 7, 3]])
FAMILIES = ("llama", "qwen2", "gpt2")
LAYER = {"llama": "model.layers.1.mlp.up_proj.weight", "qwen2": "model.layers.0.self_attn.q_proj.bias"}
LAYER["gpt2"] = "transformer.h.1.mlp.c_fc.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """family → (an undamaged folder, the logits of its model)."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        tokenizer = models.train_tokenizer("char", 100, ["abcdefghijklmnopqrstuvwxyz 0123456789"])
        model = toys.model(family, vocab=100)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found[family] = folder, model(PROMPT).logits.detach()
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def store(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> None:
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / name, metadata={"format": "pt"})


def config(folder: Path, name: str = "config.json", **changes) -> None:
    body = json.loads((folder / name).read_text())
    body = {k: v for k, v in (body | changes).items() if v is not ...}
    (folder / name).write_text(json.dumps(body))


def shards(folder: Path) -> list[Path]:
    """Split the weights over several files with an index."""
    tensors = weights(folder)
    (folder / "model.safetensors").unlink()
    names, where = sorted(tensors), {}
    for number in range(3):
        part = names[number::3]
        store(folder, {n: tensors[n] for n in part}, f"model-{number}.safetensors")
        where |= dict.fromkeys(part, f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return sorted(folder.glob("model-*.safetensors"))


def as_bin(folder: Path) -> Path:
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def renamed(folder, layer):
    store(folder, {n.replace(layer, f"{layer}_old"): t for n, t in weights(folder).items()})


def all_renamed(folder, layer):
    store(folder, {f"base.{n}": t for n, t in weights(folder).items()})


def without(folder, layer):
    store(folder, {n: t for n, t in weights(folder).items() if n != layer})


def without_layer(folder, layer):
    store(folder, {n: t for n, t in weights(folder).items() if ".1." not in n})


def without_embedding(folder, layer):
    store(folder, {n: t for n, t in weights(folder).items() if "embed_tokens" not in n and "wte" not in n})


def without_head(folder, layer):
    store(folder, {n: t for n, t in weights(folder).items() if "lm_head" not in n})


def narrower(folder, layer):
    store(folder, {n: t[..., :7] if n == layer else t for n, t in weights(folder).items()})


def integers(folder, layer):
    store(folder, {n: t.to(torch.int32) if n == layer else t for n, t in weights(folder).items()})


def integers_in_bin(folder, layer):
    torch.save({n: t.to(torch.int8) if n == layer else t for n, t in weights(folder).items()}, as_bin(folder))


def nan(folder, layer):
    store(folder, {n: torch.full_like(t, torch.nan) if n == layer else t for n, t in weights(folder).items()})


def infinite(folder, layer):
    store(folder, {n: torch.full_like(t, torch.inf) if n == layer else t for n, t in weights(folder).items()})


def added_tensor(folder, layer):
    store(folder, {**weights(folder), "v_head.summary.weight": torch.ones(1, 64)})


def more_layers(folder, layer):
    config(folder, **({"n_layer": 4} if "h.1" in layer else {"num_hidden_layers": 4}))


def fewer_layers(folder, layer):
    config(folder, **({"n_layer": 1} if "h.1" in layer else {"num_hidden_layers": 1}))


def no_layers(folder, layer):
    config(folder, **({"n_layer": -1} if "h.1" in layer else {"num_hidden_layers": -1}))


def wider(folder, layer):
    config(folder, **({"n_inner": 512} if "h.1" in layer else {"intermediate_size": 512}))


def more_words(folder, layer):
    config(folder, vocab_size=200)


def fewer_words(folder, layer):
    config(folder, vocab_size=20)


def text_width(folder, layer):
    config(folder, **({"n_embd": "x"} if "h.1" in layer else {"hidden_size": "x"}))


def odd_heads(folder, layer):
    config(folder, **({"n_head": 5} if "h.1" in layer else {"num_attention_heads": 5}))


def no_width(folder, layer):
    config(folder, **({"n_embd": 0} if "h.1" in layer else {"hidden_size": 0}))


def unknown_type(folder, layer):
    config(folder, model_type="transmogrifier")


def no_type(folder, layer):
    config(folder, model_type=..., architectures=...)


def a_picture_model(folder, layer):
    config(folder, model_type="vit")


def quantised(folder, layer):
    config(folder, quantization_config={"quant_method": "gptq", "bits": 4})


def own_code(folder, layer):
    config(folder, auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text("raise SystemExit('ran')\n")


def own_code_only(folder, layer):
    own_code(folder, layer)
    config(folder, model_type="transmogrifier")


def own_tokenizer_code(folder, layer):
    config(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.Tokenizer", None]})


def config_text(folder, layer):
    (folder / "config.json").write_text("{model_type: llama")


def config_list(folder, layer):
    (folder / "config.json").write_text("[]")


def config_empty(folder, layer):
    (folder / "config.json").write_bytes(b"")


def config_binary(folder, layer):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00\x01")


def config_nested(folder, layer):
    (folder / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def no_config(folder, layer):
    (folder / "config.json").unlink()


def generation_text(folder, layer):
    (folder / "generation_config.json").write_text("{eos")


def truncated(folder, layer):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def header_only(folder, layer):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def empty(folder, layer):
    (folder / "model.safetensors").write_bytes(b"")


def garbage(folder, layer):
    (folder / "model.safetensors").write_bytes(b"\xff" * 4000)


def web_page(folder, layer):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")


def a_folder(folder, layer):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def no_weights(folder, layer):
    (folder / "model.safetensors").unlink()


def dangling(folder, layer):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "nowhere")


def shard_missing(folder, layer):
    shards(folder)[1].unlink()


def shard_truncated(folder, layer):
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-100])


def shard_empty(folder, layer):
    shards(folder)[2].write_bytes(b"")


def index_text(folder, layer):
    shards(folder)
    (folder / "model.safetensors.index.json").write_text("{")


def index_empty(folder, layer):
    shards(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')


def index_outside(folder, layer):
    shards(folder)
    body = {"weight_map": {layer: "../../../etc/passwd"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(body))


def index_gone(folder, layer):
    shards(folder)
    (folder / "model.safetensors.index.json").unlink()


def bin_garbage(folder, layer):
    as_bin(folder).write_bytes(b"abc")


def bin_empty(folder, layer):
    as_bin(folder).write_bytes(b"")


def bin_truncated(folder, layer):
    path = as_bin(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("pickle_ran"),)


def bin_pickle(folder, layer):
    as_bin(folder).write_bytes(pickle.dumps({layer: Evil()}))


def bin_list(folder, layer):
    torch.save([torch.ones(2)], as_bin(folder))


def adapters(folder, layer):
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x"}')


def tokenizer_text(folder, layer):
    (folder / "tokenizer.json").write_text('{"version"')


def tokenizer_shape(folder, layer):
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Nothing"}}')


def tokenizer_empty(folder, layer):
    (folder / "tokenizer.json").write_bytes(b"")


def tokenizer_config_text(folder, layer):
    (folder / "tokenizer_config.json").write_text("pad")


def tokenizer_gone(folder, layer):
    for path in folder.glob("tokenizer*"):
        path.unlink()


def tokenizer_larger(folder, layer):
    more = models.train_tokenizer("char", 300, ["".join(map(chr, range(33, 330)))])
    more.save_pretrained(folder)


def no_pad_nor_end(folder, layer):
    config(folder, "tokenizer_config.json", pad_token=..., eos_token=...)


def template_faulty(folder, layer):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }")


def template_raises(folder, layer):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")


def template_gone(folder, layer):
    (folder / "chat_template.jinja").unlink()


REFUSED = {
    renamed: "1 missing: .*1 not of this model: .*renamed", all_renamed: r"missing: .* and \d+ more",
    without: "1 missing: ", without_layer: "missing", narrower: "of another shape", integers: "integers",
    integers_in_bin: "integers", nan: "NaN", infinite: "NaN", added_tensor: "v_head.summary.weight", more_layers: "missing|is refused",
    fewer_layers: "not of this model|is refused", no_layers: ".", wider: ".", more_words: "of another shape",
    fewer_words: ".", text_width: r"config\.json .* is refused", odd_heads: ".", no_width: ".", unknown_type: "is refused .*transmogrifier",
    no_type: "model_type", a_picture_model: ".", quantised: "quantised", own_code: "trust_remote_code: config.json",
    own_code_only: "trust_remote_code: config.json", own_tokenizer_code: "trust_remote_code: tokenizer_config.json",
    config_text: r"config\.json is not JSON", config_list: r"config\.json holds no JSON object",
    config_empty: r"config\.json is not JSON", config_binary: r"config\.json is not JSON",
    config_nested: r"config\.json is not JSON", no_config: r"no config\.json", generation_text: "generation_config.json",
    truncated: r"model\.safetensors cannot be read", header_only: r"model\.safetensors cannot be read",
    empty: r"model\.safetensors cannot be read: it is empty", garbage: r"model\.safetensors cannot be read",
    web_page: r"model\.safetensors cannot be read", a_folder: r"model\.safetensors", no_weights: "no weights",
    dangling: "no weights", shard_missing: r"model-1\.safetensors is missing", shard_truncated: r"model-1\.safetensors",
    shard_empty: r"model-2\.safetensors cannot be read: it is empty", index_text: r"index\.json is not JSON",
    index_empty: "maps no tensors", index_outside: "outside the folder", index_gone: "no weights",
    bin_garbage: r"pytorch_model\.bin", bin_empty: r"pytorch_model\.bin cannot be read: it is empty",
    bin_truncated: r"pytorch_model\.bin", bin_pickle: r"pytorch_model\.bin", bin_list: r"pytorch_model\.bin",
    adapters: "adapters", tokenizer_text: r"tokenizer\.json is not JSON", tokenizer_shape: "no tokenizer could be loaded",
    tokenizer_empty: r"tokenizer\.json is not JSON", tokenizer_config_text: r"tokenizer_config\.json is not JSON",
    tokenizer_gone: "tokenizer", tokenizer_larger: "without a row", no_pad_nor_end: "neither a padding nor an end token",
    template_faulty: "chat_template", template_raises: "chat_template", template_gone: "no chat template",
}  # fmt: skip
"""Damage → what the message must say."""


def untouched(folder, layer):
    pass


def halves(folder, layer):
    store(folder, {n: t.to(torch.bfloat16) for n, t in weights(folder).items()})


def leftover_buffers(folder, layer):
    more = {"transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8), "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    store(folder, {**weights(folder), **more} if "h.1" in layer else {
        **weights(folder), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)
    })  # fmt: skip


def prefix_cut(folder, layer):
    store(folder, {n.removeprefix("model.").removeprefix("transformer."): t for n, t in weights(folder).items()})


def index_incomplete(folder, layer):
    shards(folder)
    body = json.loads((folder / "model.safetensors.index.json").read_text())
    body["weight_map"].pop(layer)
    (folder / "model.safetensors.index.json").write_text(json.dumps(body))


def junk_beside(folder, layer):
    (folder / "trainer_state.json").write_text("{")
    (folder / "optimizer.bin").write_bytes(b"")


def tied_twice(folder, layer):
    config(folder, tie_word_embeddings=True)


def no_pad(folder, layer):
    config(folder, "tokenizer_config.json", pad_token=...)


LOADS = (
    untouched,
    halves,
    leftover_buffers,
    prefix_cut,
    shards,
    index_incomplete,
    as_bin,
    junk_beside,
    tied_twice,
    no_pad,
)
"""Damage that is none."""


def damaged(tmp_path, whole, family, damage) -> Path:
    folder = tmp_path / "folder"
    shutil.copytree(whole[family][0], folder)
    if damage is shards or damage is as_bin:
        damage(folder)
    else:
        damage(folder, LAYER[family])
    return folder


def load(folder: Path, **fields):
    settings = Model(path=str(folder), **fields)
    return models.load_tokenizer(folder, settings), models.load_model(folder, settings)


@pytest.mark.parametrize("damage", REFUSED, ids=lambda d: d.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_damaged_folder_is_refused(tmp_path, whole, family, damage, monkeypatch):
    if family == "qwen2" and damage is no_pad_nor_end:
        pytest.skip("transformers' Qwen2 tokenizer has both by itself")
    monkeypatch.chdir(tmp_path)
    folder = damaged(tmp_path, whole, family, damage)
    with pytest.raises(ModelError, match=f"(?s){REFUSED[damage]}") as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "pickle_ran").exists()


@pytest.mark.parametrize("damage", (*LOADS, without_embedding, without_head), ids=lambda d: d.__name__)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_loads_computes_what_was_saved(tmp_path, whole, family, damage):
    folder = damaged(tmp_path, whole, family, damage)
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", True)
    gone = damage is without_embedding or (damage is without_head and not tied)
    if gone:
        with pytest.raises(ModelError, match="missing"):
            load(folder)
        return
    tokenizer, model = load(folder)
    tolerance = 0.2 if damage is halves else 1e-5
    torch.testing.assert_close(model(PROMPT).logits, whole[family][1], atol=tolerance, rtol=tolerance)
    assert tokenizer.pad_token_id is not None and {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_new_head_is_allowed_by_name_and_the_same_for_every_stage(tmp_path, whole):
    folder = damaged(tmp_path, whole, "llama", without_head)
    with pytest.raises(ModelError, match=r"model\.allow_missing: \[lm_head\.weight\]"):
        load(folder)
    with pytest.raises(ModelError, match="missing"):
        load(folder, allow_missing=["head"])
    before = torch.random.get_rng_state()
    heads = [load(folder, allow_missing=[name])[1].lm_head.weight for name in ("lm_head.weight", "lm_*", "lm_head.*")]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    heads.append(load(folder, allow_missing=["lm_head.weight"])[1].lm_head.weight)
    assert all(torch.equal(heads[0], head) for head in heads)
    with pytest.raises(ModelError, match="missing"):
        models.load_model(folder, Model(path="elsewhere", allow_missing=["*"]))


def test_a_tensor_may_stay_unread_by_name(tmp_path, whole):
    folder = damaged(tmp_path, whole, "qwen2", added_tensor)
    model = load(folder, allow_unexpected=["v_head.*"])[1]
    torch.testing.assert_close(model(PROMPT).logits, whole["qwen2"][1])


def test_code_of_the_folder_runs_with_permission_only(tmp_path, whole, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = damaged(tmp_path, whole, "llama", untouched)
    config(folder, model_type="mine", auto_map={"AutoConfig": "code_mine.C", "AutoModelForCausalLM": "code_mine.M"})
    (folder / "code_mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class C(LlamaConfig):\n    model_type = 'mine'\n"
        "class M(LlamaForCausalLM):\n    config_class = C\n"
    )
    with pytest.raises(ModelError, match="trust_remote_code"):
        load(folder)
    _, model = load(folder, trust_remote_code=True)
    torch.testing.assert_close(model(PROMPT).logits, whole["llama"][1])


def test_special_tokens_that_nothing_renders_may_lie_beyond_the_embedding(tmp_path, whole):
    folder = damaged(tmp_path, whole, "llama", untouched)
    tokenizer = models.load_tokenizer(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<image{i}>" for i in range(90)]})
    tokenizer.save_pretrained(folder)
    load(folder)
    tokenizer.pad_token = "<image89>"
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="<image89>"):
        load(folder)


def test_adapters_need_modules_that_exist(whole):
    model = models.load_model(whole["llama"][0], Model(path=str(whole["llama"][0])))
    with pytest.raises(ModelError, match=r"lora\.target_modules"):
        with_lora(model, Lora(target_modules=["nothing"]))


def test_a_home_path_is_found(tmp_path, whole, monkeypatch):
    shutil.copytree(whole["llama"][0], tmp_path / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    model = models.load_model("~/m", Model(path="~/m"))
    torch.testing.assert_close(model(PROMPT).logits, whole["llama"][1])


def test_evaluation_and_difficulty_refuse_it_too(tmp_path, whole):
    from evaluation.model import load as load_for_evaluation

    folder = damaged(tmp_path, whole, "llama", renamed)
    with pytest.raises(ModelError, match="missing"):
        load_for_evaluation(str(folder), Model(path=str(folder)), batch_size=2)


def test_a_commit_of_other_weights_is_refused(whole):
    from pipelines.contract.sampling import Sampling
    from pipelines.engine import parallel
    from pipelines.engine.policy import Policy

    model = models.load_model(whole["llama"][0], Model(path=str(whole["llama"][0])))
    weights = parallel.Weights(model, Policy(model, Sampling()), parallel.World())
    state = weights.state()
    weights.load(state)
    with pytest.raises(ModelError, match="does not fit"):
        weights.load({f"base.{n}": t for n, t in state.items()})
