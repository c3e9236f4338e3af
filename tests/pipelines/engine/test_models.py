"""The configuration of a fresh model."""

from __future__ import annotations

import pytest

from benchmarks.families import FAMILIES
from pipelines.engine.models import fresh_config
from pipelines.errors import ModelError
from pipelines.recipe.settings import Fresh

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
