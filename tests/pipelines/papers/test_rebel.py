"""ReBel: episodes by their outcome, turns by the belief that they state."""

from __future__ import annotations

import math

import pytest
import torch
import toys
from hypothesis import given as drawn
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.papers.rebel import rebel


def columns(seed, beliefs=True):
    batch = toys.rough(seed)
    given = columns_of(batch)
    draw = torch.Generator().manual_seed(seed)
    real = given["turn_state"] >= 0
    belief = torch.randint(0, 4, real.shape, generator=draw) / 4 * real * beliefs
    last = (real.sum(1) - 1).clamp(min=0)
    reward = torch.zeros_like(belief).scatter(1, last[:, None], batch.correct[:, None]) + belief
    return given | {"turn_belief": belief, "turn_reward": reward, "step": 3, "total_steps": 10}


@pytest.mark.parametrize("seed", range(4))
def test_without_beliefs_it_is_gigpo_by_episodes(seed):
    given = columns(seed, beliefs=False)
    for scale in ("none", "std"):
        shared = {"step_weight": 0.5, "discount": 0.9, "scale": scale}
        ours = bind("rlvr.advantage", {"kind": "rebel", "decay": "linear", **shared})(given)
        theirs = bind("rlvr.advantage", {"kind": "gigpo", "unit": "episode", **shared})(given)
        torch.testing.assert_close(ours, theirs)
    assert ours.abs().max() > 0


@pytest.mark.parametrize("decay", ["none", "linear", "cosine", "exponential"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(seed, decay):
    given = columns(seed)
    ours = bind("rlvr.advantage", {"kind": "rebel", "step_weight": 0.7, "discount": 0.8, "decay": decay})(given)
    curves = {"none": 1, "linear": 0.7, "cosine": (1 + math.cos(0.3 * math.pi)) / 2, "exponential": math.exp(-0.9)}
    weight = 0.05 + 0.95 * curves[decay]
    turns = {}
    outcomes = {}
    for row in given["scored"].nonzero().squeeze(1).tolist():
        count = int((given["turn_state"][row] >= 0).sum())
        reward, belief = given["turn_reward"][row].tolist(), given["turn_belief"][row].tolist()
        outcomes[row] = sum(reward[:count]) - sum(belief[:count])
        for s in range(count):
            of_belief = sum(0.8 ** (k - s) * belief[k] for k in range(s, count))
            turns[row, s] = (0.8 ** (count - 1 - s) * outcomes[row], of_belief)

    def mean(values):
        return sum(values) / len(values)

    for (row, s), (env, believed) in turns.items():
        group, key = int(given["group"][row]), int(given["turn_state"][row, s])
        mates = [
            turns[r, k] for r, k in turns if int(given["group"][r]) == group and int(given["turn_state"][r, k]) == key
        ]
        task = outcomes[row] - mean([value for r, value in outcomes.items() if int(given["group"][r]) == group])
        step = env - mean([m[0] for m in mates]) + weight * (believed - mean([m[1] for m in mates]))
        at = (given["turn"][row] == s) & given["mask"][row]
        assert ours[row][at].tolist() == pytest.approx([task + 0.7 * step] * int(at.sum()), abs=1e-5)


def test_equal_beliefs_and_equal_returns_say_nothing():
    b = torch.full((2, 2), 0.3)
    key, turn = torch.zeros(2, 2).long(), torch.tensor([[0, 1], [0, 1]])
    given = {"turn_reward": b + torch.tensor([[0.0, 1.0]]), "turn_belief": b, "turn_state": key, "turn": turn}
    rows = {
        "group": torch.zeros(2).long(),
        "scored": torch.ones(2).bool(),
        "mask": turn >= 0,
        "step": 0,
        "total_steps": 9,
        "task": torch.zeros(2).long(),
        "correct": torch.zeros(2),
        "on_policy": torch.ones(2).bool(),
    }
    same = bind("rlvr.advantage", {"kind": "rebel", "discount": 0.0})(given | {"turn_reward": b} | rows)
    assert same.abs().max() < 1e-6
    apart = bind("rlvr.advantage", {"kind": "rebel", "discount": 1.0})(given | rows)
    assert apart[0].tolist() == pytest.approx([0.075, -0.075]), "a turn's own return differs from that of the next"


def test_the_sheet_s_decay_and_its_ends():
    to_nothing = [rebel(decay=name, least_weight=0.0) for name in ("cosine", "linear", "exponential")]
    assert [made.belief_weight(0.5) for made in to_nothing] == pytest.approx([0.5, 0.5, 0.223130], abs=1e-6)
    assert [rebel(decay=name).belief_weight(0.0) for name in ("none", "cosine", "linear", "exponential")] == [1.0] * 4
    assert [rebel(decay=name).belief_weight(1.0) for name in ("cosine", "linear")] == pytest.approx([0.05, 0.05])


@drawn(
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0.05, 1),
    st.floats(0, 1),
    st.sampled_from(["none", "linear", "cosine", "exponential"]),
)
def test_success_only_takes_weight_off(rate, more, target, progress, decay):
    plain = rebel(decay=decay).belief_weight(progress)
    made = rebel(decay=decay, target_success=target)
    assert made.belief_weight(progress) == plain, "nothing is known yet"
    made.rate = min(rate, more)
    weight = made.belief_weight(progress)
    assert 0.05 <= weight <= plain + 1e-12
    made.rate = max(rate, more)
    assert made.belief_weight(progress) <= weight
    made.rate = target
    assert made.belief_weight(progress) == pytest.approx(0.05)


def test_the_rate_is_that_of_the_steps_before():
    given = columns(0)
    bound = bind("rlvr.advantage", {"kind": "rebel", "target_success": 0.9, "memory": 0.75})
    first = bound(given)
    torch.testing.assert_close(first, bind("rlvr.advantage", "rebel")(given))
    step = {"scored": torch.tensor([True, True, True, False]), "on_policy": torch.tensor([True, True, False, True])}
    bound.fn.on_batch(given | step | {"correct": torch.tensor([1.0, 0.0, 0.0, 0.0])})
    assert bound.fn.rate == 0.5, "stored and unscored rows say nothing of the policy"
    bound.fn.on_batch(given | step | {"correct": torch.tensor([1.0, 1.0, 0.0, 0.0])})
    assert bound.fn.rate == 0.625
    bound.fn.on_batch(given | {"scored": torch.zeros(4).bool(), "on_policy": torch.ones(4).bool()})
    assert bound.fn.state_dict() == {"rate": 0.625}
    assert not torch.equal(bound(given), first)
    idle = bind("rlvr.advantage", "rebel")
    idle.fn.on_batch(given)
    assert idle.fn.state_dict() == {"rate": None}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("least_turns", [2, 12, 1000])
def test_types_of_task_against_a_loop(seed, least_turns):
    given = columns(seed)
    given["task"] = given["group"] % 2
    shared = {"kind": "rebel", "discount": 0.8}
    before = bind("rlvr.advantage", shared)(given)
    ours = bind("rlvr.advantage", {**shared, "by_task": True, "least_turns": least_turns, "least_std": 0.3})(given)
    inside = given["mask"] & (given["turn"] >= 0)

    def statistics(rows):
        values = [before[r, t].item() for r in rows for t in inside[r].nonzero().squeeze(1).tolist()]
        middle = sum(values) / len(values)
        return middle, math.sqrt(sum((v - middle) ** 2 for v in values) / max(1, len(values) - 1))

    everywhere, seen = statistics(range(len(before))), set()
    for kind in given["task"].unique().tolist():
        rows = [r for r in range(len(before)) if int(given["task"][r]) == kind and inside[r].any()]
        if not rows:
            continue
        turns = sum(len(set(given["turn"][r][inside[r]].tolist())) for r in rows)
        own, (middle, deviation) = min(1, turns / least_turns), statistics(rows)
        for r in rows:
            for t in inside[r].nonzero().squeeze(1).tolist():
                value = before[r, t].item()
                if turns >= least_turns and deviation < 0.3:
                    expected = value - middle
                    seen.add("centred")
                else:
                    centre = own * middle + (1 - own) * everywhere[0]
                    expected = (value - centre) / (own * deviation + (1 - own) * everywhere[1] + 1e-6)
                    seen.add("few" if turns < least_turns else "own")
                assert ours[r, t].item() == pytest.approx(expected, abs=1e-4)
    assert (ours[~inside] == 0).all() and (seen == {"few"}) == (least_turns == 1000)


@drawn(st.integers(0, 30), st.floats(0.5, 20), st.floats(-3, 3))
def test_a_type_of_task_with_many_turns_has_no_scale_and_no_bias_of_its_own(seed, factor, shift):
    given = columns(seed % 4)
    values = torch.randn(given["mask"].shape, generator=torch.Generator().manual_seed(seed)) * given["mask"]
    made = rebel(by_task=True, least_turns=2, least_std=0.0, eps=1e-12)
    task = torch.zeros(len(values), dtype=torch.int64)
    one = made._within_tasks(values, task, given["turn"], given["mask"])
    two = made._within_tasks((values * factor + shift) * given["mask"], task, given["turn"], given["mask"])
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    inside = given["mask"] & (given["turn"] >= 0)
    assert abs(one[inside].mean()) < 1e-5 and one[inside].std().item() == pytest.approx(1, abs=1e-4)


def test_a_turn_alone_stays_as_it_is_and_equal_ones_say_nothing():
    made = rebel(by_task=True)
    turn, task = torch.tensor([[0, 0, -1], [0, 1, 1]]), torch.tensor([0, 1])
    values = torch.tensor([[2.0, 2.0, 0.0], [1.0, 3.0, 3.0]])
    assert made._within_tasks(values, task, turn, turn >= 0)[0].tolist() == [2, 2, 0]
    level = made._within_tasks(torch.ones(2, 3) * (turn >= 0), torch.zeros(2).long(), turn, turn >= 0)
    assert level.abs().max() == 0
    nothing = torch.zeros(2, 3).bool()
    assert torch.equal(made._within_tasks(values, task, turn, nothing), values)
