"""Any loss over log-probabilities is one weight a token: gradients through a remote policy are those of the local learner."""

from __future__ import annotations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from preset_toys import ALONE, fitting
from tinker_server import Direct

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.engine import loop, optimizer
from pipelines.engine.in_process import InProcess
from pipelines.engine.layout import padded_layouts
from pipelines.engine.policy import Policy
from pipelines.engine.tinker.policy import RemotePolicy, rows_of
from pipelines.recipe.engine_checks import refusals
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.learner import Learner


class Mirror(InProcess):
    """Weights here, and every pass by way of a session."""

    def policy(self, model, sampling, *, dtype):
        return RemotePolicy(model, Direct(Policy(model, Sampling(), dtype=dtype)), None, sampling)


class Found(Exception):
    """Ends a run when its first update was compared."""


def first_gradients(monkeypatch, tmp_path, start, *overrides):
    """Gradient of a run's first update through a session, and of the same update by the policy itself, [weights] each."""
    found = []

    def one_update(self, batch, *others):
        total = update(self, batch, *others)
        if not found or not found[0].any():  # no row of it has a gradient
            found.clear()
            return total
        self.passes.policy = self.policy.session.policy
        self.passes.policy.sampling = self.policy.sampling
        update(self, batch, *others)
        raise Found

    def step(self, number):
        found.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.weights]))
        self.optimizer.zero_grad(set_to_none=True)
        return {}

    update = Learner._one_update
    monkeypatch.setattr(loop, "engine_of", lambda *_, **__: Mirror())
    monkeypatch.setattr(Learner, "_one_update", one_update)
    monkeypatch.setattr(optimizer.Stepper, "step", step)
    with pytest.raises(Found):
        toys.trainer(tmp_path, start, toys.recipe(tmp_path), *overrides).run()
    through_session, local = found
    return through_session, local


PLAIN = [
    "rlvr.lora=4",
    "rlvr.sampling.temperature=1",
    "rlvr.sampling.top_p=1",
    "rlvr.sampling.top_k=0",
    "rlvr.sampling.min_p=0",
]


KINKED = ("calibrl", "kl_cov")
"""Their losses have a kink where two log-probabilities are equal, as they are at a first update: rounding decides the side."""
ROUNDING = 1e-5
"""Of float32 sums in another order, as a share of the largest derivative; the largest seen was 5e-6."""


WELL_KNOWN = ("cispo", "dapo", "grpo", "gspo", "prdp", "reinforce_pp")
"""Those that each run of the slow tests holds; the others take minutes together."""


@pytest.mark.slow
@pytest.mark.few(len(WELL_KNOWN), always=WELL_KNOWN)
@pytest.mark.parametrize("preset", [preset for preset in ALONE if preset not in KINKED])
def test_gradients_of_presets_are_the_local_learner_s(tmp_path, start, monkeypatch, preset):
    overrides = [f"presets=[{preset}]", *fitting(preset, start), *PLAIN]
    if any(refusals(read_recipe(toys.recipe(tmp_path), overrides).rlvr)):
        pytest.skip("the plan refuses it")
    remote, local = first_gradients(monkeypatch, tmp_path, start, *overrides)
    assert (local - remote).abs().max() < ROUNDING * max(1.0, float(local.abs().max()))


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=7).filter(lambda m: any(m[1:])), min_size=1, max_size=5))
def test_rows_hold_the_layout_s_tokens(masks):
    """Whatever is scored: what comes before it, in order, and a value for each goes back to its place."""
    width = max(map(len, masks))
    mask = torch.tensor([[False, *m[1:], *[False] * (width - len(m))] for m in masks])
    tokens = torch.arange(mask.numel()).view(mask.shape)
    for layout in padded_layouts(tokens, mask, torch.arange(len(masks)), budget=2 * width):
        chosen = tokens.flatten()[layout.target]
        rows, order = rows_of(layout, chosen)
        scored = [row.targets[place] for row in rows for place in row.places]
        assert torch.tensor(scored).tolist() == chosen[order].tolist()
        for row in rows:
            assert [*row.tokens, row.targets[-1]] == list(range(row.tokens[0], row.tokens[0] + len(row.tokens) + 1))
            assert row.places == sorted(set(row.places)) and row.places[-1] == len(row.tokens) - 1


def test_what_a_server_does_not_give_is_refused():
    local = Policy(toys.model(vocab=20), Sampling())
    own = RemotePolicy(local.model, Direct(local), None, Sampling())
    tokens = torch.tensor([[3, 4, 5, 6]])
    mask = torch.tensor([[False, False, True, True]])
    (layout,) = padded_layouts(tokens, mask, torch.tensor([0]), 8)
    chosen = tokens.flatten()[layout.target]
    logp, instead = own.score(layout, chosen, entropy="value")
    assert torch.allclose(logp, local.score(layout, chosen)[0], atol=1e-6)
    assert torch.equal(instead, -logp.detach()) and not instead.requires_grad
    with pytest.raises(ModelError, match="log-probabilities"):
        own.score(layout, chosen, entropy="gradient")
    with pytest.raises(ModelError, match="log-probabilities"):
        own.hidden(layout, "last")
    with pytest.raises(ModelError, match="log-probabilities"):
        own.of_logits(layout, chosen, lambda logits, ids: logits)
    own.sampling = Sampling(temperature=0.5)
    with pytest.raises(ModelError, match="temperature 1"):
        own.score(layout, chosen)
    own.sampling = Sampling()
    with pytest.raises(ModelError, match="not finite"):
        (own.score(layout, chosen)[0] * torch.nan).sum().backward()
