"""Laws that every method of a slot obeys, checked for whatever lies in the folder."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re

import pytest
import torch
import toys
from method_toys import REQUIRED, spec
from toys import columns_of

from benchmarks import examples
from flows.cli import catalogue
from pipelines.base.errors import RecipeError
from pipelines.contract.card import CHECKED
from pipelines.contract.catalogue import bind, load, names, needs, settings_model, takes
from pipelines.contract.columns import COLUMNS, Phase
from pipelines.contract.method import BASES
from pipelines.contract.rollout import GroupOutcome
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import SLOTS
from pipelines.rlvr.algorithm import Update, assign_credit
from pipelines.rlvr.common.part_rules import values_of_turns

ALL = [(slot, name) for slot in SLOTS for name in names(f"rlvr.{slot}")]
CALLED = [(s, n) for s, n in ALL if f"rlvr.{s}" not in BASES]
"""Methods that are called with columns."""


def of(slot):
    return names(f"rlvr.{slot}")


def ready(slot, name, columns):
    """The method after what it asks to be told before it is called."""
    bound = bind(f"rlvr.{slot}", spec(slot, name))
    bound.fn.setup(toys.setup_context(sorted(set(columns["problem"].tolist()))))
    bound.fn.on_batch(columns)
    return bound


def call(slot, name, batch, **more):
    columns = columns_of(batch) | more
    return values(ready(slot, name, columns)(columns))


def values(result):
    """What a method returned, without the share of each token that stays in the loss."""
    return result[0] if isinstance(result, tuple) else result


def with_later(batch):
    turn = batch.turn
    return examples.columns(batch.mask, batch.group, batch.reward, turn, phase=Phase.LOSS) | columns_of(batch)


@pytest.mark.parametrize(("slot", "name"), ALL)
def test_declares_itself(slot, name):
    fn = load(f"rlvr.{slot}", name)
    card = fn.card
    assert card.paper and card.title
    assert re.split(r" \(|,", card.checked)[0] in CHECKED
    assert fn.__doc__ and len(fn.__doc__) > 40
    settings_model(fn)(**REQUIRED.get(f"{slot}.{name}", REQUIRED.get(name, {})))
    if not inspect.isclass(fn):
        assert ">>>" in fn.__doc__, "a method shows a worked example"


@pytest.mark.parametrize("name", of("advantage"))
def test_advantage_is_finite_and_has_its_shape(name):
    batch = toys.batch()
    made = call("advantage", name, batch)
    assert made.shape in (batch.reward.shape, batch.mask.shape)
    assert made.dtype == torch.float32
    assert torch.isfinite(made).all()
    if made.ndim == 2:
        assert (made[~batch.mask] == 0).all()


@pytest.mark.parametrize("name", of("advantage"))
def test_row_order_does_not_matter(name):
    batch = toys.batch()
    order = torch.randperm(len(batch.reward), generator=torch.Generator().manual_seed(2))
    moved = dataclasses.replace(
        batch, **{k: v[order] for k, v in columns_of(batch).items() if isinstance(v, torch.Tensor)}
    )
    torch.testing.assert_close(call("advantage", name, batch)[order], call("advantage", name, moved))


@pytest.mark.parametrize("name", of("advantage"))
def test_groups_do_not_leak(name):
    if load("rlvr.advantage", name).card.crosses_groups:
        pytest.skip(load("rlvr.advantage", name).card.crosses_groups)
    batch = toys.batch()
    mine = batch.group == 0
    changed = torch.where(mine, batch.reward, 0.3 * batch.reward + 0.5)
    other = dataclasses.replace(batch, reward=changed, raw_reward=changed)
    torch.testing.assert_close(call("advantage", name, batch)[mine], call("advantage", name, other)[mine])


@pytest.mark.parametrize("name", of("advantage"))
def test_group_of_one_has_nothing_to_compare_with(name):
    if load("rlvr.advantage", name).card.crosses_groups:
        pytest.skip("compares with the batch")
    if load("rlvr.advantage", name).card.group_of_one:
        pytest.skip(load("rlvr.advantage", name).card.group_of_one)
    batch = dataclasses.replace(toys.batch(), group=torch.arange(12))
    assert call("advantage", name, batch).abs().max() == 0


@pytest.mark.parametrize("name", of("advantage"))
def test_unscored_rows_stay_out(name):
    batch = toys.batch()
    out = torch.zeros(12, dtype=torch.bool)
    out[4] = True
    masked = dataclasses.replace(
        batch, scored=~out, in_loss=~out, mask=batch.mask & ~out[:, None], reward=torch.where(out, 99.0, batch.reward)
    )
    again = dataclasses.replace(masked, reward=torch.where(out, -5.0, batch.reward))
    one, two = call("advantage", name, masked), call("advantage", name, again)
    torch.testing.assert_close(one, two)
    assert one[4].abs().max() == 0


VALUES = {"value", "turn_value", "mc_value"}
"""Columns that say what is still to come: of a critic, or of sampled continuations."""
WEIGHS = {"digirl"}
"""Advantages that are weights of imitation: they are not centred, so a good episode has weight whatever the critic knew."""
VALUED = [name for name in of("advantage") if VALUES & set(takes(load("rlvr.advantage", name))) and name not in WEIGHS]
TURN_OF = torch.tensor([[-1, 0, 0, -1, 1, 1, 2, -1], [-1, 0, 0, 0, -1, 1, -1, -1], [-1, 0, -1, 1, 1, 1, 1, 2]])
"""The turn of each token of three episodes; -1 are tokens that are not the policy's."""
EARNED = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [0.0, 0.25, -1.0]])
BEYOND = torch.tensor([0.0, 2.0, 1.0])
"""What each row earned beyond its turns."""
LAST_TURN = (2, 1, 2)


def episodes(earned=EARNED, beyond=BEYOND, *, charged=False):
    """Three episodes as columns; with `charged` some tokens are paid and charged too, by a reward and a divergence."""
    mask = TURN_OF >= 0
    columns = examples.columns(mask, torch.zeros(3).long(), earned.sum(1) + beyond, TURN_OF)
    columns |= {
        "turn_reward": earned.clone(),
        "mc_value": torch.where(mask, (earned.sum(1) + beyond)[:, None], torch.nan),
    }
    columns["token_reward"] = torch.where(mask, (torch.arange(8) - 3) / 8, 0.0) if charged else torch.zeros(mask.shape)
    if not charged:
        columns["logp_ref"] = columns["logp_old"].clone()
    return columns


def still_to_come(columns, earned, beyond, discount, *, of_turns=False):
    """Each token's exact value, or each turn's on all of its tokens: a loop backwards over what is paid where it falls."""
    values = torch.zeros(TURN_OF.shape, dtype=torch.float64)
    for row, turns in enumerate(TURN_OF.tolist()):
        following, before, start = 0.0, -1, 0.0
        for t in reversed(range(len(turns))):
            turn = turns[t]
            if turn < 0:
                continue
            ends = turn != before
            paid = float(columns["token_reward"][row, t] - 0.5 * (columns["logp_old"] - columns["logp_ref"])[row, t])
            if ends:
                paid += float(earned[row, turn]) + float(beyond[row]) * (turn == LAST_TURN[row])
            following = paid + (discount if ends or not of_turns else 1.0) * following
            values[row, t], before = following, turn
        if of_turns:
            starts = {turn: turns.index(turn) for turn in turns if turn >= 0}
            values[row] = torch.tensor([start if turn < 0 else values[row, starts[turn]] for turn in turns])
    return values.float()


def credited(name, columns, **settings):
    """The columns after the loop assigned credit by an advantage that is not whitened, with a penalty in the reward."""
    has = settings_model(load("rlvr.advantage", name)).model_fields
    advantage = {"kind": name} | {k: v for k, v in ({"whiten": False} | settings).items() if k in has}
    update = Update.of(Rlvr(advantage=advantage, divergence={"kind": "k1", "where": "reward", "weight": 0.5}))
    return assign_credit(update, columns)


@pytest.mark.parametrize("charged", [False, True])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("name", VALUED)
def test_an_exact_critic_of_a_deterministic_episode_leaves_no_advantage(name, discount, charged):
    """Whatever is paid, and wherever: by turns, beyond them, at tokens, by a divergence."""
    reads = takes(load("rlvr.advantage", name))
    if charged and "mc_value" in reads:
        pytest.skip("continuations are scored without what tokens are paid")
    columns = episodes(charged=charged)
    whole = load("rlvr.advantage", name).card.check is values_of_turns or "turn_value" in reads
    exact = still_to_come(columns, EARNED, BEYOND, discount, of_turns=bool(whole))
    columns["value"] = exact
    columns["turn_value"] = torch.stack(
        [(exact * own).sum(1) / own.sum(1).clamp(min=1) for own in (TURN_OF.eq(s) for s in range(3))], 1
    )
    columns["turn_action_value"] = columns["turn_value"].clone()
    advantage = credited(name, columns, discount=discount)["advantage"]
    torch.testing.assert_close(advantage, torch.zeros(TURN_OF.shape), atol=1e-5, rtol=0)
    if "value" in reads:
        less = credited(name, columns | {"value": exact - 0.5}, discount=discount)["advantage"]
        assert less[TURN_OF == 2].min() > 0.1, "a critic that expected less is surprised"


@pytest.mark.parametrize("charged", [False, True])
@pytest.mark.parametrize("name", [name for name in of("credit") if "value" in takes(load("rlvr.credit", name))])
def test_an_exact_critic_leaves_nothing_to_share_out(name, charged):
    columns = episodes(charged=charged)
    columns["value"] = still_to_come(columns, EARNED, BEYOND, 1.0)
    plain = credited("reinforce_pp", columns)
    made = bind("rlvr.credit", name)(plain)
    torch.testing.assert_close(made, plain["advantage"], atol=1e-5, rtol=0)


OUTCOME = {"rebel"}
"""Advantages that read the rewards of turns for their sum."""
PAID_BY_TURN = [
    name
    for name in of("advantage")
    if {"turn_reward", "immediate_reward"} & set(takes(load("rlvr.advantage", name))) and name not in WEIGHS | OUTCOME
]


@pytest.mark.parametrize("name", PAID_BY_TURN)
def test_moving_a_reward_between_turns_moves_the_credit(name):
    """The total is the same; the turn that is no longer paid, and all after the one that is, have other credit."""
    later = EARNED.clone()
    later[0] = torch.tensor([0.0, 1.0, 0.5])
    early, late = (
        credited(name, episodes(earned) | {"value": torch.zeros(TURN_OF.shape)}, lam=1.0)["advantage"]
        for earned in (EARNED, later)
    )
    moved = (late - early).abs()[0] > 1e-4
    assert moved[TURN_OF[0] >= 0].any()
    if "group" not in takes(load("rlvr.advantage", name)):
        assert (late > early)[0, TURN_OF[0] == 1].all(), "what the turn earned is its own credit"


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s in ("advantage", "credit") for n in of(s)])
def test_what_leaves_the_loss_has_no_advantage(slot, name):
    columns = with_later(toys.batch())
    result = ready(slot, name, columns)(columns)
    if not isinstance(result, tuple):
        pytest.skip("every token stays in the loss")
    advantage, share = result
    assert ((share >= 0) & (share <= 1)).all()
    assert (advantage[share == 0] == 0).all()


@pytest.mark.parametrize(("slot", "name"), CALLED)
def test_padding_does_not_matter(slot, name):
    batch = toys.batch()
    columns = with_later(batch)

    def wider(name, value):
        if isinstance(value, torch.Tensor) and value.shape == batch.mask.shape:
            return torch.nn.functional.pad(value, (0, 3), value=COLUMNS[name].fill)
        return value

    one = values(ready(slot, name, columns)(columns))
    wide = {k: wider(k, v) for k, v in columns.items()}
    two = values(ready(slot, name, wide)(wide))
    if one.shape == batch.mask.shape:
        torch.testing.assert_close(one * batch.mask, two[:, : one.shape[1]] * batch.mask)
    else:
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("slot", "name"), CALLED)
def test_inputs_are_left_alone(slot, name):
    columns = with_later(toys.batch())
    before = copy.deepcopy(columns)
    ready(slot, name, columns)(columns)
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(-7), columns[key].nan_to_num(-7)), key


@pytest.mark.parametrize("name", of("objective"))
def test_on_policy_gradient_is_reinforce(name):
    batch = toys.batch()
    columns = with_later(batch)
    logp = batch.logp_old.clone().requires_grad_()
    if load("rlvr.objective", name).card.not_reinforce:
        pytest.skip(load("rlvr.objective", name).card.not_reinforce)
    if load("rlvr.objective", name).card.ratio_level in ("turn", "sequence"):  # one advantage a row
        columns["advantage"] = columns["advantage"].sum(1, keepdim=True) * batch.mask
    ready("objective", name, columns)(columns | {"logp": logp}).mul(batch.mask).sum().backward()
    torch.testing.assert_close(logp.grad, -columns["advantage"] * batch.mask)


@pytest.mark.parametrize("name", of("objective"))
def test_silent_where_it_says_so(name):
    if not load("rlvr.objective", name).card.zero_gradient_at_zero_advantage:
        pytest.skip("its zero-advantage rows have a gradient")
    batch = toys.batch()
    columns = with_later(batch)
    columns["advantage"] = columns["advantage"].clone()
    columns["advantage"][2] = 0
    logp = columns["logp"].clone().requires_grad_()
    ready("objective", name, columns)(columns | {"logp": logp}).mul(batch.mask).sum().backward()
    assert logp.grad[2].abs().max() == 0


@pytest.mark.parametrize("name", of("divergence"))
def test_divergence_is_zero_at_home(name):
    batch = toys.batch()
    logp = batch.logp_ref.clone().requires_grad_()
    home = bind("rlvr.divergence", name)(with_later(batch) | {"logp": logp}) * batch.mask
    torch.testing.assert_close(home, torch.zeros_like(home))
    if "loss" in load("rlvr.divergence", name).card.legal_in:
        home.sum().backward()
        assert logp.grad.abs().max() < 1e-6, "nowhere to go from home"


LOSSES = [
    (slot, name)
    for slot, name in CALLED
    if slot in ("objective", "divergence", "auxiliary_loss") and not load(f"rlvr.{slot}", name).card.stops_gradient
]
"""Methods whose gradient is the derivative of their value."""


@pytest.mark.parametrize(("slot", "name"), LOSSES)
def test_gradient_is_the_value_s_derivative(slot, name):
    """By central differences in float64, away from the corners of clips."""
    batch = toys.batch(rows=6, groups=2)
    columns = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in with_later(batch).items()
    }
    method = ready(slot, name, columns)
    if hasattr(method.fn, "anchor"):
        method.fn.anchor = 0.1
    free = [c for c in ("logp", "entropy", "entropy_top_p") if c in method.needs]

    def value(*tensors):
        made = method(columns | dict(zip(free, tensors, strict=True)))
        return (made * columns["weight"]).sum()

    assert torch.autograd.gradcheck(
        value, [columns[c].clone().requires_grad_() for c in free], eps=1e-6, atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("name", of("loss_aggregation"))
def test_weights_are_not_negative_and_stay_on_the_mask(name):
    batch = toys.batch()
    weight = call("loss_aggregation", name, batch, advantage=with_later(batch)["advantage"])
    assert (weight >= 0).all() and (weight[~batch.mask] == 0).all() and weight.sum() > 0


REMEMBER = [
    (s, n) for s, n in CALLED + [("curriculum", n) for n in of("curriculum")] if catalogue.entry(s, n)["remembers"]
]


@pytest.mark.parametrize(("slot", "name"), REMEMBER)
def test_state_survives_json(slot, name):
    first = bind(f"rlvr.{slot}", spec(slot, name)).fn
    if slot == "curriculum":
        first.start(17, 3)
        proposed = first.propose(11, 4)
        first.observe([GroupOutcome(a.problem, 11, i) for i, a in enumerate(proposed)])
        second = bind(f"rlvr.{slot}", name).fn
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert first.propose(23, 4) == second.propose(23, 4)
        return
    columns = with_later(toys.batch())
    bound = ready(slot, name, columns)
    begun, at_first = copy.deepcopy(bound.fn.state_dict()), ready(slot, name, columns)(columns)
    for _ in range(25):
        bound.fn.on_batch(columns)
        bound(columns)
    again = bind(f"rlvr.{slot}", spec(slot, name))
    again.fn.load_state_dict(json.loads(json.dumps(bound.fn.state_dict())))
    for _ in range(25):
        bound.fn.on_batch(columns)
        again.fn.on_batch(columns)
        one = bound(columns)
        torch.testing.assert_close(one, again(columns))
    assert bound.fn.state_dict() == again.fn.state_dict()
    moved = bound.fn.state_dict() != begun
    assert not (moved and slot == "shaping" and torch.equal(one, at_first)), "what it remembers makes a difference"


def test_weight_is_a_factor_of_terms_and_a_setting_elsewhere():
    assert bind("rlvr.credit", {"kind": "adora", "weight": 0.3}).settings["weight"] == 0.3
    assert bind("rlvr.rollout", {"kind": "arpo", "weight": 0.7}).fn.weight == 0.7
    assert bind("rlvr.divergence", {"kind": "k3", "weight": 0.3}).weight == 0.3
    with pytest.raises(RecipeError, match="no such setting"):
        bind("rlvr.advantage", {"kind": "grpo", "weight": 0.3})
    for slot in ("divergence", "auxiliary_loss"):
        for name in of(slot):
            assert not {"weight", "where"} & set(settings_model(load(f"rlvr.{slot}", name)).model_fields)


def test_every_method_names_columns_that_exist():
    for slot, name in ALL:
        assert set(needs(load(f"rlvr.{slot}", name))) <= set(COLUMNS), f"{slot}.{name}"


def test_identities():
    batch = toys.batch()
    columns = with_later(batch)
    n = 4
    torch.testing.assert_close(
        call("advantage", "rloo", batch),
        bind("rlvr.advantage", {"kind": "grpo", "scale": "none"})(columns_of(batch)) * n / (n - 1),
    )
    wide = {"kind": "clip", "low": 1.0, "high": 1e9}
    rho = (columns["logp"] - columns["logp_old"]).exp()
    torch.testing.assert_close(bind("rlvr.objective", wide)(columns), -rho * columns["advantage"])
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    one = columns | {"mask": first}
    settings = {"low": 0.1, "high": 0.1}
    torch.testing.assert_close(
        bind("rlvr.objective", {"kind": "gspo", **settings})(one) * first,
        bind("rlvr.objective", {"kind": "clip", **settings})(one) * first,
    )
