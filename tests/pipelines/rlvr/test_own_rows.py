"""Rows that stay on their process: what is made of them is what one process makes of all, bit for bit."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from meeting import on_ranks
from method_toys import spec

from pipelines.contract.catalogue import bind, load, names
from pipelines.contract.rollout import DrawnProblem
from pipelines.laws import coupling, example_columns, methods
from pipelines.recipe.read import read_preset
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers
from pipelines.rlvr import algorithm, diagnostics
from pipelines.rlvr.learner import READ, Learner
from pipelines.rlvr.own_rows import ALONE, SLACK, Rows, moves

RANKS = 3
LOSSES = ("objective", "auxiliary_loss")
CALLED = [
    (slot.removeprefix("rlvr."), name)
    for slot in methods.CALLED
    for name in names(slot)
    if slot != "rlvr.filter"
    or load(slot, name).card.couples != "batch"  # a filter that does makes every process have all rows
]
"""Methods that are called with the columns of a process's own rows, or with those of all where they couple a batch."""


def sorted_by_group(columns):
    """As a trainer's rows are."""
    return algorithm.take(columns, columns["group"].argsort(stable=True))


def step(seed=0):
    """A step of seven groups."""
    return sorted_by_group(example_columns.random_step(rows=25, width=9, groups=7, seed=seed))


def own(columns, world):
    """The rows of a process's groups: group g is the one's with rank g modulo the processes."""
    mine = columns["group"] % world.size == world.rank
    return algorithm.take(columns, mine), mine


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


def test_the_tokens_that_a_teacher_names_go_with_their_rows():
    """The policy is asked for them where the rows of a process have come from another one."""
    columns = sorted_by_group(next(coupling.steps()))
    update = algorithm.Update.of(Rlvr(**read_preset("gkd")))
    passes = SimpleNamespace(log_probs=lambda *_, named, **__: named)

    def named(world):
        part = algorithm.take(columns, torch.full_like(columns["in_loss"], world.rank == 0))
        names = {*update.loss_columns(), *READ}
        moved, rows = Rows(world).balanced(part, torch.arange(len(part["group"])), names)
        here = algorithm.take(moved, rows)
        layout = SimpleNamespace(target=here["mask"].flatten().nonzero().squeeze(1))
        return Learner._values(SimpleNamespace(update=update, passes=passes), here, layout, None)

    first, second = on_ranks(2, named)
    whole = columns["teacher_top_id"][columns["mask"]]
    assert len(first) and len(second) and sorted([*first.tolist(), *second.tolist()]) == sorted(whole.tolist())


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s, n in CALLED if s not in LOSSES])
def test_a_method_says_on_two_processes_what_it_says_on_one(slot, name):
    """Whatever its card says, or leaves unsaid, of the rows that change a result; with every choice of its settings."""
    _, columns = map(sorted_by_group, islice(coupling.steps(), 2))  # with unscored rows and demonstrations
    for bound in coupling.choices(bind(f"rlvr.{slot}", spec(slot, name))):
        tried = methods.Subject(bound.slot, name, bound.settings)
        whole = results(tried.ready(columns)(columns))

        def call(world, tried=tried):
            part, mine = own(columns, world)
            return results(Rows(world).call(tried.ready(columns), part)), mine

        for part, mine in on_ranks(2, call):
            for of_all, of_own in zip(whole, part, strict=True):
                torch.testing.assert_close(of_own, of_all[mine], equal_nan=True)


def results(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s, n in CALLED if s in LOSSES])
def test_a_loss_has_on_two_processes_the_gradient_of_one(slot, name):
    """Its parts see a process's own rows alone, or where they couple rows (`batch_coupled`) the columns of all."""
    part_of_loss = [spec(slot, name)] if slot == "auxiliary_loss" else spec(slot, name)
    columns = sorted_by_group(next(coupling.steps()))
    names = ["logp", "entropy"]
    if algorithm.Update.of(Rlvr(**{slot: part_of_loss})).needs("entropy_top_p"):
        names.append("entropy_top_p")
    values = torch.cat([torch.stack([columns[name] for name in names], -1), columns["logp_top"]], -1)

    def gradient(rows, columns):
        update = algorithm.Update.of(Rlvr(**{slot: part_of_loss}))
        for method in update.methods():
            method.on_batch(step_of_all)
        taken, place = columns, torch.arange(len(columns["group"]))
        if update.batch_coupled():
            taken, place = rows.gathered(columns, {*update.loss_columns(), "values"})
        total, gradients = algorithm.cached_gradients(update, taken, taken["values"])
        return total, gradients[place], update.batch_coupled()

    step_of_all = columns | {"values": values}
    loss, of_all, coupled = gradient(ALONE, step_of_all)

    def on_process(world):
        part, mine = own(step_of_all, world)
        return gradient(Rows(world), part), mine

    parts = on_ranks(2, on_process)
    for (_, of_own, _), mine in parts:
        torch.testing.assert_close(of_own, of_all[mine], equal_nan=True)
    assert sum(total for (total, *_), _ in parts) == pytest.approx(loss * (2 if coupled else 1), nan_ok=True)


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


STEADY = [
    (slot, name)
    for slot, name in CALLED
    if slot not in LOSSES and (part := bind(f"rlvr.{slot}", spec(slot, name))).couples == "batch" and not part.sees_all
]
"""Methods that remember nothing, and are called with the columns of all rows."""


@pytest.mark.parametrize(("slot", "name"), STEADY)
def test_no_column_travels_for_nothing(slot, name):
    """With some choice of its settings a method that is called with all rows' columns needs more than a group's."""
    choices = coupling.choices(bind(f"rlvr.{slot}", spec(slot, name)))
    assert any(coupling.needed(bound) == "batch" for bound in choices if bound.couples == "batch")
