"""Two processes with sharded weights give the gradient of one, and their commit is that of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ranks
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine import parallel
from pipelines.rlvr import algorithm

SCRIPT = Path(__file__).parent / "two_processes.py"


CONTINUED = Path(__file__).parent / "ranks_run.py"


@given(st.integers(0, 30), st.integers(1, 6))
def test_shares_are_equally_long_and_every_item_counts_once(count, size):
    shares = [list(parallel.World(rank, size).share_evenly(range(count))) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(item for share in shares for item, counts in share if counts) == list(range(count))
    for rank, share in enumerate(shares):
        assert [item for item, counts in share if counts] == parallel.World(rank, size).share(range(count))


@given(st.lists(st.integers()), st.integers(1, 6))
def test_shards_are_joined_to_the_list_that_was_shared(items, size):
    shards = [parallel.World(rank, size).share(items) for rank in range(size)]

    class Meets(parallel.World):
        def gather(self, value):
            assert value == shards[self.rank]
            return shards

    assert all(Meets(rank, size).joined(shards[rank]) == items for rank in range(size))


@given(st.lists(st.integers()))
def test_the_last_item_is_known(items):
    assert list(parallel.with_last(iter(items))) == [(item, n == len(items)) for n, item in enumerate(items, 1)]


def test_a_rank_gathers_through_its_own_gpu(monkeypatch):
    chosen = {}
    for name, value in {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.update(device=device))
    monkeypatch.setattr(parallel, "_store", lambda *_: None)
    monkeypatch.setattr(parallel.dist, "init_process_group", lambda backend, **_: chosen.update(backend=backend))
    monkeypatch.setattr(parallel.dist, "get_rank", lambda: 2)
    assert parallel.World.join() == parallel.World(2, 4)
    assert chosen == {"device": torch.device("cuda", 2), "backend": "nccl"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [[], ["rlvr.lora={rank: 4}", "presets=[grpo]", "rlvr.mini_batches=2"]], ids=["full", "lora"]
)
def test_two_processes_give_the_gradient_of_one(tmp_path, start, more):
    overrides = ["rlvr.prompts=8", "rlvr.sampling.temperature=1.3", *more]
    recipe = toys.recipe(tmp_path)
    made = toys.trainer(tmp_path, start, recipe, *overrides)
    rows, kept = made.collect(0)
    batch = made._pack(kept, 0)
    tokens = batch["token"]
    made.learner.fill(tokens, batch)
    torch.save((tokens, algorithm.assign_credit(made.update, batch)), tmp_path / "step.pt")
    found = []
    for processes in (1, 2):
        arguments = [recipe, start, tmp_path / "step.pt", tmp_path / str(processes), *overrides]
        ranks.run_ranks(SCRIPT, arguments, processes, tmp_path)
        found.append(torch.load(tmp_path / str(processes) / "result.pt", weights_only=False))
    one, two = found
    assert len(one["gradients"]) == len(two["gradients"]) >= 1
    assert max(float(g.abs().max()) for g in one["gradients"][0].values()) > 0
    for mine, theirs in zip(one["gradients"], two["gradients"], strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], atol=2e-6, rtol=1e-3, msg=name)
    for part in ("model", "optimizer"):
        torch.testing.assert_close(one["state"][part], two["state"][part], atol=1e-4, rtol=1e-2)
    for name in ("loss/policy", "ratio/mean", "policy/entropy"):
        assert one["numbers"][name] == pytest.approx(two["numbers"][name], abs=1e-4)
    assert one["rows"] == two["rows"] == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "mismatch"), [((), 1e-4), (("model.dtype=bfloat16", "model.weights_dtype=bfloat16"), 0.2)]
)
def test_a_stage_in_two_processes(tmp_path, start, more, mismatch):
    """The stage's own entry point in two ranks: metrics once, mismatch small, a model that loads."""
    work = toys.job(tmp_path / "w", start, "rlvr.processes=2", "rlvr.steps=3", *more)
    ranks.run_stage("pipelines.rlvr", work)
    lines = [line for line in toys.spool(work) if line["kind"] == "metrics"]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert max(line["values"]["mismatch/max"] for line in lines) < mismatch
    assert (work / "out/model/model.safetensors").exists() and (work / "metrics.json").exists()


LIMITED = """
import os, torch
from pipelines.engine.policy import Policy

score = Policy.score

def limited(self, layout, *args, **more):
    values = score(self, layout, *args, **more)
    if torch.is_grad_enabled() and os.environ["RANK"] == "1" and layout.size > 40:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return values

Policy.score = limited
PARTS = {}
"""


@pytest.mark.slow
@pytest.mark.long
def test_ranks_of_which_one_runs_out_of_memory_make_smaller_passes(tmp_path, start):
    """From the last commit on, and with the weights of ranks that had enough."""
    more = (
        "rlvr.processes=2",
        "rlvr.steps=3",
        "rlvr.prompts=8",
        "rlvr.sampling.temperature=1.3",
        "rlvr.micro_batch_tokens=100",
    )
    enough = ranks.run_stage("pipelines.rlvr", toys.job(tmp_path / "enough", start, *more))
    (tmp_path / "limited_memory.py").write_text(LIMITED)
    work = toys.job(tmp_path / "little", start, *more)
    job = json.loads((work / "job.json").read_text())
    (work / "job.json").write_text(json.dumps(job | {"plugins": [str(tmp_path / "limited_memory.py")]}))
    little = ranks.run_stage("pipelines.rlvr", work)
    for name, weight in enough.items():
        torch.testing.assert_close(little[name], weight, atol=1e-4, rtol=0, msg=name)
    told = [
        line["micro_batch_tokens"] for line in toys.spool(work) if "out of memory in a process" in line.get("text", "")
    ]
    assert told and told[-1] in (50, 25)
    assert [line["step"] for line in toys.spool(work) if line["kind"] == "metrics"] == [1, 2, 3]


def run_on(counts, folder, section, recipe, start, overrides):
    """A run in parts, each on so many ranks and two steps longer than the one before: rows of all steps, first and last weights.

    Of several ranks the first keeps its own rows alone.
    """
    (folder / "out").mkdir(parents=True)
    rows, begun = [], {}
    for number, count in enumerate(counts):
        place, last = folder / f"part{number}", 8 if len(counts) == 1 else 2 * (number + 1)
        ranks.run_ranks(CONTINUED, [section, recipe, start, last, folder, *overrides], count, place)
        part = torch.load(folder / f"up_to_{last}.pt", weights_only=False)
        assert part["start"] == 2 * number
        rows += part["rows"]
        for of_step, kept in zip(part["rows"], part["held"], strict=True):
            assert kept == len(of_step) if count == 1 else 0 < kept < 0.6 * len(of_step)
        begun = part["begun"] if number == 0 else begun
    return rows, begun, part["weights"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "more"),
    [
        (
            "rlvr",
            (
                "rlvr.mini_batches=2",
                "rlvr.prompts=7",
                "rlvr.group_size=4",
                "rlvr.sampling.temperature=1.3",
                "rlvr.credit=[whiten]",
                "rlvr.divergence={kind: k3, weight: 0.01}",
            ),
        ),
        pytest.param(
            "sft",
            ("sft.lora={rank: 4, dropout: 0.3}", "sft.tokens_per_step=512", "sft.micro_batch_tokens=64"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["rlvr", "sft"],
)
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path, start, section, more):
    """1, 2, 3 and 1 ranks in turn draw the tokens of one rank, drop what it drops, and end with its weights."""
    overrides = [f"{section}.steps=8", f"{section}.optimizer.learning_rate=0.003", *more]
    recipe = toys.recipe(tmp_path)
    one_rows, begun, one = run_on([1], tmp_path / "one", section, recipe, start, overrides)
    rows, _, weights = run_on([1, 2, 3, 1], tmp_path / "several", section, recipe, start, overrides)
    assert rows == one_rows and (section == "sft" or len({score for step in rows for *_, score in step}) > 1)
    moved = max(float((one[name] - begun[name]).abs().max()) for name in one)
    assert moved > 0.003
    for name, weight in one.items():
        torch.testing.assert_close(weights[name], weight, atol=0.02 * moved, rtol=0, msg=name)
