"""Players with weights that the policy has had: they say what it would have said, and leave its own weights to the bit."""

from __future__ import annotations

import scripted
import torch
import toys

from pipelines.contract.sampling import Sampling
from pipelines.rlvr.earlier import Earlier


def test_an_earlier_player_says_what_the_policy_said_and_changes_nothing():
    tokenizer = scripted.tokenizer()
    model = toys.model(vocab=len(tokenizer))
    prefixes = [scripted.ids("You are X."), scripted.ids("123")]

    def greedy(player):
        completions = player.extend(prefixes, Sampling(temperature=0, max_tokens=6), None, streams=[(1, 0), (2, 0)])
        return [(each.tokens, each.logp) for each in completions]

    players = Earlier(lambda: model, tokenizer=tokenizer, dtype="float32", rows=8)
    first = players.player()
    at_first = greedy(first.sampler)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    now = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    assert greedy(first.sampler) == at_first != greedy(players.player().sampler)
    assert greedy(players.player(first.weights).sampler) == at_first
    assert all(now[name].equal(weight) for name, weight in model.named_parameters())


def test_adapters_alone_are_copied_where_they_alone_are_trained():
    model = toys.model()
    model.requires_grad_(False)
    model.lm_head.weight.requires_grad_(True)
    players = Earlier(lambda: model, tokenizer=scripted.tokenizer(), dtype="float32", rows=8)
    assert list(players.player().weights) == ["lm_head.weight"]
