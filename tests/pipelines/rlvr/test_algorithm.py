"""Slices add up, the trainer learns, and what it promises about layouts holds through the whole step."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import load, names, settings_model, takes
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm
from pipelines.rlvr.ops_turns import turn_starts, turns_taken, turns_to_tokens
from pipelines.rlvr.turn_values import turn_payments


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "row_mean", "fixed_length"])
@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo", "reinforce"])
def test_micro_batches_add_up(loss_aggregation, objective):
    settings = Rlvr(
        loss_aggregation=loss_aggregation,
        objective=objective,
        divergence={"kind": "k3", "weight": 0.1},
        auxiliary_loss=[{"kind": "entropy", "weight": 0.01}],
    )
    update = algorithm.Update.of(settings)
    batch = toys.batch()
    columns = algorithm.weigh(update, algorithm.assign_credit(update, toys.columns_of(batch)))
    weights = torch.randn(batch.mask.shape[1], requires_grad=True)

    def gradient(parts):
        weights.grad = None
        for rows in parts:
            mine = algorithm.take(columns, rows)
            logp = mine["logp_old"] + weights * mine["mask"] * 0.1
            algorithm.loss(update, mine, torch.stack([logp, logp.exp()], -1)).backward()
        return weights.grad.clone()

    whole = gradient([torch.arange(12)])
    torch.testing.assert_close(gradient(torch.arange(12).split(5)), whole)
    torch.testing.assert_close(gradient(torch.arange(12).flip(0).split(1)), whole)


def whitened(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) + 1e-8)
    return [(v - mean) / deviation for v in values]


def bandit_gradient(advantage, loss_aggregation, rewards, arms, groups, limits):
    """What a step of one-token answers adds to the loss's gradient by five logits that are all 0, row by row from the papers' formulas."""
    own = [[other for other, g in zip(rewards, groups, strict=True) if g == group] for group in groups]
    means = [sum(values) / len(values) for values in own]
    centred = [r - mean for r, mean in zip(rewards, means, strict=True)]
    values = {
        "grpo": [c / (statistics.stdev(values) + 1e-6) for c, values in zip(centred, own, strict=True)],
        "rloo": [r - (sum(values) - r) / (len(values) - 1) for r, values in zip(rewards, own, strict=True)],
        "reinforce_pp": whitened(rewards),
        "reinforce_pp_baseline": whitened(centred),
    }[advantage]
    gradient = [0.0] * 5
    for value, arm, limit in zip(values, arms, limits, strict=True):
        share = 1 / len(arms) / (limit if loss_aggregation == "fixed_length" else 1)
        for i in range(5):
            gradient[i] -= share * value * ((i == arm) - 0.2)
    return gradient


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo", "reinforce"])
@pytest.mark.parametrize("loss_aggregation", ["token_mean", "row_mean", "fixed_length"])
@pytest.mark.few(16)
def test_learns_a_bandit(advantage, objective, loss_aggregation):
    """Every combination makes the rewarded arm the likeliest of five, and begins with the gradient of its formulas, scale and all."""
    settings = Rlvr(advantage=advantage, objective=objective, loss_aggregation=loss_aggregation)
    update = algorithm.Update.of(settings)
    logits = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    draw = torch.Generator().manual_seed(0)
    base = toys.batch(rows=32, width=3, groups=4)
    for step in range(60):
        arms = torch.multinomial(logits.softmax(-1).detach(), 32, replacement=True, generator=draw)
        logp = logits.log_softmax(-1)[arms]
        mask = torch.zeros(32, 3, dtype=torch.bool)
        mask[:, 1] = True
        reward = (arms == 3).float()
        old = torch.zeros(32, 3).masked_scatter(mask, logp.detach())
        batch = vars(base) | {"mask": mask, "reward": reward, "raw_reward": reward, "logp_old": old, "correct": reward}
        columns = algorithm.weigh(update, algorithm.assign_credit(update, toys.columns_of(type(base)(**batch))))
        algorithm.loss(update, columns, torch.zeros(32, 3).masked_scatter(mask, logp)[..., None]).backward()
        if step == 0:
            rows = (reward.tolist(), arms.tolist(), base.group.tolist(), base.max_tokens.tolist())
            expected = bandit_gradient(advantage, loss_aggregation, *rows)
            torch.testing.assert_close(logits.grad, torch.tensor(expected), rtol=1e-4, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    assert logits.argmax() == 3


TURNS_AND_TOKENS = {
    "gae": {"lam": 1.0, "whiten": False}, "t_ppo": {"lam": 1.0}, "turn_gae": {"lam": 1.0, "whiten": False},
}  # fmt: skip


@pytest.mark.parametrize("advantage", TURNS_AND_TOKENS)
@given(seed=st.integers(0, 200), discount=st.sampled_from([1.0, 0.9, 0.5]))
def test_what_an_advantage_is_paid_is_what_its_critic_is_fitted_to(advantage, seed, discount):
    """With lam 1 advantage and value add up to the critic's target, whatever pays: turns, answers, tokens, shaping, a divergence."""
    settings = Rlvr(
        advantage={"kind": advantage, "discount": discount, **TURNS_AND_TOKENS[advantage]},
        shaping=["g_ra", {"kind": "soft_overlong", "buffer": 0.9}, "novelty"],
        divergence={"kind": "k1", "where": "reward", "weight": 0.5},
    )
    columns, draw = toys.columns_of(toys.rough(seed)), torch.Generator().manual_seed(seed)
    columns["turn_reward"] = torch.randn(columns["turn_reward"].shape, generator=draw)
    columns["token_reward"] = torch.randn(columns["mask"].shape, generator=draw) * columns["mask"]
    columns["reward"], columns["teacher_forced"] = 2 * columns["reward"] - 0.5, torch.zeros_like(columns["mask"])
    columns = algorithm.assign_credit(algorithm.Update.of(settings), columns)
    mask, turn, value = columns["mask"], columns["turn"], columns["value"]
    target = algorithm.returns(columns, discount)
    fitted = mask
    if advantage == "turn_gae":
        fitted = turn_starts(turn, mask)
        paid = turn_payments(*(columns[c] for c in ("reward", "turn_reward", "turn", "mask", "token_penalty")))
        target = turns_to_tokens(_turn_returns(paid, turns_taken(turn, mask, paid.shape[1]), discount), turn)
    torch.testing.assert_close((columns["advantage"] + value)[fitted], target[fitted], atol=1e-4, rtol=1e-4)
    if discount == 1:
        begun = mask.long().cumsum(1) == 1
        first = (turn * (mask & begun)).sum(1)
        before = (columns["turn_reward"] * (torch.arange(columns["turn_reward"].shape[1]) < first[:, None])).sum(1)
        sums = (target * (mask & begun)).sum(1)
        torch.testing.assert_close(sums[mask.any(1)], (columns["reward"] - before)[mask.any(1)], atol=1e-4, rtol=1e-4)


def _turn_returns(paid, taken, discount):
    """The return of each turn that is taken, by a loop."""
    returns, running = torch.zeros_like(paid), torch.zeros(len(paid), dtype=paid.dtype)
    for s in reversed(range(paid.shape[1])):
        running = torch.where(taken[:, s], paid[:, s] + discount * running, running)
        returns[:, s] = running
    return returns


@pytest.mark.parametrize("advantage", ["gae", "t_ppo", "turn_gae", "reinforce_pp"])
@pytest.mark.parametrize("length", [5, 150])
def test_a_paid_turn_is_learned_however_long_the_next_one_is(advantage, length):
    """The action of the first turn is paid there, the second turn's tokens never; a critic by place is fitted beside the policy."""
    known = {"lam": 0.95, "discount": 1.0, "gamma": 1.0}
    fields = settings_model(load("rlvr.advantage", advantage)).model_fields
    settings = {"kind": advantage} | {name: v for name, v in known.items() if name in fields}
    update = algorithm.Update.of(Rlvr(advantage=settings, loss_aggregation="token_mean"))
    logits, values = torch.zeros(2, 2, requires_grad=True), torch.zeros(2 + length)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    draw = torch.Generator().manual_seed(0)
    turn = torch.tensor([-1, 0] + [1] * length).expand(16, -1)
    base, mask = toys.batch(rows=16, width=2 + length, groups=4), turn >= 0
    for _ in range(60):
        chances = zip(logits.softmax(-1).detach(), (1, length), strict=True)
        drawn = [torch.multinomial(each, 16 * n, replacement=True, generator=draw).view(16, n) for each, n in chances]
        chosen = torch.cat(drawn, 1)
        logp = torch.nn.functional.pad(logits.log_softmax(-1)[turn[:, 1:].clamp(min=0), chosen], (1, 0))
        paid = chosen[:, 0].float()
        columns = vars(base) | {
            "mask": mask, "turn": turn, "reward": paid, "raw_reward": paid, "correct": paid, "logp_old": logp.detach(),
            "turn_reward": torch.stack([paid, torch.zeros(16)], 1), "value": values.expand(16, -1) * mask,
            "token_reward": torch.zeros(mask.shape), "teacher_forced": mask & False,
        }  # fmt: skip
        columns = algorithm.weigh(update, algorithm.assign_credit(update, toys.columns_of(type(base)(**columns))))
        algorithm.loss(update, columns, (logp * mask)[..., None]).backward()
        optimizer.step()
        optimizer.zero_grad()
        values += 0.5 * (algorithm.returns(columns).mean(0) - values)
    assert logits.softmax(-1)[0, 1] > 0.97


def test_penalty_in_the_reward():
    update = algorithm.Update.of(
        Rlvr(advantage={"kind": "grpo", "scale": "none"}, divergence={"kind": "k1", "where": "reward", "weight": 0.5})
    )
    batch = toys.batch()
    columns = algorithm.assign_credit(update, toys.columns_of(batch))
    penalty = ((batch.logp_old - batch.logp_ref) * batch.mask).sum(1)
    torch.testing.assert_close(columns["reward"], batch.raw_reward - 0.5 * penalty)


@pytest.mark.parametrize("loss_aggregation", ["token_mean", "row_mean", "fixed_length"])
def test_what_leaves_the_loss_leaves_its_denominators(loss_aggregation):
    """As if the rows had never been there, and the tokens had been an environment's."""
    update = algorithm.Update.of(Rlvr(loss_aggregation=loss_aggregation))
    columns = toys.columns_of(toys.batch())
    gone = torch.zeros_like(columns["mask"])
    gone[:4] = True
    gone[5, 3] = True
    share = columns["loss_share"] * ~gone
    left = algorithm.weigh(update, columns | {"loss_share": share})["weight"]
    mask = columns["mask"] & ~gone
    never = columns | {"mask": mask, "loss_share": mask.float(), "in_loss": mask.any(1)}
    torch.testing.assert_close(left, algorithm.weigh(update, never)["weight"])


def test_copies_of_a_token_weigh_as_one():
    update = algorithm.Update.of(Rlvr(loss_aggregation="token_mean"))
    mask = torch.tensor([[True, True], [True, True]])
    share = torch.tensor([[0.5, 1.0], [0.5, 1.0]])
    weight = update.loss_aggregation({"mask": mask, "in_loss": mask[:, 0], "loss_share": share})
    torch.testing.assert_close(weight, share / 3)


def test_demonstrations_are_averaged_apart():
    """However long the rollouts are, a demonstration's tokens weigh 1 over their own number."""
    update = algorithm.Update.of(Rlvr(objective="hpt_upge", loss_aggregation="token_mean"))
    columns = toys.columns_of(toys.batch())
    columns["teacher_forced"] = columns["mask"] & (torch.arange(12) < 3)[:, None]
    weight = algorithm.weigh(update, columns)["weight"]
    forced = columns["teacher_forced"]
    torch.testing.assert_close(weight[forced].sum(), torch.tensor(1.0))
    torch.testing.assert_close(weight[columns["mask"] & ~forced].sum(), torch.tensor(1.0))


OF_TURNS = [name for name in names("rlvr.advantage") if "turn_reward" in takes(load("rlvr.advantage", name))]


@pytest.mark.parametrize("advantage", OF_TURNS)
def test_what_a_whole_answer_earned_is_the_last_turn_s(advantage):
    """A term, a reward function or a shaping part that pays rows counts for advantages of turns as if the last turn had been paid it."""
    update = algorithm.Update.of(Rlvr(advantage=advantage))
    columns = toys.columns_of(toys.batch())
    columns["reward"] = columns["turn_reward"].sum(1)
    as_ever = algorithm.assign_credit(update, columns)
    torch.testing.assert_close(as_ever["turn_reward"], columns["turn_reward"], rtol=0, atol=0)
    earned = torch.arange(12) / 4 - 1
    last = torch.nn.functional.one_hot(columns["turn"].amax(1), columns["turn_reward"].shape[1])
    beyond = columns | {"reward": columns["reward"] + earned}
    paid = columns | {"turn_reward": columns["turn_reward"] + earned[:, None] * last, "reward": beyond["reward"]}
    result = algorithm.assign_credit(update, beyond)["advantage"]
    torch.testing.assert_close(result, algorithm.assign_credit(update, paid)["advantage"], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(result, as_ever["advantage"], atol=1e-3)


def test_rows_that_nobody_scored_are_paid_nothing_for_it():
    columns = toys.columns_of(toys.batch()) | {"scored": torch.arange(12) > 0}
    columns["reward"] = columns["turn_reward"].sum(1) + 1
    paid = algorithm.assign_credit(algorithm.Update.of(Rlvr()), columns)["turn_reward"].sum(1) - columns[
        "turn_reward"
    ].sum(1)
    torch.testing.assert_close(paid, (torch.arange(12) > 0).float())


def test_shaping_of_rows_reaches_advantages_of_turns():
    shaped = algorithm.Update.of(Rlvr(advantage="trloo", shaping=[{"kind": "soft_overlong", "buffer": 0.9}]))
    columns = toys.columns_of(toys.batch())
    columns["reward"] = columns["turn_reward"].sum(1)
    columns = algorithm.assign_credit(shaped, columns | {"max_tokens": torch.full((12,), 8.0)})
    torch.testing.assert_close(columns["turn_reward"].sum(1), columns["reward"])
    assert (columns["reward"] < toys.batch().turn_reward.sum(1) - 0.1).any()


def test_a_penalty_in_the_reward_is_paid_at_its_tokens():
    """Token-level advantages see the penalty still to come, rows its sum, and the critic learns what is still to come."""
    settings = Rlvr(advantage="reinforce_pp", divergence={"kind": "k1", "where": "reward", "weight": 0.5})
    batch = toys.batch()
    columns = algorithm.assign_credit(algorithm.Update.of(settings), toys.columns_of(batch))
    penalty = 0.5 * (batch.logp_old - batch.logp_ref) * batch.mask
    torch.testing.assert_close(columns["token_penalty"], penalty)
    torch.testing.assert_close(columns["reward"], batch.reward - penalty.sum(1))
    row = int(batch.mask.sum(1).argmax())
    places = batch.mask[row].nonzero().squeeze(1)
    step = columns["advantage"][row, places[0]] - columns["advantage"][row, places[1]]
    spread = columns["advantage"][batch.mask].std()
    assert abs(float(spread) - 1) < 1e-3
    to_go = batch.reward[:, None] - penalty.flip(1).cumsum(1).flip(1)
    scale = to_go[batch.mask].std()
    assert abs(float(step * scale + penalty[row, places[0]])) < 1e-4
    columns["turn"] = columns["turn_reward"] = None
    torch.testing.assert_close(algorithm.returns(columns)[batch.mask], to_go[batch.mask])


def test_the_critic_is_not_fitted_to_rows_without_an_outcome():
    columns = toys.columns_of(toys.batch())
    columns["unfinished"] = torch.arange(12) < 2
    bootstraps = algorithm.Update.of(Rlvr(advantage="t_ppo", providers=["critic"]))
    assert not algorithm.critic_tokens(bootstraps, columns)[:2].any()
    plain = algorithm.Update.of(Rlvr(advantage="gae", providers=["critic"]))
    assert torch.equal(algorithm.critic_tokens(plain, columns), columns["mask"])
