"""Which of the starting policy's answers are rehearsed, and how."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import toys
from method_toys import answer
from toys import columns_of

from pipelines.contract.catalogue import bind


def setup(correct, **settings):
    """A replay after setup where problem i has the outcomes `correct[i]`."""

    def sample(numbers, count):
        return [
            answer(f"{n:015x}" + "0" * 17, place, str(i), score=float(outcome), correct=outcome)
            for place, n in enumerate(numbers)
            for i, outcome in enumerate(correct[n])
        ]

    replay = bind("rlvr.replay", {"kind": "dph_rl", **settings}).fn
    replay.setup(dataclasses.replace(toys.setup_context(list(range(len(correct)))), rollouts=sample))
    return replay


@pytest.mark.parametrize(("limit", "wanted"), [(2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_so_many_problems_are_asked_at_most(limit, wanted):
    replay = bind("rlvr.replay", {"kind": "dph_rl", "problems": limit, "samples": 5}).fn
    calls = []
    context = toys.setup_context([0, 1, 2])
    replay.setup(dataclasses.replace(context, rollouts=lambda numbers, count: calls.append((numbers, count)) or []))
    assert calls == [(wanted, 5)] and replay.rows == []


def test_problems_with_enough_correct_answers_keep_the_first_of_them():
    replay = setup([[False, True, True], [True, True, True], [False, True, False], []], solved=2)
    assert [int(row["problem"]) for row in replay.rows] == [0, 1]
    assert [row["correct"].item() for row in replay.rows] == [1.0, 1.0]


def test_stored_rows_end_with_their_last_trained_token():
    """Rows of 4 and 6 tokens are packed to 6 and stored without the padding; values of a row stay as they are."""
    replay = bind("rlvr.replay", {"kind": "dph_rl", "solved": 1}).fn
    short, long = (answer(f"{n:015x}" + "0" * 17, n, "x", score=1.0, correct=True) for n in (0, 1))
    short.tokens, short.role, short.logp_old = [1, 5, 6, 2], [0, 3, 3, 3], [0.0, -1.0, -2.0, -3.0]
    long.tokens, long.role, long.logp_old = [1, 5, 6, 7, 8, 2], [0, 3, 3, 3, 3, 4], [0.0, -1, -2, -3, -4, 0]
    replay.setup(dataclasses.replace(toys.setup_context([0, 1]), rollouts=lambda numbers, count: [short, long]))
    assert [row["token"].tolist() for row in replay.rows] == [[1, 5, 6, 2], [1, 5, 6, 7, 8]]
    assert [row["logp_old"].tolist() for row in replay.rows] == [[0, -1, -2, -3], [0, -1, -2, -3, -4]]
    assert all(row["reward"].shape == () and row["mask"].shape == row["token"].shape for row in replay.rows)


def test_rehearsed_rows_join_the_step_without_advantage_or_statistics():
    replay = setup([[True]] * 5, solved=1, rows=3)
    batch = toys.rough()
    columns = columns_of(batch) | {"advantage": torch.ones(batch.mask.shape)}
    (own,) = replay.updates(columns, torch.Generator().manual_seed(0))
    rows = len(batch.group)
    assert own.normalise_separately and not own.replayed and len(own.columns["group"]) == rows + 3
    assert len(own.columns["problem"][rows:].unique()) == 3, "drawn without replacement"
    assert not own.columns["advantage"][rows:].any() and (own.columns["advantage"][:rows] == 1).all()
    assert own.columns["scored"].tolist() == [*batch.scored.tolist(), False, False, False]
    assert own.columns["in_loss"][rows:].all() and own.columns["mask"][rows:].any(1).all()


def test_without_stored_rows_the_step_is_its_own():
    replay = setup([[False]], solved=1)
    columns = columns_of(toys.batch())
    (own,) = replay.updates(columns, torch.Generator())
    assert own.columns is columns and not own.normalise_separately
