"""Rows that stay on their process: what is made of them is what one process makes of all, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from meeting import on_ranks

from pipelines.contract.catalogue import bind
from pipelines.contract.columns import Phase
from pipelines.contract.rollout import DrawnProblem
from pipelines.laws import coupling, example_columns
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr import algorithm, diagnostics
from pipelines.rlvr.own_rows import SLACK, Rows, moves

RANKS = 3


def step(seed=0):
    """A step of seven groups, sorted as a trainer's rows are."""
    columns = example_columns.random_step(rows=25, width=9, groups=7, seed=seed)
    order = columns["group"].argsort(stable=True)
    return {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in columns.items()}


def own(columns, world):
    """The rows of a process's groups: group g is the one's with rank g modulo the processes."""
    mine = columns["group"] % world.size == world.rank
    return {k: v[mine] if isinstance(v, torch.Tensor) else v for k, v in columns.items()}, mine


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"advantage": {"kind": "grpo", "scale": "batch"}, "credit": ["whiten"], "loss_aggregation": "token_mean"},
        {
            "advantage": "reinforce_pp",
            "shaping": ["soft_overlong"],
            "divergence": {"kind": "k1", "where": "reward", "weight": 0.5},
        },
        {"advantage": "gpg", "shaping": [{"kind": "novelty", "scope": "global"}], "loss_aggregation": "row_mean"},
        {"advantage": "gae", "credit": ["high_entropy"]},
    ],
)
def test_credit_and_weights_are_those_of_one_process(settings):
    columns, shares = step(), {}
    update = algorithm.Update.of(Rlvr(**settings))
    whole = algorithm.assign_credit(update, columns, lambda *change: shares.update({change[0]: change[2]}))
    whole = algorithm.weigh(update, whole)
    signal = diagnostics.of_columns(whole)

    def credit(world):
        part, mine = own(columns, world)
        rows, seen = Rows(world), {}
        update = algorithm.Update.of(Rlvr(**settings))
        part = algorithm.assign_credit(update, part, lambda *change: seen.update({change[0]: change[2]}), rows)
        part = algorithm.weigh(update, part, rows=rows)
        assert seen == shares
        assert diagnostics.of_columns(part, world) == pytest.approx(signal)
        return part, mine, update.state_dict()

    for part, mine, state in on_ranks(RANKS, credit):
        for name in ("advantage", "weight", "reward", "loss_share", "immediate_reward"):
            assert torch.equal(part[name], whole[name][mine]), name
        assert state == update.state_dict()


def test_only_the_columns_of_a_part_that_couples_a_batch_travel():
    columns = step()
    gathered = []

    def credit(world):
        part, _ = own(columns, world)
        rows = Rows(world)
        rows.call(bind("rlvr.advantage", "grpo"), part)
        before = world.received["bytes"]
        rows.call(bind("rlvr.credit", "whiten"), part | {"advantage": part["logp_old"]})
        gathered.append((before, world.received["bytes"]))

    on_ranks(RANKS, credit)
    assert all(before == 0 < after for before, after in gathered)


def test_a_loss_that_couples_rows_has_the_gradient_of_one_process():
    columns = step() | {k: v for k, v in step_of_loss().items() if k in ("logp", "advantage", "weight", "entropy")}
    update = algorithm.Update.of(Rlvr(objective="kl_cov"))
    values = torch.stack([columns["logp"], columns["logp"].abs()], -1)
    total, gradient = algorithm.cached_gradients(update, columns, values)

    def couple(world):
        part, mine = own(columns | {"values": values}, world)
        whole, places = Rows(world).gathered(part, {*update.loss_columns(), "values"})
        loss, grads = algorithm.cached_gradients(update, whole, whole.pop("values"))
        return loss, grads[places], mine

    for loss, grads, mine in on_ranks(RANKS, couple):
        assert loss == total and torch.equal(grads, gradient[mine])


def step_of_loss():
    columns = example_columns.random_step(rows=25, width=9, groups=7, phase=Phase.LOSS)
    order = columns["group"].argsort(stable=True)
    return {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in columns.items()}


@given(st.lists(st.lists(st.integers(1, 50), max_size=8), min_size=2, max_size=5))
def test_moves_lower_the_largest_load_and_end(sizes):
    numbers = iter(range(1000))
    tokens = [{next(numbers): size for size in of_one} for of_one in sizes]
    load = [sum(of_one) for of_one in sizes]
    before, moved = list(load), moves(tokens)
    assert len({group for group, *_ in moved}) == len(moved)
    for group, by, to in moved:
        size = tokens[by].get(group) or next(of_one[group] for of_one in tokens if group in of_one)
        load[by] -= size
        load[to] += size
    assert max(load) <= max(before) and sum(load) == sum(before)
    if all(size == 1 for of_one in sizes for size in of_one):
        assert max(load) <= max(SLACK * sum(load) / len(load), -(-sum(load) // len(load)))


def test_every_row_of_an_update_is_computed_once_wherever_it_went():
    columns = step()
    one = columns["group"] <= 3  # all groups but one are the first process's
    live = columns["mask"].any(1) & (torch.arange(len(one)) % 5 != 0)

    def balance(world):
        mine = one if world.rank == 0 else ~one if world.rank == 1 else one & False
        part = {k: v[mine] if isinstance(v, torch.Tensor) else v for k, v in columns.items()}
        rows = live[mine].nonzero().squeeze(1)
        moved, numbers = Rows(world).balanced(part, rows, {"group", "mask", "token", "logp_old"})
        assert "reward" not in moved and moved["step"] == columns["step"]
        return {name: moved[name][numbers] for name in ("group", "mask", "token", "logp_old")}

    parts = on_ranks(RANKS, balance)
    loads = [int(part["mask"].sum()) for part in parts]
    assert min(loads) > 0 and max(loads) < 0.6 * sum(loads)
    for name in ("token", "logp_old", "mask"):
        arrived = torch.cat([part[name] for part in parts])
        assert sorted(map(tuple, arrived.tolist())) == sorted(map(tuple, columns[name][live].tolist()))
    groups = [set(part["group"].tolist()) for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups))


def why(**settings):
    rlvr = Rlvr(**settings)
    update = algorithm.Update.of(rlvr)
    from pipelines.recipe.slots import bind_providers

    return update.why_all([bound.fn for bound in bind_providers(rlvr, update.bound())])


def test_what_reads_all_rows_is_named():
    assert why() == why(filter="mixed", sampling_schedule="dynamic", divergence="k3", credit=["whiten"]) == ""
    assert "dynamic_carry" in why(sampling_schedule="dynamic_carry")
    assert "adaptive_k1 gets all rows" in why(divergence={"kind": "adaptive_k1"})
    assert "critic" in why(advantage="gae", providers=[{"kind": "critic", "learning_rate": 1e-5}])


@pytest.mark.parametrize(
    ("slot", "spec", "wanted"),
    [
        ("advantage", "as_is", "row"), ("advantage", "rloo", "group"), ("advantage", {"kind": "grpo", "scale": "none"}, "group"),
        ("advantage", {"kind": "grpo", "scale": "batch"}, "batch"), ("advantage", "gpg", "batch"), ("filter", "mixed", "group"),
        ("loss_aggregation", "token_mean", "batch"), ("shaping", "soft_overlong", "row"),
    ],
)  # fmt: skip
def test_what_a_method_couples_is_seen(slot, spec, wanted):
    bound = bind(f"rlvr.{slot}", spec)
    assert coupling.needed(bound) == wanted
    assert bound.couples == wanted


def test_a_problem_of_another_process_has_no_rows_here_and_the_schedule_does_not_mind():
    schedule = bind("rlvr.sampling_schedule", {"kind": "dynamic", "max_draws": 2}).fn
    drawn = iter([[DrawnProblem([], trains=True), DrawnProblem([], trains=False)], [DrawnProblem([], trains=True)]])
    assert len(schedule.collect(lambda: next(drawn), 2)) == 2
