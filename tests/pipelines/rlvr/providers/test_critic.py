"""The value network's regression, on a model of random weights."""

from __future__ import annotations

import copy

import pytest
import torch
import toys
from provider_toys import provider_context, rows

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.algorithm import immediate_reward


def critic(tmp_path, **settings):
    part = bind("rlvr.providers", {"kind": "critic", **settings}).fn
    part.setup(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"))
    return part


def test_its_step_is_the_gradient_of_half_the_squared_error(tmp_path):
    """Values start at 0, so the loss is half the mean of the squared rewards of rows that were not cut off."""
    part = critic(tmp_path)
    with torch.no_grad():
        for weight in part.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    tokens, columns = rows()
    mask = columns["mask"] & ~columns["truncated"][:, None]
    slow = copy.deepcopy(part.network)
    error = torch.cat([
        slow(layout) - columns["reward"][layout.target // 9]
        for row in mask.any(1).nonzero().flatten()
        for layout in part.passes.layouts(tokens, mask, row[None])
    ])  # fmt: skip
    (0.5 * error.square().mean()).backward()
    gradients = []
    step = part.optimizer.step
    part.optimizer.step = lambda: (gradients.append([p.grad.clone() for p in part.network.parameters()]), step())
    part.fill(tokens, columns)
    metrics = part.update(tokens, columns)
    assert metrics["critic/loss"] == pytest.approx(0.5 * float(error.detach().square().mean()), rel=1e-5)
    assert metrics["critic/value_mean"] == pytest.approx(float(columns["value"][mask].mean()))
    for fast, weight in zip(gradients[0], slow.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-5, rtol=1e-4)


def test_it_learns_the_rewards_and_the_loss_is_the_last_epoch_s(tmp_path):
    part = critic(tmp_path, learning_rate=0.01, epochs=30)
    tokens, columns = rows()
    part.fill(tokens, columns)
    assert not columns["value"].any()
    first = part.update(tokens, columns)["critic/loss"]
    second = part.update(tokens, columns)["critic/loss"]
    assert second < first < 0.1
    part.fill(tokens, columns)
    mask = columns["mask"] & ~columns["truncated"][:, None]
    reached = (columns["value"] - columns["reward"][:, None])[mask]
    assert reached.abs().mean() < 0.15 and not columns["value"][~columns["mask"]].any()


def test_value_clip_has_no_gradient_past_the_bound(tmp_path):
    """Values are 0. Where the step had them 0.5 further from the reward they have gained the bound already; elsewhere nothing changes."""
    tokens, columns = rows()
    columns["reward"] = torch.where(columns["reward"] > 0.5, 1.0, -1.0)
    columns["immediate_reward"] = immediate_reward(columns)
    mask = columns["mask"] & ~columns["truncated"][:, None]
    losses = {}
    for settings, away in (({}, 0.5), ({"value_clip": 0.2}, 0.5), ({"value_clip": 0.2}, 0.0)):
        part = critic(tmp_path, learning_rate=0.01, **settings)
        part.fill(tokens, columns)
        columns["value"] = columns["value"] - away * columns["reward"][:, None] * mask
        losses[bool(settings), away] = part.update(tokens, columns)["critic/loss"]
        part.fill(tokens, after := dict(columns))
        assert after["value"].any() == ((bool(settings), away) != (True, 0.5)), "it has learned, or not"
    assert losses[False, 0.5] == losses[True, 0.0] == pytest.approx(0.5)
    assert losses[True, 0.5] == pytest.approx(0.5 * 1.3**2), "the error of -0.5 + 0.2"


def test_value_clip_is_of_one_value():
    with pytest.raises(RecipeError, match="the sum of the heads"):
        bind("rlvr.providers", {"kind": "critic", "heads": {"verifier": "log"}, "value_clip": 0.2})


def test_a_step_without_known_outcomes_leaves_it_alone(tmp_path):
    part = critic(tmp_path, learning_rate=0.01)
    tokens, columns = rows()
    part.fill(tokens, columns)
    part.update(tokens, columns)
    before = copy.deepcopy(part.state_dict())
    columns["truncated"] |= True
    part.fill(tokens, columns)
    assert part.update(tokens, columns) == {"critic/loss": 0.0, "critic/value_mean": 0.0}
    for name, weight in part.state_dict()["network"].items():
        assert torch.equal(weight, before["network"][name])


def test_at_turns_it_is_fitted_to_the_first_token_of_each_turn(tmp_path):
    """Values start at 0, so the lambda return of the last turn is its reward, of the one before that half of it on."""
    part = critic(tmp_path, at="turns", discount=0.5, lam=1.0, learning_rate=0.01, epochs=40)
    tokens, columns = rows()
    mask = columns["mask"]
    columns["turn"] = torch.where(mask, (mask.cumsum(1) > 1).long(), -1)
    columns["turn_reward"] = torch.zeros(len(mask), 2)
    second = (columns["turn"] == 1).any(1)
    columns["turn_reward"][second, 1] = columns["reward"][second]
    part.fill(tokens, columns)
    assert not columns["value"].any()
    fitted, target = part._targets(columns)
    used = part.outcome_tokens(columns)
    starts = torch.stack([used & (columns["turn"] == s) for s in (0, 1)])
    starts &= starts.cumsum(2) == 1
    assert torch.equal(fitted, starts.any(0))
    reward = columns["reward"][:, None]
    wanted = torch.where(starts[0] & second[:, None], 0.5 * reward, reward)
    torch.testing.assert_close(target.view(mask.shape)[fitted], wanted[fitted])
    first = part.update(tokens, columns)["critic/loss"]
    assert part.update(tokens, columns)["critic/loss"] < first
    part.fill(tokens, columns)
    for row, turn in zip(columns["value"], columns["turn"], strict=True):
        for number in (0, 1):
            own = row[turn == number].tolist()
            assert not own or (own == own[:1] * len(own) and own[0] != 0), "the value of the turn's first token"
    assert not columns["value"][~mask].any()


def test_at_turns_a_target_is_the_advantage_and_the_value(tmp_path):
    part = critic(tmp_path, at="turns", discount=0.9, lam=0.8)
    with torch.no_grad():
        for weight in part.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    tokens, columns = rows()
    mask = columns["mask"]
    columns["turn"] = torch.where(mask, (mask.cumsum(1) > 2).long(), -1)
    columns["turn_reward"] = torch.zeros(len(mask), 2)
    part.fill(tokens, columns)
    fitted, target = part._targets(columns)
    columns["scored"] = part.outcome_tokens(columns).any(1)
    advantage = bind("rlvr.advantage", {"kind": "turn_gae", "discount": 0.9, "lam": 0.8, "whiten": False})(columns)
    assert fitted.any() and columns["value"][fitted].abs().min() > 0
    torch.testing.assert_close(target.view(mask.shape)[fitted], (advantage + columns["value"])[fitted])


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_at_tokens_a_target_is_what_gae_adds_to_the_value(tmp_path, discount):
    part = critic(tmp_path, discount=discount)
    tokens, columns = rows()
    mask = columns["mask"]
    columns["turn"] = torch.where(mask, (mask.cumsum(1) > 2).long(), -1)
    columns["turn_reward"] = torch.tensor([[1.0, -0.5]]).repeat(len(mask), 1)
    columns["reward"] = columns["turn_reward"].sum(1) + 0.25
    part.fill(tokens, columns)
    columns["value"] = columns["value"] + 0.1 * mask
    fitted, target = part._targets(columns)
    columns |= {"scored": part.outcome_tokens(columns).any(1), "immediate_reward": immediate_reward(columns)}
    advantage = bind("rlvr.advantage", {"kind": "gae", "discount": discount, "lam": 1.0, "whiten": False})(columns)
    torch.testing.assert_close(target.view(mask.shape)[fitted], (advantage + columns["value"])[fitted])
    several = ((columns["turn"] == 1) & fitted).any(1)
    assert several.any()
    first = (mask.cumsum(1) == 1) & several[:, None]
    assert discount < 1 or torch.allclose(target.view(mask.shape)[first], torch.tensor(0.75))


@pytest.mark.parametrize("advantage", ["gae", "t_ppo"])
def test_the_critic_discounts_as_the_advantage_does(tmp_path, advantage):
    def of(discount, provider):
        chosen = f"rlvr.advantage={{kind: {advantage}, discount: {discount}}}"
        return read_recipe(toys.recipe(tmp_path), [chosen, f"rlvr.providers=[{{kind: critic{provider}}}]"])

    check(of(1.0, ""))
    check(of(0.9, ", discount: 0.9"))
    with pytest.raises(RecipeError, match=rf"\(discount 1\.0\) than advantage: {advantage} reads\. Set discount: 0\.9"):
        check(of(0.9, ""))


def test_what_does_not_fit_turns_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="lam belongs to at: turns"):
        critic(tmp_path, lam=0.9)
    with pytest.raises(RecipeError, match="heads are fitted to undiscounted returns"):
        critic(tmp_path, discount=0.9, heads={"verifier": "log"})
    turns = ["rlvr.advantage=gae", "rlvr.providers=[{kind: critic, at: turns}]"]
    with pytest.raises(RecipeError, match=r"rlvr\.providers: critic needs turn, turn_reward.*rollout: multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), turns))
    check(read_recipe(toys.lake(tmp_path), turns))
