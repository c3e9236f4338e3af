"""GAE over turns: the sheet's values, a slow loop, and what it has in common with GAE over tokens."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.contract.catalogue import bind
from pipelines.rlvr.algorithm import immediate_reward
from pipelines.rlvr.turn_values import turn_advantages

SEEDS = st.integers(0, 300)
PLAIN = {"kind": "turn_gae", "whiten": False}


def episode(rewards, values, tokens=1):
    """Columns of one row whose turns have so many tokens each; a value that nobody reads stands on the others."""
    turn = torch.arange(len(rewards)).repeat_interleave(tokens)[None]
    value = torch.full(turn.shape, 9.0)
    value[0, ::tokens] = torch.tensor(values)
    return {
        "reward": torch.tensor([sum(rewards)]), "turn_reward": torch.tensor([rewards]), "value": value, "turn": turn,
        "mask": turn >= 0, "scored": torch.ones(1).bool(), "token_penalty": torch.zeros(turn.shape),
    }  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_sheets_values(tokens):
    columns = episode([0.0, 0.2, 1.0], [0.5, 0.6, 0.8], tokens)
    advantage = bind("rlvr.advantage", PLAIN)(columns)[0]
    wanted = torch.tensor([0.670318, 0.58802, 0.2]).repeat_interleave(tokens)
    torch.testing.assert_close(advantage, wanted, atol=1e-6, rtol=0)
    columns.pop("scored")
    per_turn, values = turn_advantages(**columns, discount=0.99, lam=0.99)
    assert (per_turn + values)[0].tolist() == pytest.approx([1.170318, 1.18802, 1.0], abs=1e-6)


@given(SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_one_token_a_turn_is_gae_over_tokens(seed, discount, lam):
    """Both are paid the rewards of turns where they fall."""
    draw = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 6, (4,), generator=draw)
    turn = torch.where(torch.arange(6) < length[:, None], torch.arange(6), -1)
    mask = turn >= 0
    rewards, value = (torch.randn(4, 6, generator=draw) * mask for _ in range(2))
    columns = {
        "reward": rewards.sum(1), "value": value, "turn": turn, "mask": mask, "scored": torch.ones(4).bool(),
        "turn_reward": rewards, "token_penalty": torch.zeros(4, 6),
    }  # fmt: skip
    settings = {"discount": discount, "lam": lam}
    over_turns = bind("rlvr.advantage", {"kind": "turn_gae", **settings})(columns)
    columns["immediate_reward"] = immediate_reward(columns)
    over_tokens = bind("rlvr.advantage", {"kind": "gae", **settings})(columns)
    torch.testing.assert_close(over_turns, over_tokens, atol=1e-5, rtol=1e-5)


@given(SEEDS)
def test_against_a_loop(seed):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.turn_reward = torch.randn(batch.turn_reward.shape, generator=draw)
    batch.token_penalty = torch.rand(batch.mask.shape, generator=draw) * batch.mask
    result = run_method("advantage", PLAIN | {"discount": 0.9, "lam": 0.5}, batch)
    for r in range(len(batch.group)):
        trained = batch.mask[r] & batch.scored[r]
        places = {s: [t for t in trained.nonzero().squeeze(1).tolist() if batch.turn[r, t] == s] for s in range(9)}
        paid = batch.turn_reward[r].tolist()
        rest = float(batch.reward[r] + batch.token_penalty[r].sum() - batch.turn_reward[r].sum())
        wanted, after, value_after = torch.zeros(batch.mask.shape[1]), 0.0, 0.0
        for s in reversed(range(len(paid))):
            if not places[s]:
                rest += paid[s]  # a turn without a trained token: the one before is paid for it
                continue
            reward, rest = paid[s] + rest - float(batch.token_penalty[r, places[s]].sum()), 0.0
            value = float(batch.value[r, places[s][0]])
            after = reward + 0.9 * value_after - value + 0.45 * after
            value_after = value
            wanted[places[s]] = after
        torch.testing.assert_close(result[r], wanted, atol=1e-4, rtol=1e-4)


@given(SEEDS)
def test_whitened_over_the_tokens(seed):
    batch = toys.rough(seed)
    plain, white = (run_method("advantage", {"kind": "turn_gae", "whiten": w}, batch) for w in (False, True))
    inside = batch.mask
    wanted = (plain[inside] - plain[inside].mean()) / plain[inside].std()
    torch.testing.assert_close(white[inside], wanted, atol=1e-3, rtol=1e-3)
    assert not white[~inside].any()
