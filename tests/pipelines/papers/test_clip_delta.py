"""Clip and Delta: the sheet's values, a slow loop, what repeating a step is worth, and a run with a real judge."""

from __future__ import annotations

import json
from itertools import pairwise

import judge_server
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import Update, assign_credit

SCORES = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)
EXAMPLE = [0.9, 0.95, 0.4, 0.92]


def paid(scores, **settings):
    """What each step of a row with one token a step is paid, undiminished."""
    p, k = torch.tensor([scores]), torch.arange(len(scores))[None]
    return bind("rlvr.shaping", {"kind": "clip_delta", "weight": 1.0} | settings)(
        {"step_potential": p, "turn": k, "mask": k >= 0}
    )[0].tolist()


def test_the_sheets_values():
    assert paid(EXAMPLE, delta=False) == pytest.approx([0, 0, -0.1, 0])
    assert paid(EXAMPLE, threshold=None) == pytest.approx([-0.05, 0.55, 0.4, 0])
    assert paid(EXAMPLE) == pytest.approx([0, 0.1, -0.1, 0], abs=1e-6)
    assert paid(EXAMPLE, weight=0.02) == pytest.approx([0, 0.002, -0.002, 0], abs=1e-6)
    longer = EXAMPLE + [0.95] * 9
    assert sum(EXAMPLE) == pytest.approx(3.17) and sum(longer) == pytest.approx(11.72)
    assert sum(paid(longer)) == pytest.approx(0, abs=1e-6), "the sum is the first step's clipped score"


@given(SCORES, st.floats(0, 1))
def test_the_return_from_a_step_is_its_own_clipped_score(scores, threshold):
    per_step = paid(scores, threshold=threshold)
    clipped = [min(p - threshold, 0) for p in scores]
    for k in range(len(scores)):
        wanted = clipped[k] if k < len(scores) - 1 else 0.0
        assert sum(per_step[k:]) == pytest.approx(wanted, abs=1e-5)


@given(SCORES, st.integers(0, 6), st.integers(1, 3))
def test_a_repeated_step_raises_no_return(scores, at, times):
    at = min(at, len(scores) - 1)
    repeated = scores[: at + 1] + [scores[at]] * times + scores[at + 1 :]
    for k in range(at):
        assert sum(paid(repeated)[k:]) <= sum(paid(scores)[k:]) + 1e-5


def test_good_steps_are_paid_nothing_and_one_step_is_the_verifiers():
    assert paid([0.5, 0.7, 0.9]) == [0, 0, 0] and paid([0.1]) == [0]
    assert paid([0.25, 0.25], delta=False) == [-0.25, -0.25]


@given(st.integers(0, 300))
def test_against_a_loop(seed):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.step_potential = torch.rand(batch.step_potential.shape, generator=draw)
    batch.step_potential[torch.rand(batch.step_potential.shape, generator=draw) < 0.2] = torch.nan
    result = run_method("shaping", {"kind": "clip_delta", "threshold": 0.6, "weight": 0.5}, batch)
    for r, row in enumerate(batch.turn.tolist()):
        places = {step: t for t, step in enumerate(row) if step >= 0 and batch.mask[r, t]}  # the last token of each
        scores, before = [], 1.0  # in front of the first score nothing is known against the row
        for value in batch.step_potential[r].tolist():
            before = value if value == value else before
            scores.append(min(before - 0.6, 0.0))
        steps, wanted = sorted(places), torch.zeros(len(row))
        for here, after in pairwise(steps):
            wanted[places[here]] = 0.5 * (scores[here] - (scores[after] if after != steps[-1] else 0.0))
        torch.testing.assert_close(result[r], wanted)


def test_the_loop_puts_it_on_the_tokens_and_off_the_row():
    """As a reward that pays tokens: the outcome is left as it was, and the critic's return counts both."""
    update = Update.of(
        Rlvr(steps=1, shaping=[{"kind": "clip_delta", "threshold": 0.5}], advantage={"kind": "gae", "whiten": False})
    )
    batch = toys.batch()
    columns = toys.columns_of(batch) | {"value": torch.zeros_like(batch.logp_old)}
    per_token = update.shaping[0](columns)
    credited = assign_credit(update, columns)
    torch.testing.assert_close(credited["token_penalty"], -(per_token + columns["token_reward"]) * batch.mask)
    whole = batch.reward + (per_token * batch.mask).sum(1) + (columns["token_reward"] * batch.mask).sum(1)
    torch.testing.assert_close(credited["reward"], whole)
    first = (batch.mask.cumsum(1) == 1) & batch.mask
    torch.testing.assert_close(credited["advantage"][first], whole)


def test_a_row_that_nobody_graded_is_fined_nothing():
    nothing = float("nan")
    assert paid([nothing] * 3) == [0, 0, 0] == paid([nothing] * 3, delta=False)
    assert paid([nothing, 0.25, 0.9], delta=False) == [0, -0.25, 0]


def test_an_unscored_row_keeps_what_its_tokens_are_paid():
    update = Update.of(Rlvr(steps=1, shaping=["clip_delta"], advantage="reinforce_pp"))
    batch = toys.batch()
    batch.scored[0] = False
    batch.step_potential = torch.zeros_like(batch.step_potential)
    columns = toys.columns_of(batch)
    credited = assign_credit(update, columns)
    assert torch.equal(credited["token_penalty"][0], -columns["token_reward"][0] * batch.mask[0])
    assert (credited["token_penalty"] != -columns["token_reward"] * batch.mask).any(1)[1:].any()


def test_what_compares_whole_rows_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"rlvr\.shaping: clip_delta pays single tokens.*reinforce_pp"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[clip_delta]", "rlvr.advantage=grpo"]))
    with pytest.raises(RecipeError, match=r"clip_delta needs step_potential.*process_model"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[clip_delta]", "rlvr.reward=verifier"]))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["clip_delta", "pspo_wrs"])
def test_a_run_with_an_endpoint(tmp_path, start, monkeypatch, preset):
    """The preset through the trainer; the judge grades by the length of what it is shown."""
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    with judge_server.running(lambda body: f"Grade: {1 + len(judge_server.parts(body)[3]) % 5}") as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        steps = {"kind": "exprl", "model": "judge", "separator": "l", "most": 4}
        reward = steps if preset == "pspo_wrs" else ["verifier", steps | {"weight": 0.0}]
        reward = f"rlvr.reward={json.dumps(reward)}"
        more = (f"presets=[{preset}]", reward, "rlvr.steps=2", "rlvr.group_size=16")
        made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more)
        before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
        made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    name = "reward_component/steps" if preset == "pspo_wrs" else "reward_component/exprl.steps"
    assert max(v[name] for v in history) > 1
    assert all(v["mismatch/max"] < 1e-4 for v in history)
    assert not torch.equal(before, torch.cat([p.detach().flatten() for p in made.learner.model.parameters()]))
