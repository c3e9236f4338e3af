"""Muon beside torch's own, which weights it steps, and that it is the same optimizer on several processes and after a restart."""

from __future__ import annotations

import copy

import pytest
import torch
import toys
from transformers import LlamaConfig, LlamaForCausalLM

from pipelines.base.errors import RecipeError
from pipelines.engine import optimizer
from pipelines.engine.muon import Muon, orthogonalised
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.training import Optimizer
from tasks.preflight import memory

SETTINGS = Optimizer(kind="muon", learning_rate=0.01, weight_decay=0.1)


def network(tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def gradients(model: torch.nn.Module, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for weight in model.parameters():
        weight.grad = torch.randn(weight.shape, generator=draw)


@pytest.mark.parametrize("tied", [False, True])
def test_it_steps_as_torch_s_muon_and_adamw(tied):
    """Matrices of the layers by torch.optim.Muon with the RMS of AdamW, embedding, head and norms by torch.optim.AdamW."""
    ours, theirs = network(tied), network(tied)
    made = optimizer.make(ours, SETTINGS)
    inside = [p for name, p in theirs.named_parameters() if ".layers." in name and p.ndim == 2]
    ends = [p for name, p in theirs.named_parameters() if ".layers." not in name and p.ndim == 2]
    vectors = [p for p in theirs.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(inside, lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": ends, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    beside = torch.optim.AdamW(groups, lr=0.01, betas=SETTINGS.betas, eps=SETTINGS.eps)
    assert isinstance(made, Muon) and len(inside) == 14 and len(ends) == 2 - tied
    for step in range(4):
        gradients(ours, step)
        gradients(theirs, step)
        for group in made.param_groups:
            group["lr"] = 0.01
        made.step()
        muon.step()
        beside.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_its_state_goes_into_a_commit_and_back():
    ours, again = network(), network()
    made, other = optimizer.make(ours, SETTINGS), optimizer.make(again, SETTINGS)
    for step in range(2):
        gradients(ours, step)
        made.step()
    again.load_state_dict(ours.state_dict())
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    for model, each in ((ours, made), (again, other)):
        gradients(model, 2)
        each.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(8, 8), (24, 6), (6, 24), (1, 9)])
def test_singular_values_become_about_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e3
    values = torch.linalg.svdvals(orthogonalised(matrix).float())
    assert values.min() > 0.3 and values.max() < 1.3
    assert not orthogonalised(torch.zeros(shape)).any()


def test_adapters_are_matrices_inside_and_heads_are_not():
    model = torch.nn.ModuleDict(
        {"body": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 1), "named": torch.nn.Embedding(5, 4)}
    )
    made = optimizer.make(model, SETTINGS)
    assert [len(group["params"]) for group in made.param_groups] == [1, 2, 2]


def test_what_it_cannot_step_is_refused_and_what_it_holds_is_planned(tmp_path):
    muon = "sft.optimizer.kind=muon"
    with pytest.raises(RecipeError, match=r"sft\.optimizer\.kind: muon steps weights in float32"):
        check(read_recipe(toys.recipe(tmp_path), [muon, "model.dtype=bfloat16", "model.weights_dtype=bfloat16"]))
    check(read_recipe(toys.recipe(tmp_path), [muon, "rlvr.optimizer.kind=muon"]))
    shape = memory.Shape(
        10**6, layers=2, hidden=32, intermediate=64, heads=4, key_heads=2, head_size=8, vocabulary=1000
    )
    needs = memory.of_stage(read_recipe(toys.recipe(tmp_path), [muon]).node("sft"), shape)
    assert needs.optimizer == 4 * (10**6 - 64_000) + 8 * 64_000
