"""ARES: KL weights by difficulty."""

from __future__ import annotations

import json
import math

import pytest
import torch

from pipelines.contract.catalogue import bind
from pipelines.papers.ares import ares_divergence as ares


def columns(gap, **more):
    """Two problems: one easy, whose log-probs lie `gap` from the reference's, and a hard one at the reference."""
    logp = torch.full((4, 3), -1.0)
    reference = logp.clone()
    reference[:2] -= gap
    given = {
        "problem": torch.tensor([5, 5, 7, 7]), "correct": torch.tensor([1.0, 1, 0, 0]), "scored": torch.ones(4).bool(),
        "on_policy": torch.ones(4).bool(), "replayed": torch.zeros(4).bool(),
        "mask": torch.tensor([[False, True, True]] * 4), "logp_old": logp, "logp_ref": reference,
    }  # fmt: skip
    return given | more


def test_a_difficulty_that_drifts_is_held_tighter_by_hand():
    part = ares(target=0.01, rate=0.05, decay=0.5)
    part.on_batch(columns(0.5))
    kl = math.exp(-0.5) + 0.5 - 1
    error = 0.5 * (kl / 0.01 - 1)
    assert part.kl == [pytest.approx(kl, rel=1e-5), None, pytest.approx(0)] and error > 0.2
    assert part.errors == pytest.approx([error, 0, -0.5], rel=1e-5)
    assert part.log_betas == pytest.approx([0.05 * 0.2, 0, -0.05 * 0.2])
    value = part(torch.zeros(3, 1) - 1, torch.zeros(3, 1) - 1.5, torch.tensor([5, 7, 9]))
    assert value[:, 0].tolist() == pytest.approx([kl * math.exp(0.01), kl * math.exp(-0.01), kl], rel=1e-5)


def test_a_small_error_moves_nothing():
    kl = math.exp(-0.5) + 0.5 - 1
    part = ares(target=kl * 1.01)
    part.on_batch(columns(0.5))
    assert part.log_betas[0] == part.errors[0] == 0.0


def test_weights_stay_in_their_bounds_and_smoothing_is_slow():
    part = ares(rate=10, decay=0.0)
    for _ in range(9):
        part.on_batch(columns(2.0))
    assert part.log_betas == pytest.approx([math.log(1e2), 0, math.log(1e-4)])
    slow = ares(decay=0.75)
    slow.on_batch(columns(0.5))
    before = slow.kl[0]
    slow.on_batch(columns(0.2))
    assert slow.kl[0] == pytest.approx(0.75 * before + 0.25 * (math.exp(-0.2) + 0.2 - 1), rel=1e-5)


def test_only_scored_rows_of_the_step_and_trained_tokens_are_measured():
    plain, hostile = ares(), ares()
    plain.on_batch(columns(0.5))
    given = columns(0.5)
    rows = {name: torch.cat([value, value[:2]]) for name, value in given.items()}
    rows["correct"][4:], rows["problem"][5] = 1.0, 7
    rows["scored"][4], rows["on_policy"][5], rows["replayed"][5] = False, False, True
    rows["logp_ref"][4:] = math.nan
    rows["logp_ref"][:, 0] = math.nan
    hostile.on_batch(rows)
    assert hostile.state_dict() == plain.state_dict()


def test_rows_of_older_weights_say_how_hard_a_problem_is_and_nothing_of_the_policy():
    """Such as rows that a schedule carried over: problem 9 has no others."""
    plain, part = ares(), ares()
    plain.on_batch(columns(0.5))
    rows = {name: torch.cat([value, value[:2]]) for name, value in columns(0.5).items()}
    rows["problem"][4:], rows["on_policy"][4:], rows["logp_ref"][4:] = 9, False, math.nan
    part.on_batch(rows)
    assert part.bands == {5: 0, 7: 2, 9: 0} and part.log_betas == plain.log_betas and part.kl == plain.kl
    rows["replayed"][4:] = True
    again = ares()
    again.on_batch(rows)
    assert again.state_dict() == plain.state_dict()


def test_state_survives_a_restart():
    one, two = ares(), ares()
    one.on_batch(columns(0.3))
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert one.state_dict() == two.state_dict() and two.bands == {5: 0, 7: 2}


def test_it_is_k3_with_equal_weights():
    logp, reference = torch.randn(4, 3), torch.randn(4, 3)
    problem = torch.arange(4)
    assert torch.equal(
        bind("rlvr.divergence", "ares").fn(logp, reference, problem),
        bind("rlvr.divergence", "k3")({"logp": logp, "logp_ref": reference}),
    )
