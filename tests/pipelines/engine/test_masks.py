"""Masks of packed rows and trees, for windows and for eager attention: the same values and gradients as rows on their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.engine.layout import packed_layouts, prefix_layouts, tree_layouts
from pipelines.engine.masks import MaskForm, layer_kinds
from pipelines.engine.policy import Policy


def policy_of(family: str, attention: str | None = None) -> Policy:
    model = toys.model(family)
    if attention is not None:
        model.set_attn_implementation(attention)
    return Policy(model, Sampling())


def rows(window: int = 8):
    """Six rows of two prompts, longer than the toys' window of 8."""
    draw = torch.Generator().manual_seed(1)
    prompts = [torch.randint(4, 90, (n,), generator=draw).tolist() for n in (11, 5)]
    made = [p + torch.randint(4, 90, (window + 3 * i,), generator=draw).tolist() for i in range(3) for p in prompts]
    tokens = torch.zeros(len(made), max(map(len, made)), dtype=torch.int64)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for i, row in enumerate(made):
        tokens[i, : len(row)], mask[i, len(prompts[i % 2]) : len(row)] = torch.tensor(row), True
    return made, tokens, mask


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("llama", "eager"),
        ("gemma2", None),
        ("gemma3_text", None),
        ("gemma3_text", "eager"),
        ("mistral", None),
        ("gpt_oss", None),
    ],
)
def test_layouts_with_windows_and_eager_attention(family, attention):
    policy = policy_of(family, attention)
    assert policy.takes_masks and policy.takes_prefixes
    made, tokens, mask = rows()
    weight = torch.randn(mask.shape, generator=torch.Generator().manual_seed(2))

    def scored(layouts):
        policy.model.zero_grad()
        values = torch.zeros(mask.numel())
        for part in layouts:
            chosen, _ = policy.score(part, tokens.flatten()[part.target])
            (chosen * weight.flatten()[part.target]).sum().backward()
            values[part.target] = chosen.detach()
        gradient = [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
        return values.view(mask.shape)[mask], torch.cat(gradient)

    policy.model.zero_grad()
    plain = policy.logp(tokens, mask).logp
    (plain * weight).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    for make in (tree_layouts, prefix_layouts):
        values, gradient = scored(make(tokens, mask, torch.arange(len(tokens)), 60))
        torch.testing.assert_close(values, plain[mask].detach(), atol=3e-5, rtol=0)
        torch.testing.assert_close(gradient, expected, atol=3e-4, rtol=1e-3)
    documents, which = [np.array(row) for row in made], [mask[i, : len(row)].numpy() for i, row in enumerate(made)]
    joined = torch.cat([torch.tensor(row) for row in made])
    values = torch.zeros(len(joined))
    short = [document[:9] for document in documents]  # so that rows have several documents
    parts = [*packed_layouts([*documents, *short], [*which, *(np.zeros(9, dtype=bool) for _ in short)], 200)]
    assert any(part.attention is not None for part in parts)
    for part in parts:
        values[part.target] = policy.score(part, joined[part.target])[0].detach()
    torch.testing.assert_close(values[torch.from_numpy(np.concatenate(which))], plain[mask].detach(), atol=3e-5, rtol=0)


def test_form_follows_the_configuration():
    config = toys.model("gemma3_text").config
    assert layer_kinds(config) == {"sliding_attention"}, "two layers: both slide"
    assert MaskForm.of(config) == MaskForm(False, frozenset({"sliding_attention"}), 8)
    config._attn_implementation = "flash_attention_2"
    assert MaskForm.of(config) is None
    llama = toys.model("llama").config
    assert MaskForm.of(llama) == MaskForm(False, frozenset({"full_attention"}), None)
    llama.layer_types = ["full_attention", "conv"]
    assert MaskForm.of(llama) is None
