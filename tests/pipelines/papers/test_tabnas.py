"""TabNAS: rejected rows, and the gradient of the policy that is left."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import toys
from scripted import answered

from pipelines.contract.catalogue import bind
from pipelines.data.records import Stop
from pipelines.rlvr.pack import pack

ROWS = list(product(range(3), range(2)))
"""All answers: two tokens, of three and of two kinds."""
REWARD = torch.tensor([0.2, 1.0, -0.5, 0.7, 0.0, 0.4], dtype=torch.float64)
VALID = torch.tensor([True, True, False, True, False, True])
GROUP = 3


def log_probs(theta):
    first, second = torch.log_softmax(theta[:3], 0), torch.log_softmax(theta[3:].view(3, 2), 1)
    return torch.stack([first[a] + second[a, b] for a, b in ROWS])


def enumerated(advantage):
    """The mean gradient over the rows of a group, for all groups that can be drawn: number of valid rows → (gradient, exact)."""
    theta = torch.tensor([0.3, -0.2, 0.5, 0.1, -0.4, 0.8, 0.0, -0.6, 0.2], dtype=torch.float64, requires_grad=True)
    logp = log_probs(theta)
    slopes = torch.stack([torch.autograd.grad(one, theta, retain_graph=True)[0] for one in logp])
    weights = (logp.exp() * VALID) / (logp.exp() * VALID).sum()
    (exact,) = torch.autograd.grad((weights * REWARD).sum(), theta)
    compare = bind("rlvr.advantage", advantage)
    sums, mass = torch.zeros(GROUP + 1, len(theta), dtype=torch.float64), torch.zeros(GROUP + 1, dtype=torch.float64)
    for drawn in product(range(len(ROWS)), repeat=GROUP):
        rows = torch.tensor(drawn)
        kept = bind("rlvr.filter", "valid")(
            {"parsable": VALID[rows], "truncated": ~VALID[rows], "length": torch.full((GROUP,), 2.0)}
        )
        columns = {"reward": REWARD[rows], "group": torch.zeros(GROUP).long(), "scored": kept}
        values = (compare(columns).double() * kept)[:, None] * slopes[rows]
        chance, count = float(logp[rows].sum().exp()), int(kept.sum())
        sums[count] += chance * values.sum(0) / max(1, count)
        mass[count] += chance
    assert float(mass.sum()) == pytest.approx(1)
    return {count: sums[count] / mass[count] for count in range(GROUP + 1)}, exact


def test_the_gradient_is_that_of_the_policy_that_draws_until_a_row_is_valid():
    by_count, exact = enumerated("rloo")
    for count in (2, 3):
        torch.testing.assert_close(by_count[count], exact, atol=1e-6, rtol=1e-5)
    assert not by_count[0].any() and not by_count[1].any() and exact.abs().max() > 0.01


def test_the_group_s_mean_has_the_same_direction():
    by_count, exact = enumerated({"kind": "grpo", "scale": "none"})
    for count in (2, 3):
        torch.testing.assert_close(by_count[count], exact * (count - 1) / count, atol=1e-6, rtol=1e-5)


def test_what_is_valid():
    rows = [
        answered("a", "1", score=1.0, correct=True, status="correct"),
        answered("a", "2", score=0.0, correct=False, status="incorrect"),
        answered("a", "?", score=0.0, correct=False, status="unparsable"),
        answered("a", "12", Stop.LENGTH, score=1.0, correct=True, status="correct"),
    ]
    columns = pack(rows, step=0, total_steps=1)
    assert bind("rlvr.filter", "valid")(columns).tolist() == [True, True, False, False]
    longest = {"kind": "valid", "longest": 1}
    assert columns["length"][0] == 2 and not bind("rlvr.filter", longest)(columns).any()


def test_rejected_rows_are_in_no_statistic_of_the_step(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[tabnas]", "rlvr.sampling.max_tokens=4")
    metrics = made.step(0)
    assert metrics["rollout/truncated_share"] > 0 and "optimizer/grad_norm" in metrics
    columns = made.collector.filtered(made._pack(made.collect(1)[1], 1))
    rejected = columns["truncated"] | ~columns["parsable"]
    assert rejected.any() and not (columns["scored"] & rejected).any() and not columns["mask"][rejected].any()
