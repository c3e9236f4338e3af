"""Providers on a model of random weights, without a run around them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import toys

from pipelines.contract.provider import ProviderContext
from pipelines.contract.scorer import NoScorer
from pipelines.engine import parallel
from pipelines.engine.policy import Policy
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.passes import ForwardPasses


def provider_context(folder, *overrides):
    """The context of a small llama; what is fitted to is the scored rows' tokens that are not cut off."""
    rlvr = read_recipe(toys.recipe(folder), list(overrides)).rlvr
    policy = Policy(toys.model(vocab=20), rlvr.sampling)
    return ProviderContext(
        policy=policy, passes=ForwardPasses(policy, rlvr, parallel.World()), rlvr=rlvr, model=SimpleNamespace(dtype="float32"),
        start="", seed=0, outcome_tokens=lambda columns: columns["mask"] & ~columns["truncated"][:, None], options={},
        scorer=NoScorer(), problems={},
    )  # fmt: skip


def rows(seed=0):
    """Token ids of six rows and their columns: one nobody scored, one cut off, holes between trained tokens."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 20, (6, 9), generator=draw)
    mask = (torch.arange(9) > 2) & (torch.arange(9) < torch.tensor([9, 5, 7, 9, 6, 8])[:, None])
    mask[3, 5] = False
    scored = torch.arange(6) != 2
    mask &= scored[:, None]
    reward = torch.tensor([1.0, 0.0, 1.0, 0.5, 0.25, 0.75])
    return tokens, {
        "token": tokens, "mask": mask, "scored": scored, "reward": reward, "raw_reward": reward.clone(),
        "token_penalty": torch.zeros(mask.shape), "truncated": torch.arange(6) == 4,
    }  # fmt: skip
