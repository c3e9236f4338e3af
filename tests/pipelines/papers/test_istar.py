"""iStar: the sheet's numbers, a loop, the gradient of the pairs' loss, and what it teaches in the trainer."""

from __future__ import annotations

import copy
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, mates, tokens
from provider_toys import provider_context, rows
from toys import columns_of

from pipelines.contract.catalogue import bind


def prm(tmp_path, **settings):
    about = {"kind": "trajectory_prm", "beta": 0.5, "max_grad_norm": 1e9, **settings}
    part = bind("rlvr.providers", about).fn
    part.setup(provider_context(tmp_path))
    return part


def episodes():
    """Two groups: rows 0 and 1 with a success and a failure, row 2 unscored; 3, 4 and 5 with one success. Row 0 has two turns."""
    token, columns = rows()
    turn = torch.where(columns["mask"], 0, -1)
    turn[0, 6:] = torch.where(columns["mask"][0, 6:], 1, -1)
    draw = torch.Generator().manual_seed(4)
    more = {
        "turn": turn,
        "group": torch.tensor([0, 0, 0, 1, 1, 1]),
        "logp_old": -3 * torch.rand(token.shape, generator=draw),
    }
    return token, columns | more


def moved(part):
    """Its model, away from where it started."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in part.model.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return part


def test_the_sheet_s_numbers():
    """Two episodes of two steps, and the loss of two pairs."""
    sheet = {
        "reward": torch.tensor([1.0, 0.0]),
        "process_reward": torch.tensor([[0.4, 0.1], [-0.1, 0.2]]),
        "turn": torch.tensor([[0, 1], [0, 1]]),
        "group": torch.zeros(2).long(),
        "scored": torch.ones(2).bool(),
        "mask": torch.ones(2, 2).bool(),
    }
    made = bind("rlvr.advantage", "istar")(sheet)
    steps = torch.tensor([[0.333333, -0.066667], [-0.333333, 0.066667]])
    torch.testing.assert_close(made, steps + torch.tensor([[1.0], [-1.0]]), atol=1e-5, rtol=0)

    part = bind("rlvr.providers", {"kind": "trajectory_prm", "turns": "sum"}).fn
    columns = {
        "scored": torch.ones(4).bool(), "raw_reward": torch.tensor([1.0, 0, 1, 0]), "group": torch.tensor([0, 0, 1, 1]),
    }  # fmt: skip
    loss, accuracy = part.loss(torch.tensor([0.8, 0.3, 0.1, 0.3]), columns)
    assert float(loss) == pytest.approx(0.636108, abs=1e-6) and accuracy == 0.5
    assert float(part.loss(torch.zeros(4), columns)[0]) == pytest.approx(math.log(2))


@given(st.integers(0, 5_000))
def test_the_advantage_against_a_loop(seed):
    """Groups of one, two, three and more, unscored rows, tokens outside the mask."""
    batch = graded(toys.rough(seed), seed)
    made = bind("rlvr.advantage", {"kind": "istar", "step_weight": 2.0})(columns_of(batch))
    paid = {}
    for row in range(16):
        for t in tokens(batch, row):
            key = row, max(int(batch.turn[row, t]), 0)
            paid[key] = paid.get(key, 0.0) + float(batch.process_reward[row, t])
    for row in range(16):
        own = set(tokens(batch, row))
        others = mates(batch, row)
        n, steps = len(others), [value for key, value in paid.items() if key[0] in others]
        for t in range(batch.mask.shape[1]):
            wanted = 0.0
            if t in own:
                if n > 1:
                    wanted += (
                        n
                        / (n - 1)
                        * (float(batch.reward[row]) - statistics.fmean(float(batch.reward[r]) for r in others))
                    )
                if (m := len(steps)) > 1:
                    step = paid[row, max(int(batch.turn[row, t]), 0)]
                    wanted += 2.0 * m / (m - 1) * (step - statistics.fmean(steps))
            assert float(made[row, t]) == pytest.approx(wanted, abs=1e-4)


def test_without_rewards_of_steps_it_is_rloo():
    batch = toys.batch()
    batch.process_reward = torch.zeros_like(batch.process_reward)
    made = bind("rlvr.advantage", "istar")(columns_of(batch))
    torch.testing.assert_close(made, bind("rlvr.advantage", "rloo")(columns_of(batch))[:, None] * batch.mask)


@pytest.mark.parametrize("turns", ["mean", "sum"])
def test_its_step_is_the_gradient_of_the_loss_of_pairs(tmp_path, turns):
    part = moved(prm(tmp_path, turns=turns))
    token, columns = episodes()
    mask = columns["mask"]
    slow = copy.deepcopy(part.model)
    score = 0.5 * ((slow.logp(token, mask).logp - columns["logp_old"]) * mask).sum(1)
    if turns == "mean":
        score = score / torch.tensor([2.0, 1, 1, 1, 1, 1])
    margins = torch.stack([score[0] - score[1], score[5] - score[3], score[5] - score[4]])
    loss = -torch.log(torch.sigmoid(margins)).mean()
    loss.backward()
    gradients = []
    part.optimizer.step = lambda: gradients.append([p.grad.clone() for p in part.model.model.parameters()])
    metrics = part.update(token, columns)
    assert metrics["prm/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["prm/accuracy"] == pytest.approx(float((margins > 0).float().mean()))
    for fast, weight in zip(gradients[0], slow.model.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-6, rtol=1e-3)


def test_a_step_without_a_pair_teaches_nothing(tmp_path):
    part = prm(tmp_path)
    token, columns = episodes()
    columns["raw_reward"] = (columns["group"] == 1).float()
    before = copy.deepcopy(part.model.model.state_dict())
    assert part.update(token, columns) == {}
    assert all(torch.equal(weight, before[name]) for name, weight in part.model.model.state_dict().items())


LAKE = ["presets=[istar]", "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.steps=3"]
FAST = "rlvr.providers=[{kind: trajectory_prm, learning_rate: 0.001, beta: 0.5}]"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return toys.start_lake(tmp_path_factory.mktemp("lake"))


def packed(made):
    batch, _ = made.collect(0)
    columns = made._pack(batch, 0)
    made.learner.fill(columns["token"], columns)
    return columns["token"], SimpleNamespace(**columns)


@pytest.mark.few(8)
def test_in_the_trainer_it_begins_silent_and_learns_to_tell_won_episodes(tmp_path, lake):
    """The reference is the policy that sampled: before the model has learned, no turn is paid."""
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *LAKE, FAST)
    token, batch = packed(made)
    assert batch.process_reward.abs().max() < 1e-4 and (batch.turn >= 0).any()
    part = made.learner.providers["trajectory_prm"]
    won = torch.arange(len(token)) % 2 == 0
    columns = vars(batch) | {"raw_reward": won.float()}
    losses = [part.update(token, columns)["prm/loss"] for _ in range(30)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-3) and losses[-1] < 0.5 * losses[0]
    part.fill(token, columns)
    totals = columns["process_reward"].sum(1)
    assert totals[won].mean() > totals[~won].mean() + 0.5


@pytest.mark.slow
@pytest.mark.few(8)
def test_it_trains_and_resumes_to_the_same_bytes(tmp_path, lake):
    ended = []
    for name in ("whole", "halves"):
        (tmp_path / name).mkdir()

        def build(folder=tmp_path / name):
            return toys.trainer(folder, lake, toys.lake(folder), *LAKE, FAST)

        made = toys.run_stopped(build) if name == "halves" else build()
        if name == "whole":
            made.run()
        values = [b["values"] for b in toys.spool(tmp_path / name / "work") if b["kind"] == "metrics"]
        assert any("prm/loss" in each for each in values)
        part = made.learner.providers["trajectory_prm"]
        ended.append((made.learner.model.state_dict(), part.model.model.state_dict()))
    for first, second in zip(*ended, strict=True):
        assert all(torch.equal(weight, second[name]) for name, weight in first.items())
