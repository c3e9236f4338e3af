"""The implicit process reward model's cross-entropy, on a model of random weights."""

from __future__ import annotations

import copy

import pytest
import torch
from provider_toys import provider_context, rows

from pipelines.contract.catalogue import bind


def prm(tmp_path, **settings):
    part = bind("rlvr.providers", {"kind": "implicit_prm", "beta": 0.5, "max_grad_norm": 1e9, **settings}).fn
    part.setup(provider_context(tmp_path))
    return part


def moved(part):
    """Its model, away from where it started."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in part.model.model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return part


def test_its_step_is_the_gradient_of_the_cross_entropy(tmp_path):
    """A score of exactly 1/2 counts as 0, the unscored row as nothing."""
    part = moved(prm(tmp_path, update_first=False))
    tokens, columns = rows()
    mask, scored = columns["mask"], columns["scored"]
    slow = copy.deepcopy(part.model)
    reference = part.reference.logp(tokens, mask).logp.detach()
    score = 0.5 * ((slow.logp(tokens, mask).logp - reference) * mask).sum(1)
    outcome = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score[scored], outcome[scored])
    loss.backward()
    gradients = []
    part.optimizer.step = lambda: gradients.append([p.grad.clone() for p in part.model.model.parameters()])
    metrics = part.update(tokens, columns)
    assert metrics["prm/loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics["prm/accuracy"] == pytest.approx(float(((score > 0) == (outcome > 0))[scored].float().mean()))
    for fast, weight in zip(gradients[0], slow.model.parameters(), strict=True):
        torch.testing.assert_close(fast, weight.grad, atol=1e-6, rtol=1e-3)


def test_what_it_fills_in_is_the_log_ratio_to_the_start(tmp_path):
    part = moved(prm(tmp_path, update_first=False))
    tokens, columns = rows()
    mask = columns["mask"]
    part.fill(tokens, columns)
    ratio = part.model.logp(tokens, mask).logp.detach() - part.reference.logp(tokens, mask).logp.detach()
    torch.testing.assert_close(columns["process_reward"], 0.5 * ratio * mask, atol=1e-5, rtol=1e-4)
    assert columns["process_reward"].abs().max() > 0.01


def test_before_it_learns_it_calls_every_row_incorrect(tmp_path):
    """All scores are 0, which is not above 0: of five scored rows the three incorrect ones are judged as they were."""
    part = prm(tmp_path, update_first=True)
    tokens, columns = rows()
    part.fill(tokens, columns)
    metrics = part.update(tokens, columns)
    assert metrics["prm/accuracy"] == pytest.approx(0.6) and metrics["prm/loss"] == pytest.approx(0.693147, abs=1e-4)
    columns["raw_reward"] = torch.full((6,), 0.5)
    part = prm(tmp_path)
    part.fill(tokens, columns)
    assert part.update(tokens, columns)["prm/accuracy"] == 1.0


def test_large_scores_count_by_their_sign(tmp_path):
    """Scores between 0 and 1 count as correct, those between -1 and 0 as incorrect."""
    part = moved(prm(tmp_path, update_first=False, beta=0.02))
    tokens, columns = rows()
    mask = columns["mask"]
    ratio = part.model.logp(tokens, mask).logp - part.reference.logp(tokens, mask).logp
    score = (0.02 * ratio.detach() * mask).sum(1)
    assert score.abs().max() < 1 and (score > 0).any() and (score[columns["scored"]] < 0).any()
    columns["raw_reward"] = (score > 0).float()
    assert part.update(tokens, columns)["prm/accuracy"] == 1.0


def test_a_step_without_scored_rows_teaches_nothing(tmp_path):
    part = prm(tmp_path, update_first=False)
    tokens, columns = rows()
    columns |= {"scored": columns["scored"] & False, "mask": columns["mask"] & False}
    before = copy.deepcopy(part.model.model.state_dict())
    assert part.update(tokens, columns) == {}
    assert all(torch.equal(weight, before[name]) for name, weight in part.model.model.state_dict().items())
