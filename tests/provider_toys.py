"""Providers on a model of random weights, without a run around them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch
import toys

from pipelines.contract.provider import ProviderContext
from pipelines.contract.scorer import NoScorer
from pipelines.data.records import Problem
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


LETTERS = "~abcdefghij=klmnop#^"
"""The text of each token id; 0 is padding, 18 ends a completion."""


class LetterTokenizer:
    """One token a letter."""

    bos_token_id, eos_token_id = None, 18
    chat_template, added_tokens_decoder = None, {}
    all_special_tokens, all_special_ids = (), ()

    def __len__(self):
        return len(LETTERS)

    def __call__(self, text, add_special_tokens):
        texts = [text] if isinstance(text, str) else text
        ids = [[LETTERS.index(letter) for letter in each] for each in texts]
        return {"input_ids": ids[0] if isinstance(text, str) else ids}

    def decode(self, ids, skip_special_tokens):
        return "".join(LETTERS[i] for i in ids if i < 18)


def letter_context(folder, answers, *, info=None):
    """The context of `provider_context` with a tokenizer and problems by number, each with an answer and perhaps an info."""
    problems = {
        number: Problem(
            uid=f"{number:032x}",
            prompt=[],
            answer=answer,
            verifier="exact",
            source="toy",
            licence="",
            info=(info or {}).get(number, {}),
        )
        for number, answer in enumerate(answers)
    }
    context = provider_context(folder, "rlvr.optimizer.max_grad_norm=1000000.0")
    return dataclasses.replace(context, scorer=SimpleNamespace(tokenizer=LetterTokenizer), problems=problems)


def letter_rows(texts, numbers, prompt="ab"):
    """Token ids and columns of a prompt and a completion each, to problems by number; "" is a row that nobody scored."""
    width = max(map(len, texts)) + len(prompt)
    tokens = torch.zeros(len(texts), width, dtype=torch.int64)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids = [LETTERS.index(letter) for letter in prompt + text]
        tokens[row, : len(ids)] = torch.tensor(ids)
        mask[row, len(prompt) : len(ids)] = True
    return tokens, {"mask": mask, "problem": torch.tensor(numbers), "teacher_forced": torch.zeros_like(mask), "step": 3}
