"""ReCOIL's dual against a loop, and against its primal on a task small enough to solve both."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from loops import tokens
from method_toys import rows_of, with_demonstrations
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe


def recoil(columns, **settings):
    return bind("rlvr.objective", {"kind": "recoil", **settings})(columns)


@given(st.integers(0, 5_000), st.floats(0.05, 1), st.floats(0.05, 5))
def test_against_a_loop(seed, share, temperature):
    """A group of three answers and a demonstration, one without the demonstration, one without answers, one with two demonstrations."""
    batch, demo = with_demonstrations(seed)
    batch.in_loss = ~torch.isin(torch.arange(16), torch.tensor([1, 7, 8, 9, 10]))
    demo[14] = True
    batch.teacher_forced = batch.mask & demo[:, None]
    logp = batch.logp_old + 0.5 * (batch.entropy_old - 0.5)
    made = recoil(columns_of(batch) | {"logp": logp}, share=share, temperature=temperature)
    ratios = [sum(float(logp[r, t] - batch.logp_ref[r, t]) for t in tokens(batch, r)) for r in range(16)]
    for number in range(4):
        rows = [r for r in rows_of(batch, number) if batch.in_loss[r]]
        shown, others = [r for r in rows if demo[r]], [r for r in rows if not demo[r]]
        expected = 0.0
        if shown:
            beta = share if others else 1.0
            weight = {r: beta / len(shown) if demo[r] else (1 - beta) / len(others) for r in rows}
            mean = sum(weight[r] * ratios[r] for r in rows)
            variance = sum(weight[r] * (ratios[r] - mean) ** 2 for r in rows)
            expected = temperature / (4 * share) * variance - sum(ratios[r] for r in shown) / len(shown)
        for r in rows_of(batch, number):
            own = made[r, tokens(batch, r)].tolist()
            assert own == pytest.approx([expected] * len(own), rel=1e-4, abs=1e-4)
    assert (made[~batch.mask] == 0).all()


DEMONSTRATED, OTHERS = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 3, 3, 4])
"""The answers, out of five, of a group's demonstrations and of its other rows: these do not cover answer 0."""


def primal(reference, share, temperature):
    """The policy that the paper's primal asks for, and its value, by descent on the simplex."""
    shown, others = (torch.bincount(rows, minlength=5).double() / len(rows) for rows in (DEMONSTRATED, OTHERS))
    mixture = share * shown + (1 - share) * others
    policy = torch.full((5,), 0.2, dtype=torch.float64)
    for _ in range(4000):
        slope = share * temperature * (policy / reference).log() + 2 * share**2 * (policy - shown) / mixture
        policy = (policy.log() - 0.1 * slope).softmax(0)
    divergence = (policy * (policy / reference).log()).sum()
    return policy, share * temperature * divergence + (share**2 * (policy - shown) ** 2 / mixture).sum()


@pytest.mark.parametrize(("share", "temperature"), [(0.5, 1.0), (0.5, 0.2), (0.8, 2.0)])
def test_its_minimum_is_the_policy_of_the_primal(share, temperature):
    reference = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1], dtype=torch.float64)
    answers = torch.cat([DEMONSTRATED, OTHERS])
    one = torch.ones(len(answers), 1).bool()
    columns = {
        "mask": one, "loss_share": one.float(), "in_loss": one[:, 0], "group": torch.zeros(len(answers)).long(),
        "teacher_forced": (torch.arange(len(answers)) < len(DEMONSTRATED))[:, None], "logp_ref": reference.log()[answers][:, None],
    }  # fmt: skip
    weight = bind("rlvr.loss_aggregation", "row_mean")(columns)
    logits = reference.log().clone().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        logp = logits.log_softmax(0)[answers][:, None]
        total = (recoil(columns | {"logp": logp}, share=share, temperature=temperature) * weight).sum()
        total.backward()
        return total

    optimizer.step(loss)
    best, value = primal(reference, share, temperature)
    torch.testing.assert_close(logits.detach().softmax(0), best, atol=1e-4, rtol=0)
    assert share * temperature * loss().item() == pytest.approx(-value.item(), abs=1e-6), (
        "no gap between dual and primal"
    )
    assert best[0] > reference[0] + 0.1 and best[2] < reference[2] - 0.1, (
        "demonstrations rise, and what only others say falls"
    )


def test_a_demonstration_alone_is_sft():
    one = torch.ones(2, 1).bool()
    logp = torch.tensor([[-1.0], [-3.0]], requires_grad=True)
    columns = {
        "mask": one,
        "teacher_forced": one,
        "group": torch.arange(2),
        "in_loss": one[:, 0],
        "logp_ref": torch.full((2, 1), -2.0),
    }
    recoil(columns | {"logp": logp}, temperature=9.0).sum().backward()
    assert logp.grad.tolist() == [[-1.0], [-1.0]]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.rollout=single_turn"], "needs teacher_forced"),
        (["rlvr.divergence=k3"], "recoil holds the policy near the reference by itself"),
        (["rlvr.rollout=stored_demonstrated"], "reads stored completions"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), ["presets=[recoil]", *overrides]))
