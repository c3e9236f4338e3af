"""Curricula: what they draw follows what they have seen, by formula."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from collections import defaultdict

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.data.records import Stop, Trajectory
from pipelines.papers.gain_rl import prompt_score
from pipelines.papers.v0_budget import allocate, worth
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe


@pytest.mark.parametrize(("utility", "power"), [("hard", 2), ("variance", 1)])
def test_vade_draws_by_its_utility(utility, power):
    vade = bind("rlvr.curriculum", {"kind": "vade", "utility": utility}).fn
    vade.start(20, 3)
    for step in range(4):
        proposed = [a.problem for a in vade.propose(6, 8)]
        draw = random.Random(f"vade 3 {step}")
        chance = [draw.betavariate(*vade.posterior(n)) for n in range(20)]
        assert proposed == sorted(range(20), key=lambda n: (-chance[n] * (1 - chance[n]) ** power, n))[:6]
        vade.observe([GroupOutcome(n, 8, n % 9) for n in proposed])


def test_vade_forgets_what_it_saw_long_ago():
    vade = bind("rlvr.curriculum", {"kind": "vade", "keep": 1.0, "drift": 0.5}).fn
    vade.start(4, 0)
    vade.observe([GroupOutcome(0, 8, 8), GroupOutcome(1, 0, 0)])
    assert vade.posterior(0) == (1 + 8 / 2, 1.0) and vade.posterior(1) == (1.0, 1.0)
    vade.observe([])
    assert vade.posterior(0) == (1 + 8 / 4, 1.0)


@pytest.mark.parametrize(("common", "count"), [(3, 4), (0, 4), (3, 2), (3, 1), (3, 0)])
def test_a_prompt_s_score_is_of_the_cosines_of_its_hidden_states(common, count):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(common + count, 5, generator=draw) * torch.arange(1, common + count + 1)[:, None]
    before, question = hidden[:common], hidden[common:]

    def cosines(pairs):
        found = [float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for a, b in pairs]
        return sum(found) / len(found) if found else 0.0

    among = cosines([(a, b) for i, a in enumerate(question) for j, b in enumerate(question) if i != j])
    across = cosines([(a, b) for a in question for b in before])
    assert prompt_score(common, hidden)[0] == pytest.approx(among + 8 * across, abs=1e-5)


def proposed(curriculum, count):
    return [a.problem for a in curriculum.propose(count, 4)]


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


def test_the_curriculum_prefers_what_is_sometimes_solved():
    vade = bind("rlvr.curriculum", "vade").fn
    vade.start(60, 0)
    rate = {n: (0.02, 0.3, 0.98)[n % 3] for n in range(60)}
    seen = defaultdict(int)
    for step in range(60):
        numbers = [a.problem for a in vade.propose(10, 8)]
        assert len(set(numbers)) == 10
        if step >= 20:
            for n in numbers:
                seen[n % 3] += 1
        vade.observe([GroupOutcome(n, 100, round(100 * rate[n])) for n in numbers])
    assert seen[1] > 1.5 * seen[0] and seen[1] > 1.5 * seen[2]


MIXES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=6).filter(
    lambda mix: any(share for _, share in mix)
)
"""Problems and share of each source."""


def mixed(mix, seed=0, within="uniform", written=list):
    """The curriculum of sources s0, s1, ... with these sizes and shares, whose problems stand in the split in turns."""
    shares = dict(written([(f"s{number}", share) for number, (_, share) in enumerate(mix)]))
    part = bind("rlvr.curriculum", {"kind": "mixture", "shares": shares, "within": within}).fn
    left = {f"s{number}": size for number, (size, _) in enumerate(mix)}
    part.sources = []
    while any(left.values()):
        part.sources += [name for name, size in left.items() if size]
        left = {name: max(0, size - 1) for name, size in left.items()}
    part.start(len(part.sources), seed)
    return part


@given(mix=MIXES, counts=st.lists(st.integers(1, 30), min_size=1, max_size=12), seed=st.integers(0, 5))
def test_a_mixture_keeps_its_shares_and_passes_over_each_source(mix, counts, seed):
    """After every draw each source is within its bound of its share, and no problem comes twice before all of its source came once."""
    part, drawn = mixed(mix, seed), []
    total = sum(share for _, share in mix)
    for count in counts:
        allocations = part.propose(count, 4)
        assert [a.rollouts for a in allocations] == [4] * count
        drawn += [a.problem for a in allocations]
        for number, (_, share) in enumerate(mix):
            exact = share / total * len(drawn)
            own = sum(part.sources[problem] == f"s{number}" for problem in drawn)
            assert exact - len(mix) < own < exact + 1 and (share or not own)
    for number, (size, _) in enumerate(mix):
        own = [problem for problem in drawn if part.sources[problem] == f"s{number}"]
        for begin in range(0, len(own), size):
            assert len(set(own[begin : begin + size])) == len(own[begin : begin + size])


@given(mix=MIXES, before=st.integers(0, 50), cut=st.lists(st.integers(1, 9), min_size=1, max_size=6))
@pytest.mark.parametrize("within", ["uniform", "vade", "inverse_gap"])
def test_a_mixture_draws_the_same_after_a_restart_and_in_whatever_order_its_shares_are_written(
    within, mix, before, cut
):
    first = mixed(mix, within=within)
    first.observe([GroupOutcome(a.problem, 4, a.problem % 5) for a in first.propose(before, 4)])
    again = mixed(mix, within=within, written=reversed)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for count in cut:
        assert first.propose(count, 4) == again.propose(count, 4)


def test_a_mixture_tells_each_curriculum_of_its_own_problems():
    part = mixed([(5, 1), (5, 1)], within={"kind": "vade", "keep": 1.0, "drift": 1.0})
    allocations = part.propose(4, 8)
    part.observe([GroupOutcome(a.problem, 8, 8 if part.sources[a.problem] == "s0" else 0) for a in allocations])
    easy, hard = (part.within[name].fn for name in ("s0", "s1"))
    assert sorted(easy.posterior(problem) for problem in range(5)) == [(1.0, 1.0)] * 3 + [(9.0, 1.0)] * 2
    assert sorted(hard.posterior(problem) for problem in range(5)) == [(1.0, 1.0)] * 3 + [(1.0, 9.0)] * 2


def test_a_mixture_shows_shares_and_scores_of_a_step():
    part = mixed([(9, 3), (9, 1)])
    row = functools.partial(Trajectory, tokens=[], role=[], logp_old=[], max_tokens=1, stop=Stop.END, version=0)
    rows = [
        row(uid="0", group=group, source="s1" if group == 3 else "s0", score=float(group)) for group in range(4)
    ] * 2
    rows.append(row(uid="0", group=3, source="s1", score=None))
    assert part.on_rollouts(rows) is rows
    assert part.metrics() == {"share/s0": 0.75, "score/s0": 1.0, "share/s1": 0.25, "score/s1": 3.0}
    assert part.metrics() == {"share/s0": 0.0, "share/s1": 0.0}


@pytest.mark.parametrize(
    ("curriculum", "problem"),
    [
        ({"shares": {"palindrome_generation": 0}}, "rlvr.curriculum.shares: all are 0"),
        (
            {"shares": {"palindrome": 1}},
            "rlvr.curriculum.shares: train has no record of the source 'palindrome'. Did you mean",
        ),
        ({"shares": {"palindrome_generation": 1}, "within": "self_curation"}, "self_curation leaves out problems"),
        ({"shares": {"palindrome_generation": 1}, "within": "gain_rl"}, "gain_rl goes by the rows of whole steps"),
        (
            {
                "shares": {"palindrome_generation": 1},
                "within": {"kind": "mixture", "shares": {"palindrome_generation": 1}},
            },
            "mixture goes by the rows of whole steps",
        ),
        (
            {"shares": {"palindrome_generation": 1}, "within": "unifrom"},
            "rlvr.curriculum.within: no method called 'unifrom'",
        ),
    ],
)
def test_what_a_mixture_refuses(tmp_path, curriculum, problem):
    recipe = read_recipe(toys.recipe(tmp_path, rlvr={"curriculum": {"kind": "mixture", **curriculum}}))
    with pytest.raises(RecipeError) as caught:
        check(recipe)
    assert problem in str(caught.value)


def test_a_mixture_needs_a_share_for_every_source():
    part = bind("rlvr.curriculum", {"kind": "mixture", "shares": {"a": 1}}).fn
    part.sources = ["a", "b"]
    with pytest.raises(RecipeError, match=r"records of the source 'b' too\. Give it a share; 0 leaves it out"):
        part.start(2, 0)


@pytest.mark.slow
def test_a_run_with_a_mixture_ends_the_same_when_it_is_killed(tmp_path, start):
    """The trainer knows nothing of it: the same weights and metrics, and the shares that were asked for."""
    rare, common = "spell_backward", "palindrome_generation"
    listed = [{"kind": "reasoning_gym", "task": task, "size": 9} for task in (rare, common)]
    of = toys.recipe(
        tmp_path,
        curate={"sources": listed, "splits": {"train": 0.9, "heldout": 0.1}},
        rlvr={
            "steps": 4, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8}, "commit": {"every": 1},
            "curriculum": {"kind": "mixture", "shares": {rare: 3, common: 1}},
        },
    )  # fmt: skip

    def build(name):
        trainer = toys.trainer(tmp_path / name, start, of)
        trainer.problems[::20] = [dataclasses.replace(problem, source=rare) for problem in trainer.problems[::20]]
        trainer.collector.by_uid.update({problem.uid: problem for problem in trainer.problems})
        return trainer

    build("whole").run()
    toys.run_stopped(lambda: build("killed"))
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "killed/work")
    shares = [values[f"method/mixture/share/{rare}"] for _, values in toys.history(tmp_path / "whole/work")]
    assert shares == [0.75] * 4
