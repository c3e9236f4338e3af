"""ROSE: rises of the mean reward along a row's nodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.papers.rose import rose_advantage as rose


def of(node, reward, group=None, scored=None, correct=None, mask=None, **settings):
    node, reward = torch.tensor(node), torch.tensor(reward)
    group = torch.zeros(len(node)).long() if group is None else torch.tensor(group)
    scored = torch.ones(len(node)).bool() if scored is None else torch.tensor(scored)
    mask = (node >= 0) & scored[:, None] if mask is None else mask
    return rose(reward, reward if correct is None else torch.tensor(correct), node, group, scored, mask, **settings)


TREE = [[-1, 0, 0, 1, 1, -1], [-1, 0, 0, 2, 3, 3], [-1, 0, 0, 2, 4, -1], [-1, 5, 5, 5, -1, -1]]


@given(st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_along_a_row_they_add_up_to_its_reward_less_the_mean(rewards):
    r = [x / 4 for x in rewards]
    made = of(TREE, r)
    for row, (nodes, reward) in enumerate(zip(TREE, r, strict=True)):
        first = {node: at for at, node in reversed(list(enumerate(nodes))) if node >= 0}
        total = sum(float(made[row, at]) for at in first.values())
        assert total == pytest.approx(reward - sum(r) / 4, abs=1e-6)
    assert (made[torch.tensor(TREE) < 0] == 0).all()


def test_independent_rows_are_centred_rewards_group_by_group():
    made = of([[0, 0], [1, 1], [2, 2], [3, -1]], [1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])
    assert made.tolist() == [[0.5, 0.5], [-0.5, -0.5], [0.0, 0.0], [0.0, 0.0]]


def test_unscored_rows_pass_through_no_node():
    made = of(TREE, [1.0, 0.0, 9.0, 0.0], scored=[True, True, False, True])
    again = of(TREE, [1.0, 0.0, -9.0, 0.0], scored=[True, True, False, True])
    assert torch.equal(made, again) and (made[2] == 0).all()
    assert made[1, 3].item() == pytest.approx(-0.5) and made[1, 4].item() == 0


def test_holes_between_trained_tokens_do_not_part_a_node():
    mask = torch.tensor([[1, 0, 1, 1]]).bool().expand(2, 4)
    made = of([[0, 0, 1, 1], [0, 0, 2, 2]], [1.0, 0.0], mask=mask)
    assert made.tolist() == [[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, -0.5, -0.5]]


@pytest.mark.parametrize(("power", "factor"), [(1.0, 1 / 6), (2.0, 1 - (5 / 6) ** 2)])
def test_longer_correct_rows_lose_after_the_last_shared_node(power, factor):
    """After the shared node one has 5 tokens left and the other 6."""
    node = [[0] * 2 + [1] * 5 + [-1], [0] * 2 + [2] * 6, [3] * 8]
    plain, made = (of(node, [1.0, 1.0, 0.0], length=p) for p in (0.0, power))
    assert torch.equal(made[0], plain[0]) and torch.equal(made[2], plain[2])
    assert torch.equal(made[1, :2], plain[1, :2])
    assert plain[1, 2] == 0, "both have reward 1 after the node"
    apart = of([[1] * 5 + [-1], [2] * 6, [3] * 6], [1.0, 1.0, 0.0], length=power)
    torch.testing.assert_close(apart[1], torch.full((6,), (1 / 3) * (1 - factor)), atol=1e-6, rtol=0)
    assert apart[0, 0].item() == pytest.approx(1 / 3)
    assert torch.equal(apart[2], torch.full((6,), -2 / 3))


def test_rows_of_one_length_and_other_groups_lose_nothing():
    node = [[0] * 3, [1] * 3, [2, -1, -1], [3, 3, 3]]
    made = of(node, [1.0, 1.0, 1.0, 0.0], [0, 0, 1, 0], length=1.0)
    assert torch.equal(made, of(node, [1.0, 1.0, 1.0, 0.0], [0, 0, 1, 0]))


def grown(seed):
    """Random trees of four groups of three rows: node of each token, ragged, with prompts in front."""
    draw = torch.Generator().manual_seed(seed)
    rows, names = [], iter(range(1000))
    for _ in range(4):
        group: list[list[int]] = []
        for _ in range(3):
            kept: list[int] = []
            if group and torch.rand((), generator=draw) < 0.7:
                other = group[int(torch.randint(len(group), (), generator=draw))]
                ends = [i for i in range(1, len(other)) if other[i] != other[i - 1]]
                kept = other[: ends[0]] if ends else []
            for _ in range(int(torch.randint(1, 3, (), generator=draw))):
                name = next(names)
                kept = kept + [name] * int(torch.randint(1, 4, (), generator=draw))
            group.append(kept)
        rows += group
    width = max(map(len, rows)) + 1
    return torch.tensor([[-1, *row, *[-1] * (width - 1 - len(row))] for row in rows]), draw


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("power", [0.0, 1.5])
def test_against_a_loop(seed, power):
    node, draw = grown(seed)
    group = torch.arange(12) // 3
    reward = torch.randint(0, 3, (12,), generator=draw) / 2
    scored = torch.rand(12, generator=draw) < 0.8
    correct = ((reward > 0) & scored).float()
    mask = (node >= 0) & scored[:, None] & (torch.rand(node.shape, generator=draw) < 0.8)
    made = rose(reward, correct, node, group, scored, mask, length=power)

    def value(name, row):
        rows = [
            r for r in range(12) if scored[r] and (name in node[r].tolist() if name >= 0 else group[r] == group[row])
        ]
        return float(reward[rows].mean())

    for row in [r for r in range(12) if scored[r]]:
        names = node[row].tolist()
        length = [sum(n >= 0 for n in node[r].tolist()) for r in range(12)]
        rivals = [r for r in range(12) if group[r] == group[row] and correct[r] > 0]
        for at, name in enumerate(names):
            if not mask[row, at]:
                assert made[row, at] == 0
                continue
            start = names.index(name)
            expected = value(name, row) - value(names[start - 1], row)
            if power and correct[row] > 0:
                short = min(rivals, key=lambda r: length[r])
                shared = sum(a == b >= 0 for a, b in zip(names, node[short].tolist(), strict=True))
                if name not in node[short].tolist():
                    factor = 1 - ((length[short] - shared) / (length[row] - shared)) ** power
                    expected -= abs(expected) * factor
            assert made[row, at].item() == pytest.approx(expected, abs=1e-5)
    assert (made[~scored] == 0).all()
