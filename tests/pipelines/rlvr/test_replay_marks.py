"""Rows that a replay puts into a batch are marked `replayed`, and no others: neither carried ones nor those of older weights."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import answer
from toys import columns_of

from pipelines.contract.catalogue import bind, names
from pipelines.contract.method import own_update
from pipelines.rlvr import algorithm
from pipelines.rlvr.pack import pack


@given(st.lists(st.tuples(st.integers(-1, 3), st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_only_the_mark_says_replayed_whatever_version_drew_a_row(rows):
    """The present weights (3), older ones as of a server that is behind or of a carried row, a sample stage's (-1), or windows."""
    packed = []
    for number, (version, windows, replayed) in enumerate(rows):
        row = dataclasses.replace(answer("a" * 32, number, "x", score=1.0), version=version, replayed=replayed)
        row.versions = [version] * len(row.tokens) if windows else None
        packed.append(type(row).from_plain(row.to_plain()))  # as a commit has it
    columns = pack(packed, step=5, total_steps=9, version=3)
    assert columns["replayed"].tolist() == [replayed for _, _, replayed in rows]
    expected = [not replayed and (windows or version == 3) for version, windows, replayed in rows]
    assert columns["on_policy"].tolist() == expected


def numbered(step: int, seed: int):
    """A step's columns with `problem` = 100 step + row; a third of the rows was carried over. Each step has more reward."""
    batch = toys.batch(seed=seed)
    place = torch.arange(len(batch.group))
    batch.problem, batch.on_policy, batch.raw_reward = 100 * step + place, place % 3 < 2, batch.raw_reward + step
    batch.group = torch.where(batch.on_policy, batch.group, batch.group - 1000)  # as those of carried rows are
    advantage = torch.randn(len(place), 1, generator=torch.Generator().manual_seed(seed)) * (place % 2)[:, None]
    return columns_of(batch) | {"advantage": advantage * batch.mask, "step": step}


SPECS = {"dph_rl": {"solved": 1, "rows": 3}, "pipo": {"window": 1}, "digirl": {"share": 0.5}}


@pytest.mark.slow
@pytest.mark.parametrize("name", names("rlvr.replay"))
@given(seed=st.integers(0, 500))
@pytest.mark.few(3)
def test_every_replay_marks_the_rows_of_other_steps_and_no_others(name, seed):
    replay = bind("rlvr.replay", {"kind": name, **SPECS.get(name, {})}).fn
    solved = [answer(f"{n:015x}" + "0" * 17, n, "x", score=1.0, correct=True) for n in range(5)]
    replay.setup(dataclasses.replace(toys.setup_context([0] * 5), rollouts=lambda numbers, count: solved))
    stored = 0
    for step in (1, 2, 3):
        columns = numbered(step, seed + step)
        updates = replay.updates(columns, torch.Generator().manual_seed(seed))
        assert not columns["replayed"].any(), "the step's own columns are left alone"
        for update in updates:
            of_others = update.columns["problem"] // 100 != step
            assert torch.equal(update.columns["replayed"], of_others)
            assert not (update.columns["on_policy"] & of_others).any() and (of_others.all() or not update.replayed)
            stored += int(of_others.sum())
    assert stored or name in ("no_replay", "seeupo", "r3"), "nothing was replayed; r3 does so before rows are packed"


def test_r3_marks_what_it_puts_in_and_nothing_else():
    """Whether the rows are of this step's weights too, as in two draws of a step, or were drawn in windows."""
    replay, uid = bind("rlvr.replay", "r3").fn, "a" * 32
    first = [answer(uid, 0, str(right), score=float(right), correct=bool(right)) for right in (1, 0)]
    first[0].versions = [0] * len(first[0].tokens)
    replay.on_rollouts(first)
    second = [answer(uid, 1, str(i), score=0.0, correct=False) for i in range(2)]
    rows = replay.on_rollouts(second)
    assert rows[:2] == second and [row.replayed for row in rows] == [False, False, True]
    assert not any(stored["replayed"] for kind in replay.past[uid].values() for stored in kind)
    columns = pack(rows, step=1, total_steps=2, version=0)
    assert columns["replayed"].tolist() == [False, False, True] and columns["on_policy"].tolist() == [True, True, False]
    (own,) = replay.updates(columns | {"advantage": torch.ones(columns["mask"].shape)}, torch.Generator())
    assert own.columns["advantage"][:, 0].tolist() == [1.0, 1.0, 0.5]


CARRY = ("rlvr.sampling_schedule={kind: dynamic_carry, max_draws: 8}", "rlvr.group_size=8")
BESIDE = {
    "dph_rl": ("rlvr.replay={kind: dph_rl, solved: 1, problems: 40, rows: 3}", "rlvr.mini_batches=1"),
    "r3": ("rlvr.curriculum=uniform", "rlvr.prompting=plain", "rlvr.optimizer.learning_rate=0.003"),
    "pipo": ("rlvr.replay={kind: pipo, window: 2, start: 1}", "rlvr.mini_batches=1"),
}
"""Replay → what its preset needs to replay soon."""


def trainer(folder, start, preset, *more):
    folder.mkdir(parents=True, exist_ok=True)
    settings = (f"presets=[{preset}]", "rlvr.filter=mixed", *CARRY, *BESIDE[preset], *more)
    made = toys.trainer(folder, start, toys.recipe(folder), *settings)
    if preset == "r3":
        del made.problems[12:]  # so that steps meet them again
    return made


def watched(made):
    """What each step that trains adds: its rows, their columns as the replay gets them, and the replay's updates.

    A trajectory that the replay puts into a draw gets a note in `logged`, which it keeps when it is carried over.
    """
    steps, batches = [], []
    replay, collect = made.update.replay.fn, made.collector.collect
    on_rollouts, updates = replay.on_rollouts, replay.updates

    def rows_noted(rows):
        out = on_rollouts(rows)
        for row in out:
            if all(row is not other for other in rows):
                row.logged["put in"] = True
        return out

    def updates_noted(columns, generator):
        steps.append((batches[-1].rows, columns, updates(columns, generator)))
        return steps[-1][2]

    replay.on_rollouts, replay.updates = rows_noted, updates_noted
    made.collector.collect = lambda step: batches.append(collect(step)) or batches[-1]
    return steps


def check_step(made, rows, columns, updates):
    """Every row that was sampled, carried ones too, is the step's own to all parts; returns how many were carried and replayed."""
    own, count = own_update(updates), len(rows)
    put_in = torch.tensor(["put in" in row.logged for row in rows])
    assert torch.equal(columns["replayed"], put_in) and torch.equal(own.columns["replayed"][:count], put_in)
    joined = [own.columns["replayed"][count:], *(u.columns["replayed"] for u in updates if u.replayed)]
    assert all(part.all() for part in joined)
    factor = torch.where(put_in, getattr(made.update.replay.fn, "alpha", 1.0), 1.0)[:, None]
    width = columns["mask"].shape[1]
    assert torch.equal(own.columns["advantage"][:count, :width], factor * columns["advantage"])
    assert torch.equal(own.columns["scored"][:count], columns["scored"])
    own_rows = ~own.columns["replayed"]
    if own.normalise_separately:
        weight = algorithm.weigh(made.update, own.columns, replayed_separately=True)["weight"]
        torch.testing.assert_close(weight[own_rows].sum(), torch.tensor(1.0))
    draw = torch.Generator().manual_seed(count)
    moved = own.columns | {"logp": own.columns["logp_old"] + torch.randn(own.columns["mask"].shape, generator=draw)}
    clip = bind("rlvr.objective", {"kind": "clip", "low": 0.2, "high": made.update.objective.settings["high"]})
    torch.testing.assert_close(made.update.objective(moved)[own_rows], clip(moved)[own_rows])
    if made.update.divergence is not None and made.update.divergence.name == "dph_rl":
        assert not made.update.divergence(moved)[own_rows].any()
    assert not (columns["on_policy"] & put_in).any()
    return int(((columns["group"] < 0) & ~put_in).sum()), int(put_in.sum()) + sum(map(len, joined))


@pytest.mark.parametrize("preset", BESIDE)
def test_carried_rows_train_as_the_step_s_own_beside_a_replay(tmp_path, start, preset):
    made = trainer(tmp_path, start, preset, "rlvr.steps=16")
    steps, both = watched(made), 0
    for step in range(16):
        before = len(steps)
        metrics = made.step(step)
        assert metrics.get("mismatch/max", 0.0) < 1e-4, "rows of older weights are not compared with the present ones"
        if len(steps) > before:
            carried, replayed = check_step(made, *steps[-1])
            assert metrics["replay/rows"] == replayed
            both += bool(carried and replayed)
        if both == 2:
            return
    pytest.fail(f"carried rows beside replayed ones in {both} of 16 steps")


@pytest.mark.slow
@pytest.mark.parametrize("preset", BESIDE)
@pytest.mark.few(1)
def test_carried_rows_beside_a_replay_survive_a_restart_to_the_byte(tmp_path, start, preset):
    build = lambda name: trainer(tmp_path / name, start, preset, "rlvr.steps=6")  # noqa: E731
    whole, waiting = build("whole"), []
    whole.phase = lambda part, step: (
        waiting.append(step) if part == "rollout" and whole.update.sampling_schedule.fn.carried else None
    )
    whole.run()
    stopped = toys.run_stopped(functools.partial(build, "stopped"), waiting[-1], "credit")
    assert stopped.start_step == waiting[-1] >= 2, "rows are carried over at the commit"
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "stopped/work")


def test_rows_drawn_in_windows_are_told_from_those_that_r3_puts_in(tmp_path, start):
    """They were drawn over several steps, as replayed ones were: all counted as on-policy, and none as replayed."""
    more = ("rlvr.sampling_schedule=single", "rlvr.window=2", "rlvr.filter=all_rows", "rlvr.steps=16")
    made = trainer(tmp_path, start, "r3", *more)
    steps, replayed = watched(made), 0
    for step in range(16):
        made.step(step)
    for rows, columns, updates in steps:
        replayed += check_step(made, rows, columns, updates)[1]
        assert torch.equal(columns["on_policy"], ~columns["replayed"]) and all(row.versions for row in rows)
    assert replayed
