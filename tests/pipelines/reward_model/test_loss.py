"""The losses: their laws, that coupled pairs get the gradient of the whole step, that what they remember survives a restart."""

from __future__ import annotations

import json
from itertools import permutations

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.files import contents
from pipelines.contract.catalogue import bind, names
from pipelines.papers.odin import correlation

SLOT = "reward_model.loss"
LOSSES = [name for name in names(SLOT) if "chosen_reward" in bind(SLOT, name).needs]
"""Those of pairs."""
REWARDS = st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=2, max_size=6)


def columns(pairs, seed=0):
    """Every column of a loss for pairs of rewards, the others drawn."""
    draw = torch.Generator().manual_seed(seed)
    count = len(pairs)
    chosen, rejected = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))

    def some(low, high):
        return (torch.rand(count, generator=draw) * (high - low) + low).double()

    return {
        "pair": torch.arange(count), "chosen_reward": chosen, "rejected_reward": rejected,
        "chosen_length_reward": some(-1, 1), "rejected_length_reward": some(-1, 1), "head_cosine": some(-1, 1)[0],
        "margin": some(0, 1), "chosen_length": some(1, 20), "rejected_length": some(1, 20), "chosen_logp": some(-20, -1),
        "rejected_logp": some(-20, -1), "chosen_critique_logp": some(-20, -1), "rejected_critique_logp": some(-20, -1),
        "latent_kl": some(0, 2), "progress": some(0, 1)[0], "chosen_critique_length": some(1, 20), "rejected_critique_length": some(1, 20),
        "chosen_logp_ref": some(-20, -1), "rejected_logp_ref": some(-20, -1), "chosen_prior": some(0, 1), "rejected_prior": some(0, 1),
    }  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@given(REWARDS, st.floats(-3, 3))
def test_only_differences_of_rewards_count(name, pairs, shift):
    """Shift invariance: what is added to both rewards of every pair changes no loss."""
    loss, given_columns = bind(SLOT, name), columns(pairs)
    moved = given_columns | {k: given_columns[k] + shift for k in ("chosen_reward", "rejected_reward")}
    torch.testing.assert_close(loss(moved), loss(given_columns), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@given(REWARDS)
def test_a_larger_margin_is_never_worse(name, pairs):
    """The gradient pulls the chosen reward up and the rejected one down, by the same amount, and nothing else of the pair."""
    if name == "odin":
        settings = {"kind": name, "length": 0.0, "orthogonality": 0.0}
    else:
        settings = {"kind": name}
    free = columns(pairs)
    for side in ("chosen_reward", "rejected_reward"):
        free[side] = free[side].clone().requires_grad_()
    bind(SLOT, settings)(free).sum().backward()
    assert (free["chosen_reward"].grad <= 0).all()
    torch.testing.assert_close(free["chosen_reward"].grad, -free["rejected_reward"].grad)


@given(REWARDS)
def test_swapped_pairs_flip_the_gradient_s_sign_and_their_probabilities_add_to_one(pairs):
    loss = bind(SLOT, "bradley_terry")
    forward, backward = loss(columns(pairs)), loss(columns([(low, high) for high, low in pairs]))
    torch.testing.assert_close((-forward).exp() + (-backward).exp(), torch.ones(len(pairs), dtype=torch.float64))


def test_plain_cases_are_bradley_terry():
    pairs = [(0.3, -0.5), (-1.0, 1.2)]
    plain = bind(SLOT, "bradley_terry")(columns(pairs))
    for spec in (
        {"kind": "grm", "weight": 0}, {"kind": "grm_dpo", "weight": 0}, {"kind": "cloud", "weight": 0}, {"kind": "vpl", "kl_weight": 0},
        {"kind": "hindsight_prior", "weight": 0}, "iterative_smoothing",
    ):  # fmt: skip
        torch.testing.assert_close(bind(SLOT, spec)(columns(pairs)), plain)
    both = columns(pairs) | {"chosen_length_reward": torch.zeros(2), "rejected_length_reward": torch.zeros(2)}
    torch.testing.assert_close(bind(SLOT, {"kind": "odin", "length": 0, "orthogonality": 0})(both), plain)


def test_correlation_is_pearson_s_and_does_not_feel_scale_or_shift():
    x, y = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 1.0, 9.0])
    expected = torch.corrcoef(torch.stack([x, y]))[0, 1]
    torch.testing.assert_close(correlation(x, y), expected)
    torch.testing.assert_close(correlation(x, 100 * y + 7), expected)
    assert correlation(torch.ones(3, requires_grad=True), y) == 0


def test_smoothed_labels_of_disagreement_fall_below_a_half():
    ids = bind(SLOT, {"kind": "iterative_smoothing", "rate": 0.7}).fn
    told = []
    for _ in range(3):
        ids.on_epoch(
            [{"pair": torch.arange(1), "chosen_reward": torch.tensor([-1.5]), "rejected_reward": torch.zeros(1)}]
        )
        told.append(round(float(ids.labels[0]), 6))
    assert told == [0.427698, 0.256007, 0.2045], "the sheet's mislabelled pair"
    held_out = ids(torch.tensor([-1]), torch.tensor([0.5]), torch.zeros(1))
    assert float(held_out) == pytest.approx(0.474077, abs=1e-6)


def gradients(run, coupled, batch, indices):
    run.model.zero_grad(set_to_none=True)
    loss, rewards = (run._coupled if coupled else run._summed)(batch, indices)
    return loss, rewards, {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("spec", [{"kind": "odin"}, {"kind": "bradley_terry", "centering": 0.1}])
def test_a_step_in_parts_has_the_gradient_of_the_whole_step(trainer, tmp_path, spec):
    """Coupled pairs: factors first, then parts; against one pass over everything."""
    run = trainer(tmp_path, loss=spec, micro_batch_tokens=128)
    indices = list(range(10))
    batch = [run.pairs[i] for i in indices]
    loss, rewards, parts = gradients(run, True, batch, indices)
    run.settings = run.settings.model_copy(update={"micro_batch_tokens": 100_000})
    direct, direct_rewards, whole_step = gradients(run, False, batch, indices)
    assert loss == pytest.approx(direct, abs=1e-5)
    torch.testing.assert_close(rewards, direct_rewards, atol=1e-5, rtol=1e-5)
    assert parts.keys() == whole_step.keys()
    for name, gradient in whole_step.items():
        torch.testing.assert_close(parts[name], gradient, atol=1e-5, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["odin", *(pytest.param(name, marks=pytest.mark.slow) for name in ("grm", "grm_dpo", "iterative_smoothing"))],
)
def test_every_loss_trains_and_resumes_to_the_same_bytes(trainer, tmp_path, name):
    changes = {"loss": name, "pairs_per_step": 64, "steps": 9, "commit": {"every": 2}}
    metrics = trainer(tmp_path / "through", **changes).run()
    assert name == "odin" or metrics["accuracy"] > 0.4
    toys.run_stopped(lambda: trainer(tmp_path / "stopped", **changes), 7, None)
    assert contents(tmp_path / "through" / "out") == contents(tmp_path / "stopped" / "out")
    about = json.loads((tmp_path / "through/out/model/whetstone.json").read_text())
    assert about["only_first"] == (name == "odin")


@pytest.mark.slow
def test_odin_takes_the_length_out_of_the_quality(trainer, tmp_path):
    """Chosen answers are made longer: plain Bradley-Terry leans on it, ODIN's quality head less."""
    told = {}
    for name in ("bradley_terry", "odin"):
        run = trainer(tmp_path / name, loss=name, steps=40, optimizer={"learning_rate": 0.005})
        for place, pair in enumerate(run.pairs):
            object.__setattr__(pair, "chosen", [*pair.chosen[:-1], *pair.chosen[-2:-1] * 4, pair.chosen[-1]])
            assert run.pairs[place].lengths[0] == len(pair.chosen) - pair.start
        run.heldout = run.pairs[:64]
        told[name] = run.run()["length_correlation"]
    assert abs(told["odin"]) < told["bradley_terry"]


def test_vectors_of_labels_do_not_depend_on_the_order_of_pairs():
    ids = {}
    for order in permutations(range(3)):
        loss = bind(SLOT, "iterative_smoothing").fn
        margins = torch.tensor([0.2, -0.4, 1.0])[list(order)]
        loss.on_epoch([{"pair": torch.tensor(order), "chosen_reward": margins, "rejected_reward": torch.zeros(3)}])
        ids[order] = loss.labels.tolist()
    assert len({tuple(labels) for labels in ids.values()}) == 1
