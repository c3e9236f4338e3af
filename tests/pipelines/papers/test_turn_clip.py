"""ST-PPO: what clipping discards, and the division of an update's gradient by its norm."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind

TURNS = ("rlvr.rollout={kind: multi_turn, max_turns: 3}", "rlvr.sampling.max_tokens=6")


def step(seed, spread):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    logp = batch.logp_old + spread * torch.randn(batch.mask.shape, generator=draw)
    advantage = torch.randn(batch.mask.shape, generator=draw) * batch.mask
    return columns_of(batch) | {"logp": logp.requires_grad_(), "advantage": advantage}


@given(st.integers(0, 5_000), st.sampled_from(["turn", "token"]))
def test_the_clipped_gradient_and_what_it_discards_are_the_off_policy_gradient(seed, level):
    columns = step(seed, 0.4)
    part, whole = (
        bind("rlvr.objective", {"kind": "st_ppo", "level": level}),
        {"kind": "st_ppo", "level": level, "low": 1, "high": 1e9},
    )
    losses = part(columns), part.fn.divisor_loss(columns), bind("rlvr.objective", whole)(columns)
    kept, discarded, wanted = (torch.autograd.grad(loss.sum(), columns["logp"])[0] for loss in losses)
    torch.testing.assert_close(kept + discarded, wanted)
    assert not (kept * discarded).any() and not discarded[~columns["mask"]].any()
    other = "turn_clip" if level == "turn" else "clip"
    torch.testing.assert_close(losses[0], bind("rlvr.objective", other)(columns) * columns["mask"])


def test_nothing_is_discarded_on_policy():
    part, columns = bind("rlvr.objective", "st_ppo"), step(0, 0.0)
    assert not part.fn.divisor_loss(columns).any()


@pytest.mark.slow
def test_an_update_is_divided_by_the_norm_of_what_clipping_discards(tmp_path, lake):
    """Both runs have equal weights at the second update of the step, so that their gradients differ by the divisor alone."""
    shown = {}
    for kind in ("turn_clip", "st_ppo", "st_ppo, least: 1.0e-6"):
        (folder := tmp_path / str(len(shown))).mkdir()
        more = (
            *TURNS, "presets=[st_ppo]", TURNS[0], "rlvr.steps=1", "rlvr.mini_batches=2", "rlvr.divergence=null",
            "rlvr.optimizer.learning_rate=0.05", "rlvr.optimizer.warmup=0", f"rlvr.objective={{kind: {kind}, low: 0.01, high: 0.01}}",
            "rlvr.providers=[{kind: critic, learning_rate: 1.0e-4, discount: 0.99}]",
        )  # fmt: skip
        toys.trainer(folder, lake, toys.lake(folder), *more).run()
        shown[kind] = toys.history(folder / "work")[0][1]
    plain, least_one, least_zero = shown.values()
    discarded = least_one["optimizer/clipping_bias"]
    assert discarded > 0 and discarded == pytest.approx(least_zero["optimizer/clipping_bias"], rel=2e-2)
    assert least_one["optimizer/grad_norm"] == pytest.approx(plain["optimizer/grad_norm"] / max(1, discarded), rel=2e-2)
    assert least_zero["optimizer/grad_norm"] == pytest.approx(plain["optimizer/grad_norm"] / discarded, rel=2e-2)
