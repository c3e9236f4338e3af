"""Each loss: the sheets' worked examples, and what must hold for any pair."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind, card, load, names, settings_model
from pipelines.contract.columns import PREFERENCE_COLUMNS
from pipelines.preference import ops

SLOT = "preference.loss"
REFERENCE_FREE = {"orpo", "simpo", "alphapo", "cpo", "tpo"}
DIRECTED = {
    "dpo",
    "robust_dpo",
    "hinge",
    "orpo",
    "simpo",
    "alphapo",
    "mpo",
    "cpo",
    "f_dpo",
    "ld_dpo",
    "wpo",
    "aot",
    "tpo",
}
"""More of the chosen answer never costs more, nor less of the rejected one."""
SEE_RATIOS = {"dpo", "robust_dpo", "hinge", "ipo", "rpo", "apo", "exo", "nca", "sppo", "discopop", "f_dpo", "wpo"}
nats = st.floats(-60, -0.5, width=32)
lengths = st.integers(1, 40).map(float)


def columns(cw, cl, rw=-10.0, rl=-10.0, nw=5.0, nl=5.0, sw=1.0, sl=0.0, kl=0.3, mean=None):
    """One pair, and its two answers as labelled ones."""

    def one(value):
        return torch.tensor([value], dtype=torch.float64)

    return {
        "chosen_logp": one(cw), "rejected_logp": one(cl), "chosen_logp_ref": one(rw), "rejected_logp_ref": one(rl),
        "chosen_length": one(nw), "rejected_length": one(nl), "chosen_score": one(sw), "rejected_score": one(sl),
        "margin": one(sw - sl), "chosen_length_mean": torch.tensor(nw if mean is None else mean), "kl": torch.tensor(kl),
        "logp": torch.tensor([cw, cl], dtype=torch.float64), "logp_ref": torch.tensor([rw, rl], dtype=torch.float64),
        "desirable": torch.tensor([True, False]), "log_ratio_mean": torch.tensor(kl),
        "chosen_logp_head": one(cw * min(nw, nl) / nw), "rejected_logp_head": one(cl * min(nw, nl) / nl),
        "chosen_logp_head_ref": one(rw * min(nw, nl) / nw), "rejected_logp_head_ref": one(rl * min(nw, nl) / nl),
        "chosen_on_policy": one(-0.25), "rejected_on_policy": one(-0.5), "lead_ref_ranked": one(rw - rl),
        "chosen_ratio_ranked": one(cw - rw), "rejected_ratio_ranked": one(cl - rl),
        "gold_logp": one(cw), "gold_length_mean": torch.tensor(nw if mean is None else mean),
    }  # fmt: skip


def cost(spec, **values) -> float:
    return float(bind(SLOT, spec)(columns(**values)).sum())


PAIR = {"cw": -8.0, "cl": -11.0, "nw": 10.0, "nl": 10.0}
MARGIN_3 = {"cw": -8.0, "cl": -11.0, "rw": -10.0, "rl": -10.0, "sl": 0.0}


@pytest.mark.parametrize(("spec", "values", "expected"), [
    ({"kind": "simpo", "gamma": 0.5}, PAIR, 0.644397),
    ({"kind": "simpo", "gamma": 1.0}, PAIR, 0.913015),
    ({"kind": "simpo", "gamma": 0.5, "label_smoothing": 0.1}, PAIR, 0.654397),
    ({"kind": "simpo", "beta": 10.0, "gamma": 5.0}, PAIR, 2.126928),
    ({"kind": "alphapo", "gamma": 0.5, "alpha": -0.25}, PAIR, 0.706602),
    ({"kind": "alphapo", "gamma": 0.5, "alpha": 0.0}, PAIR, 0.644397),
    ({"kind": "alphapo", "gamma": 0.5, "alpha": 1e-6}, PAIR, 0.644396),
    ({"kind": "alphapo", "gamma": 0.5, "alpha": 0.25}, PAIR, 0.571128),
    ({"kind": "alphapo", "gamma": 0.5, "alpha": 0.5}, PAIR, 0.487160),
    ({"kind": "rpo"}, MARGIN_3 | {"sw": 1.2}, 0.035320),
    ({"kind": "rpo", "distance": "forward_kl"}, MARGIN_3 | {"sw": 1.2}, 0.038401),
    ({"kind": "rpo", "distance": "squared"}, MARGIN_3 | {"sw": 1.2}, 0.360000),
    ({"kind": "rpo"}, {"cw": -4.0, "cl": -10.0, "sw": 1.2}, 0.0),
    ({"kind": "rpo"}, MARGIN_3 | {"sw": 40.0}, 0.437488),
    ({"kind": "dpo", "beta": 0.2}, MARGIN_3, 0.437488),
    ({"kind": "mpo", "quality": 0, "generation": 0, "preference": 1}, {"cw": -8.0, "cl": -11.0}, 0.554355),
    ({"kind": "mpo", "quality": 1, "generation": 0, "preference": 0}, {"cw": -8.0, "cl": -11.0}, 1.242536),
    ({"kind": "mpo"}, {"cw": -12.0, "cl": -11.0, "rw": -14.0, "rl": -10.0, "mean": 10.0}, 1.891991),
])  # fmt: skip
def test_the_sheets_examples(spec, values, expected):
    assert cost(spec, **values) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", names(SLOT))
def test_every_loss_says_what_it_reads_and_is_of_a_pair_alone(name):
    fn = load(SLOT, name)
    assert card(fn).paper and set(bind(SLOT, name).takes) <= set(PREFERENCE_COLUMNS)
    assert not REFERENCE_FREE & {name} or not any("_ref" in column for column in bind(SLOT, name).takes)
    bound, several = bind(SLOT, name), [columns(cw=-8.0 - i, cl=-9.0 + i, mean=5.0) for i in range(3)]
    joined = {k: torch.cat([c[k] for c in several]) if several[0][k].ndim else several[0][k] for k in several[0]}
    single = torch.cat([bound(c) for c in several])
    torch.testing.assert_close(bound(joined), single)


@given(st.sampled_from(sorted(DIRECTED)), nats, nats, nats, nats, lengths, lengths)
def test_the_gradient_raises_the_chosen_answer_and_lowers_the_rejected_one(name, cw, cl, rw, rl, nw, nl):
    body = columns(cw, cl, rw, rl, nw, nl)
    chosen, rejected = body["chosen_logp"].requires_grad_(), body["rejected_logp"].requires_grad_()
    bind(SLOT, name)(body).sum().backward()
    assert chosen.grad <= 1e-12 and rejected.grad >= -1e-12
    assert torch.isfinite(chosen.grad) and torch.isfinite(rejected.grad)


@given(st.sampled_from(sorted(SEE_RATIOS)), nats, nats, nats, nats, st.floats(-20, 20))
def test_only_log_ratios_count(name, cw, cl, rw, rl, shift):
    """Moving policy and reference together changes nothing."""
    assert cost(name, cw=cw + shift, cl=cl - shift, rw=rw + shift, rl=rl - shift) == pytest.approx(
        cost(name, cw=cw, cl=cl, rw=rw, rl=rl), abs=1e-6
    )


@given(st.sampled_from(["dpo", "robust_dpo", "hinge", "rpo", "exo", "discopop", "wpo"]), nats, nats, st.floats(-20, 20))
def test_only_the_difference_of_the_answers_counts(name, cw, cl, shift):
    """What raises both answers alike changes no pairwise loss; APO and MPO are anchored and do notice it."""
    assert cost(name, cw=cw + shift, cl=cl + shift) == pytest.approx(cost(name, cw=cw, cl=cl), abs=1e-6)


@given(nats, nats, st.floats(0.02, 0.4))
def test_swapped_labels_are_mixed_and_unmixed(cw, cl, share):
    """cDPO is the mixture of a pair and its converse; robust DPO averages to DPO over false labels of its rate."""
    one, other = cost("dpo", cw=cw, cl=cl), cost("dpo", cw=cl, cl=cw)
    smoothed = cost({"kind": "dpo", "label_smoothing": share}, cw=cw, cl=cl)
    assert smoothed == pytest.approx((1 - share) * one + share * other, rel=1e-9)
    robust = {"kind": "robust_dpo", "false_rate": share}
    mean = (1 - share) * cost(robust, cw=cw, cl=cl) + share * cost(robust, cw=cl, cl=cw)
    assert mean == pytest.approx(one, rel=1e-6, abs=1e-6)


@given(st.sampled_from(["backward_kl", "forward_kl", "squared"]), nats, nats, st.floats(-3, 3), st.floats(-3, 3))
def test_rpo_is_a_distance_of_margins(distance, cw, cl, sw, sl):
    spec = {"kind": "rpo", "distance": distance}
    value = cost(spec, cw=cw, cl=cl, sw=sw, sl=sl)
    assert value >= -1e-9
    assert cost(spec, cw=cl, cl=cw, sw=sl, sl=sw) == pytest.approx(value, abs=1e-9), "swapping the answers"
    assert cost(spec, cw=cw, cl=cw - 5 * (sw - sl), sw=sw, sl=sl) == pytest.approx(0, abs=1e-9), "D = E"


def test_rpo_with_certain_scores_is_dpo_with_its_gradient():
    results = []
    for spec in ({"kind": "rpo", "eta": 1000.0}, {"kind": "dpo", "beta": 0.2}):
        body = {k: v.float() if v.dtype == torch.float64 else v for k, v in columns(-8.0, -11.0).items()}
        body["chosen_logp"].requires_grad_()
        loss = bind(SLOT, spec)(body).sum()
        loss.backward()
        results.append((loss.item(), body["chosen_logp"].grad.item()))
    assert results[0] == pytest.approx(results[1], rel=1e-6)


@given(nats, nats, lengths, lengths, st.integers(2, 5))
def test_length_normalised_losses_do_not_see_repetition(cw, cl, nw, nl, times):
    for name in ("simpo", "alphapo", {"kind": "dpo", "length_normalised": True}, "ipo"):
        repeated = {
            "cw": cw * times,
            "cl": cl * times,
            "rw": -10.0 * times,
            "rl": -10.0 * times,
            "nw": nw * times,
            "nl": nl * times,
        }
        assert cost(name, **repeated) == pytest.approx(cost(name, cw=cw, cl=cl, nw=nw, nl=nl), rel=1e-6)


@given(st.floats(-2, 2), nats, nats)
def test_the_reward_of_alphapo_is_increasing(alpha, first, second):
    """So its margins have SimPO's sign."""
    low, high = sorted((first, second))
    spec = {"kind": "alphapo", "alpha": alpha, "gamma": 0.0}
    assert cost(spec, cw=high, cl=low) <= math.log(2) + 1e-9 <= cost(spec, cw=low, cl=high) + 2e-9


@given(nats, nats, st.floats(0, 5))
def test_kto_is_bounded_and_pushes_both_ways(logp, ref, kl):
    body = columns(cw=logp, cl=logp, rw=ref, rl=ref, kl=kl)
    body["logp"].requires_grad_()
    loss = bind(SLOT, "kto")(body)
    assert ((loss >= 0) & (loss <= 1)).all() and loss.sum().item() == pytest.approx(1.0), (
        "the two are each other's complement"
    )
    loss.sum().backward()
    assert body["logp"].grad[0] <= 0 <= body["logp"].grad[1]


@pytest.mark.parametrize("spec", [
    {"kind": "f_dpo", "alpha": 0.0}, {"kind": "ld_dpo", "alpha": 1.0}, "aot", {"kind": "aot", "paired": False},
], ids=str)  # fmt: skip
@given(nats, nats, nats, nats, lengths, lengths)
def test_dpo_is_a_limit(spec, cw, cl, rw, rl, nw, nl):
    pair = {"cw": cw, "cl": cl, "rw": rw, "rl": rl, "nw": nw, "nl": nl}
    assert cost(spec, **pair) == pytest.approx(cost("dpo", **pair), rel=1e-9)


@given(nats, nats, nats, st.floats(0, 2))
def test_cpo_is_dpo_under_a_reference_without_preferences_and_sft(cw, cl, ref, share):
    spec = {"kind": "cpo", "generation": share}
    expected = cost("dpo", cw=cw, cl=cl, rw=ref, rl=ref) - share * cw / 5.0
    assert cost(spec, cw=cw, cl=cl) == pytest.approx(expected, rel=1e-6)


@given(nats, nats, st.floats(0.01, 0.4))
def test_exo_is_a_distance_from_its_target(cw, cl, share):
    spec = {"kind": "exo", "label_smoothing": share}
    at_target = cl + 10 * math.log((1 - share) / share)
    assert cost(spec, cw=at_target, cl=cl) == pytest.approx(0, abs=1e-9)
    assert cost(spec, cw=cw, cl=cl) >= -1e-9
    body = columns(cw, cl)
    body["chosen_logp"].requires_grad_()
    bind(SLOT, spec)(body).sum().backward()
    assert body["chosen_logp"].grad * (cw - at_target) >= -1e-12, "towards the target from both sides"


@given(nats, nats)
def test_nca_keeps_the_chosen_answer_and_lowers_the_rejected_one(cw, cl):
    body = columns(cw, cl)
    chosen, rejected = body["chosen_logp"].requires_grad_(), body["rejected_logp"].requires_grad_()
    bind(SLOT, "nca")(body).sum().backward()
    assert rejected.grad > 0
    assert (chosen.grad < 0) == (0.1 * (cw + 10) < math.log(2)), "up to a probability of two thirds"


@given(nats, nats, st.floats(0.01, 1))
def test_sppo_fits_each_answer_by_itself(cw, cl, beta):
    spec = {"kind": "sppo", "beta": beta}
    assert cost(spec, cw=-10 + 0.5 / beta, cl=-10 - 0.5 / beta) == pytest.approx(0, abs=1e-18)
    twice = cost(spec, cw=cw, cl=cl) + cost(spec, cw=-10.0, cl=-10.0)
    assert cost(spec, cw=cw, cl=-10.0) + cost(spec, cw=-10.0, cl=cl) == pytest.approx(twice), "a sum over answers"
    assert cost(spec, cw=cw, cl=cl) == pytest.approx(cost(spec, cw=-20 - cl, cl=-20 - cw)), "symmetric"


@given(st.floats(3, 40))
def test_discopop_is_logistic_below_and_exponential_above(margin):
    spec = {"kind": "discopop", "beta": 1.0}
    assert cost(spec, cw=-10 - margin, cl=-10) == pytest.approx(margin + math.log1p(math.exp(-margin)), rel=1e-9)
    assert cost(spec, cw=-10 + margin, cl=-10) == pytest.approx(math.exp(-margin), rel=1e-9)


@given(nats, nats, st.floats(0.01, 1))
def test_f_dpo_is_dpo_at_first_order(cw, cl, alpha):
    """Every f' has the slope 1 at the reference, Jensen-Shannon's 1/2."""
    for spec, slope in (({"kind": "f_dpo", "alpha": alpha}, 1), ({"kind": "f_dpo", "divergence": "jensen_shannon"}, 2)):
        body = columns(-10.0, -10.0)
        body["chosen_logp"].requires_grad_()
        bind(SLOT, spec)(body).sum().backward()
        assert body["chosen_logp"].grad.item() * slope == pytest.approx(-0.05, rel=1e-9)


@given(nats, nats, st.integers(1, 9))
def test_ld_dpo_without_the_tail_sees_one_length(cw, cl, more):
    """What a longer answer has after the shorter one's length changes nothing for alpha 0."""
    spec = {"kind": "ld_dpo", "alpha": 0.0}
    longer = {"cw": cw * (5 + more) / 5, "rw": -10.0 * (5 + more) / 5, "nw": 5.0 + more}
    assert cost(spec, cl=cl, **longer) == pytest.approx(cost(spec, cw=cw, cl=cl), rel=1e-9)


@given(nats, nats)
def test_wpo_weighs_pairs_by_both_answers(cw, cl):
    assert cost("wpo", cw=cw, cl=cl) == pytest.approx(math.exp(-0.75) * cost("dpo", cw=cw, cl=cl))


@given(nats, nats, st.floats(-5, 5))
def test_bco_pushes_both_ways_from_its_shift(logp, ref, shift):
    body = columns(cw=logp, cl=logp, rw=ref, rl=ref, kl=shift)
    body["logp"].requires_grad_()
    loss = bind(SLOT, "bco")(body)
    assert (loss[0] - loss[1]).item() == pytest.approx(-0.1 * (logp - ref - shift), abs=1e-6)
    loss.sum().backward()
    assert body["logp"].grad[0] < 0 < body["logp"].grad[1]


@given(nats, nats, st.floats(0, 3))
def test_a_margin_asks_for_more(cw, cl, margin):
    spec = {"kind": "dpo", "margin_weight": 0.5}
    assert cost(spec, cw=cw, cl=cl, sw=margin) >= cost(spec, cw=cw, cl=cl, sw=0.0) - 1e-12


@pytest.mark.parametrize("name", names(SLOT))
@pytest.mark.parametrize("extreme", [(-2000.0, -1e-4), (-1e-4, -2000.0), (-1e-4, -1e-4)])
def test_extreme_answers_have_finite_gradients(name, extreme):
    body = {k: v.float() if v.is_floating_point() else v for k, v in columns(*extreme, nw=1.0, nl=1.0).items()}
    inputs = [body[k].requires_grad_() for k in ("chosen_logp", "rejected_logp", "logp")]
    loss = bind(SLOT, name)(body).sum()
    loss.backward()
    assert torch.isfinite(loss) and all(i.grad is None or torch.isfinite(i.grad).all() for i in inputs)


@given(st.floats(-80, -1e-5))
def test_log1mexp(x):
    exact = math.log(-math.expm1(x)) if x > -1 else math.log1p(-math.exp(x))
    assert float(ops.log1mexp(torch.tensor(x, dtype=torch.float64))) == pytest.approx(exact, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("name", names(SLOT))
def test_settings_are_bounded(name):
    if "beta" in settings_model(load(SLOT, name)).model_fields:
        with pytest.raises(RecipeError, match=r"preference\.loss\.beta"):
            bind(SLOT, {"kind": name, "beta": 0})
