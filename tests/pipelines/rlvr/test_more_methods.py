"""Methods beside groups and turns: properties their papers name, slow loops, and what must not change."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.errors import RecipeError
from pipelines.rlvr.curriculum.v0_budget import allocate, worth
from pipelines.rlvr.replay.pipo import shares
from pipelines.rlvr.reward.arena_tournament import rank_rewards, tournament
from pipelines.rlvr.rollout.seele import accuracy, inverse, next_share

SEEDS = st.integers(0, 5_000)


def made(slot, spec, batch, **more):
    return bind(f"rlvr.{slot}", spec)(columns_of(batch) | more)


def with_demonstrations(seed):
    """Four groups of three rollouts and a demonstration, which is the last of them."""
    batch = toys.batch(rows=16, groups=4, seed=seed)
    batch.group = torch.arange(16) // 4
    demo = torch.arange(16) % 4 == 3
    batch.teacher_forced = batch.mask & demo[:, None]
    draw = torch.Generator().manual_seed(seed)
    batch.reward = torch.where(demo, 1.0, torch.randint(0, 3, (16,), generator=draw) / 2)
    batch.correct = (batch.reward >= 1).float()
    return batch, demo


@given(SEEDS)
def test_visurf_never_pushes_a_demonstration_down(seed):
    batch, demo = with_demonstrations(seed)
    found = made("advantage", "visurf", batch)
    for group in range(4):
        mine = batch.group == group
        rollouts = batch.reward[mine & ~demo]
        value = float(found[mine & demo])
        assert value >= -1e-6
        solved = float(rollouts.max()) >= 1
        assert (abs(value) < 1e-6) == solved
        if float(rollouts.max()) == 0:
            assert (found[mine & ~demo] < 0).all()


@given(SEEDS)
def test_every_problem_is_imitated_or_explored(seed):
    batch, demo = with_demonstrations(seed)
    for gate in (-1, 0, 1, 3):
        kept = made("filter", {"kind": "hpt_gate", "gate": gate}, batch)
        for group in range(4):
            mine = batch.group == group
            right = int(batch.correct[mine & ~demo].sum())
            wanted = demo if right <= gate else ~demo
            assert torch.equal(kept[mine], wanted[mine])


@given(SEEDS)
def test_hinted_and_plain_rows_of_equal_difficulty_weigh_the_same(seed):
    batch, _ = with_demonstrations(seed)
    plain = made("advantage", {"kind": "grpo"}, batch)
    batch.teacher_forced = torch.zeros_like(batch.mask)
    alone = made("advantage", "adhint", batch)
    n = 4
    torch.testing.assert_close(alone, plain * math.sqrt(n / (n - 1)), atol=1e-4, rtol=1e-4)
    right = torch.tensor([1.0, 0, 1, 0])
    batch = toys.batch(rows=4, groups=1, seed=seed)
    batch.reward = batch.correct = right
    batch.teacher_forced = batch.mask & (torch.arange(4) > 1)[:, None]
    torch.testing.assert_close(made("advantage", "adhint", batch), torch.tensor([1.0, -1, 1, -1]), atol=1e-4, rtol=0)


@given(SEEDS)
def test_chain_segments_add_up_to_the_surprise(seed):
    batch = toys.batch(seed=seed)
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    batch.mc_value = torch.where(first, 0.25, batch.mc_value)
    found, _ = made("advantage", {"kind": "spo_chain", "certain": 1.0}, batch)
    for row in range(12):
        places = batch.mask[row].nonzero().squeeze(1).tolist()
        valued = [t for t in places if not torch.isnan(batch.mc_value[row, t])]
        wanted, total = {}, 0.0
        for here, after in zip(valued, [*valued[1:], None], strict=True):
            end = float(batch.reward[row] if after is None else batch.mc_value[row, after])
            total += end - float(batch.mc_value[row, here])
            for t in places:
                if t >= here and (after is None or t < after):
                    wanted[t] = end - float(batch.mc_value[row, here])
        assert abs(total - (float(batch.reward[row]) - 0.25)) < 1e-5
        for t in places:
            assert abs(float(found[row, t]) - wanted[t]) < 1e-5


@given(SEEDS)
def test_grpo_s_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    found = made("advantage", {"kind": "grpo_s", "normalise": "none", "share": 0.3}, batch)
    mean = [float(batch.entropy_old[r][batch.mask[r]].mean()) for r in range(12)]
    for row in range(12):
        right = batch.correct[row] > 0
        same = [r for r in range(12) if batch.group[r] == batch.group[row] and (batch.correct[r] > 0) == right]
        part = [mean[r] if right else 1 / mean[r] for r in same]
        wanted = 1 + 0.3 * len(same) * (mean[row] if right else 1 / mean[row]) / sum(part)
        assert abs(float(found[row]) - (wanted if right else -wanted)) < 1e-4
    together = made("advantage", {"kind": "grpo_s", "normalise": "together", "share": 0.0}, batch)
    assert ((together > 0) == (batch.correct > 0))[together != 0].all()


@given(SEEDS, st.floats(0, 1))
def test_red_shares_out_the_whole_reward(seed, share):
    from pipelines.rlvr.credit.red import token_rewards

    batch = toys.batch(seed=seed)
    paid = token_rewards(batch.reward, batch.value, batch.mask, share)
    first = batch.mask.long().argmax(1, keepdim=True)
    start = batch.value.double().gather(1, first).squeeze(1)
    torch.testing.assert_close(paid.sum(1), share * (batch.reward - start) + (1 - share) * batch.reward.double())
    advantage = torch.randn(batch.mask.shape) * batch.mask
    torch.testing.assert_close(made("credit", {"kind": "red", "share": 0.0}, batch, advantage=advantage), advantage)


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
    from pipelines.rlvr.credit.verl_erank import effective_rank

    line = torch.arange(10.0)[:, None] * torch.tensor([[1.0, 2, 3]])
    assert abs(effective_rank(line) - 1) < 1e-3
    corners = torch.eye(4) - 0.25
    assert abs(effective_rank(corners) - 3) < 1e-3 and effective_rank(line[:1]) == 0


@given(SEEDS)
def test_hapo_with_equal_entropies_is_the_clip(seed):
    batch = toys.batch(seed=seed)
    batch.entropy_old = 0.4 * batch.mask
    columns = columns_of(batch) | {
        "advantage": torch.randn(batch.mask.shape) * batch.mask,
        "logp": batch.logp_old + 0.3 * torch.randn(batch.mask.shape) * batch.mask,
    }
    method = bind("rlvr.objective", "hapo")
    method.fn.on_batch(columns)
    plain = bind("rlvr.objective", {"kind": "clip", "dual": 10.0})(columns)
    torch.testing.assert_close(method(columns), plain)


@given(SEEDS)
def test_hapo_s_scale_follows_the_entropy(seed):
    batch = toys.batch(seed=seed)
    method = bind("rlvr.objective", {"kind": "hapo", "quantile": 0.5}).fn
    method.on_batch(columns_of(batch))
    kind = method.normalised(batch.entropy_old)[batch.mask]
    order = batch.entropy_old[batch.mask].argsort()
    assert (kind[order].diff() >= -1e-6).all()
    assert abs(float(kind.max()) - 1) < 1e-5 and abs(float(kind.min()) + 1) < 1e-5


def test_pacs_pulls_rows_apart_and_stays_finite():
    batch = toys.batch()
    for far in (0.0, 100.0):
        logp = (batch.logp_old + far * (2 * batch.correct - 1)[:, None] * batch.mask).requires_grad_()
        loss = made("objective", "pacs", batch, logp=logp)
        assert torch.isfinite(loss).all()
        rows = (loss * batch.mask / batch.mask.sum(1, keepdim=True)).sum(1)
        gradient = torch.autograd.grad(rows.mean(), logp)[0]
        per_row = (gradient * batch.mask).sum(1) / batch.mask.sum(1)
        for group in range(3):
            assert abs(float(per_row[batch.group == group].sum())) < 1e-6
        if far == 0:
            assert torch.equal(per_row < 0, batch.correct > 0)


def test_siren_starts_flat_and_touches_only_the_unsure():
    batch = toys.batch(width=12)
    method = bind("rlvr.auxiliary_loss", "siren")
    top = torch.rand(batch.mask.shape, requires_grad=True)
    weight = batch.mask / batch.mask.sum()

    def term():
        value = (method(columns_of(batch) | {"entropy_top_p": top, "weight": weight}) * weight).sum()
        return float(value.detach()), torch.autograd.grad(value, top)[0]

    value, gradient = term()
    assert value == 0 and gradient.abs().max() == 0
    method.fn.anchor -= 0.2
    batch.step += 1
    value, gradient = term()
    assert abs(value - 0.04) < 1e-5
    touched = gradient != 0
    assert touched.any() and (touched <= batch.mask).all()
    assert (touched.sum(1) <= (0.2 * (batch.mask.sum(1) - 1)).ceil().clamp(min=1)).all()
    assert (gradient[touched] > 0).all(), "above the anchor it pulls down"


def test_epo_inside_the_band_is_the_entropy_bonus():
    batch = toys.batch()
    method = bind("rlvr.auxiliary_loss", "epo")
    entropy = torch.rand(batch.mask.shape)
    columns = columns_of(batch) | {"entropy": entropy}
    method.fn.on_batch(columns)
    torch.testing.assert_close(method(columns), -entropy, msg="no past yet")
    method.fn.on_batch(columns)
    usual = [float(batch.entropy_old[batch.mask & (batch.turn == t)].mean()) for t in (0, 1)]
    assert method.fn.usual == pytest.approx(usual)
    inside = torch.tensor(usual)[batch.turn.clamp(min=0)]
    torch.testing.assert_close(method(columns | {"entropy": inside})[batch.mask], -inside[batch.mask])
    low = (0.5 * inside).requires_grad_()
    method(columns | {"entropy": low, "step": 0})[batch.mask].sum().backward()
    torch.testing.assert_close(low.grad[batch.mask], torch.full_like(low.grad[batch.mask], -2.0))


@given(SEEDS, st.floats(-3, 3))
def test_par_compares(seed, shift):
    draw = torch.Generator().manual_seed(seed)
    reward, same = torch.randn(6, generator=draw), torch.full((6,), 7)
    one, two = (bind("rlvr.shaping", {"kind": "par", "scale": 2.0}).fn for _ in range(2))
    references = torch.randn(3, generator=draw)
    one.scores, two.scores = {"7": references.tolist()}, {"7": (references + shift).tolist()}
    shaped = one(reward, same, same > 0)
    torch.testing.assert_close(shaped, two(reward + shift, same, same > 0))
    assert (shaped > 0).all() and (shaped < 1).all() and torch.equal(shaped.argsort(), reward.argsort())
    one.scores = {"7": [0.25]}
    assert one(torch.tensor([0.25]), same[:1], same[:1] > 0).item() == 0.5
    with pytest.raises(RecipeError, match="no scored reference"):
        one(reward[:1], same[:1] + 1, same[:1] > 0)


def test_siren_s_anchor_is_the_first_step_s_whole_batch():
    batch = toys.batch(width=12)
    top, weight = torch.rand(batch.mask.shape), batch.mask / batch.mask.sum()
    columns = columns_of(batch) | {"entropy_top_p": top, "weight": weight}
    whole, halves = bind("rlvr.auxiliary_loss", "siren"), bind("rlvr.auxiliary_loss", "siren")
    whole(columns)
    for rows in (torch.arange(4), torch.arange(4, 12)):
        halves({k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in columns.items()})
    assert abs(whole.fn.anchor - halves.fn.anchor) < 1e-6
    halves(columns | {"step": batch.step + 1, "entropy_top_p": top * 2})
    assert abs(whole.fn.anchor - halves.fn.anchor) < 1e-6


def test_serr_ranks_where_no_on_policy_answer_is_correct():
    batch = toys.batch()
    batch.correct, batch.reward = batch.correct * 0, batch.reward * 0
    batch.correct[1] = 1.0  # of group 1
    batch.correct[2], batch.on_policy[2] = 1.0, False  # replayed: its group 2 has none of its own
    found = made("shaping", "serr", batch)
    assert (found[batch.group == 1] == 0).all() and found[2] == 0
    for group in (0, 2):
        batch.group[2] = 99
        assert (found[batch.group == group] >= 0).all() and (found[batch.group == group] <= 0.5).all()
        assert abs(float(found[batch.group == group].mean()) - 0.25) < 1e-6
    batch.group[2] = 2
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    moved = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in columns_of(batch).items()}
    torch.testing.assert_close(bind("rlvr.shaping", "serr")(moved), found[order])


@given(SEEDS)
def test_pipo_s_shares_add_up_to_the_group(seed):
    batch = toys.batch(seed=seed)
    advantage = torch.randn(12, 1, generator=torch.Generator().manual_seed(seed)) * batch.mask
    found = shares(advantage, batch.mask, batch.group, batch.in_loss)
    for group in range(3):
        mine = batch.group == group
        assert abs(float(found[mine].abs().sum()) - int(mine.sum())) < 1e-2
    assert (shares(advantage * 0, batch.mask, batch.group, batch.in_loss) == 0).all()


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12), st.integers(2, 6), st.sampled_from(["v0", "mixed"]))
def test_a_budget_is_spent_within_its_bounds(chances, each, utility):
    total = each * len(chances)
    counts = allocate(chances, total, 2, 3 * each, utility)
    assert sum(counts) == total and min(counts) >= 2 and max(counts) <= 3 * each
    assert all(worth(1, p, "v0") == 0 for p in chances) and worth(5, 0.0, utility) == worth(5, 1.0, utility) == 0
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    if len(set(chances)) == len(chances):
        again = allocate([chances[i] for i in order], total, 2, 3 * each, utility)
        assert sum(worth(n, chances[i], utility) for n, i in zip(again, order, strict=True)) == pytest.approx(
            sum(worth(n, p, utility) for n, p in zip(counts, chances, strict=True)), rel=0.2
        )


def test_a_budget_follows_what_was_seen():
    method = bind("rlvr.curriculum", {"kind": "v0_budget", "utility": "mixed"}).fn
    method.start(4, 0)
    assert {a.problem: a.rollouts for a in method.propose(4, 4)} == dict.fromkeys(range(4), 4)
    for _ in range(40):
        method.observe([GroupOutcome(problem, 4, correct) for problem, correct in enumerate((0, 2, 4, 4))])
    counts = [a.rollouts for a in sorted(method.propose(4, 4), key=lambda a: a.problem)]
    assert sum(counts) == 16 and min(counts[:2]) > max(counts[2:]), "what is always solved teaches nothing"


def proposed(curriculum, count):
    return [a.problem for a in curriculum.propose(count, 4)]


def test_gain_sorts_draws_and_moves():
    def method(**more):
        found = bind("rlvr.curriculum", {"kind": "gain_rl", **more}).fn
        found.start(20, 0)
        return found

    one = method(sigma=2.0)
    one.setup(toys.setup_context(range(20)))
    assert sorted(one.order) == list(range(20)) and one.order[:4] == [4, 9, 14, 19], "the largest score first"
    drawn = proposed(one, 5)
    assert len(set(drawn)) == 5 and {one.order.index(n) for n in drawn} <= set(range(12))
    assert sorted(proposed(one, 20)) == list(range(20)) and len(proposed(one, 50)) == 50
    shifts = [one.shift(reward / 10, 0.1) for reward in range(11)]
    assert shifts == sorted(shifts) and min(shifts) >= 0
    counts = [0] * 20
    wide = method(sigma=1e9)
    for _ in range(800):
        for n in proposed(wide, 5):
            counts[n] += 1
        wide.observe([])
    assert max(abs(c / 200 - 1) for c in counts) < 0.25
    batch = toys.batch()
    one.on_batch(columns_of(batch))
    reward, angle = float(batch.raw_reward.mean()), float(batch.hidden_stats[:, 0].mean())
    assert one.mu == pytest.approx(one.shift(reward, angle))


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_best_of_a_fair_tournament_wins(count, random):
    quality = random.sample(range(100), count)
    calls = []

    def meet(a, b):
        calls.append((a, b))
        return 5 + quality[a] - quality[b], 5 + quality[b] - quality[a]

    ranked = tournament(count, meet)
    assert sorted(ranked) == list(range(count)) and len(calls) == 2 * (count - 1)
    assert quality[ranked[0]] == max(quality)
    rewards = rank_rewards(ranked)
    if count > 1:
        assert sorted(rewards) == pytest.approx([i / (count - 1) for i in range(count)])


def answer(uid, group, text, **more):
    return Trajectory(
        uid=uid, group=group, tokens=[1, 5, 2], role=[0, 3, 3], logp_old=[0.0, -1.0, -1.0], max_tokens=4, stop=Stop.END,
        version=0, text=text, **more,
    )  # fmt: skip


def problems(*uids):
    return {
        uid: Problem(
            uid=uid, prompt=[{"role": "user", "content": "?"}], answer="4", verifier="number", source="s", licence="l"
        )
        for uid in uids
    }


def test_views_label_each_other():
    original, other = ["4", "4", "5", "none", "4"], ["4", "7", "7", "7", "4"]
    rows = [answer("a" * 32, 0, t) for t in original] + [answer("a" * 32, 3, t) for t in other]
    method = bind("rlvr.reward", "co_reward").fn
    method.score(rows, problems("a" * 32))
    assert [r.score for r in rows] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert rows[0].correct and rows[0].components["views_agree"] == 0, "the gold answer is for the measurements"
    swapped = [answer("a" * 32, 3, t) for t in original] + [answer("a" * 32, 0, t) for t in other]
    method.score(swapped, problems("a" * 32))
    assert [r.score for r in swapped] == [r.score for r in rows]
    tied = [answer("a" * 32, 0, t) for t in ("4", "5")] + [answer("a" * 32, 1, t) for t in ("4", "4")]
    method.score(tied, problems("a" * 32))
    assert [r.score for r in tied] == [1, 0, None, None], "a tie labels nobody"
    with pytest.raises(RecipeError, match="paraphrase"):
        method.score(rows[:5], problems("a" * 32))


def longer(problem, first, second):
    return float(len(first)), float(len(second))


def broken(problem, first, second):
    raise TimeoutError


def test_a_judge_of_one_s_own():
    import sys

    sys.modules["judges_of_this_test"] = sys.modules[__name__]
    rows = [answer("b" * 32, 2, "x" * n) for n in (3, 5, 1, 4, 2)]
    bind("rlvr.reward", {"kind": "arena_tournament", "judge": "judges_of_this_test:longer"}).fn.score(
        rows, problems("b" * 32)
    )
    assert [r.score for r in rows] == [0.5, 1.0, 0.0, 0.75, 0.25]
    spec = {"kind": "arena_tournament", "judge": "judges_of_this_test:longer", "as_advantage": True}
    bind("rlvr.reward", spec).fn.score(rows, problems("b" * 32))
    assert statistics.fmean(r.score for r in rows) == pytest.approx(0, abs=1e-9)
    spec = {"kind": "arena_tournament", "judge": "judges_of_this_test:broken"}
    bind("rlvr.reward", spec).fn.score(rows, problems("b" * 32))
    assert sorted(r.score for r in rows) == [0, 0.25, 0.5, 0.75, 1.0]
    with pytest.raises(RecipeError, match=r"package\.module:function"):
        bind("rlvr.reward", {"kind": "arena_tournament", "judge": "judges_of_this_test:none"})


@given(st.floats(0.5, 50), st.floats(-1.5, 0.5), st.floats(0, 0.4), st.floats(0.45, 0.95))
def test_the_hint_curve_and_its_inverse(slope, shift, guess, target):
    p = inverse(target, slope, shift, guess)
    assert abs(float(accuracy(p, slope, shift, guess)) - target) < 1e-6
    assert inverse(target, slope, shift + 0.1, guess) < p, "a stronger policy needs less"
    assert inverse(0.3, slope, shift, 0.35) == 0


@given(st.lists(st.tuples(st.floats(0, 0.9), st.floats(0, 1)), min_size=1, max_size=4))
def test_a_hint_never_tells_everything(tried):
    assert 0 <= next_share(tried, 0.5, 0.9) <= 0.9


def test_replay_only_helps_groups_without_difference():
    method = bind("rlvr.replay", {"kind": "r3", "answers": 2}).fn
    a, b = "a" * 32, "b" * 32

    def rows(uid, group, *rights, version=0):
        made = [answer(uid, group, str(i), score=float(r), correct=bool(r)) for i, r in enumerate(rights)]
        for one in made:
            one.version = version
        return made

    first = rows(a, 0, 1, 0, 1) + rows(b, 1, 0, 0, 0)
    assert method.on_rollouts(first) == first, "nothing is stored yet"
    second = (
        rows(a, 0, 0, 0, version=1)
        + rows(b, 1, 0, 0, version=1)
        + rows(a, 2, 1, 0, version=1)
        + rows(a, 3, 1, 1, version=1)
    )
    mixed = method.on_rollouts(second)
    by_group = {g: [r for r in mixed if r.group == g] for g in range(4)}
    assert [len(by_group[g]) for g in range(4)] == [4, 2, 2, 3]
    assert all(r.correct and r.uid == a and r.version == 0 for r in by_group[0][2:])
    assert not by_group[3][2].correct and by_group[3][2].version == 0
    batch = toys.batch()
    batch.on_policy = torch.arange(12) < 10
    scaled = method.extend(columns_of(batch) | {"advantage": torch.ones(12, 9)}, torch.Generator())
    assert scaled["advantage"][:, 0].tolist() == [1.0] * 10 + [0.5] * 2
    again = bind("rlvr.replay", {"kind": "r3", "answers": 2}).fn
    again.load_state_dict(method.state_dict())
    assert again.on_rollouts(rows(a, 0, 0, 0, version=2)) == method.on_rollouts(rows(a, 0, 0, 0, version=2))


def test_a_prior_goes_in_front():
    from pipelines.data.chat import with_system_prompt

    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2?"}]
    assert with_system_prompt(asked, "Think.")[0]["content"] == "Think.\n\nBe short."
    assert with_system_prompt(asked, None) is asked
    assert Role.TEACHER_FORCED == 5, "stored rows hold the number"


def rows_of(batch, group):
    return [r for r in range(len(batch.group)) if int(batch.group[r]) == group]


@given(SEEDS)
def test_visurf_against_a_loop(seed):
    batch, demo = with_demonstrations(seed)
    found = made("advantage", "visurf", batch)
    for group in range(4):
        rows = rows_of(batch, group)
        value = {r: float(batch.reward[r]) for r in rows}
        rollouts = [value[r] for r in rows if not demo[r]]
        for r in rows:
            if demo[r] and max(rollouts) >= value[r]:
                value[r] = statistics.fmean(rollouts)
        mean, spread = statistics.fmean(value.values()), statistics.stdev(value.values())
        for r in rows:
            assert abs(float(found[r]) - (value[r] - mean) / (spread + 1e-6)) < 1e-4


@given(SEEDS)
def test_hapo_s_baseline_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    found = made("advantage", "hapo", batch)
    for group in range(3):
        rows = rows_of(batch, group)
        tokens = [float(batch.reward[r]) for r in rows for _ in range(int(batch.mask[r].sum()))]
        mean, spread = statistics.fmean(tokens), statistics.pstdev(tokens)
        for r in rows:
            assert abs(float(found[r]) - (float(batch.reward[r]) - mean) / (spread + 1e-6)) < 1e-4


@given(SEEDS, st.floats(0.2, 3))
def test_pacs_against_a_loop(seed, beta):
    batch = toys.batch(seed=seed)
    logp = batch.logp_old + 0.3 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    found = made("objective", {"kind": "pacs", "beta": beta}, batch, logp=logp)
    for group in range(3):
        rows = rows_of(batch, group)
        score = {r: beta * float(((logp - batch.logp_old) * batch.mask)[r].sum()) for r in rows}
        right = sum(bool(batch.correct[r]) for r in rows)
        for r in rows:
            psi = score[r] - statistics.fmean(score[o] for o in rows if o != r)
            sign = 1 if batch.correct[r] else -1
            loss = math.log1p(math.exp(-sign * psi)) if sign * psi > -30 else -sign * psi
            same = right if batch.correct[r] else len(rows) - right
            loss *= len(rows) / (2 * same) if 0 < right < len(rows) else 1
            mine = found[r][batch.mask[r]]
            assert (mine - loss).abs().max() < 1e-4 * max(1, loss)


@given(SEEDS)
def test_serr_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    batch.correct, batch.truncated = batch.correct * 0, torch.ones(12, dtype=torch.bool)
    found = made("shaping", {"kind": "serr", "most": 0.4, "share": 0.5}, batch) - batch.reward
    peak, mean = {}, {}
    for r in range(12):
        values = sorted(batch.entropy_old[r][batch.mask[r]].tolist(), reverse=True)
        best = values[: max(1, int(0.5 * len(values)))]
        peak[r], mean[r] = statistics.fmean(best), statistics.fmean(values)
    for group in range(3):
        rows = rows_of(batch, group)
        beaten = {r: sum(peak[r] > peak[o] and mean[r] < mean[o] for o in rows) for r in rows}
        order = sorted(rows, key=lambda r: -beaten[r])
        for r in rows:
            rank = statistics.fmean(i for i, o in enumerate(order) if beaten[o] == beaten[r])
            assert abs(float(found[r]) - 0.4 * (1 - rank / (len(rows) - 1))) < 1e-5


@given(SEEDS)
def test_adhint_s_credit_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    batch.teacher_forced = batch.mask & (batch.mask.cumsum(1) <= 2) & (batch.length > 3)[:, None]
    advantage = torch.randn(12, 1, generator=torch.Generator().manual_seed(seed)) * (batch.mask & ~batch.teacher_forced)
    found = made("credit", "adhint", batch, advantage=advantage)
    for r in range(12):
        own = batch.mask[r] & ~batch.teacher_forced[r]
        usual = max(1e-6, float(batch.entropy_old[r][own].mean()))
        worth = max(0.0, float(advantage[r][own].mean()))
        for t in batch.teacher_forced[r].nonzero().squeeze(1).tolist():
            wanted = worth * math.exp(-abs(float(batch.entropy_old[r, t]) - usual) / usual)
            assert abs(float(found[r, t]) - wanted) < 1e-5
        assert torch.equal(found[r][own], advantage[r][own])


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=6), st.lists(st.floats(0.05, 1), min_size=2, max_size=6))
def test_rehearsal_divergences_are_those_of_their_names(first, second):
    n = min(len(first), len(second))
    ref, pi = (torch.tensor(x[:n], dtype=torch.float64) for x in (first, second))
    ref, pi = ref / ref.sum(), pi / pi.sum()
    middle = (ref + pi) / 2

    def kl(a, b):
        return float((a * (a / b).log()).sum())

    def mean(f):
        columns = {"logp": pi.log()[None], "logp_old": ref.log()[None], "on_policy": torch.tensor([False])}
        value = bind("rlvr.divergence", {"kind": "dph_rl", "f": f})(columns)
        assert (value >= -1e-9).all()
        return float((ref * value[0]).sum())

    assert mean("forward") == pytest.approx(kl(ref, pi), abs=1e-9)
    assert mean("js") == pytest.approx(kl(pi, middle) + kl(ref, middle), abs=1e-9)


def test_chi_squared_over_whole_answers_is_unbiased():
    """By enumeration of three answers; and it is never below the KL."""
    from pipelines.rlvr.ops import linear_expm1

    pi, ref = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    d = (pi / ref).log()
    estimate = float((pi * (linear_expm1(d) + linear_expm1(-d))).sum())
    assert estimate == pytest.approx(0.163333, abs=1e-5) == pytest.approx(float((pi * pi / ref).sum()) - 1, abs=1e-6)
    assert estimate >= math.exp(float((pi * d).sum())) - 1 >= float((pi * d).sum())
