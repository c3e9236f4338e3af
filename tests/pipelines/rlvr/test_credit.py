"""Credit against loops: what a part does to each token, with unscored rows, hints and shared tokens among them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import toys
import yaml
from hypothesis import given
from hypothesis import strategies as st
from method_toys import run_method
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.recipe.read import PRESETS
from pipelines.rlvr import algorithm

SEEDS = st.integers(0, 5_000)


def with_advantage(seed):
    """A batch, and an advantage that differs from token to token."""
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed + 1)
    return batch, torch.randn(batch.mask.shape, generator=draw) * batch.mask


def without(batch, rows):
    """The batch as it is packed when some rows could not be scored."""
    batch.scored[rows] = batch.in_loss[rows] = False
    batch.mask[rows] = False
    return batch


@given(SEEDS)
def test_arpo_hard_against_a_loop(seed):
    batch, advantage = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed)
    node = torch.where(
        torch.rand(batch.mask.shape, generator=draw) < 0.8, torch.randint(0, 3, batch.mask.shape, generator=draw), -1
    )
    made = bind("rlvr.credit", "arpo_hard")(columns_of(batch) | {"advantage": advantage, "node": node})
    for row in range(12):
        for t in range(batch.mask.shape[1]):
            wanted = float(advantage[row, t])
            if batch.mask[row, t] and node[row, t] >= 0:
                shared = [float(advantage[r, t]) for r in range(12) if batch.mask[r, t] and node[r, t] == node[row, t]]
                wanted = sum(shared) / len(shared)
            assert float(made[row, t]) == pytest.approx(wanted, abs=1e-6)


@given(SEEDS)
def test_adora_against_a_loop(seed):
    batch, advantage = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.length = torch.randint(1, 100, (12,), generator=draw).float()
    batch.max_tokens = torch.full((12,), 100.0)
    batch = without(batch, [4, 8])
    batch.length[4], batch.length[8] = 99.0, 1.0
    made = bind("rlvr.credit", {"kind": "adora", "cap": 0.5, "weight": 0.25})(
        columns_of(batch) | {"advantage": advantage}
    )
    for group in range(3):
        rows = [r for r in range(12) if batch.group[r] == group and batch.scored[r]]
        correct = [float(batch.length[r]) for r in rows if batch.correct[r] > 0]
        short = [float(batch.length[r]) for r in rows if batch.correct[r] <= 0 and batch.length[r] < 50]
        mean = sum(short) / len(short) if short else -math.inf
        factor = 1.0 if correct and max(correct) > mean else 0.25
        for r in rows:
            torch.testing.assert_close(made[r], advantage[r] * factor)


@given(SEEDS, st.integers(0, 9))
def test_d3s_against_a_loop(seed, step):
    """Rows by brute force over what stays, tokens by sorting; both shares move linearly, the last step has the final ones."""
    from itertools import combinations

    batch, advantage = with_advantage(seed)
    batch = without(batch, [2, 3, 4, 5, 7])
    batch.entropy_old = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(seed + 2)) + 0.1
    settings = {"rows": 0.25, "rows_final": 0.75, "tokens": 0.2, "tokens_final": 0.9}
    columns = columns_of(batch) | {"advantage": advantage, "step": step, "total_steps": 10}
    kept, share = bind("rlvr.credit", {"kind": "d3s", **settings})(columns)
    progress = step / 9
    live = [r for r in range(12) if batch.mask[r].any()]
    mean = {r: float(advantage[r][batch.mask[r]].double().mean()) for r in live}
    want = max(1, round(((1 - progress) * 0.25 + progress * 0.75) * len(live)))
    chosen = max(combinations(live, want), key=lambda c: torch.tensor([mean[r] for r in c]).var(correction=0))
    tokens = [(r, t) for r in chosen for t in batch.mask[r].nonzero().flatten().tolist()]
    tokens.sort(key=lambda p: -float(advantage[p].abs() * batch.entropy_old[p]))
    count = max(1, round(((1 - progress) * 0.2 + progress * 0.9) * len(tokens)))
    inside = torch.zeros_like(batch.mask)
    for place in tokens[:count]:
        inside[place] = True
    if want > 1:  # of single rows each has the same variance, none
        assert torch.equal(share > 0, inside)
        torch.testing.assert_close(kept, advantage * inside)


def test_d3s_of_one_step_and_of_one_row():
    batch, advantage = with_advantage(0)
    columns = columns_of(batch) | {"advantage": advantage, "step": 0, "total_steps": 1}
    kept, share = bind("rlvr.credit", {"kind": "d3s", "rows": 0.01, "tokens": 0.01})(columns)
    assert int(share.sum()) == 1 and int((kept != 0).sum()) == 1


@given(SEEDS)
def test_hints_are_imitated_and_whole_demonstrations_are_not(seed):
    batch, advantage = with_advantage(seed)
    batch.teacher_forced = batch.mask & (batch.mask.cumsum(1) <= 1)
    batch.teacher_forced[0] = batch.mask[0]
    made = bind("rlvr.credit", {"kind": "imitate", "weight": 0.5})(columns_of(batch) | {"advantage": advantage})
    for row in range(12):
        hint = batch.teacher_forced[row] & bool((batch.mask[row] & ~batch.teacher_forced[row]).any())
        torch.testing.assert_close(made[row], torch.where(hint, torch.tensor(0.5), advantage[row]))


def test_a_gate_has_a_threshold_for_each_sign():
    advantage, entropy = torch.tensor([[0.5, 0.5, -0.5, -0.5]]), torch.tensor([[1.0, 3.0, 1.0, 3.0]])
    gate = bind("rlvr.credit", {"kind": "entropy_gate", "right": 2.0, "wrong": 0.5})
    kept, share = gate({"advantage": advantage, "entropy_old": entropy})
    assert kept.tolist() == [[0.0, 0.5, -0.5, -0.5]] and share.tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert gate({"advantage": advantage, "entropy_old": torch.tensor([[2.0] * 4])})[1].tolist() == [
        [0.0, 0.0, 1.0, 1.0]
    ]
    zero = gate({"advantage": torch.zeros(1, 2), "entropy_old": torch.tensor([[1.0, 2.2]])})
    assert zero[1].tolist() == [[0.0, 1.0]], "an advantage of 0 has the threshold of the positive ones"


@given(SEEDS, st.floats(0, 1))
def test_red_shares_out_the_whole_reward(seed, share):
    from pipelines.papers.red import token_rewards

    batch = toys.batch(seed=seed)
    paid = token_rewards(columns_of(batch)["immediate_reward"], batch.value, batch.mask, share)
    first = batch.mask.long().argmax(1, keepdim=True)
    start = batch.value.double().gather(1, first).squeeze(1)
    torch.testing.assert_close(paid.sum(1), batch.reward.double() - share * start)
    advantage = torch.randn(batch.mask.shape) * batch.mask
    torch.testing.assert_close(
        run_method("credit", {"kind": "red", "share": 0.0}, batch, advantage=advantage), advantage
    )


@given(SEEDS)
def test_an_erank_bonus_is_bounded_and_only_up(seed):
    batch = toys.batch(seed=seed)
    method = bind("rlvr.credit", {"kind": "verl_erank", "kappa": 3.0})
    advantage = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed)) * batch.mask
    columns = columns_of(batch) | {"advantage": advantage}
    assert torch.equal(method(columns), advantage), "no means yet"
    method.fn.mean = [0.1, 0.2, 0.3]
    more = method(columns) - advantage
    assert (more >= 0).all() and (more <= advantage.abs() / 3 + 1e-6).all()
    method.fn.mean = batch.hidden_stats[0].tolist()
    assert torch.equal(method(columns)[0], advantage[0]), "as usual: nothing"


def test_effective_rank_counts_directions():
    from pipelines.papers.verl_erank import effective_rank

    line = torch.arange(10.0)[:, None] * torch.tensor([[1.0, 2, 3]])
    assert abs(effective_rank(line) - 1) < 1e-3
    corners = torch.eye(4) - 0.25
    assert abs(effective_rank(corners) - 3) < 1e-3 and effective_rank(line[:1]) == 0


@given(SEEDS)
def test_adhint_s_credit_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    batch.teacher_forced = batch.mask & (batch.mask.cumsum(1) <= 2) & (batch.length > 3)[:, None]
    advantage = torch.randn(12, 1, generator=torch.Generator().manual_seed(seed)) * (batch.mask & ~batch.teacher_forced)
    found = run_method("credit", "adhint", batch, advantage=advantage)
    for r in range(12):
        own = batch.mask[r] & ~batch.teacher_forced[r]
        usual = max(1e-6, float(batch.entropy_old[r][own].mean()))
        worth = max(0.0, float(advantage[r][own].mean()))
        for t in batch.teacher_forced[r].nonzero().squeeze(1).tolist():
            wanted = worth * math.exp(-abs(float(batch.entropy_old[r, t]) - usual) / usual)
            assert abs(float(found[r, t]) - wanted) < 1e-5
        assert torch.equal(found[r][own], advantage[r][own])


@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=8), st.integers(1, 8))
def test_d3s_takes_the_rows_that_vary_most(values, want):
    from pipelines.papers.d3s import _widest

    want = min(want, len(values))
    x = torch.tensor(values, dtype=torch.float64)
    chosen = _widest(x, want)
    assert len(set(chosen.tolist())) == want
    best = max(float(x[list(c)].var(correction=0)) for c in itertools.combinations(range(len(values)), want))
    assert abs(float(x[chosen].var(correction=0)) - best) < 1e-9


def off_policy(seed, spread=0.4):
    """A batch's columns with advantages of rows, and log-probabilities of the sampler, the trainer before the step and now."""
    batch, _ = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed + 2)
    old, sampler, now = (torch.randn(batch.mask.shape, generator=draw) * spread for _ in range(3))
    advantage = torch.randn(len(batch.mask), 1, generator=draw) * batch.mask
    return columns_of(batch) | {
        "advantage": advantage, "logp_old": old, "logp_sampler": sampler, "logp": now.requires_grad_(),
        "loss_share": batch.mask.float(),
    }  # fmt: skip


def weights_of_tokens(preset, columns):
    """Derivative of the loss of a preset's credit, objective and mean by each token's log-probability."""
    body = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())
    for part in body.get("credit", []):
        columns = algorithm.set_advantage(bind("rlvr.credit", part)(columns), columns)
    weight = bind("rlvr.loss_aggregation", body["loss_aggregation"])(columns)
    loss = (bind("rlvr.objective", body["objective"])(columns) * weight).sum()
    return torch.autograd.grad(loss, columns["logp"])[0]


def ppo_by_hand(columns, left):
    """What AReaL and slime sum over the tokens that are left: PPO's loss around the present weights, times pi_prox / pi_behave."""
    logp = columns["logp"].detach().requires_grad_()
    ratio, advantage = (logp - columns["logp_old"]).exp(), columns["advantage"]
    loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    weight = (columns["logp_old"] - columns["logp_sampler"]).exp()
    return torch.autograd.grad((loss * weight * left).sum() / columns["mask"].sum(), logp)[0]


@given(SEEDS)
def test_decoupled_ppo_and_icepop_weigh_tokens_as_the_official_losses(seed):
    columns = off_policy(seed, 1.0)
    weight = (columns["logp_old"] - columns["logp_sampler"]).exp()
    torch.testing.assert_close(weights_of_tokens("decoupled_ppo", columns), ppo_by_hand(columns, columns["mask"]))
    near = columns["mask"] & (weight >= 0.5) & (weight <= 5)
    torch.testing.assert_close(weights_of_tokens("icepop", columns), ppo_by_hand(columns, near))


@given(SEEDS)
def test_m2po_weighs_what_stays_by_the_ratio_to_the_sampler(seed):
    columns = off_policy(seed)
    second = (columns["logp_old"] - columns["logp_sampler"]).square()
    far = sorted(second[columns["mask"]].tolist(), reverse=True)
    while len(far) > 1 and sum(far) / len(far) >= 0.04:
        far.pop(0)
    stays = columns["mask"] & (second <= far[0])
    weight = (columns["logp_old"] - columns["logp_sampler"]).exp()
    wanted = -weight * columns["advantage"] * stays / stays.sum()
    torch.testing.assert_close(weights_of_tokens("m2po", columns), wanted)


@given(SEEDS)
def test_rows_are_rejected_and_the_others_weighed_whatever_the_order(seed):
    columns = off_policy(seed)
    parts = [{"kind": "rejection", "high": 1.1}, {"kind": "truncated_is", "cap": None}]
    made = []
    for order in (parts, parts[::-1]):
        credited = dict(columns)
        for part in order:
            credited = algorithm.set_advantage(bind("rlvr.credit", part)(credited), credited)
        made.append(credited)
    assert torch.equal(made[0]["advantage"], made[1]["advantage"])
    assert torch.equal(made[0]["loss_share"], made[1]["loss_share"])
    log_ratio = columns["logp_old"] - columns["logp_sampler"]
    for row, mask in enumerate(columns["mask"]):
        mean = float(log_ratio[row][mask].mean()) if mask.any() else 0.0
        left = mask if abs(mean) <= math.log(1.1) else mask & False
        wanted = columns["advantage"][row] * log_ratio[row].exp() * left
        torch.testing.assert_close(made[0]["advantage"][row], wanted)
        assert made[0]["loss_share"][row].tolist() == left.float().tolist()


def test_what_is_left_out_is_shown():
    columns = off_policy(0) | {"logp_sampler": torch.zeros_like(off_policy(0)["logp_old"])}
    columns["logp_old"] = torch.full_like(columns["logp_old"], 2.0)
    columns["logp_old"][0] = 0.0
    share = 1 - int(columns["mask"][0].sum()) / int(columns["mask"].sum())
    for spec in ("masked_is", "rejection", "m2po"):
        part = bind("rlvr.credit", spec)
        assert part.fn.metrics() == {}
        part(columns)
        assert part.fn.metrics() == {"left_out_share": pytest.approx(share)}


@given(SEEDS, st.sampled_from([0.2, 0.5, 1.0]))
def test_high_entropy_against_a_loop(seed, share):
    """Rows that left the loss have no place in the quantile."""
    batch, advantage = with_advantage(seed)
    draw = torch.Generator().manual_seed(seed)
    batch.entropy_old = torch.randint(0, 9, batch.mask.shape, generator=draw) / 4
    batch.in_loss = torch.rand(len(batch.mask), generator=draw) < 0.7
    batch.in_loss[0] = True
    entropies = sorted(batch.entropy_old[batch.mask & batch.in_loss[:, None]].tolist())
    least = entropies[math.ceil(round((1 - share) * (len(entropies) - 1), 9))]
    columns = columns_of(batch) | {"advantage": advantage}
    out = bind("rlvr.credit", {"kind": "high_entropy", "share": share})(columns)
    for row, place in itertools.product(range(out.shape[0]), range(out.shape[1])):
        kept = batch.entropy_old[row, place] >= least
        assert out[row, place] == (advantage[row, place] if kept else 0.0)
    batch.in_loss[:] = False
    assert torch.equal(bind("rlvr.credit", "high_entropy")(columns_of(batch) | {"advantage": advantage}), advantage)
