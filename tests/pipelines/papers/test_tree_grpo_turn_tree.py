"""Trees of turns on a corridor of ice, from a script."""

from __future__ import annotations

import pytest
from scripted import context, request

from pipelines.contract.catalogue import bind
from pipelines.data.records import Stop


def lake(corridor, group=0):
    return request("walk", 7, group=group, environment="frozen_lake", map=[corridor])


def nodes(row):
    """Nodes of the row's turns, in order."""
    return list(dict.fromkeys(n for n in row.node if n >= 0))


def run(corridor, requests=None, *, seed=0, entropy=False, **settings):
    part = bind("rlvr.rollout", {"kind": "turn_tree", **settings}).fn
    ctx = context(lambda prefix, number: "right", seed=seed, entropy=entropy)
    return part.run(requests or [lake(corridor)], ctx), ctx.sampler.calls


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("corridor", "max_turns", "stop"), [("SFFFFG", 3, Stop.TURNS), ("SFFG", 9, Stop.ENVIRONMENT)], ids=["limit", "goal"]
)
def test_only_turns_after_which_the_episode_went_on_are_expanded(seed, corridor, max_turns, stop):
    """Three turns each way; six episodes go on from the first or the second turn, none from the third."""
    rows, calls = run(corridor, seed=seed, trees=1, expansions=6, rounds=1, max_turns=max_turns)
    assert [len(row.turn_state) for row in rows] == [3] * 7 and {row.stop for row in rows} == {stop}
    first, *others = (nodes(row) for row in rows)
    assert first == [0, 1, 2]
    shared = {len(set(other) & set(first)) for other in others}
    assert shared == {1, 2}, "expansions begin after the first turn and after the second"
    assert len({other[-1] for other in others} | {2}) == 7, "each has a last turn of its own"
    for row, other in zip(rows[1:], others, strict=True):
        keep = other[: len(set(other) & set(first))]
        assert keep == first[: len(keep)] and row.turn_reward == rows[0].turn_reward
    assert max(len(call.prefixes) for call in calls) == 6 and not any(call.entropy for call in calls)


def test_new_episodes_can_be_expanded_in_the_next_round():
    """With one open turn at first; in the second round the turns of the new episode are open too."""
    grown = []
    for seed in range(6):
        rows, _ = run("SFFFG", seed=seed, trees=1, expansions=1, rounds=2, max_turns=3)
        first, second, third = (nodes(row) for row in rows)
        grown.append(len(set(third) & set(second)) > len(set(third) & set(first)))
    assert any(grown) and not all(grown)


def test_where_no_turn_can_be_expanded_episodes_start_over():
    rows, calls = run("SG", [lake("SG"), lake("SFG", group=1)], trees=2, expansions=1, rounds=1, entropy=True)
    assert [row.group for row in rows] == [0] * 4 + [1] * 4
    assert [nodes(row) for row in rows[:4]] == [[0], [6], [1], [7]], "those of a tree together"
    assert all(row.stop == Stop.ENVIRONMENT and row.score == 1.0 for row in rows)
    assert [nodes(row)[0] for row in rows[4:]] == [2, 2, 3, 3], "the other problem's trees share their first turns"
    assert all(call.entropy for call in calls) and rows[0].entropy_old is not None


def test_a_turn_limit_of_one_leaves_nothing_to_expand():
    rows, _ = run("SFFG", trees=1, expansions=2, rounds=1, max_turns=1)
    assert [len(row.turn_state) for row in rows] == [1] * 3 and len({tuple(nodes(row)) for row in rows}) == 3
