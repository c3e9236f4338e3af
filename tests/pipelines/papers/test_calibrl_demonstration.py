"""The demonstration's log-probabilities beside each rollout's tokens."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.base.errors import RecipeError
from pipelines.data.records import Role
from pipelines.papers.calibrl import demonstration
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

NAN = torch.nan


def filled(mask, forced, group, logp):
    mask, forced = torch.tensor(mask).bool(), torch.tensor(forced).bool()
    columns = {
        "mask": mask,
        "teacher_forced": mask & forced[:, None],
        "group": torch.tensor(group),
        "logp_old": torch.tensor(logp),
    }
    demonstration().fill(torch.zeros(mask.shape), columns)
    return columns["logp_demonstration"]


def test_the_nth_trained_token_faces_the_nth_one():
    """Row 1 begins later and has a hole, row 2 is longer than the demonstration, row 4's group has none, 3 and 5 demonstrate."""
    mask = [[0, 1, 1, 0], [0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    mask[1] = [0, 1, 0, 1]
    logp = [[0.0] * 4, [0.0] * 4, [0.0] * 4, [0.0, -1.0, -2.0, -9.0], [0.0] * 4, [0.0, -3.0, -4.0, -5.0]]
    made = filled(mask, [0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 2, 3], logp)
    expected = [[NAN, -1, -2, NAN], [NAN, -1, NAN, -2], [NAN, -1, -2, NAN], [NAN] * 4, [NAN] * 4, [NAN] * 4]
    torch.testing.assert_close(made, torch.tensor(expected), equal_nan=True)


def test_of_several_demonstrations_the_first_counts_whole():
    mask = [[0, 1, 1], [0, 1, 0], [0, 1, 1]]
    made = filled(mask, [0, 1, 1], [0, 0, 0], [[0.0] * 3, [0.0, -1.0, 0.0], [0.0, -2.0, -3.0]])
    torch.testing.assert_close(made[0], torch.tensor([NAN, -1.0, NAN]), equal_nan=True)


def test_without_demonstrations_the_recipe_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"needs teacher_forced.*rollout: demonstrated"):
        check(read_recipe(toys.recipe(tmp_path), ["rlvr.auxiliary_loss=[{kind: calibrl, weight: 0.1}]"]))
    for rollout in ("seele", "noisy"):  # teacher-forced tokens of another kind: hints, and answers of the policy's own
        with pytest.raises(RecipeError, match="calibrl needs rollout: demonstrated"):
            check(read_recipe(toys.recipe(tmp_path), ["presets=[calibrl]", f"rlvr.rollout={rollout}"]))


def test_in_a_run_it_is_the_policy_s_own_view_of_the_solution(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[calibrl]", "rlvr.steps=1")
    rows, _ = made.collect(0)
    columns = made._pack(rows, 0)
    made.learner.fill(columns["token"], columns)
    compared = 0
    for index, row in enumerate(rows):
        [demo] = [i for i, r in enumerate(rows) if r.group == row.group and int(Role.TEACHER_FORCED) in r.role]
        values = columns["logp_demonstration"][index][columns["mask"][index]]
        theirs = columns["logp_old"][demo][columns["mask"][demo]]
        if index == demo:
            assert values.isnan().all()
            continue
        both = min(len(values), len(theirs))
        torch.testing.assert_close(values[:both], theirs[:both])
        assert values[both:].isnan().all() and (values[:both] < 0).all()
        compared += both
    assert compared > 8
