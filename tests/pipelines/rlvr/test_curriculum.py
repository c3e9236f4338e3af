"""Curricula: what they draw follows what they have seen, by formula."""

from __future__ import annotations

import random

import pytest
import torch

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.rlvr.curriculum.gain_rl import prompt_score


@pytest.mark.parametrize(("utility", "power"), [("hard", 2), ("variance", 1)])
def test_vade_draws_by_its_utility(utility, power):
    vade = bind("rlvr.curriculum", {"kind": "vade", "utility": utility}).fn
    vade.start(20, 3)
    for step in range(4):
        proposed = [a.problem for a in vade.propose(6, 8)]
        draw = random.Random(f"vade 3 {step}")
        chance = [draw.betavariate(*vade.posterior(n)) for n in range(20)]
        assert proposed == sorted(range(20), key=lambda n: (-chance[n] * (1 - chance[n]) ** power, n))[:6]
        vade.observe([GroupOutcome(n, 8, n % 9) for n in proposed])


def test_vade_forgets_what_it_saw_long_ago():
    vade = bind("rlvr.curriculum", {"kind": "vade", "keep": 1.0, "drift": 0.5}).fn
    vade.start(4, 0)
    vade.observe([GroupOutcome(0, 8, 8), GroupOutcome(1, 0, 0)])
    assert vade.posterior(0) == (1 + 8 / 2, 1.0) and vade.posterior(1) == (1.0, 1.0)
    vade.observe([])
    assert vade.posterior(0) == (1 + 8 / 4, 1.0)


@pytest.mark.parametrize(("common", "count"), [(3, 4), (0, 4), (3, 2), (3, 1), (3, 0)])
def test_a_prompt_s_score_is_of_the_cosines_of_its_hidden_states(common, count):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(common + count, 5, generator=draw) * torch.arange(1, common + count + 1)[:, None]
    before, question = hidden[:common], hidden[common:]

    def cosines(pairs):
        found = [float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for a, b in pairs]
        return sum(found) / len(found) if found else 0.0

    among = cosines([(a, b) for i, a in enumerate(question) for j, b in enumerate(question) if i != j])
    across = cosines([(a, b) for a in question for b in before])
    assert prompt_score(common, hidden)[0] == pytest.approx(among + 8 * across, abs=1e-5)
