"""Episodes of several turns: groups without a success are played again (ActiveVLN)."""

from __future__ import annotations

import pytest
import scripted
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import RolloutRequest
from pipelines.data.records import Problem, Role
from pipelines.environments import frozen_lake, key_number, problems
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.pack import pack


def test_a_group_without_a_success_is_played_again():
    calls = []

    def script(prefix, number):
        """The first group arrives at once; of the second, one row does so in its second attempt."""
        calls.append(number)
        lost = "lost" in prefix and len(calls) <= 4
        return "left" if lost or ("lost" in prefix and number) else "right"

    near = {"environment": "frozen_lake", "map": ["SG", "FF"]}
    requests = [scripted.request("near", 2, group=5, **near), scripted.request("lost", 2, group=6, **near)]
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 1, "regenerate": 2}).fn
    rows = rollout.run(requests, scripted.context(script))
    assert [(row.group, row.correct, row.components["attempts"]) for row in rows] == [
        (5, True, 1.0), (5, True, 1.0), (6, True, 2.0), (6, False, 2.0),
    ]  # fmt: skip
    assert len(calls) == 6, "the group that succeeded is not played again, nor is the other once it has"
    hopeless = rollout.run([requests[1]], scripted.context(lambda prefix, number: "left"))
    assert [row.components["attempts"] for row in hopeless] == [3.0, 3.0]
    plain = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 1}).fn.run(requests, scripted.context(script))
    assert all("attempts" not in row.components for row in plain)


def test_an_episode_begins_after_an_expert_s_steps():
    """The expert's moves are made and shown, none of them trains, and the turns are counted from where the policy takes over."""
    drawn = problems("frozen_lake", 60, 5, {"side": 4, "shortest": 4, "demonstrations": True})
    fields = next(row for row in drawn if len(row["info"]["walked"]) == 2)
    problem = Problem(uid="0" * 32, source="frozen_lake", licence="MIT", **fields)
    path = frozen_lake.expert(problem.info["map"])
    ctx = scripted.context(lambda prefix, number: path[2 + len(ctx.sampler.calls) - 1])
    [prompt] = ctx.render([problem.prompt])
    rollout = bind("rlvr.rollout", {"kind": "multi_turn", "max_turns": 9, "tolerance": 1.0, "least_turns": 1}).fn
    [row] = rollout.run([RolloutRequest(problem, prompt, 0, 1)], ctx)
    assert row.correct and len(row.turn_state) == len(path) - 2 == problem.info["expert_turns"]
    world = frozen_lake.World()
    world.reset(problem)
    assert row.turn_state[0] == key_number(world.state_key()) and world._place != divmod(
        "".join(world.rows).index("S"), 4
    )
    assert [move in scripted.show(prompt) for move in path[:2]] == [True, True]
    assert row.role[: len(prompt)] == [Role.PROMPT] * len(prompt)
    assert pack([row], step=0, total_steps=1)["mask"][0, : len(prompt)].sum() == 0
    lost = rollout.run([RolloutRequest(problem, prompt, 0, 1)], scripted.context(lambda prefix, number: "nowhere"))
    assert len(lost[0].turn_state) == len(path) - 2, (
        "an episode ends by the steps that were left, not by the whole path"
    )


SERVER = "rlvr.sampler={url: 'http://x', weights: w}"


@pytest.mark.parametrize(
    ("settings", "more", "words"),
    [
        ("time_limit_s: 5", [], r"rollout\.time_limit_s: 5 is for episodes that do not wait for each other\. Set asynchronous: true"),
        ("batch_invariant: true", [], r"rollout\.batch_invariant: true is for episodes that do not wait"),
        ("asynchronous: true, batch_invariant: true", [SERVER], r"batch_invariant: true: a server chooses which rows"),
        ("asynchronous: true, max_concurrent: 0", [], r"max_concurrent"),
    ],
)  # fmt: skip
def test_what_asynchronous_episodes_cannot_do_is_refused(tmp_path, settings, more, words):
    overrides = [f"rlvr.rollout={{kind: multi_turn, {settings}}}", *more]
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.lake(tmp_path), overrides))


@pytest.mark.parametrize("settings", ["time_limit_s: 5, max_concurrent: 3", "batch_invariant: true"])
def test_asynchronous_episodes_are_planned(tmp_path, settings):
    check(read_recipe(toys.lake(tmp_path), [f"rlvr.rollout={{kind: multi_turn, asynchronous: true, {settings}}}"]))
