"""One value head for each term of the reward, each in a space of its own."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from provider_toys import provider_context, rows

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.laws import example_columns as examples
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import Update, assign_credit, immediate_reward, returns, term_returns
from pipelines.rlvr.value_heads import FLOOR, REST, ValueHeads, mapped, unmapped

REST_HEAD = -1
MAPPINGS = ["identity", "log", "loglin"]
TWO = "rlvr.reward=[verifier, {kind: verifier, name: brief, verifier: regex, answer: '.{0,3}', weight: -0.5}]"


def test_the_released_codes_values():
    """c ln q and c (q - 1), with c = 0.5, by hand; below 0.01687 a logarithm is that of 0.01687."""
    values = torch.tensor([0.25, 1.0, 3.0])
    torch.testing.assert_close(mapped(values, "log"), torch.tensor([-0.693147, 0.0, 0.549306]), atol=1e-6, rtol=0)
    torch.testing.assert_close(mapped(values, "loglin"), torch.tensor([-0.693147, 0.0, 1.0]), atol=1e-6, rtol=0)
    assert mapped(torch.zeros(1), "log").item() == pytest.approx(0.5 * math.log(0.01687))
    assert torch.equal(mapped(-values, "identity"), -values)


@given(st.sampled_from(MAPPINGS), st.floats(0.02, 50), st.floats(0.02, 50))
def test_a_mapping_is_undone_and_keeps_the_order(mapping, one, other):
    both = torch.tensor([one, other], dtype=torch.float64)
    torch.testing.assert_close(unmapped(mapped(both, mapping), mapping), both, atol=1e-9, rtol=1e-9)
    low, high = mapped(both.sort().values, mapping).tolist()
    assert low <= high and (low < high or one == pytest.approx(other))


def test_loglin_has_one_slope_where_it_bends():
    around = torch.tensor([1 - 1e-4, 1.0, 1 + 1e-4], dtype=torch.float64)
    left, right = mapped(around, "loglin").diff().tolist()
    assert left == pytest.approx(right, rel=1e-3)


@given(st.integers(0, 200))
def test_what_the_heads_are_fitted_to_adds_up_to_the_return(seed):
    draw = torch.Generator().manual_seed(seed)
    total, terms = torch.randn(4, 5, generator=draw), torch.randn(4, 5, 3, generator=draw)
    heads = ValueHeads({"c": "log", "a": "identity"}, ["a", "b", "c"])
    assert list(zip(heads.names, heads.signs, strict=True)) == [("c", 1), ("c", -1), ("a", 0), (REST, 0)]
    goals = heads.goals(total, terms)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0])
    torch.testing.assert_close((goals * signs).sum(-1), total, atol=1e-5, rtol=0)
    assert (goals[..., :2] >= 0).all() and torch.equal(goals[..., 2], terms[..., 0])
    torch.testing.assert_close(goals[..., 0] - goals[..., 1], terms[..., 2])


def test_a_term_may_be_called_rest():
    heads = ValueHeads({"rest": "identity"}, ["rest"])
    goals = heads.goals(torch.full((1, 2), 3.0), torch.ones(1, 2, 1))
    assert goals.tolist() == [[[1.0, 2.0], [1.0, 2.0]]]


def test_a_prediction_of_zero_is_a_value_of_zero():
    """So a critic whose head starts at 0 says 0, whatever its mappings."""
    heads = ValueHeads({"a": "log", "b": "loglin", "c": "identity"}, ["a", "b", "c"])
    assert heads.total(torch.zeros(2, len(heads))).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("averaging", "reached"), [(0.01, 1.05), (1.0, math.sqrt(0.1 * 2.0))])
def test_the_mean_is_taken_of_returns_and_not_of_their_logarithms(averaging, reached):
    """Returns of 0.1 and 2 in turns: their mean is 1.05; with `averaging` 1 the head goes to their geometric mean instead."""
    heads = ValueHeads({"a": "log"}, ["a"])
    predicted = torch.zeros(1, 3, dtype=torch.float64)
    for _ in range(1500):
        goals = [heads.goals(torch.tensor([[r]]), torch.tensor([[[r]]]))[0].double() for r in (0.1, 2.0)]
        wanted = torch.stack([heads.targets(predicted, goal, averaging) for goal in goals]).mean(0)
        predicted = predicted + 0.3 * (wanted - predicted)
    assert heads.values(predicted)[0, 0].item() == pytest.approx(reached, rel=0.02)
    assert heads.values(predicted)[0, 1].item() == pytest.approx(FLOOR, rel=0.3), "nothing is below 0"


def critic(tmp_path, terms, **settings):
    part = bind("rlvr.providers", {"kind": "critic", "learning_rate": 0.01, **settings}).fn
    part.setup(
        dataclasses.replace(provider_context(tmp_path, "rlvr.optimizer.max_grad_norm=1000000.0"), reward_terms=terms)
    )
    return part


def test_identity_heads_are_the_plain_critic(tmp_path):
    """A reward that is one term: the head of the rest predicts 0, is fitted to 0, and moves nothing."""
    tokens, columns = rows()
    columns["reward_terms"] = columns["reward"][:, None].clone()
    values = []
    for settings in ({}, {"heads": {"answer": "identity"}, "averaging": 1.0}):
        part = critic(tmp_path, ["answer"], epochs=3, **settings)
        part.fill(tokens, columns)
        part.update(tokens, columns)
        part.fill(tokens, columns)
        values.append(columns["value"])
    assert values[0].abs().max() > 0.01
    torch.testing.assert_close(values[0], values[1], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_mapped_heads_learn_the_return(tmp_path):
    tokens, columns = rows()
    paid = 10.0 * columns["reward"]
    columns["reward_terms"] = torch.stack([paid, -columns["reward"]], 1)
    columns["reward"] = paid - columns["reward"] + 0.25
    part = critic(tmp_path, ["large", "small"], epochs=40, averaging=1.0, heads={"large": "loglin", "small": "log"})
    errors = []
    for _ in range(3):
        part.fill(tokens, columns)
        known = part.outcome_tokens(columns)
        errors.append(float((columns["value"] - columns["reward"][:, None])[known].abs().mean()))
        part.update(tokens, columns)
    assert errors[0] > 3 and errors[-1] < 0.15 * errors[0]


def test_the_trainer_hands_over_what_each_term_adds(tmp_path, start):
    """The heads add up: what a step fits is the reward, of the verifier and of the brief answers' fine."""
    providers = "rlvr.providers=[{kind: critic, heads: {brief: log, verifier: identity}}]"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), TWO, "rlvr.advantage=gae", providers, "rlvr.steps=1")
    given_columns = []
    critic = made.learner.providers["critic"]
    update = critic.update
    critic.update = lambda tokens, columns: given_columns.append(columns) or update(tokens, columns)
    made.run()
    [columns] = given_columns
    answered, brief = columns["reward_terms"].unbind(1)
    assert torch.equal(answered == 1, columns["correct"] == 1) and set(brief.tolist()) == {0.0, -0.5}
    assert torch.equal(answered + brief, columns["reward"])
    mask, goals = critic._targets(columns)
    assert goals.shape == (mask.numel(), 4)
    above, below, _, rest = goals[mask.flatten()].unbind(1)
    torch.testing.assert_close(below, -brief[:, None].expand(mask.shape)[mask])
    assert not above.any() and rest.abs().max() < 1e-6


TURN_OF = torch.tensor([[-1, 0, 0, -1, 1, 1, 2, -1], [-1, 0, 0, 0, -1, 1, -1, -1]])
PAID = torch.tensor([[[1.0, 0.0], [0.0, 0.5], [0.25, 0.0]], [[1.0, -0.5], [0.5, 2.0], [0.0, 0.0]]])
"""[B, S, C]: what the terms a and b pay each turn."""
ANSWER = torch.tensor([[0.0, 0.25], [-1.0, 0.0]])
"""[B, C]: what they pay the whole answer."""


def two_terms(paid=PAID, answer=ANSWER):
    """Two deterministic episodes as columns, with a reward that is the sum of two terms."""
    mask, own = TURN_OF >= 0, paid.sum(1) + answer
    columns = examples.columns(mask, torch.arange(2), own.sum(1), TURN_OF)
    columns |= {
        "reward_terms": own, "turn_reward_terms": paid.flatten(1), "turn_reward": paid.sum(2),
        "token_reward": torch.zeros(mask.shape), "token_penalty": torch.zeros(mask.shape),
    }  # fmt: skip
    return columns | {"immediate_reward": immediate_reward(columns)}


def by_hand(paid=PAID, answer=ANSWER):
    """[B, T, C]: what each term still pays, in a loop backwards over the tokens."""
    values = torch.zeros(*TURN_OF.shape, 2)
    for row, turns in enumerate(TURN_OF.tolist()):
        running, after = answer[row].clone(), None
        for t in reversed(range(len(turns))):
            if turns[t] < 0:
                continue
            if turns[t] != after:
                running, after = running + paid[row, turns[t]], turns[t]
            values[row, t] = running
    return values


def test_a_head_is_fitted_to_what_its_term_still_pays():
    """What was paid at the first turn is nothing to come in the second; a shorter row's second turn is its last."""
    columns = two_terms()
    torch.testing.assert_close(term_returns(columns), by_hand())
    assert term_returns(columns)[0, :, 0].tolist() == [0.0, 1.25, 1.25, 0.0, 0.25, 0.25, 0.25, 0.0]
    goals = ValueHeads({"a": "log", "b": "identity"}, ["a", "b"]).goals(returns(columns), term_returns(columns))
    assert goals[..., REST_HEAD].abs().max() < 1e-6, "nothing beyond the terms"
    without = {k: v for k, v in columns.items() if k != "turn_reward_terms"}
    torch.testing.assert_close(
        term_returns(without), (PAID.sum(1) + ANSWER)[:, None] * (TURN_OF >= 0)[..., None], msg="paid at the end"
    )


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("advantage", ["gae", "turn_gae"])
def test_exact_heads_of_a_deterministic_episode_leave_no_advantage(advantage, mapping):
    """The heads' value is read by the advantage, and what it is paid is what they were fitted to."""
    columns = two_terms()
    heads = ValueHeads({"b": mapping, "a": "identity"}, ["a", "b"])
    goals = heads.goals(returns(columns), term_returns(columns))
    fitted = heads.targets(torch.zeros_like(goals), goals, 1.0)
    value = heads.total(fitted) * columns["mask"]
    update = Update.of(Rlvr(advantage={"kind": advantage, "whiten": False, "discount": 1.0}))
    made = assign_credit(update, columns | {"value": value})["advantage"]
    floor = 0.0 if mapping == "identity" else FLOOR  # the smallest value that a logarithm resolves
    assert made.abs().max() <= 2 * floor + 1e-5
    lower = assign_credit(update, columns | {"value": value - 0.5})["advantage"]
    assert lower[TURN_OF == 1].min() > 0.1, "a critic that expected less is surprised"


def test_moving_a_terms_reward_between_turns_moves_target_and_credit_alike():
    """From the first turn to the second of the first row; the sum of the row and the other row stay."""
    later = PAID.clone()
    later[0, 0, 0], later[0, 1, 0] = 0.0, 1.0
    before, after = two_terms(), two_terms(later)
    assert torch.equal(before["reward_terms"], after["reward_terms"])
    moved = (term_returns(after) - term_returns(before))[..., 0]
    second = (TURN_OF == 1) & (torch.arange(2)[:, None] == 0)
    assert torch.equal(moved, second.float())
    update = Update.of(Rlvr(advantage={"kind": "gae", "whiten": False}))
    plain = [
        assign_credit(update, columns | {"value": torch.zeros(TURN_OF.shape)})["advantage"]
        for columns in (before, after)
    ]
    assert torch.equal(plain[1] - plain[0], second.float())


@pytest.mark.slow
def test_the_trainer_fits_heads_to_what_turns_were_paid(tmp_path, lake):
    """On a lake whose steps and goal are paid: both terms' turns arrive, add up to `turn_reward`, and the heads to the returns."""
    providers = "rlvr.providers=[{kind: critic, heads: {verifier: identity, again: identity}}]"
    reward = "rlvr.reward=[verifier, {kind: verifier, name: again, weight: -0.5}]"
    more = (
        "rlvr.rollout={kind: multi_turn, max_turns: 8}",
        "rlvr.sampling.max_tokens=6",
        "rlvr.prompts=16",
        "rlvr.group_size=8",
    )
    made = toys.trainer(
        tmp_path, lake, toys.lake(tmp_path), reward, "rlvr.advantage=gae", providers, "rlvr.steps=1", *more
    )
    given_columns = []
    critic = made.learner.providers["critic"]
    update = critic.update
    critic.update = lambda tokens, columns: given_columns.append(columns) or update(tokens, columns)
    made.run()
    [columns] = given_columns
    by_turn = columns["turn_reward_terms"].unflatten(1, (-1, 2))
    assert columns["turn_reward"].shape[1] > 1 and by_turn[..., 0].any()
    torch.testing.assert_close(by_turn.sum(2), columns["turn_reward"])
    torch.testing.assert_close(by_turn[..., 1], -0.5 * by_turn[..., 0])
    mask, goals = critic._targets(columns)
    total = returns(columns).flatten()[mask.flatten()]
    torch.testing.assert_close(goals[mask.flatten()].sum(1), total)
    assert goals[mask.flatten()][:, REST_HEAD].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.reward=[verifier]", "rlvr.providers=[{kind: critic, heads: {b: log}}]"], r"the term b of .*Its terms are verifier"),
        (
            ["rlvr.reward=[verifier, {kind: verifier, name: b, operation: multiply}]", "rlvr.providers=[{kind: critic, heads: {b: log}}]"],
            "the term b of the reward, which is not a sum.*terms that are added",
        ),
        (["rlvr.providers=[{kind: critic, heads: {verifier: log}}]"], r"critic needs reward_terms.*reward: \[verifier, \.\.\.\]"),
        (["rlvr.providers=[{kind: critic, averaging: 0.5}]"], "averaging belongs to heads"),
        (["rlvr.providers=[{kind: critic, at: turns, heads: {a: log}}]"], r"rlvr\.providers\.heads: .*Leave them out"),
        (["rlvr.providers=[{kind: critic, heads: {a: square}}]"], r"rlvr\.providers\.heads\.a"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.advantage=gae", *overrides]))
