"""A rollout that differs by source."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import scripted
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.by_source import DividedRollout, divided
from pipelines.contract.catalogue import bind
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Stop
from pipelines.recipe.settings import OfSource

SINGLE = bind("rlvr.rollout", "single_turn")
SOURCES = ("a", "b", "c")


def request(source, group, rollouts=2):
    asked = scripted.request(f"go{group} ", rollouts, group=group)
    return replace(asked, problem=replace(asked.problem, source=source))


def script(prefix, number):
    return f"{prefix}, {prefix}."


def drawn(rollout, requests, max_tokens=8):
    context = scripted.context(script, max_tokens=max_tokens)
    return sorted(rollout.run(requests, context), key=lambda row: row.group), context.sampler.calls


def test_sources_draw_with_their_own_limits_and_others_with_the_stage_s():
    fn = divided(SINGLE, {"a": OfSource(max_tokens=3), "b": OfSource(max_tokens=8)}, 8).fn
    rows, calls = drawn(fn, [request("b", 0), request("a", 1), request("c", 2)])
    assert [(row.group, row.max_tokens, row.sampled_count) for row in rows] == [
        (0, 8, 8), (0, 8, 8), (1, 3, 3), (1, 3, 3), (2, 8, 8), (2, 8, 8),
    ]  # fmt: skip
    assert all(row.stop == Stop.LENGTH for row in rows)
    assert [(call.max_tokens, len(call.prefixes)) for call in calls] == [(8, 4), (3, 2)], "what is alike, at once"


@given(st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(1, 3)), min_size=1, max_size=6), st.data())
def test_what_a_group_draws_does_not_depend_on_how_requests_are_divided(asked, data):
    """With any limits each row is the one that its source draws alone; with the same limit for all, that of the undivided rollout."""
    requests = [request(source, group, count) for group, (source, count) in enumerate(asked)]
    limits = {source: data.draw(st.sampled_from([0, 3, 8])) for source in SOURCES}
    rows, _ = drawn(DividedRollout([SINGLE], {name: (0, limit) for name, limit in limits.items()}), requests)
    alone = []
    for group, each in enumerate(requests):
        limit = limits[each.problem.source] or 8
        alone += [row for row in drawn(SINGLE.fn, [each], limit)[0] if row.group == group]
    assert rows == alone
    if set(limits.values()) <= {0, 8}:
        assert rows == drawn(SINGLE.fn, requests)[0]


def test_settings_like_the_stage_s_divide_nothing():
    own = {"a": OfSource(max_tokens=8, group_size=4), "b": OfSource()}
    assert divided(SINGLE, own, 8) is SINGLE
    assert divided(SINGLE, {"a": OfSource(rollout="single_turn")}, 8) is SINGLE


def lake(**more):
    return {"kind": "multi_turn", "max_turns": 2, **more}


def test_rollouts_that_are_alike_are_one_and_the_others_join_their_cards():
    rollout = divided(
        SINGLE,
        {
            "a": OfSource(rollout=lake()),
            "b": OfSource(rollout=lake(), max_tokens=4),
            "c": OfSource(rollout="demonstrated"),
        },
        8,
    )
    assert [each.name for each in rollout.fn.parts()] == ["single_turn", "multi_turn", "demonstrated"]
    assert rollout.name == "by_source" and rollout.fn.routes == {"a": (1, 0), "b": (1, 4), "c": (2, 0)}
    assert "turn" in rollout.card.makes and rollout.card.sets_group_size
    assert rollout.fn.plays("a") and not rollout.fn.plays("c") and not rollout.fn.plays("another")
    with pytest.raises(RecipeError, match=r"rlvr\.by_source\.a\.rollout\.max_turns"):
        divided(SINGLE, {"a": OfSource(rollout=lake(max_turns=0))}, 8)


def test_answers_beside_episodes_are_episodes_of_one_turn():
    fn = divided(SINGLE, {"a": OfSource(rollout=lake())}, 8).fn
    first, again, other = drawn(fn, [request("b", 0), request("c", 1, 1)])[0]
    assert first.turn == [0 if role == Role.POLICY else -1 for role in first.role]
    assert first.turn_state == again.turn_state != other.turn_state, "the same prompt, the same state"
    assert (first.turn_reward, first.turn_belief, first.turn_valid) == ([0.0], [0.0], [1.0])
    assert drawn(SINGLE.fn, [request("b", 0)])[0][0].turn is None


class Remembering(Rollout):
    """Notes the groups that it is told of, and drops those of odd number."""

    def __init__(self):
        self.groups, self.repeatable = [], False

    def run(self, requests, context):
        raise NotImplementedError

    def on_rollouts(self, rows):
        self.groups += [row.group for row in rows]
        return [row for row in rows if row.group % 2 == 0]

    def metrics(self):
        return {"told": float(len(self.groups)), "time/told_s": 0.0}

    def lines(self):
        return [{"groups": self.groups}]

    def state_dict(self):
        return {"groups": list(self.groups)}

    def load_state_dict(self, state):
        self.groups = state["groups"]


def test_each_rollout_is_told_of_its_own_sources_and_remembers_them():
    def build():
        second = replace(SINGLE, name="remembering", fn=Remembering())
        return DividedRollout([SINGLE, second], {"a": (1, 0)})

    fn = build()
    rows = drawn(SINGLE.fn, [request("a" if group < 4 else "b", group, 1) for group in range(6)])[0]
    for row in rows:
        row.source = "a" if row.group < 4 else "b"
    assert [row.group for row in fn.on_rollouts(rows)] == [0, 2, 4, 5]
    assert fn.uses("on_rollouts") and fn.metrics() == {"remembering/told": 4.0, "time/told_s": 0.0}
    assert not fn.repeatable and DividedRollout([SINGLE], {}).repeatable, "one part that goes by the clock is enough"
    assert fn.lines() == [{"groups": [0, 1, 2, 3]}]
    restarted = build()
    restarted.load_state_dict(json.loads(json.dumps(fn.state_dict())))
    assert restarted.metrics() == fn.metrics()
