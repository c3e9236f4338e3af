"""PRDP against a loop, against RLOO, and on a task small enough to know its solution."""

from __future__ import annotations

import itertools

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import graded, tokens
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

SEEDS = st.integers(0, 5_000)


def rough(seed):
    return graded(toys.rough(seed), seed)


def prdp(columns, **settings):
    return bind("rlvr.objective", {"kind": "prdp", **settings})(columns)


def row_mean(columns, loss):
    return (loss * bind("rlvr.loss_aggregation", "row_mean")(columns)).sum()


@given(SEEDS, st.sampled_from([None, 0.01, 0.05]), st.booleans())
def test_against_a_loop(seed, clip_range, tied_pairs):
    batch, beta = rough(seed), 0.7
    logp = batch.logp_old + 0.1 * (batch.entropy_old - 0.5)
    made = prdp(columns_of(batch) | {"logp": logp}, beta=beta, clip_range=clip_range, tied_pairs=tied_pairs)
    plain, clipped = {}, {}
    for r in range(16):
        old = [float(batch.logp_old[r, t] - batch.logp_ref[r, t]) for t in tokens(batch, r)]
        moved = [float(logp[r, t] - batch.logp_old[r, t]) for t in tokens(batch, r)]
        bound = clip_range or 1e9
        plain[r] = sum(old) + sum(moved)
        clipped[r] = sum(old) + sum(max(-bound, min(bound, m)) for m in moved)
    for number in set(batch.group.tolist()):
        rows = [r for r in range(16) if batch.group[r] == number and batch.in_loss[r]]
        errors = {}
        for i, j in itertools.combinations(rows, 2):
            wanted = float(batch.reward[i] - batch.reward[j]) / beta
            if wanted or tied_pairs:
                errors[i, j] = max((s[i] - s[j] - wanted) ** 2 for s in (plain, clipped))
        of_rows = {r: sum(e for pair, e in errors.items() if r in pair) for r in rows}
        for r in rows:
            expected = len(rows) / 2 * of_rows[r] / max(1, len(errors))
            assert [float(made[r, t]) for t in tokens(batch, r)] == pytest.approx(
                [expected] * len(tokens(batch, r)), rel=1e-3, abs=1e-5
            )
        if errors:
            mean = sum(float(made[r, tokens(batch, r)[0]]) for r in rows) / len(rows)
            assert mean == pytest.approx(sum(errors.values()) / len(errors), rel=1e-3, abs=1e-5)
    assert (made[~batch.mask] == 0).all()


@given(SEEDS, st.floats(0.1, 5))
def test_without_the_clip_it_is_rloo_on_the_reward_less_the_divergence(seed, beta):
    columns = {
        k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in columns_of(rough(seed)).items()
    }
    columns["mask"] = columns["mask"] & columns["in_loss"][:, None]
    columns["scored"] = columns["in_loss"]
    logp = (columns["logp_old"] + 0.1 * columns["entropy_old"]).requires_grad_()
    row_mean(columns, prdp(columns | {"logp": logp}, beta=beta, clip_range=None)).backward()
    log_ratio = ((logp.detach() - columns["logp_ref"]) * columns["mask"]).sum(1)
    advantage = bind("rlvr.advantage", "rloo")(columns | {"reward": columns["reward"] - beta * log_ratio}).double()
    rows = columns["in_loss"].sum()
    torch.testing.assert_close(
        logp.grad, -4 / beta / rows * advantage[:, None] * columns["mask"], rtol=1e-4, atol=1e-5 / beta
    )


@given(SEEDS, st.floats(0.1, 5), st.booleans())
def test_the_tilted_reference_has_no_loss(seed, beta, tied_pairs):
    batch = rough(seed)
    columns = columns_of(batch)
    length = batch.mask.sum(1, keepdim=True).clamp(min=1)
    offset = torch.randn(5, generator=torch.Generator().manual_seed(seed))[batch.group]
    tilted = batch.logp_ref + ((batch.reward / beta + offset)[:, None] / length) * batch.mask
    logp = tilted.clone().requires_grad_()
    loss = prdp(columns | {"logp": logp, "logp_old": tilted}, beta=beta, tied_pairs=tied_pairs)
    row_mean(columns, loss).backward()
    assert loss.abs().max() < 1e-6 and logp.grad.abs().max() < 1e-3


def test_a_step_that_went_far_enough_has_no_gradient_and_one_that_went_astray_has():
    rewards, one = torch.tensor([1.0, 0.0]), torch.ones(2, 1).bool()
    columns = {
        "mask": one,
        "reward": rewards,
        "group": torch.zeros(2).long(),
        "in_loss": one[:, 0],
        "logp_ref": torch.zeros(2, 1),
    }

    def gradient(by):
        logp = torch.tensor([[by], [-by]], requires_grad=True)
        prdp(columns | {"logp": logp, "logp_old": torch.zeros(2, 1)}, beta=0.1, clip_range=0.2).sum().backward()
        return logp.grad.squeeze(1).tolist()

    assert gradient(0.1) == pytest.approx([-39.2, 39.2]), "4 (2 * 0.1 - 10)"
    assert gradient(0.3) == [0.0, 0.0], "clipped: further towards the rewards pays nothing"
    assert gradient(-0.3) == pytest.approx([-42.4, 42.4]), "back towards them it does"


def test_pairs_without_a_reward_difference():
    one = torch.ones(3, 1).bool()
    s = torch.tensor([[0.3], [-0.1], [0.5]])
    columns = {
        "mask": one,
        "group": torch.zeros(3).long(),
        "in_loss": one[:, 0],
        "logp": s,
        "logp_old": s,
        "logp_ref": 0 * s,
    }
    assert prdp(columns | {"reward": torch.ones(3)}, tied_pairs=False).tolist() == [[0.0]] * 3
    held = prdp(columns | {"reward": torch.ones(3)})
    assert held.mean().item() == pytest.approx((0.4**2 + 0.2**2 + 0.6**2) / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clip_range", "rounds", "updates"), [(None, 1, 400), pytest.param(0.3, 60, 20, marks=pytest.mark.slow)]
)
def test_training_ends_at_the_policy_that_maximises_reward_less_kl(clip_range, rounds, updates):
    """Four answers of two tokens: every one is a row, and the policy becomes the reference times exp(reward / beta)."""
    beta, reward = 0.4, torch.tensor([1.0, 0.2, 0.0, 0.5])
    answers = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    reference = [torch.tensor([0.4, -0.3]), torch.tensor([[0.1, 0.7], [-0.5, 0.2]])]
    policy = [x.clone().requires_grad_() for x in reference]

    def log_probs(first, second):
        a = first.log_softmax(-1)[answers[:, 0]]
        b = second.log_softmax(-1)[answers[:, 0], answers[:, 1]]
        return torch.stack([a, b], 1)

    mask = torch.ones(4, 2).bool()
    columns = {
        "mask": mask, "loss_share": mask.float(), "reward": reward, "group": torch.zeros(4).long(), "in_loss": mask[:, 0],
        "logp_ref": log_probs(*reference),
    }  # fmt: skip
    for _ in range(rounds):
        columns["logp_old"] = log_probs(*policy).detach()
        for _ in range(updates):
            logp = log_probs(*policy)
            loss = row_mean(columns, prdp(columns | {"logp": logp}, beta=beta, clip_range=clip_range))
            for x, slope in zip(policy, torch.autograd.grad(loss, policy), strict=True):
                x.data -= 0.1 * slope
    best = (columns["logp_ref"].sum(1) + reward / beta).softmax(0)
    torch.testing.assert_close(log_probs(*policy).sum(1).exp().detach(), best, atol=1e-3, rtol=0)


def test_groups_of_one_have_no_pairs(tmp_path):
    more = ["presets=[prdp]", "rlvr.group_size=1", "rlvr.advantage=reinforce_pp"]
    with pytest.raises(RecipeError, match=r"rlvr\.group_size: prdp compares the rollouts of a group"):
        check(read_recipe(toys.recipe(tmp_path), more))
    check(read_recipe(toys.recipe(tmp_path), [*more, "rlvr.group_size=2"]))
