"""Expected gradients against exact ones, by enumeration (the correctness idea of 2406.15742, programmable variational inference).

A policy writes two tokens of a vocabulary of three, with probabilities in sixteenths, so that a batch of sixteen rows holds every text
exactly as often as it is drawn. What a loss gives on this batch is its expectation, and the objective it stands for can be summed over
all nine texts. On one token it shows the policy cliff (2507.20150): the optimal policy jumps where the reward hardly moves, unless
an entropy bonus or a KL holds it.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from pipelines.contract.catalogue import bind, load, names
from pipelines.rlvr.ops import to_tokens

TEXTS = torch.tensor(list(product(range(3), repeat=2)))
FIRST = torch.tensor([0.5, 0.25, 0.25])
SECOND = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
OTHER = torch.tensor([0.25, 0.25, 0.5]), torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])
"""The reference policy, in sixteenths too."""
REWARD = torch.tensor([1.0, 0.0, 0.5, -1.0, 2.0, 0.0, 0.25, 1.0, -0.5])


class Policy:
    """Logits of the first token, and of the second after each first one."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.logits = torch.cat([first.log(), second.log().flatten()]).double().requires_grad_()

    def log_probs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """[3] and [3, 3]."""
        return self.logits[:3].log_softmax(0), self.logits[3:].view(3, 3).log_softmax(1)

    def of(self, texts: torch.Tensor) -> torch.Tensor:
        """Log-probability of each token, [texts, 2]."""
        first, second = self.log_probs()
        return torch.stack([first[texts[:, 0]], second[texts[:, 0], texts[:, 1]]], 1)

    def gradient(self, value: torch.Tensor) -> torch.Tensor:
        """Of a scalar."""
        (gradient,) = torch.autograd.grad(value, self.logits, retain_graph=True)
        return gradient


def drawn(policy: Policy) -> torch.Tensor:
    """Sixteen texts: each as often as the policy writes it in sixteen draws."""
    counts = (policy.of(TEXTS).sum(1).exp() * 16).round().long()
    assert int(counts.sum()) == 16
    return TEXTS.repeat_interleave(counts, 0)


def number(texts: torch.Tensor) -> torch.Tensor:
    """Index of each text among all."""
    return texts[:, 0] * 3 + texts[:, 1]


@pytest.fixture
def policy() -> Policy:
    return Policy(FIRST, SECOND)


@pytest.fixture
def reference() -> Policy:
    return Policy(*OTHER)


def columns(policy: Policy, texts: torch.Tensor, drawn_by: Policy, reference: Policy) -> dict[str, torch.Tensor]:
    """What losses read of these rows, the advantage of each being its reward."""
    one = torch.ones(len(texts), 2).bool()
    return {
        "logp": policy.of(texts), "logp_old": drawn_by.of(texts).detach(), "logp_ref": reference.of(texts).detach(),
        "advantage": (REWARD.double()[number(texts)])[:, None] * one, "mask": one, "in_loss": one[:, 0], "scored": one[:, 0],
        "on_policy": one[:, 0], "replayed": ~one[:, 0], "teacher_forced": ~one, "turn": torch.zeros(one.shape).long(),
        "entropy_old": torch.ones(one.shape), "weight": torch.full(one.shape, 1 / one.numel()),
    }  # fmt: skip


def value_of(policy: Policy) -> torch.Tensor:
    """Expected reward, summed over all texts."""
    return (policy.of(TEXTS).sum(1).exp() * REWARD.double()).sum()


SURROGATES = [name for name in names("rlvr.objective") if not load("rlvr.objective", name).card.not_reinforce]


@pytest.mark.parametrize("name", SURROGATES)
def test_an_objective_s_expected_gradient_is_that_of_the_expected_reward(policy, reference, name):
    loss = bind("rlvr.objective", name)(columns(policy, drawn(policy), policy, reference))
    told = policy.gradient(loss.sum(1).mean())
    torch.testing.assert_close(told, -policy.gradient(value_of(policy)))
    assert told.abs().max() > 0.05


WIDE = {"low": 0.99, "high": 9.0}
"""Bounds that no ratio here meets."""
OFF_POLICY = [
    {"kind": "clip", **WIDE}, {"kind": "cispo", "high": 9.0}, {"kind": "gspo", **WIDE}, {"kind": "turn_clip", **WIDE},
    {"kind": "pipo", **WIDE}, {"kind": "herl", **WIDE, "dual": None}, {"kind": "hpt_upge"},
]  # fmt: skip


@pytest.mark.parametrize("spec", OFF_POLICY, ids=lambda spec: spec["kind"])
def test_a_ratio_takes_samples_of_another_policy_to_the_same_gradient(policy, reference, spec):
    """On a single token, where a token's ratio is the text's; unclipped it is exact importance sampling, and REINFORCE is not."""
    texts = drawn(reference)
    rows = columns(policy, texts, reference, reference)
    rows["advantage"] = REWARD.double()[texts[:, :1]]
    rows = {key: column[:, :1] if column.ndim == 2 else column for key, column in rows.items()}
    exact = policy.gradient((policy.log_probs()[0].exp() * REWARD.double()[:3]).sum())
    told = -policy.gradient(bind("rlvr.objective", spec)(rows).sum(1).mean())
    torch.testing.assert_close(told, exact)
    plain = -policy.gradient(bind("rlvr.objective", "reinforce")(rows).sum(1).mean())
    assert not torch.allclose(plain, exact, atol=1e-2)


def by_state(policy: Policy, other: Policy, drawn_by: Policy) -> torch.Tensor:
    """KL(policy || other) of the next token, averaged over the states where `drawn_by` comes: their distribution has no gradient."""
    share = torch.cat([torch.ones(1).double(), drawn_by.log_probs()[0].exp().detach()])
    own, others = (torch.cat([each[0][None], each[1]]) for each in (policy.log_probs(), other.log_probs()))
    return (share * (own.exp() * (own - others)).sum(1)).sum()


def test_divergences_have_the_gradient_that_they_claim(policy, reference):
    """Token by token k2 in the loss has that of the reverse KL, k3 and ares of the forward one, k1's is 0; all is exact on fixed rows."""

    def told(name, rows):
        return policy.gradient(bind("rlvr.divergence", name)(rows).sum(1).mean())

    rows = columns(policy, drawn(policy), policy, reference)
    rows |= {"problem": torch.zeros(16).long(), "correct": torch.zeros(16)}
    torch.testing.assert_close(told("k2", rows), policy.gradient(by_state(policy, reference, policy)))
    forward = policy.gradient(by_state(reference, policy, policy))
    torch.testing.assert_close(told("k3", rows), forward)
    torch.testing.assert_close(told("ares", rows), forward)
    torch.testing.assert_close(told("k1", rows), torch.zeros(12).double(), atol=1e-9, rtol=0)

    stored = columns(policy, drawn(reference), reference, reference)
    stored |= {"advantage": torch.zeros(16, 2), "replayed": torch.ones(16).bool()}
    ours, theirs = policy.of(TEXTS).sum(1), reference.of(TEXTS).sum(1).detach()
    whole = policy.gradient((theirs.exp() * (theirs - ours)).sum())
    torch.testing.assert_close(told("reason_maxxer", stored), whole)
    torch.testing.assert_close(told("dph_rl", stored), whole)


def test_divergences_have_the_value_of_their_name(policy, reference):
    rows = columns(policy, drawn(policy), policy, reference)
    ours, theirs = policy.of(TEXTS).sum(1).detach(), reference.of(TEXTS).sum(1).detach()
    rows["logp"] = rows["logp"].detach()
    kl = float((ours.exp() * (ours - theirs)).sum())
    for name in ("k1", "k3"):
        assert float(bind("rlvr.divergence", name)(rows).sum(1).mean()) == pytest.approx(kl), name
    square = float((2 * ours - theirs).exp().sum()) - 1
    occupancy = bind("rlvr.divergence", {"kind": "chi2_occupancy", "floor": 1e-9})(rows)
    assert float((occupancy * rows["weight"]).sum()) == pytest.approx(square**0.5, abs=1e-4)
    first = {name: column[:, :1] if column.ndim == 2 else column for name, column in rows.items()}
    a, b = policy.log_probs()[0].detach(), reference.log_probs()[0].detach()
    assert float(bind("rlvr.divergence", "chi2")(first).mean()) == pytest.approx(float((2 * a - b).exp().sum()) - 1)


def test_a_kl_in_the_reward_has_the_exact_gradient_of_the_whole_text_s(policy, reference):
    """With k1; k2 in the loss leaves out how the first token changes the states of the second."""
    rows = columns(policy, drawn(policy), policy, reference)
    charged = bind("rlvr.divergence", "k1")(rows).detach().sum(1, keepdim=True)
    told = policy.gradient(
        bind("rlvr.objective", "reinforce")(rows | {"advantage": -charged * rows["mask"]}).sum(1).mean()
    )
    ours, theirs = policy.of(TEXTS).sum(1), reference.of(TEXTS).sum(1).detach()
    exact = policy.gradient((ours.exp() * (ours - theirs)).sum())
    torch.testing.assert_close(told, exact)
    assert not torch.allclose(policy.gradient(by_state(policy, reference, policy)), exact, atol=1e-3)


def test_leave_one_out_is_unbiased_and_the_whole_chain_adds_up(policy, reference):
    """Advantage, objective and aggregation as a recipe puts them together: rloo is n / (n - 1) times the rewards less their mean."""
    texts = drawn(policy)
    rows = columns(policy, texts, policy, reference)
    rows |= {"reward": REWARD.double()[number(texts)], "group": torch.zeros(16).long()}
    advantage = to_tokens(bind("rlvr.advantage", "rloo")(rows), rows["mask"])
    weight = bind("rlvr.loss_aggregation", "row_mean")(rows | {"loss_share": rows["mask"].double()})
    loss = bind("rlvr.objective", "clip")(rows | {"advantage": advantage})
    told = policy.gradient((loss * weight).sum()) * 2  # a row's two tokens have one weight of a row
    torch.testing.assert_close(told, -policy.gradient(value_of(policy)) * 16 / 15, atol=1e-6, rtol=1e-5)


def optimum(reward: list[float], slot: str | None = None, kind: str = "", weight: float = 0.0) -> torch.Tensor:
    """Where natural-gradient steps on the methods' expected gradients end, over three answers, from a policy that is sure of nothing."""
    values = torch.tensor(reward).double()
    logits = torch.tensor([0.2, 0.0, -0.1]).double().requires_grad_()
    reference = torch.full((3,), 1 / 3).double().log()
    step = 0.5 / weight if weight else 2000.0
    for _ in range(60):
        logp = logits.log_softmax(0)
        p = logp.detach().exp()
        rows = {
            "logp": logp[:, None],
            "advantage": (values - (p * values).sum())[:, None],
            "logp_ref": reference[:, None],
        }
        rows["entropy"] = -(logp.exp() * logp).sum().expand(3, 1)
        loss = bind("rlvr.objective", "reinforce")(rows)
        if slot is not None:
            loss = loss + weight * bind(f"rlvr.{slot}", kind)(rows)
        (gradient,) = torch.autograd.grad((p * loss[:, 0]).sum(), logits)
        logits = (logits - step * gradient / p.clamp(min=1e-12)).detach()
        logits = (logits - logits.max()).clamp(min=-60).requires_grad_()
    return logits.detach().softmax(0)


def moved(difference: float, *penalty) -> float:
    """Total variation between the optimal policies of two rewards that differ by this much in two answers that tie."""
    before, after = (optimum([1 + a, 1 + b, 0.0], *penalty) for a, b in ((difference, 0), (0, difference)))
    return float((before - after).abs().sum() / 2)


def test_the_optimal_policy_jumps_between_answers_that_tie():
    """However small the change: the map from rewards to optimal policies has a cliff where the best answer is not unique."""
    assert moved(0.01) == pytest.approx(1.0, abs=1e-6) and moved(0.001) == pytest.approx(1.0, abs=1e-6)
    torch.testing.assert_close(optimum([1.0, 0.5, 0.0]), optimum([1.01, 0.5, 0.0]))  # a unique best answer has none


@pytest.mark.parametrize("penalty", [("auxiliary_loss", "entropy"), ("divergence", "k2")], ids=lambda each: each[1])
def test_an_entropy_bonus_or_a_kl_makes_it_move_with_the_reward(penalty):
    """Its optimum is softmax(r / weight), which moves by the change over twice the weight at most, and costs reward."""
    torch.testing.assert_close(
        optimum([1.01, 1.0, 0.0], *penalty, 0.2), torch.tensor([1.01, 1, 0]).double().div(0.2).softmax(0)
    )
    one, half = moved(0.01, *penalty, 0.2), moved(0.005, *penalty, 0.2)
    assert 0 < one <= 0.01 / (2 * 0.2) and one == pytest.approx(2 * half, rel=1e-2)
    assert moved(0.01, *penalty, 0.02) > 5 * one, "a smaller weight is nearer to the cliff"
    assert optimum([1.0, 1.0, 0.0], *penalty, 0.2)[2] > 1e-3, "at the cost of answers that are wrong"
