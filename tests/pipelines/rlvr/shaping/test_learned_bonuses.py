"""The bonuses from learned features: the released code's loops, laws that all share, and a run of the trainer with all six."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.rlvr.common.state_features import visits_of

ALL = ("icm", "rnd", "ngu", "re3", "ride", "e3b")
LEARN = ("icm", "rnd", "ngu", "ride", "e3b")
EPISODES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=4)
SHOWN = 4
"""Tokens of an observation."""


def columns_of(episodes, paid=0.0, said=None):
    """Episodes of states, each shown as four tokens of its own; a turn says one token, its place by default."""
    width = max(map(len, episodes))
    token = torch.zeros(len(episodes), width * (SHOWN + 1), dtype=torch.int64)
    turn = torch.full_like(token, -1)
    for row, states in enumerate(episodes):
        for place, state in enumerate(states):
            at = place * (SHOWN + 1)
            token[row, at : at + SHOWN] = torch.tensor([9, 10 + state, 20 + state * state, 9])
            token[row, at + SHOWN] = 3 + (place % 4 if said is None else said)
            turn[row, at + SHOWN] = place
    states = torch.tensor([e + [-1] * (width - len(e)) for e in episodes])
    return {
        "turn_reward": torch.full(states.shape, paid), "turn_state": states, "token": token, "turn": turn,
        "scored": torch.ones(len(states)).bool(),
    }  # fmt: skip


def part_of(kind, **more):
    return toys.bound("rlvr.shaping", kind=kind, weight=1.0, **more)


def step_of(columns):
    return visits_of(*(columns[name] for name in ("turn_state", "token", "turn", "scored")))


def encoded(part, columns):
    """The features of the states of each row, as lists."""
    net, step = part.fn.net, step_of(columns)
    encoder = net["dynamics"].encode if isinstance(net, torch.nn.ModuleDict) else getattr(net, "encode", net)
    with torch.no_grad():
        phi = encoder(step.states)
    return [phi[episode] for episode in step.episodes()]


@settings(max_examples=10)
@given(EPISODES, st.sampled_from(ALL), st.randoms(use_true_random=False))
def test_the_order_of_a_step_s_episodes_changes_nothing(episodes, kind, random):
    order = list(range(len(episodes)))
    random.shuffle(order)
    one, two = part_of(kind), part_of(kind)
    for _ in range(3):
        first, second = one(columns_of(episodes, 0.5)), two(columns_of([episodes[i] for i in order], 0.5))
        torch.testing.assert_close(first[order], second)


@pytest.mark.slow
@settings(max_examples=10)
@given(EPISODES, st.sampled_from(ALL))
def test_a_restart_forgets_nothing(episodes, kind):
    part, again = part_of(kind), part_of(kind)
    part.fn.seed = 5
    part.fn._begin()
    part(columns_of(episodes))
    again.fn.load_state_dict(json.loads(json.dumps(part.fn.state_dict())))
    for _ in range(2):
        assert torch.equal(part(columns_of(episodes)), again(columns_of(episodes)))
    assert part.fn.state_dict() == again.fn.state_dict()


@settings(max_examples=10)
@given(EPISODES, st.sampled_from(ALL))
def test_only_moves_of_scored_rows_are_paid_and_never_less_than_nothing(episodes, kind):
    columns = columns_of([*episodes, [1, 2, 3]], 0.25)
    columns["scored"][-1] = False
    part, without = part_of(kind), part_of(kind)
    paid = part(columns) - 0.25
    led = torch.zeros_like(paid, dtype=torch.bool)
    led[:, :-1] = columns["turn_state"][:, 1:] >= 0
    led[-1] = False
    assert (paid[~led] == 0).all() and (paid >= 0).all()
    expected = without(columns_of(episodes, 0.25)) - 0.25
    torch.testing.assert_close(paid[:-1, : expected.shape[1]], expected)


@settings(max_examples=10)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(2, 6))
def test_what_an_episode_returns_to_pays_less(first, state, times):
    """The elliptical bonus exactly, RIDE's by the root of the count."""
    paid = part_of("e3b")(columns_of([[first] + [state] * times]))[0, :times].tolist()
    assert all(after < before for before, after in itertools.pairwise(paid))
    states = [0, 1] * times
    bonus = part_of("ride")(columns_of([states]))[0, 0 : 2 * times - 1 : 2]
    torch.testing.assert_close(bonus, bonus[0] / torch.arange(1, times + 1).sqrt())


@pytest.mark.parametrize("kind", ["rnd", "icm"])
def test_what_the_run_returns_to_pays_less_and_what_it_has_not_seen_more(kind):
    part = part_of(kind)
    worth = [part(columns_of([[0, 1, 0]], said=0))[0, :2].max().item() for _ in range(30)]
    assert worth[-1] < 0.1 * worth[0]
    assert part(columns_of([[3, 4, 3]], said=0))[0, :2].min().item() > 5 * worth[-1]


@settings(max_examples=10)
@given(EPISODES.filter(lambda episodes: max(map(len, episodes)) > 1), st.sampled_from(["icm", "rnd", "ride"]))
def test_errors_and_changes_are_those_of_the_released_code(episodes, kind):
    """rllte's ICM and RND move by move; RIDE's change of features over the root of the episode's visits, as the paper has it."""
    part, columns = part_of(kind), columns_of(episodes)
    net, step, paid = part.fn.net, step_of(columns), []
    with torch.no_grad():
        for place, (before, after) in enumerate(zip(step.before.tolist(), step.after.tolist(), strict=True)):
            here, there = step.states[before], step.states[after]
            if kind == "rnd":
                worth = (net.predictor(there) - net.target(there)).square().mean()
            elif kind == "icm":
                foretold = net.forward_model(torch.cat([net.encode(here), step.actions[place]]))
                worth = (foretold - net.encode(there)).square().mean()
            else:
                states = episodes[int(step.rows[after])]
                visits = states[: int(step.turns[after]) + 1].count(int(step.keys[after]))
                worth = (net.encode(there) - net.encode(here)).norm() / math.sqrt(visits)
            paid.append(float(worth))
    got = part(columns)[step.rows[step.before], step.turns[step.before]]
    assert got.tolist() == pytest.approx(paid, rel=1e-5, abs=1e-6)


def test_neighbours_by_hand():
    """RE3 of the third nearest: a state visited more than three times pays nothing; another by its distance."""
    part = part_of("re3")
    columns = columns_of([[0, 0, 0, 0, 1]])
    [y] = encoded(part, columns)
    away = math.log1p(float((y[4] - y[0]).norm()))
    assert part(columns)[0].tolist() == pytest.approx([0.0, 0.0, 0.0, away, 0.0], abs=1e-6)
    assert len(part.fn.stored) == 5
    assert part(columns)[0].tolist() == pytest.approx([0.0, 0.0, 0.0, away, 0.0], abs=1e-6), (
        "one of five was there before"
    )


@settings(max_examples=10)
@given(EPISODES)
def test_the_elliptical_bonus_is_the_released_loop(episodes):
    """facebookresearch/e3b, `rank1_update`: u = C^-1 h, b = h u, C^-1 -= u u^T / (1 + b); and by the inverse of C itself."""
    part, columns = part_of("e3b", ridge=0.2), columns_of(episodes)
    expected = torch.zeros(columns["turn_state"].shape)
    for row, features in enumerate(encoded(part, columns)):
        cov = 0.2 * torch.eye(features.shape[1], dtype=torch.float64)
        for place, h in enumerate(features):
            if place > 0:
                expected[row, place - 1] = h @ torch.linalg.inv(cov) @ h
            cov = cov + torch.outer(h, h)
    torch.testing.assert_close(part(columns), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=10)
@given(EPISODES.filter(lambda episodes: max(map(len, episodes)) > 2))
def test_never_give_up_is_the_released_loop(episodes):
    """rllte's `pseudo_counts` state by state, with the mean distance of the step, times the paper's modulator."""
    part, columns = part_of("ngu", k=2), columns_of(episodes)
    step = step_of(columns)
    with torch.no_grad():
        errors = part.fn.net["distillation"].errors(step.states[step.after])
    features = encoded(part, columns)
    near = [
        sorted(float((each[i] - each[j]).square().sum()) for j in range(i))[:2]
        for each in features
        for i in range(1, len(each))
    ]
    every = [distance for distances in near for distance in distances]
    mean = sum(every) / (len(every) + 1e-4)
    paid = []
    for distances, error in zip(near, errors.tolist(), strict=True):
        kernel = [1e-4 / (max(d / (mean + 1e-8) - 0.008, 0) + 1e-4) for d in distances]
        s = math.sqrt(sum(kernel)) + 1e-3
        moments = errors.mean() * len(errors) / (len(errors) + 1e-4)
        variance = (
            1e-4 + (float(errors.var()) if len(errors) > 1 else 0.0) * len(errors)
            + float(errors.mean()) ** 2 * 1e-4 * len(errors) / (len(errors) + 1e-4)
        ) / (len(errors) + 1e-4)  # fmt: skip
        unusual = 1 + (error - float(moments)) / math.sqrt(variance)
        paid.append((0.0 if s > 8 else 1 / s) * min(max(unusual, 1), 5))
    got = part(columns)[step.rows[step.before], step.turns[step.before]]
    torch.testing.assert_close(got, torch.tensor(paid), rtol=1e-3, atol=1e-4)


def test_the_features_learn_what_the_agent_does():
    """On a ring whose turns go left or right the inverse model of every part learns to tell which."""
    draw = torch.Generator().manual_seed(1)
    part = part_of("icm")
    losses = []
    for _ in range(40):
        columns = columns_of([[0] * 6 for _ in range(4)])
        for row in range(4):
            state = 0
            for place in range(6):
                action = int(torch.randint(0, 2, (), generator=draw))
                at = place * (SHOWN + 1)
                columns["turn_state"][row, place] = state
                columns["token"][row, at : at + SHOWN] = torch.tensor([9, 10 + state, 20 + state * state, 9])
                columns["token"][row, at + SHOWN] = 3 + action
                state = (state + (1 if action else -1)) % 5
        part(columns)
        with torch.no_grad():
            losses.append(float(part.fn.net.errors(step_of(columns))[0].mean()))
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.slow
def test_a_run_with_all_six_and_a_restart(tmp_path, lake):
    """AIRS chooses among all six, HIRE fuses four beside it; a run that was stopped ends in the same bytes."""
    results = []
    airs = f"{{kind: airs, terms: [{', '.join(ALL)}]}}"
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            shaping = f"rlvr.shaping=[{airs}, {{kind: hire, terms: [icm, ngu, re3, e3b]}}]"
            return toys.trainer(folder, lake, toys.lake(folder), shaping, "presets=[airs]", "rlvr.rollout.max_turns=3")

        if name == "stopped":
            made = toys.run_stopped(build)
        else:
            made = build()
            made.run()
        state = {key: part.fn.state_dict() for key, part in made.update.parts() if "shaping" in key}
        results.append((json.dumps(state, sort_keys=True), toys.result(folder / "work")))
    assert results[0] == results[1]
    shown = [values for _, values in results[0][1][1]]
    assert [values["method/airs/arm"] for values in shown] == [0, 1, 2]
    assert all(values["reward/shaped_mean"] > values["reward/mean"] for values in shown)
