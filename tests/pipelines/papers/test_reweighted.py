"""Credits that scale the advantages of rows: negatives alone, adaptive negatives, parabola, first calls, record weights."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from provider_toys import provider_context
from toys import rough

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.records import Problem
from pipelines.papers.aspo import aspo
from pipelines.papers.avatar import avatar
from pipelines.papers.grpo_n import grpo_n
from pipelines.papers.gui_g1 import record_weight
from pipelines.papers.gui_libra import gui_libra
from pipelines.rlvr.advantage.grpo import grpo

FINITE = st.floats(-3, 3)


def grouped(rewards):
    r = torch.tensor(rewards)
    return r, torch.zeros(len(r)).long(), torch.ones(len(r)).bool()


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1.0, 0, 0, 0], [0.0, -0.499999, -0.499999, -0.499999]), ([1.0, 1, 1, 0], [0.0, 0, 0, -1.499997])],
)
def test_grpo_n_is_the_negative_part_of_grpo(rewards, expected):
    r, group, scored = grouped(rewards)
    made = grpo_n(grpo(r, group, scored)[:, None])
    torch.testing.assert_close(made[:, 0], torch.tensor(expected), atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("rewards", "base", "slope", "expected"),
    [
        ([1.0, 0, 0, 0], 0.5, 1.5, [1.499997, -0.437499, -0.437499, -0.437499]),
        ([1.0, 1, 1, 0], 0.5, 1.5, [0.499999, 0.499999, 0.499999, -1.499997]),
        ([1.0, 0, 0, 0], 0.5, 0.0, [1.499997, -0.25, -0.25, -0.25]),
        ([1.0, 0, 0, 0], 1.4, -0.5, [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1.0, 0, 0, 0], 0.5, -9.0, [1.499997, 0.0, 0.0, 0.0]),
    ],
)
def test_gui_libra_s_sheet(rewards, base, slope, expected):
    r, group, scored = grouped(rewards)
    made = gui_libra(grpo(r, group, scored)[:, None], r, group, scored, base=base, slope=slope)
    torch.testing.assert_close(made[:, 0], torch.tensor(expected), atol=5e-6, rtol=0)


@given(st.lists(st.tuples(FINITE, st.booleans()), min_size=1, max_size=8), st.floats(0, 2), st.floats(-2, 2))
def test_gui_libra_never_turns_a_sign_and_never_adds(rows, base, slope):
    advantage = torch.tensor([[a] for a, _ in rows])
    correct = torch.tensor([float(c) for _, c in rows])
    made = gui_libra(
        advantage, correct, torch.zeros(len(rows)).long(), torch.ones(len(rows)).bool(), base=base, slope=slope
    )
    assert (made.abs() <= advantage.abs() + 1e-6).all() and (made * advantage >= 0).all()
    assert torch.equal(made[advantage > 0], advantage[advantage > 0])


@pytest.mark.parametrize(
    ("strength", "expected"), [(1.0, [2.0, 1.25, 1.0, 1.25, 2.0]), (0.5, [1.5, 1.125, 1.0, 1.125, 1.5])]
)
def test_the_parabola(strength, expected):
    made = avatar(torch.ones(1, 5), torch.ones(1, 5).bool(), strength=strength)
    assert made[0].tolist() == pytest.approx(expected)


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.floats(0, 3))
def test_the_parabola_is_symmetric_over_the_trained_tokens(mask, strength):
    inside = torch.tensor([mask])
    made = avatar(torch.ones(1, len(mask)), inside, strength=strength)
    own = made[inside]
    torch.testing.assert_close(own, own.flip(0))
    assert (made[~inside] == 0).all()
    if len(own) == 1:
        assert own.item() == pytest.approx(1 + strength)
    scaled = avatar(torch.ones(1, len(mask)), inside, strength=strength, keep_scale=True)[inside]
    if len(own):
        assert scaled.mean().item() == pytest.approx(1.0, abs=1e-5)


def calls(first, length, correct, base):
    width = max(length)
    place = torch.arange(width)
    turn = torch.where(place < torch.tensor(first)[:, None], 0, 1)
    turn = torch.where(place < torch.tensor(length)[:, None], turn, -1)
    rows = len(first)
    return (
        base[:, None] * (turn >= 0), torch.tensor(correct), turn, torch.zeros(rows).long(), turn >= 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "expected"), [([100, 300, 500], [1.1, 0.7, 0.3]), ([20, 300, 880], [1.19, 0.9, 0.21])]
)
def test_aspo_s_sheet(first, expected):
    made = aspo(*calls(first, [1000, 800, 1200], [1.0] * 3, torch.full((3,), 0.7)))
    torch.testing.assert_close(made[:, 0], torch.tensor(expected), atol=1e-5, rtol=0)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 4), st.booleans()), min_size=1, max_size=6), st.floats(-3, 3)
)
def test_aspo_keeps_signs_and_others_alone(rows, delta):
    first, rest, correct = ([row[i] for row in rows] for i in range(3))
    base = torch.tensor([0.6 if c else -0.4 for c in correct])
    values = calls(first, [a + b for a, b in zip(first, rest, strict=True)], [float(c) for c in correct], base)
    made = aspo(*values, delta=delta, bound=0.7)[:, 0]
    used = torch.tensor(correct)
    assert torch.equal(made[~used], base[~used])
    assert ((made[used] >= 0.3 * 0.6 - 1e-5) & (made[used] <= 1.7 * 0.6 + 1e-5)).all()
    loose = aspo(*values, delta=0.01 * delta, bound=0.999)[:, 0]
    assert (loose - base).sum().item() == pytest.approx(0.0, abs=1e-5)
    assert torch.equal(aspo(*values, delta=0.0)[:, 0], base)


def test_a_row_without_a_call_has_no_first_call():
    made = aspo(*calls([2, 3, 4], [4, 6, 4], [1.0] * 3, torch.full((3,), 0.5)))
    assert made[2, 0] == 0.5 and made[0, 0] > 0.5 > made[1, 0]


def weighed(tmp_path, sizes, **settings):
    problems = {
        number: Problem(
            uid=f"{number:032x}",
            prompt=[],
            answer="",
            verifier="exact",
            source="s",
            licence="l",
            info={"size": size} if size is not None else {},
        )
        for number, size in enumerate(sizes)
    }
    part = record_weight(**settings)
    part.setup(dataclasses.replace(provider_context(tmp_path), problems=problems))
    columns = {"problem": torch.tensor([*range(len(sizes)), 99])}
    part.fill(torch.zeros(len(sizes) + 1, 2).long(), columns)
    return columns["record_weight"]


def test_records_weigh_the_inverse_of_their_size(tmp_path):
    expected = torch.tensor([2.285714, 0.571429, 0.142857, 1.0])
    torch.testing.assert_close(weighed(tmp_path, [0.01, 0.04, 0.16]), expected, atol=1e-6, rtol=0)
    milder = torch.tensor([1.714286, 0.857143, 0.428571, 1.0])
    torch.testing.assert_close(weighed(tmp_path, [0.01, 0.04, 0.16], power=0.5), milder, atol=1e-6, rtol=0)


def test_records_without_a_size_weigh_one(tmp_path):
    assert weighed(tmp_path, [None, "big", True, math.nan]).tolist() == [1.0] * 5
    tiny = weighed(tmp_path, [0.0, 1.0], smallest=0.5)
    torch.testing.assert_close(tiny, torch.tensor([4 / 3, 2 / 3, 1.0]))


def test_a_bound_of_one_would_let_a_correct_answer_go_to_nothing():
    with pytest.raises(RecipeError, match="bound"):
        bind("rlvr.credit", {"kind": "aspo", "bound": 1.0})


def test_the_parabola_of_one_token_and_of_none():
    made = avatar(torch.ones(2, 2), torch.tensor([[True, False], [False, False]]), strength=0.5, keep_scale=True)
    assert made.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert avatar(torch.ones(1, 1), torch.ones(1, 1).bool(), strength=0.5).item() == 1.5


@pytest.mark.parametrize("seed", range(4))
def test_aspo_against_a_loop(seed):
    """Holes between trained tokens, unscored rows, groups with one row that calls."""
    batch = rough(seed)
    base = (batch.correct - 0.3)[:, None] * batch.mask
    made = run_method("credit", {"kind": "aspo", "delta": -1.5}, batch, advantage=base)
    rows = range(len(made))
    calls = [
        r
        for r in rows
        if batch.correct[r] > 0 and any(t > 0 and m for t, m in zip(batch.turn[r], batch.mask[r], strict=True))
    ]
    first = {r: int(((batch.turn[r] == 0) & batch.mask[r]).sum()) for r in calls}
    for row in rows:
        same = [r for r in calls if batch.group[r] == batch.group[row]]
        shift = 0.0
        if row in calls:
            length = sum(int(batch.mask[r].sum()) for r in same) / len(same)
            shift = -1.5 * (first[row] - sum(first[r] for r in same) / len(same)) / length
            shift = max(-0.49, min(0.49, shift))
        torch.testing.assert_close(made[row], base[row] + shift * batch.mask[row], atol=1e-5, rtol=0)


def test_aspo_leaves_a_correct_row_that_is_punished_alone():
    values = calls([1, 3], [4, 4], [1.0, 1.0], torch.tensor([-0.5, 0.5]))
    assert aspo(*values)[0, 0] == -0.5
