"""Dr. MAS: players share a group and no baseline."""

from __future__ import annotations

import torch

from pipelines.contract.catalogue import bind

REWARD = torch.tensor([1.0, 0.0, 1.0, 8.0, 9.0, 4.0])
GROUP, SCORED = torch.zeros(6).long(), torch.ones(6).bool()


def advantage(player, reward=REWARD):
    columns = {"reward": reward, "group": GROUP, "player": torch.tensor(player), "scored": SCORED}
    return bind("rlvr.advantage", "dr_mas")(columns)


def test_a_constant_added_to_one_player_s_rewards_changes_nothing():
    player = [0, 0, 0, 1, 1, 1]
    moved = REWARD + 5 * torch.tensor(player)
    torch.testing.assert_close(advantage(player), advantage(player, moved))
    assert not torch.allclose(advantage([0] * 6), advantage([0] * 6, moved))


def test_with_one_player_it_is_grpo():
    grpo = bind("rlvr.advantage", "grpo")({"reward": REWARD, "group": GROUP, "scored": SCORED})
    torch.testing.assert_close(advantage([0] * 6), grpo)
