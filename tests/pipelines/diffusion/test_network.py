"""The network reads in both directions, has a mask that no text spells, and comes back from its folder as it was."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.contract.model_settings import Model
from pipelines.diffusion import network
from pipelines.engine import models
from pipelines.engine.prompts import Prompts

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_both_directions_with_and_without_padding(family, attention):
    model = toys.model(family, 40)
    model.set_attn_implementation(attention)
    model = network.bidirectional(model).eval()
    model.config.mask_token_id = 39
    logits = network.logits_of(model, "float32")
    tokens = torch.tensor([[5, 6, 7, 8]])
    changed = torch.tensor([[5, 6, 7, 9]])
    kept = torch.ones(1, 4, dtype=torch.bool)
    with torch.no_grad():
        plain = logits(tokens, kept)
        assert not torch.allclose(plain[0, 0, :39], logits(changed, kept)[0, 0, :39])
        padded = torch.nn.functional.pad(tokens, (3, 0), value=1)
        seen = logits(padded, torch.nn.functional.pad(kept, (3, 0), value=False))[:, 3:]
    assert torch.allclose(plain, seen, atol=1e-5)
    assert (plain[..., 39] == float("-inf")).all() and plain[..., :39].isfinite().all()


def test_a_folder_says_all_of_it_again(begun):
    folder = begun / "cold" / "out" / "model"
    tokenizer = models.load_tokenizer(folder)
    loaded = network.load(folder, Model(path=str(folder)), tokenizer, seed=0)
    assert network.mask_of(loaded) == len(tokenizer) and loaded.config.is_causal is False
    assert loaded.get_input_embeddings().num_embeddings == len(tokenizer) + 1
    again = network.load(folder, Model(path=str(folder)), tokenizer, seed=1)
    prompts = Prompts.of([[3, 4], [5]], tokenizer.pad_token_id, CPU)
    asked = prompts.followed_by(torch.full((2, 3), network.mask_of(loaded)))
    with torch.no_grad():
        values = [network.logits_of(each.eval(), "float32")(*asked) for each in (loaded, again)]
    assert torch.equal(*values)
    assert prompts.tokens.tolist() == [[3, 4], [tokenizer.pad_token_id, 5]]
