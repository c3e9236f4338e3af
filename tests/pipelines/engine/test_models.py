"""The configuration of a fresh model, and the dtype that weights are stored in."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import toys
from transformers import AutoConfig

from benchmarks.families import FAMILIES
from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Fresh, Model
from pipelines.engine.models import fresh_config, fresh_model, load_model, load_tokenizer, save_model, train_tokenizer

SPECIAL = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize(
    ("architecture", "config", "words"),
    [
        ("lama", {}, r"model\.fresh\.architecture: .* 'lama'. Did you mean 'llama'"),
        ("zzzzz", {}, r"model\.fresh\.architecture: .* Use one such as llama"),
        ("llama", {"hiden_size": 64}, r"model\.fresh\.config\.hiden_size: .* Did you mean 'hidden_size'"),
        ("llama", {"num_hidden_layers": -1}, r"model\.fresh\.config\.num_hidden_layers: -1 is below 1"),
        ("llama", {"vocab_size": 99}, r"model\.fresh\.config\.vocab_size: .* Set model\.tokenizer\.vocab_size"),
        ("gpt2", {"n_layer": 0}, r"model\.fresh\.config\.num_hidden_layers: 0 is below 1"),
    ],
)
def test_what_transformers_would_drop_or_take_is_refused(architecture, config, words):
    with pytest.raises(ModelError, match=words):
        fresh_config(Fresh(architecture=architecture, config=config), SPECIAL)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_families_are_not(name):
    family = FAMILIES[name]
    config = fresh_config(Fresh(architecture=family.architecture, config=family.config), SPECIAL)
    assert config.get_text_config().vocab_size == 64


@pytest.mark.parametrize("kind", ["char", "bpe"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma2", "gpt2", "phi3", "nemotron"])
def test_a_tokenizer_beside_any_architecture_is_the_one_that_was_saved(tmp_path, architecture, kind):
    """transformers' `AutoTokenizer` reads one beside a Qwen2 model as Qwen2's, which drops spaces that it does not know."""
    text = "what is 58 + 26?"
    tokenizer = train_tokenizer(kind, 400, [text, "hello world"] * 20)
    config = AutoConfig.for_model(architecture, vocab_size=len(tokenizer))
    config.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text


def test_weights_are_stored_as_asked(tmp_path):
    """Rounded, not drawn anew; frequencies of rotary embeddings stay float32, or positions would be confused."""
    tokenizer = train_tokenizer("char", 64, ["abc"])
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    plain = Model(fresh=Fresh(config=sizes))
    stored = plain.model_copy(update={"dtype": "bfloat16", "weights_dtype": "bfloat16"})
    exact, rounded = fresh_model(plain, tokenizer, 3), fresh_model(stored, tokenizer, 3)
    save_model(exact, tokenizer, tmp_path / "m", {})
    loaded = load_model(tmp_path / "m", stored)
    for model in (rounded, loaded):
        assert all(torch.equal(a.bfloat16(), b) for a, b in zip(exact.parameters(), model.parameters(), strict=True))
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32
        assert torch.equal(model.model.rotary_emb.inv_freq, exact.model.rotary_emb.inv_freq)
        assert model.lm_head.weight is model.model.embed_tokens.weight or not model.config.tie_word_embeddings
    save_model(rounded, tokenizer, tmp_path / "r", {})
    back = load_model(tmp_path / "r", plain)
    assert all(torch.equal(a.float(), b) for a, b in zip(rounded.parameters(), back.parameters(), strict=True))


LOADS = """
import sys
from pipelines.engine.models import load_tokenizer
from pipelines.contract.model_settings import Model
for path, model in (("org/m", Model(path="org/m", revision="old")), ("org/m", Model(path="org/other", revision="old"))):
    print(len(load_tokenizer(path, model)))
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_revision_is_that_of_the_recipe_s_own_model(tmp_path):
    """A teacher's tokenizer was looked for at the policy's revision. The hub's cache here holds two revisions of one name."""
    cache = tmp_path / "hub" / "models--org--m"
    (cache / "refs").mkdir(parents=True)
    for revision, commit, text in (("old", "1" * 40, "ab"), ("main", "2" * 40, "abcd")):
        (cache / "refs" / revision).write_text(commit)
        train_tokenizer("char", 64, [text]).save_pretrained(cache / "snapshots" / commit)
        (cache / "snapshots" / commit / "config.json").write_text('{"model_type": "llama", "vocab_size": 64}')
    environment = toys.environment(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    done = subprocess.run([sys.executable, "-c", LOADS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    own, other = map(int, done.stdout.split())
    assert other == own + 2


def test_weights_in_bfloat16_want_its_arithmetic():
    with pytest.raises(ValueError, match="weights_dtype: bfloat16 needs dtype: bfloat16"):
        Model(path="x/y", weights_dtype="bfloat16")
