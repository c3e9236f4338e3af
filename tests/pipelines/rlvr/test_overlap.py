"""Batches sampled while the trainer trains: with the weights that they should have, resumed to the same bytes."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import threading
import time

import pytest
import ranks
import torch
import toys
from stand_in import StandIn, until_the_test_ends

from pipelines.base.errors import Interrupted, RecipeError
from pipelines.contract.method import own_update
from pipelines.engine import checkpoint
from pipelines.engine.policy import Policy
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.collect import Batch, Collector
from pipelines.rlvr.overlap import Idle
from pipelines.rlvr.pack import pack

CORRECTED = ("rlvr.old_logp=trainer", "rlvr.credit=[{kind: truncated_is}]", "rlvr.optimizer.learning_rate=0.005")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    yield from until_the_test_ends(StandIn(tmp_path / "served"), monkeypatch)


def overrides(server, staleness, *more):
    where = f"rlvr.sampler={{urls: ['{server.url}'], weights: {server.weights}}}"
    return (where, f"rlvr.staleness={staleness}", "rlvr.steps=5", *CORRECTED, *more)


def trainer(folder, start, server, staleness, *more):
    folder.mkdir(parents=True, exist_ok=True)
    return toys.trainer(folder, start, toys.recipe(folder), *overrides(server, staleness, *more))


def watched(run):
    """The weights at the start of each step and the batch that each step trained on, filled while the run goes on."""
    weights, batches = [], []
    next_batch = run.overlap.next_batch

    def take(step, version):
        weights.append(copy.deepcopy(run.learner.model))
        batches.append(next_batch(step, version))
        return batches[-1]

    run.overlap.next_batch = take
    return weights, batches


def off_by(model, batch):
    """Largest difference between a model's log-probs of a batch and those that it carries, nats."""
    columns = pack(batch.rows, step=0, total_steps=5)
    with torch.no_grad():
        logp = Policy(model, batch.sampling).logp(columns["token"], columns["mask"]).logp
    return float((logp - columns["logp_old"])[columns["mask"]].abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [1, 2])
def test_each_batch_is_drawn_by_the_weights_of_so_many_steps_before(tmp_path, start, stand_in, staleness):
    run = trainer(tmp_path, start, stand_in, staleness)
    weights, batches = watched(run)
    learned = []
    learn = run.learner.learn
    run.learner.learn = lambda updates: learned.append(updates[0].columns) or learn(updates)
    run.run()
    for step, batch in enumerate(batches):
        drawn_by = max(0, step - staleness)
        assert off_by(weights[drawn_by], batch) < 1e-4
        assert {row.version for row in batch.rows} == {batch.version} == {drawn_by}
        if step:
            assert off_by(weights[step], batch) > 1e-3, "the present weights say something else"
        columns = pack(batch.rows, step=0, total_steps=5)
        assert torch.equal(learned[step]["logp_sampler"], columns["logp_old"]) and learned[step]["on_policy"].all()
    metrics = [values for _, values in toys.history(tmp_path / "work")]
    behind = [min(step, staleness) for step in range(5)]
    assert [v["staleness/steps"] for v in metrics] == [v["staleness/updates"] for v in metrics] == behind
    assert max(v["mismatch/max"] for v in metrics) < 1e-3, "compared with the weights that drew them"
    trained = ["optimizer/grad_norm" in v for v in metrics]  # steps whose rows are not all paid alike
    assert ["staleness/kl" in v for v in metrics] == [step > 0 and t for step, t in zip(behind, trained, strict=True)]
    assert max(v.get("staleness/max", 0) for v in metrics) > 1e-3
    logged = [json.loads(line) for line in (tmp_path / "work/out/report/rollouts.jsonl").read_text().splitlines()]
    apart = [(row["step"], part) for row in logged for part in row.get("tokens", []) if len(part) == 3]
    assert {step for step, _ in apart} == {step for step, by in enumerate(behind, 1) if by}, "what is logged by token"
    for step, (_, _, value) in apart:
        columns = learned[step - 1]
        known = (columns["logp_old"] - columns["logp_sampler"])[columns["mask"]]
        assert value is None or (known - value).abs().min() < 1e-3
    shares = [b["values"] for b in toys.spool(tmp_path / "work") if b["kind"] == "metrics"]
    assert all(0 <= v[f"time/{who}_idle_share"] <= 1 for v in shares for who in ("trainer", "sampler"))


@pytest.mark.slow
def test_weights_that_stand_still_give_the_same_rows_however_far_ahead(tmp_path, start, stand_in):
    """Problems, seeds and rows of a step are the same; without staleness there is no thread and no copy."""
    rows = []
    for staleness in (0, 1, 2, 7):
        run = trainer(tmp_path / str(staleness), start, stand_in, staleness, "rlvr.optimizer.learning_rate=1.0e-30")
        assert (run.overlap is None) == (staleness == 0)
        run.run()
        rows.append((tmp_path / str(staleness) / "work/out/report/draws.jsonl").read_text())
    assert len(rows[0].splitlines()) == 5 and rows == rows[:1] * 4


@pytest.mark.parametrize(
    "replay",
    [
        "dph_rl, solved: 1, problems: 40, rows: 3",
        pytest.param("pipo, window: 2, start: 1", marks=pytest.mark.long),
    ],
    ids=lambda spec: spec.split(",")[0],
)
@pytest.mark.slow
def test_rows_of_weights_that_are_behind_and_carried_ones_are_no_replays(tmp_path, start, stand_in, replay):
    more = (
        f"presets=[{replay.split(',')[0]}]", f"rlvr.replay={{kind: {replay}}}", "rlvr.filter=mixed", "rlvr.group_size=8",
        "rlvr.sampling_schedule={kind: dynamic_carry, max_draws: 8}", *CORRECTED, "rlvr.steps=14", "rlvr.mini_batches=1",
        "rlvr.optimizer.learning_rate=0.0005",
    )  # fmt: skip
    run = trainer(tmp_path, start, stand_in, 1, *more)
    _, batches = watched(run)
    learned, learn = [], run.learner.learn
    run.learner.learn = lambda updates: learned.append(updates) or learn(updates)
    run.run()
    kinds = set()
    for batch, updates in zip([batch for batch in batches if batch.rows], learned, strict=True):
        own, count = own_update(updates).columns, len(batch.rows)
        assert not own["replayed"][:count].any() and own["replayed"][count:].all()
        assert all(update.columns["replayed"].all() for update in updates if update.replayed)
        assert own["on_policy"][:count].tolist() == [row.version == batch.version for row in batch.rows]
        replayed = count < len(own["group"]) or len(updates) > 1
        kinds |= {("carried" if older else "drawn", replayed) for older in (~own["on_policy"][:count]).tolist()}
    assert {("carried", True), ("drawn", True)} <= kinds
    assert max(values.get("mismatch/max", 0) for _, values in toys.history(tmp_path / "work")) < 1e-3


@pytest.mark.slow
def test_sampling_goes_on_while_the_trainer_trains(tmp_path, start, stand_in):
    run = trainer(tmp_path, start, stand_in, 1)
    running = []
    run.phase = lambda name, step: (
        running.append(run.overlap._jobs[step + 1].queued) if name == "update" and step < 4 else None
    )
    run.run()
    assert running == [True] * 4 and not run.overlap._thread.is_alive()
    assert stand_in.calls.count("/collective_rpc") == 4, "one push for each version that samples"


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["version", "log-probs", "weights"])
def test_a_planted_bug_stops_the_run(tmp_path, start, stand_in, bug, monkeypatch):
    """The wrong version recorded; the present weights' log-probs taken; weights pushed that are not the snapshot."""
    run = trainer(tmp_path, start, stand_in, 1)
    collect, begin = Collector.collect, Collector.begin

    def rewritten(self, step):
        batch = collect(self, step)
        columns = pack(batch.rows, step=0, total_steps=5)
        with torch.no_grad():
            logp = Policy(copy.deepcopy(run.learner.model), batch.sampling).logp(columns["token"], columns["mask"]).logp
        for row, values in zip(batch.rows, logp.tolist(), strict=True):
            row.logp_old = values[: len(row.tokens)]
        self.forget()
        return batch

    if bug == "version":
        monkeypatch.setattr(Collector, "begin", lambda self, version: begin(self, version + (version > 0)))
    elif bug == "log-probs":
        monkeypatch.setattr(Collector, "collect", lambda self, step: time.sleep(1.0) or rewritten(self, step))
    else:
        push = run.server.push
        first = copy.deepcopy(run.learner.model)
        run.server.push = lambda model, tokenizer: push(first, tokenizer)
    with pytest.raises(Interrupted, match="sampler and trainer disagree"):
        run.run()


def test_a_batch_survives_a_commit(tmp_path, start, stand_in):
    run = trainer(tmp_path, start, stand_in, 1)
    _, batches = watched(run)
    run.step(0)
    again = Batch.from_plain(json.loads(json.dumps(batches[0].to_plain())))
    assert again == batches[0] and all(any(row is other for other in again.sampled) for row in again.rows)
    run.server.close()
    run.overlap.close()


@pytest.mark.parametrize(
    ("staleness", "at"),
    [
        pytest.param(2, ("rollout", 3), marks=pytest.mark.slow),
        pytest.param(1, ("update", 1), marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param(3, ("credit", 1), marks=pytest.mark.slow),
    ],
)
def test_a_run_broken_off_and_started_again_ends_in_the_same_bytes(tmp_path, start, stand_in, staleness, at):
    """With `dynamic_carry`, whose state moves while batches are sampled ahead, and a slow server."""
    more = ("presets=[dapo_carry]", *CORRECTED, "rlvr.steps=6", "rlvr.commit.every=1")
    whole = trainer(tmp_path / "whole", start, stand_in, staleness, *more)
    whole.run()
    part, step = at
    toys.run_stopped(lambda: trainer(tmp_path / "broken", start, stand_in, staleness, *more), step, part)
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "broken/work")


@pytest.mark.slow
def test_batches_under_way_at_a_commit_are_asked_again_with_their_weights(tmp_path, start, stand_in):
    """Staleness 3, and the server is held up: after two steps the batches 3 and 4 are not there."""
    more = (
        "rlvr.filter=mixed",
        "rlvr.sampling_schedule={kind: dynamic, max_draws: 3}",
        "rlvr.steps=6",
        "rlvr.commit.every=1",
    )
    trainer(tmp_path / "whole", start, stand_in, 3, *more).run()
    broken = trainer(tmp_path / "broken", start, stand_in, 3, *more)
    gate, sample = threading.Event(), broken.collector.sample

    def held(allocations, first, stream, *more):
        if stream[0] >= 3:
            gate.wait()
        return sample(allocations, first, stream, *more)

    def die(name, step):
        if (name, step) == ("rollout", 2):
            broken.committer.wait()
            gate.set()
            raise toys.Stopped

    broken.collector.sample, broken.phase = held, die
    with pytest.raises(toys.Stopped):
        broken.run()
    ahead = checkpoint.load(tmp_path / "broken/work/checkpoints")["overlap"]
    assert [values["batch"]["step"] for values in ahead["batches"]] == [2]
    assert [job[:2] for job in ahead["waiting"]] == [[3, 0], [4, 1]] and set(ahead["weights"]) == {0, 1}
    trainer(tmp_path / "broken", start, stand_in, 3, *more).run()
    assert toys.result(tmp_path / "whole/work") == toys.result(tmp_path / "broken/work")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("staleness", [1, 2])
def test_sigkill_at_any_moment_changes_nothing(tmp_path, start, stand_in, staleness):
    """Killed four times at random requests of the server, while it decodes, loads or is asked for its weights."""
    more = (*overrides(stand_in, staleness), "rlvr.steps=9", "presets=[dapo_carry]", *CORRECTED)
    whole = toys.job(tmp_path / "whole", start, *more)
    assert ranks.start_alone(whole).wait() == 0, (whole / "log").read_text()[-3000:]
    killed = toys.job(tmp_path / "killed", start, *more)
    draw, kills = random.Random(staleness), 0
    while kills < 4:
        child, target = ranks.start_alone(killed), len(stand_in.calls) + draw.randrange(5, 30)
        while child.poll() is None and len(stand_in.calls) < target:
            time.sleep(0.002)
        if child.poll() is not None:
            break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        kills += 1
    assert kills >= 3 and ranks.start_alone(killed).wait() == 0, (killed / "log").read_text()[-3000:]
    assert toys.result(whole) == toys.result(killed)
    drawn = [json.loads(line) for line in (killed / "out/report/draws.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in drawn] == list(range(1, 10))
    uids = [uid for entry in drawn for uid in entry["rewards"]]
    assert len(uids) == len(set(uids)), "a problem is drawn once"


def test_a_server_that_fails_while_it_samples_ahead_stops_the_trainer(tmp_path, start, stand_in):
    run = trainer(tmp_path, start, stand_in, 1)
    run.phase = lambda name, step: setattr(stand_in, "dies_after", 2) if (name, step) == ("credit", 1) else None
    with pytest.raises(Interrupted, match=r"the server is gone.*The last commit is good"):
        run.run()
    assert not run.overlap._thread.is_alive()


def test_idle_shares_are_those_of_the_clock(monkeypatch):
    """Ten seconds a step, six of them decoding, three waited for."""
    server = type("Server", (), {"decoding_s": 0.0})()
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    idle = Idle(server)
    for _ in range(2):
        idle.begin()
        clock[0], server.decoding_s = clock[0] + 10, server.decoding_s + 6
        assert idle.of_step(3.0) == pytest.approx({"time/trainer_idle_share": 0.3, "time/sampler_idle_share": 0.4})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["rlvr.sampler=null"], r"rlvr.staleness: 1 decodes while.*serve: true"),
        (["rlvr.credit=[]"], r"nothing corrects for it. Add credit: \[\{kind: truncated_is\}\]"),
        (["rlvr.credit=[]", "rlvr.old_logp=sampler", "rlvr.objective=reinforce"], "reinforce has no importance ratio"),
        (["rlvr.curriculum=gain_rl"], "rlvr.curriculum: gain_rl takes what it learns"),
    ],
)
def test_what_cannot_be_sampled_ahead_is_refused(tmp_path, more, words):
    where = "rlvr.sampler={url: 'http://x', weights: w}"
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), [where, "rlvr.staleness=1", *CORRECTED, *more]))


def test_a_ratio_to_the_sampler_is_a_correction(tmp_path):
    where = "rlvr.sampler={url: 'http://x', weights: w}"
    check(read_recipe(toys.recipe(tmp_path), [where, "rlvr.staleness=3", "rlvr.objective=cispo"]))
