"""SPA's rewards of turns: the sheet's values, and what they add up to."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import Update, assign_credit

SEEDS = st.integers(0, 5_000)


def spa(**settings):
    return bind("rlvr.shaping", {"kind": "spa", **settings})


def row(contributions, valid, earned):
    k = torch.arange(len(valid))[None]
    return {
        "reward": torch.tensor([sum(earned)]), "turn_reward": torch.tensor([earned]), "turn_progress": torch.tensor([contributions]),
        "turn_valid": torch.tensor([valid]), "turn": k, "mask": k >= 0, "step": 0,
    }  # fmt: skip


def test_the_sheets_values():
    """Executable, not, and the last: 0.5 for grounding each."""
    example = row([0.1, 0.3, 0.5], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    assert spa()(example)[0].tolist() == pytest.approx([0.6, 0.3, 1.0])
    assert spa(progress=2.0, grounding=0.0)(example)[0].tolist() == pytest.approx([0.2, 0.6, 1.0])
    assert spa(exact=True, grounding=0.0)(example)[0].sum() == pytest.approx(1)


def settings(**shaping):
    return Rlvr(
        prompts=4, steps=5, rollout={"kind": "multi_turn"}, shaping=[{"kind": "spa", **shaping}], advantage={"kind": "gigpo"}
    )  # fmt: skip


@pytest.mark.slow
@given(SEEDS, st.booleans(), st.floats(0, 2), st.floats(0, 2))
def test_a_row_s_reward_becomes_the_sum_of_what_its_turns_are_paid(seed, exact, progress, grounding):
    """Whatever it earned in its turns and beyond them; with `exact` the contributions add up to that."""
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.turn_reward = torch.randn(batch.turn_reward.shape, generator=draw) * (batch.turn_state >= 0)
    batch.reward = batch.turn_reward.sum(1) + torch.randn(len(batch.group), generator=draw)
    columns = columns_of(batch)
    made = assign_credit(Update.of(settings(exact=exact, progress=progress, grounding=grounding)), columns)
    torch.testing.assert_close(made["reward"], made["turn_reward"].sum(1), atol=1e-5, rtol=1e-4)
    for r in range(len(batch.group)):
        turns = sorted({int(k) for k in batch.turn[r][batch.mask[r]]})
        earned = sum(float(columns["turn_progress"][r, k]) for k in turns)
        valid = sum(float(columns["turn_valid"][r, k]) for k in turns)
        wanted = progress * (float(columns["reward"][r]) if exact else earned) + grounding * valid
        assert float(made["reward"][r]) == pytest.approx(wanted, abs=1e-4)


def test_while_it_warms_up_turns_are_paid_what_they_earned():
    example = row([0.1, 0.3], [1.0, 1.0], [0.0, 1.0])
    warm = spa(warmup=2)
    assert all(torch.equal(warm(example | {"step": s}), example["turn_reward"]) == (s < 2) for s in range(4))


def test_without_a_progress_model_it_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"spa needs turn_progress.*providers: \[progress\]"):
        check(
            read_recipe(
                toys.recipe(tmp_path),
                ["presets=[spa]", "rlvr.providers=[{kind: critic, at: turns, discount: 1.0, lam: 0.95}]"],
            )
        )
    with pytest.raises(RecipeError, match=r"multi_turn"):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[spa]", "rlvr.rollout=single_turn"]))
