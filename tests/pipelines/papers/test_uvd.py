"""UVD: sub-goals of a demonstration against the official code and planted ones; what turns are paid; runs, one of them killed."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import ranks
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer
from scripted import conversation

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers import uvd
from pipelines.verifiers._encoder import TINY, encoder

UID = "a" * 32
WAY = ["the door", "a dark hall", "a dark hall", "zzz", "stairs up", "the roof"]
"""What an expert is shown; one of its turns changes nothing."""
AWAY = "two cars have collided !!"
SETTINGS = st.tuples(st.integers(0, 4), st.sampled_from([None, 0.08, 1.0]))
"""`min_interval` and `smoothing`."""


def problem(**info):
    asked = [{"role": "user", "content": "older"}, {"role": "user", "content": WAY[0]}]
    return Problem(uid=UID, prompt=asked, answer="", verifier="exact", source="s", licence="l", info=info)


def episode(*observations, **more):
    talk = [text for turn, _ in enumerate(observations) for text in (f"go {turn}", "heard")][:-1]
    return conversation(UID, *talk, turn_observation=list(observations), **more)


def scored(*rows, of=None, **settings):
    chosen = {"kind": "uvd", "encoder": TINY, **({} if "reference" in settings else {"demonstration": WAY}), **settings}
    bind("rlvr.reward", chosen).fn.score(list(rows), {UID: of or problem()})
    return rows


def curve(length, speed):
    """A smooth path in three dimensions that keeps returning, with a drift; float64 [length, 3]."""
    t = torch.arange(length, dtype=torch.float64) * speed
    return torch.stack([t.sin() + t / 9, (1.7 * t).cos(), (2.3 * t + 1).sin() / 2], 1)


def walk(seed, length):
    """A random walk, float64 [length, 4]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(length, 4, generator=draw, dtype=torch.float64).cumsum(0)


# milestone_indices of embedding_decomp (zcczhang/UVD at e7d657a, uvd/decomp/decomp.py), run on `curve` with normalize_curve=False,
# smooth_method="kernel" and this gamma, or smooth_method=None
@pytest.mark.parametrize(
    ("length", "speed", "smoothing", "min_interval", "expected"),
    [
        (120, 0.1, 0.08, 18, [40, 89, 119]),
        (120, 0.1, 0.08, 5, [18, 37, 53, 74, 92, 111, 119]),
        (60, 0.2, 0.08, 18, [26, 59]),
        (60, 0.2, 0.08, 5, [9, 18, 26, 36, 44, 59]),
        (60, 0.2, None, 1, [9, 19, 27, 37, 46, 55, 59]),
        (25, 0.4, 0.08, 18, [24]),
        (25, 0.4, 0.08, 5, [10, 24]),
        (25, 0.4, 0.5, 2, [5, 9, 13, 19, 24]),
        (25, 0.9, None, 1, [2, 4, 6, 8, 10, 12, 14, 16, 19, 24]),
        (25, 0.9, None, 0, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 23, 24]),
        (25, 0.9, 0.5, 2, [12, 16, 19, 24]),
        (12, 0.9, 0.5, 2, [5, 11]),
        (3, 0.4, None, 0, [2]),
    ],
)
def test_sub_goals_are_those_of_the_official_code(length, speed, smoothing, min_interval, expected):
    assert uvd.subgoals(curve(length, speed), min_interval, smoothing) == expected


@given(min_interval=st.integers(0, 4), extra=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_planted_phase_shifts_are_recovered(min_interval, extra):
    """Straight lines between corners of a simplex: the distance to a corner rises up to the one before, and falls after it."""
    lengths = [max(2, min_interval + 1) + more for more in extra]
    corners = torch.eye(len(lengths) + 1, dtype=torch.float64)
    steps = [
        corners[i] + (corners[i + 1] - corners[i]) * step / length
        for i, length in enumerate(lengths)
        for step in range(1, length + 1)
    ]
    assert uvd.subgoals(torch.stack([corners[0], *steps]), min_interval, None) == [*accumulate(lengths)]


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=40), SETTINGS)
def test_a_demonstration_that_only_comes_nearer_has_its_end_as_its_sub_goal(steps, settings):
    places = torch.tensor([0.0, *accumulate(steps)], dtype=torch.float64)
    assert uvd.subgoals(places[:, None] * torch.ones(3), *settings) == [len(steps)]


@given(st.integers(0, 9999), st.integers(1, 60), SETTINGS)
def test_sub_goals_are_in_order_far_enough_apart_and_end_at_the_end(seed, length, settings):
    places = uvd.subgoals(walk(seed, length), *settings)
    assert places[-1] == length - 1 and (len(places) == 1 or places[0] > settings[0])
    assert all(after - before > settings[0] for before, after in pairwise(places))


@given(st.lists(st.floats(0.3, 1.2), min_size=2, max_size=20), st.floats(0.1, 10))
def test_rewards_on_the_way_to_one_sub_goal_telescope(distances, weight):
    paid, reached = uvd.shaped([[each] for each in distances], 0.2, (weight, 3.0, 6.0))
    assert reached == 0 and sum(paid) == pytest.approx(weight * (distances[0] - distances[-1]), abs=1e-9)


@given(st.integers(0, 9999), st.integers(2, 40))
def test_whoever_repeats_a_demonstration_is_paid_each_sub_goal_in_full(seed, length):
    vectors = walk(seed, length)
    goals = vectors[uvd.subgoals(vectors, 0, None)]
    lengths = (goals - torch.cat([vectors[:1], goals[:-1]])).norm(dim=-1)
    distances = (vectors[:, None] - goals).norm(dim=-1) / lengths
    paid, reached = uvd.shaped(distances.tolist(), 1e-12, (5.0, 3.0, 6.0))
    assert reached == len(goals) and sum(paid) == pytest.approx(8 * len(goals) + 6)


def test_what_turns_are_paid_by_hand():
    weights = (5.0, 3.0, 6.0)
    leap = [[1.0, 3.0], [3.5, 2.0], [0.9, 1.0], [0.1, 0.9], [0.1, 0.9], [0.5, 0.15], [9.0, 9.0]]
    paid, reached = uvd.shaped(leap, 0.2, weights)
    assert paid == pytest.approx([-5.0, 5.0, 5 * 0.8 + 3, 0.0, 5 * 0.75 + 9, 0.0]) and reached == 2
    past = [[1.0, 1.0], [0.8, 0.1], [0.1, 1.0]]
    assert uvd.shaped(past, 0.2, weights) == (pytest.approx([5 * 0.2 + 6, 0.0]), 2), "the last one ends it at any time"
    assert uvd.shaped([[1.0], [0.2]], 0.2, weights)[1] == 0, "a distance of the threshold is not below it"


def test_turns_come_nearer_to_the_demonstration_s_end():
    (row,) = scored(episode("a dark hall", AWAY, WAY[-1], AWAY, outcome=7.0), min_interval=9, threshold=0.01)
    states = encoder(TINY).embed([WAY[0], "a dark hall", AWAY, WAY[-1]])
    first, *later = ((states - states[-1]).norm(dim=-1) / (states[0] - states[-1]).norm()).tolist()
    gained = [5 * max(-1.0, min(1.0, before - after)) for before, after in pairwise([first, *later])]
    assert row.turn_reward == pytest.approx([*gained[:2], gained[2] + 9, 0.0], abs=1e-4)
    assert row.score == pytest.approx(sum(row.turn_reward)) and row.components["turn.uvd"] == row.score
    assert row.components["outcome"] == 7.0 and row.components["subgoals_reached"] == 1.0 and row.correct is False


def test_an_episode_is_paid_for_the_demonstration_s_sub_goals():
    start, goals = uvd.decomposed(TINY, tuple(dict.fromkeys(WAY)), 0, None)
    assert len(goals) > 1 and torch.equal(start, encoder(TINY).embed([*dict.fromkeys(WAY)])[0].double())
    row, less = scored(episode(*WAY[1:]), episode(*WAY[1:4]), min_interval=0, threshold=0.01)
    assert row.score == pytest.approx(8 * len(goals) + 6, abs=1e-3) and row.turn_reward[1] == pytest.approx(0, abs=1e-4)
    assert 0 < less.components["subgoals_reached"] < 1
    assert less.turn_reward == pytest.approx(row.turn_reward[:3], abs=1e-4)
    (own,) = scored(episode(*WAY[1:]), min_interval=0, threshold=0.01, progress_weight=0, subgoal_reward=1, goal_reward=0.5)  # fmt: skip
    assert own.score == len(goals) + 0.5


def test_a_turn_that_shows_nothing_readable_changes_nothing():
    row, plain = scored(episode("a dark hall", "", "x" * 5000, "stairs up"), episode("a dark hall", "stairs up"))
    assert row.turn_reward[1:3] == [0.0, 0.0] and row.score == pytest.approx(plain.score, abs=1e-5)
    unseen = problem()
    unseen.prompt[-1]["content"] = " "
    (begun,) = scored(episode("a dark hall"), of=unseen)
    assert begun.turn_reward == pytest.approx(scored(episode("a dark hall"))[0].turn_reward, abs=1e-5)


def test_rewards_depend_on_nothing_that_was_scored_before_or_beside():
    texts = [("a dark hall", AWAY), ("stairs up",), (AWAY, "zzz and a long way down to the cellar", WAY[-1])]
    uvd.decomposed.cache_clear()
    together = scored(*(episode(*each) for each in texts))
    for each, row in zip(texts, together, strict=True):
        uvd.decomposed.cache_clear()
        (alone,) = scored(episode(*each))
        assert alone.turn_reward == row.turn_reward, "to the bit"


def test_a_record_s_own_demonstration():
    (expected,) = scored(episode(*WAY[1:], AWAY))
    for shown in (WAY, "\n\n".join(WAY), [*WAY[:2], "", *WAY[2:]]):
        (row,) = scored(episode(*WAY[1:], AWAY), reference="shown", of=problem(shown=shown))
        assert row.turn_reward == expected.turn_reward


def test_what_cannot_lead_anywhere_is_named():
    for settings in ({"demonstration": None}, {"demonstration": WAY, "reference": "shown"}):
        with pytest.raises(RecipeError, match="uvd has one demonstration: set demonstration, or reference"):
            scored(episode("x"), **settings)
    for info in ({}, {"shown": [1, 2]}):
        with pytest.raises(DataError, match=r"has no texts in info\.shown"):
            scored(episode("x"), reference="shown", of=problem(**info))
    for still in (["a", "a"], ["a", " "]):
        with pytest.raises(DataError, match="shows fewer than two different observations"):
            scored(episode("x"), demonstration=still)
    with pytest.raises(DataError, match=rf"observation 2 of a demonstration is longer than {TINY} can read"):
        scored(episode("x"), demonstration=["a", "x" * 5000])
    with pytest.raises(RecipeError, match="uvd pays turns, and the rollout has none"):
        scored(answer(UID, 0, "x"))


def options(folder):
    """Overrides of the recipe of FrozenLake, with a random encoder in the folder."""
    encoder(TINY).model.save_pretrained(folder)
    encoder(TINY).tokenizer.save_pretrained(folder)
    return (
        "rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.advantage=gigpo",
        f'rlvr.reward={{kind: uvd, encoder: "{folder}", demonstration: ["A.G", ".AG", "..A"], min_interval: 0}}',
    )  # fmt: skip


def test_a_run(tmp_path, lake):
    made = toys.trainer(tmp_path, lake, toys.lake(tmp_path), *options(tmp_path / "encoder"), "rlvr.steps=1")
    made.run()
    (values,) = [history for _, history in toys.history(tmp_path / "work")]
    assert values["reward/mean"] == pytest.approx(values["reward_component/turn.uvd"]) != 0
    assert 0 <= values["reward_component/subgoals_reached"] <= 1


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path, lake):
    chosen = (*options(tmp_path / "encoder"), "rlvr.steps=3")
    works = [toys.job(tmp_path / name, lake, *chosen, of=toys.lake(tmp_path)) for name in ("whole", "killed")]
    ranks.finish_alone(works[0])
    ranks.kill_alone(works[1])
    ranks.finish_alone(works[1])
    assert toys.result(works[0]) == toys.result(works[1])
