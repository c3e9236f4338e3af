"""XPO: pairs of an answer of the policy's and one of the starting model's."""

from __future__ import annotations

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.data.records import Role


def computed(rewards, groups, from_start, *, order=None, **settings):
    """Mean loss over the rows, and its derivative by each row's log-probability; rows of one token."""
    draw = torch.Generator().manual_seed(3)
    logp = -torch.rand(len(rewards), 1, generator=draw, dtype=torch.float64)
    columns = {
        "logp": logp, "logp_ref": logp - 0.2 * torch.rand(logp.shape, generator=draw), "mask": torch.ones_like(logp).bool(),
        "teacher_forced": torch.tensor(from_start)[:, None], "reward": torch.tensor(rewards), "group": torch.tensor(groups),
        "in_loss": torch.ones(len(rewards)).bool(),
    }  # fmt: skip
    columns = {name: value[order] if order is not None else value for name, value in columns.items()}
    columns["logp"] = columns["logp"].clone().requires_grad_()
    loss = bind("rlvr.objective", {"kind": "xpo", **settings})(columns).mean()
    loss.backward()
    return float(loss.detach()), columns["logp"].grad.flatten()


@given(st.permutations(range(6)), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6))
def test_the_order_of_the_rows_says_nothing(order, rewards):
    groups, from_start = [0, 0, 0, 1, 1, 1], [False, True, True, False, False, True]
    loss, gradient = computed(rewards, groups, from_start, alpha=0.3)
    again, shuffled = computed(rewards, groups, from_start, alpha=0.3, order=torch.tensor(order))
    assert abs(loss - again) < 1e-12 and torch.allclose(gradient[list(order)], shuffled)


def test_answers_of_one_model_are_not_compared():
    _, gradient = computed([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], [False, False, True, True], alpha=0.0)
    assert not gradient.any()
    _, gradient = computed([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], [False, True, False, True], alpha=0.0)
    assert gradient[0] < 0 < gradient[1] and gradient[3] < 0 < gradient[2]


def test_optimism_moves_away_from_the_starting_model_whatever_the_rewards():
    """The derivative of the mean over groups of the mean over its answers: alpha over groups and answers."""
    _, gradient = computed([1.0] * 6, [0, 0, 0, 1, 1, 1], [False, True, True, False, False, True], alpha=0.5)
    assert torch.allclose(gradient, torch.tensor([0.0, 0.125, 0.125, 0.0, 0.0, 0.25], dtype=torch.float64))


def test_a_step_has_answers_of_both_models(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[xpo]", "rlvr.group_size=1")
    _, rows = made.collect(0)
    kinds = [Role.TEACHER_FORCED in row.role for row in rows]
    assert kinds == [False, True] * made.settings.prompts and all(row.score is not None for row in rows)
    assert [row.group for row in rows[::2]] == [row.group for row in rows[1::2]]
