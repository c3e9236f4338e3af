"""ARES: counts of unsure windows against targets by difficulty."""

from __future__ import annotations

import json
import math

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.papers.ares import SCALE, ares, score, segment_starts, window_entropies
from pipelines.rlvr.ops import accuracy_band


@pytest.mark.parametrize(
    ("band", "correct", "count", "expected"),
    [(0, 1, 18, -0.5), (1, 1, 4, -0.181818), (2, 1, 14, 0.554485), (2, 1, 2, -0.1), (0, 0, 10, 0.15), (2, 0, 20, 0.538330)],
)  # fmt: skip
def test_the_sheet_s_scores(band, correct, count, expected):
    assert score(band, bool(correct), count, 10, 0.5) == pytest.approx(expected, abs=1e-6)


def test_parabolas_and_bounds_by_hand():
    assert score(0, True, 13, 10, 0.5) == pytest.approx(-(1.5**2) / 4 / 3.5 * 0.5)
    assert score(1, True, 13, 10, 0.5) == pytest.approx(-(0.5**2) / 6 / 5.5 * 0.5)
    assert score(2, True, 4, 10, 0.5) == pytest.approx(-0.5 * 2.5**2 / 8 / 7.5 * 0.6)
    assert score(0, True, 0, 10, 0.5) == 0 == score(1, True, 8, 10, 0.5), "few are no fault where it is easy"
    assert score(2, True, 13, 20, 0.5) == pytest.approx(0.3), "the margin itself is still paid"
    assert score(2, True, 10, 10, 0.5) == pytest.approx(0.6 / (1 + math.exp(-3.5 / 3)))


def test_the_strength_of_medium_groups_moves_as_that_of_easy_ones():
    part = ares(window=2)
    part(**columns([2, 2], [1.0, 0.0], [0, 0]))
    part(**columns([4, 4], [1.0, 0.0], [0, 0]))
    assert part.strengths == pytest.approx([0.5, 0.6, 0.5])


@given(st.integers(0, 2), st.booleans(), st.integers(0, 60), st.integers(0, 40), st.floats(0, 2))
def test_scores_are_capped_and_move_one_way(band, correct, count, target, strength):
    value = score(band, correct, count, target, strength)
    assert abs(value) <= strength * SCALE[band] + 1e-12
    further = score(band, correct, count + 1, target, strength)
    if correct and band == 0:
        assert further <= value + 1e-12
    if correct and band == 2:
        assert further >= value - 1e-12
    if not correct:
        assert further >= value - 1e-12 and value >= 0


def columns(counts, correct, groups, window=2):
    """Rows with so many unsure windows (entropy 2) and two sure ones (entropy 0), after a prompt of one token."""
    width = 1 + (max(counts) + 2) * (window + 1)
    segment = torch.full((len(counts), width), -1)
    entropy = torch.zeros(len(counts), width)
    for row, count in enumerate(counts):
        for block in range(count + 2):
            at = 1 + block * (window + 1)
            segment[row, at : at + window + 1] = block + 1
            entropy[row, at + 1 : at + window + 1] = 2.0 if block < count else 0.0
    r = torch.tensor(correct)
    return {
        "reward": r, "correct": r.clone(), "group": torch.tensor(groups), "scored": torch.ones(len(counts)).bool(),
        "mask": segment >= 0, "segment": segment, "entropy_old": entropy,
    }  # fmt: skip


def test_steps_by_hand():
    part = ares(window=2)
    given = columns([3, 5, 2, 0, 1], [1.0, 1.0, 0.0, 0.0, 0.0], [0, 0, 0, 1, 1])
    # group 0 is easy with a mean of 10/3, group 1 hard with a mean of 1/2: targets of the next step
    assert torch.equal(part(**given), given["reward"])
    assert part.threshold == pytest.approx(2.0) and part.strengths == [0.5] * 3
    assert part.targets[1] is None and part.targets[::2] == pytest.approx([10 / 3, 0.5])
    given = columns([6, 5, 7, 3, 4], [1.0, 1.0, 0.0, 0.0, 0.0], [0, 0, 0, 1, 1])
    shaped = part(**given)
    easy, hard = 0.5 + 0.05 * (6 - 10 / 3), 0.5 - 0.05 * 3
    assert part.strengths == pytest.approx([easy, 0.5, hard])
    assert part.targets[::2] == pytest.approx([0.9 * 10 / 3 + 0.6, 0.9 * 0.5 + 0.35])
    expected = [
        score(0, True, 6, 3, easy), score(0, True, 5, 3, easy), score(0, False, 7, 3, easy),
        score(2, False, 3, 0, hard), score(2, False, 4, 0, hard),
    ]  # fmt: skip
    assert (shaped - given["reward"]).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_threshold_follows_slowly():
    part = ares(window=2, decay=0.5)
    part(**columns([9], [1.0], [0]))
    sure = columns([9], [1.0], [0])
    sure["entropy_old"] /= 2
    shaped = part(**sure)
    assert part.threshold == pytest.approx(1.5)
    assert float(shaped) == pytest.approx(1 + score(0, True, 0, 9, part.strengths[0]), abs=1e-6), (
        "none is unsure enough"
    )


def test_state_survives_a_restart():
    one, two = ares(window=2), ares(window=2)
    first, second = columns([3, 0], [1.0, 1.0], [0, 0]), columns([1, 9], [1.0, 1.0], [0, 0])
    one(**first)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    shaped = one(**second)
    assert shaped.tolist() == two(**second).tolist() != second["reward"].tolist()
    assert one.state_dict() == two.state_dict()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("window", [1, 3])
def test_windows_and_starts_against_a_loop(seed, window):
    batch = toys.rough(seed)
    draw = torch.Generator().manual_seed(seed)
    entropy = torch.rand(batch.mask.shape, generator=draw)
    segment = torch.randint(0, 3, batch.mask.shape, generator=draw)
    windows, starts = window_entropies(entropy, batch.mask, window), segment_starts(segment, batch.mask)
    for row in range(len(batch.mask)):
        places = batch.mask[row].nonzero().squeeze(1).tolist()
        assert windows[row][~batch.mask[row]].isnan().all() and not starts[row][~batch.mask[row]].any()
        for index, place in enumerate(places):
            following = places[index + 1 : index + 1 + window]
            mean = sum(float(entropy[row, p]) for p in following) / window if len(following) == window else math.nan
            assert float(windows[row, place]) == pytest.approx(mean, nan_ok=True)
            before = int(segment[row, places[index - 1]]) if index else -1
            assert bool(starts[row, place]) == (int(segment[row, place]) not in (0, before))


def test_nothing_to_follow_changes_nothing():
    part = ares()
    batch = toys.batch()
    given = {k: v for k, v in columns_of(batch).items() if k in ("reward", "correct", "group", "mask")}
    nothing = torch.zeros_like(batch.scored)
    made = part(**given, scored=nothing, segment=batch.turn, entropy_old=torch.rand(batch.mask.shape))
    assert made.tolist() == batch.reward.tolist() and part.state_dict() == ares().state_dict()


def test_bands_have_their_lower_bounds():
    correct = torch.tensor([1.0, 1, 0, 1, 0, 0, 0, 0, 0, 1])
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    assert accuracy_band(correct, group, torch.ones(10).bool()).tolist() == [0] * 3 + [1] * 3 + [2] * 4
    scored = torch.tensor([True] * 6 + [True, False, False, True])
    assert accuracy_band(correct, group, scored)[6:].tolist() == [1] * 4
