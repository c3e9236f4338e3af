"""Laws that every method of a slot obeys (`pipelines.laws.methods`), checked for whatever the catalogue has."""

from __future__ import annotations

import contextlib

import pytest
import torch
import toys
from method_toys import REQUIRED
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind, load, names, needs, settings_model, takes
from pipelines.contract.columns import COLUMNS, Phase
from pipelines.contract.method import BASES
from pipelines.laws import NotApplicable, methods
from pipelines.laws import example_columns as examples
from pipelines.recipe.slots import SLOTS

ALL = [(slot, name) for slot in SLOTS for name in names(f"rlvr.{slot}")]
CALLED = [(s, n) for s, n in ALL if f"rlvr.{s}" not in BASES]
"""Methods that are called with columns."""


def of(slot):
    return names(f"rlvr.{slot}")


def subject(slot, name):
    settings = REQUIRED.get(f"{slot}.{name}", REQUIRED.get(name, {}))
    return methods.Subject(f"rlvr.{slot}", name, settings)


@contextlib.contextmanager
def skipped():
    """A law that says nothing about the method skips the test."""
    try:
        yield
    except NotApplicable as reason:
        pytest.skip(str(reason))


def check(law, slot, name, **more):
    with skipped():
        law(subject(slot, name), **more)


@pytest.mark.parametrize(("slot", "name"), ALL)
def test_declares_itself(slot, name):
    check(methods.declares_itself, slot, name)


@pytest.mark.parametrize("name", of("advantage"))
def test_advantage_is_finite_and_has_its_shape(name):
    check(methods.advantage_is_finite_and_has_its_shape, "advantage", name)


@pytest.mark.parametrize("name", of("advantage"))
def test_row_order_does_not_matter(name):
    check(methods.row_order_does_not_matter, "advantage", name)


@pytest.mark.parametrize("name", of("advantage"))
def test_groups_do_not_leak(name):
    check(methods.groups_do_not_leak, "advantage", name)


@pytest.mark.parametrize("name", of("advantage"))
def test_group_of_one_has_nothing_to_compare_with(name):
    check(methods.group_of_one_has_nothing_to_compare_with, "advantage", name)


@pytest.mark.parametrize("name", of("advantage"))
def test_unscored_rows_stay_out(name):
    check(methods.unscored_rows_stay_out, "advantage", name)


WEIGHS = {"digirl", "iql"}
"""Advantages that are weights of imitation: they are not centred, so a good episode has weight whatever the critic knew."""


def test_which_advantages_are_weights():
    reads = {name: set(takes(load("rlvr.advantage", name))) for name in of("advantage")}
    some = [name for name in reads if {*methods.VALUES, "turn_reward", "immediate_reward"} & reads[name]]
    assert {name for name in some if methods.is_a_weight(subject("advantage", name))} == WEIGHS


@pytest.mark.parametrize("charged", [False, True])
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("name", [n for n in of("advantage") if methods.VALUES & set(takes(load("rlvr.advantage", n)))])
def test_an_exact_critic_of_a_deterministic_episode_leaves_no_advantage(name, discount, charged):
    """Whatever is paid, and wherever: by turns, beyond them, at tokens, by a divergence."""
    check(methods.exact_critic_leaves_no_advantage, "advantage", name, discount=discount, charged=charged)


@pytest.mark.parametrize("charged", [False, True])
@pytest.mark.parametrize("name", [name for name in of("credit") if "value" in takes(load("rlvr.credit", name))])
def test_an_exact_critic_leaves_nothing_to_share_out(name, charged):
    check(methods.exact_critic_leaves_nothing_to_share_out, "credit", name, charged=charged)


OUTCOME = {"rebel"}
"""Advantages that read the rewards of turns for their sum."""
PAID_BY_TURN = [
    name
    for name in of("advantage")
    if {"turn_reward", "immediate_reward"} & set(takes(load("rlvr.advantage", name))) and name not in OUTCOME
]


@pytest.mark.parametrize("name", PAID_BY_TURN)
def test_moving_a_reward_between_turns_moves_the_credit(name):
    check(methods.moving_a_reward_between_turns_moves_the_credit, "advantage", name)


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s in ("advantage", "credit") for n in of(s)])
def test_what_leaves_the_loss_has_no_advantage(slot, name):
    check(methods.what_leaves_the_loss_has_no_advantage, slot, name)


@pytest.mark.parametrize(("slot", "name"), CALLED)
def test_padding_does_not_matter(slot, name):
    check(methods.padding_does_not_matter, slot, name)


@pytest.mark.parametrize(("slot", "name"), CALLED)
def test_inputs_are_left_alone(slot, name):
    check(methods.inputs_are_left_alone, slot, name)


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s, n in CALLED if load(f"rlvr.{s}", n).card.couples != "batch"])
def test_couples_what_it_says(slot, name):
    check(methods.couples_what_it_says, slot, name)


@pytest.mark.parametrize("name", of("objective"))
def test_on_policy_gradient_is_reinforce(name):
    check(methods.on_policy_gradient_is_reinforce, "objective", name)


@pytest.mark.parametrize("name", of("objective"))
def test_silent_where_it_says_so(name):
    check(methods.silent_at_zero_advantage, "objective", name)


@pytest.mark.parametrize("name", of("divergence"))
def test_divergence_is_zero_at_home(name):
    check(methods.divergence_is_zero_at_home, "divergence", name)


LOSSES = [
    (slot, name)
    for slot, name in CALLED
    if slot in ("objective", "divergence", "auxiliary_loss") and not load(f"rlvr.{slot}", name).card.stops_gradient
]
"""Methods whose gradient is the derivative of their value."""


@pytest.mark.parametrize(("slot", "name"), LOSSES)
def test_gradient_is_the_value_s_derivative(slot, name):
    """By central differences in float64, away from the corners of clips."""
    check(methods.gradient_is_the_value_s_derivative, slot, name)


@pytest.mark.parametrize("name", of("loss_aggregation"))
def test_weights_are_not_negative_and_stay_on_the_mask(name):
    check(methods.weights_are_not_negative_and_stay_on_the_mask, "loss_aggregation", name)


REMEMBER = [
    (s, n) for s, n in CALLED + [("curriculum", n) for n in of("curriculum")] if methods.remembers(subject(s, n))
]


@pytest.mark.parametrize(("slot", "name"), REMEMBER)
def test_state_survives_json(slot, name):
    check(methods.state_survives_json, slot, name)


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
    columns = examples.columns(batch.mask, batch.group, batch.reward, batch.turn, phase=Phase.LOSS) | columns_of(batch)
    n = 4
    torch.testing.assert_close(
        bind("rlvr.advantage", "rloo")(columns_of(batch)),
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
