"""The bandit over bonuses: who is credited, who is chosen, and a run that resumes to the same bytes."""

from __future__ import annotations

import json
import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

RUN, EPISODE = {"kind": "novelty", "scope": "global"}, {"kind": "novelty", "scope": "episodic"}


def airs(**settings):
    usual = {"kind": "airs", "terms": [RUN, EPISODE], "weight": 1.0, "normalise": "none"}
    return toys.bound("rlvr.shaping", **(usual | settings))


def columns_of(reward, step=0, on_policy=None, scored=None):
    """Rows with the states 7, 8, 7: the run's bonus is 1 / sqrt N, the episode's 1, then 0."""
    rows = len(reward)
    turn = torch.arange(3).expand(rows, 3)
    scored = torch.ones(rows).bool() if scored is None else torch.tensor(scored)
    return {
        "turn_reward": torch.zeros(rows, 3), "turn_state": torch.tensor([[7, 8, 7]]).expand(rows, 3), "turn": turn,
        "mask": (turn >= 0) & scored[:, None], "raw_reward": torch.tensor(reward), "scored": scored, "step": step,
        "on_policy": torch.ones(rows).bool() if on_policy is None else torch.tensor(on_policy),
    }  # fmt: skip


def test_every_arm_is_tried_once_and_pays_its_own_bonus():
    part = airs()
    paid = [part(columns_of([1.0, 0.0]))[0].tolist() for _ in range(3)]
    assert paid[0] == [0.0, 0.0, 0.0], "the first arm is no bonus"
    assert paid[1] == pytest.approx([3**-0.5, 6**-0.5, 0.0]), "counts go on while another arm is paid"
    assert paid[2] == [1.0, 0.0, 0.0]
    assert part.fn.counts == [1, 1, 0] and part.fn.arm == 2


def test_a_step_s_return_is_credited_to_the_arm_of_the_step_before():
    """Of rows that were scored and drawn for the step; a step without any credits nobody."""
    part = airs()
    part(columns_of([1.0, 1.0]))
    assert part.fn.returns == [[], [], []], "no arm made the first step's policy"
    part(columns_of([1.0, 0.0, 0.5, 1.0], on_policy=[True, True, True, False], scored=[True, True, False, True]))
    assert part.fn.returns == [[0.5], [], []]
    part(columns_of([1.0], scored=[False]))
    assert part.fn.returns == [[0.5], [], []] and part.fn.counts == [1, 0, 0] and part.fn.arm == 1
    part(columns_of([0.25]))
    assert part.fn.returns == [[0.5], [0.25], []]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 2), st.integers(1, 5))
def test_it_is_the_released_rule_over_a_window(returns, exploration, window):
    """UCB-DrAC's numbers, kept by hand: N and t count every use, Q is the mean of the last few returns."""
    part = airs(exploration=exploration, window=window).fn
    used, chosen = [[], [], []], []
    for value in returns:
        if chosen:
            part.credit(value)
            used[chosen[-1]].append(value)
        total = sum(map(len, used))
        if all(used):
            scores = [
                sum(own[-window:]) / len(own[-window:]) + exploration * math.sqrt(math.log(total) / len(own))
                for own in used
            ]
            part.arm = part.choose()
            assert scores[part.arm] == pytest.approx(max(scores), abs=1e-9)
        else:
            part.arm = part.choose()
            assert part.arm == [bool(own) for own in used].index(False)
        chosen.append(part.arm)
    assert [len(own) for own in used] == part.counts and all(len(own) <= window for own in part.returns)


def test_it_finds_the_arm_that_helps():
    """Arm 2 makes policies that earn 0.6, the others 0.3; after the first hundred steps it is chosen nearly always."""
    part, chosen = airs(exploration=0.1).fn, []
    for step in range(300):
        if chosen:
            part.credit((0.6 if chosen[-1] == 2 else 0.3) + 0.05 * math.sin(step))
        part.arm = part.choose()
        chosen.append(part.arm)
    assert chosen[100:].count(2) > 180 and {0, 1} <= set(chosen)


def test_terms_are_bonuses(tmp_path):
    with pytest.raises(RecipeError, match=r"terms\.0: spa is no bonus for exploration"):
        check(read_recipe(toys.lake(tmp_path), ["rlvr.shaping=[{kind: airs, terms: [spa]}]"]))


def test_a_run_is_paid_and_a_restart_forgets_nothing(tmp_path, lake):
    """`hire` beside it: what its terms remember and their moments are in the commit too."""
    results = []
    fused = "{kind: hire, terms: [novelty, {kind: novelty, scope: global}]}"
    single = "{kind: airs, terms: [{kind: novelty, scope: global}, {kind: elliptical, correct_only: false}]}"
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            shaping = ["presets=[airs]", f"rlvr.shaping=[{fused}, {single}]", "rlvr.rollout.max_turns=3"]
            return toys.trainer(folder, lake, toys.lake(folder), *shaping)

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
    assert shown[1]["method/airs/return_0"] == pytest.approx(shown[1]["reward/mean"])
    [bandit] = [state for key, state in json.loads(results[0][0]).items() if key.endswith("/airs")]
    assert bandit["counts"] == [1, 1, 0] and bandit["arm"] == 2 and sum(bandit["terms"][0]["visits"].values()) >= 3 * 16
