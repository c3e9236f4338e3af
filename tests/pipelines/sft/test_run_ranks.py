"""SFT in two processes: the weights of one, up to float rounding, and the same bytes after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
import toys
from safetensors.torch import load_file

from pipelines.base.files import read_json

pytestmark = pytest.mark.slow


def start_stage(work):
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.stage.launch", "pipelines.sft", work],
        stderr=subprocess.PIPE, text=True, env=toys.environment(OMP_NUM_THREADS="1"), start_new_session=True,
    )  # fmt: skip


def run_stage(work):
    _, said = (stage := start_stage(work)).communicate(timeout=240)
    assert stage.returncode == 0, said[-6000:]
    return load_file(work / "out/model/model.safetensors")


def metrics(work, name):
    return [line["values"][name] for line in toys.spool(work) if line["kind"] == "metrics" and name in line["values"]]


@pytest.mark.parametrize(
    "more",
    [
        ("sft.tokens_per_step=256", "sft.micro_batch_tokens=64"),
        pytest.param(
            ("sft.lora={rank: 4}", "sft.tokens_per_step=512", "sft.micro_batch_tokens=64"), marks=pytest.mark.long
        ),
    ],
    ids=["several passes", "adapters"],
)
def test_two_processes_give_the_weights_of_one(tmp_path, start, more):
    """Also where a step has an odd number of passes: one process then repeats a pass that counts nothing."""
    more = (*more, "sft.steps=6", "sft.evaluate_every=3")
    one = run_stage(toys.sft_job(tmp_path / "one", start, *more))
    two = run_stage(toys.sft_job(tmp_path / "two", start, *more, "sft.processes=2"))
    base = load_file(tmp_path / "one/out/base/model.safetensors")
    assert one.keys() == two.keys()
    moved = max(float((one[name] - base[name]).abs().max()) for name in one)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=0.02 * moved, rtol=0, msg=name)
    for name in ("loss/train", "loss/heldout", "optimizer/grad_norm", "tokens/trained", "tokens/padding_share"):
        assert metrics(tmp_path / "two", name) == pytest.approx(metrics(tmp_path / "one", name), rel=1e-3), name
    assert not (tmp_path / "two/rank1/checkpoints").exists()


@pytest.mark.long
def test_two_processes_killed_and_resumed_end_with_the_same_bytes(tmp_path, start):
    more = (
        "sft.processes=2",
        "sft.steps=12",
        "sft.commit.every=2",
        "sft.tokens_per_step=256",
        "sft.micro_batch_tokens=64",
    )
    whole = run_stage(toys.sft_job(tmp_path / "whole", start, *more))
    work = toys.sft_job(tmp_path / "killed", start, *more)
    stage = start_stage(work)
    latest = work / "checkpoints/LATEST.json"
    while not (latest.exists() and (read_json(latest) or {}).get("step", 0) >= 4):
        assert stage.poll() is None, stage.stderr.read()
    os.killpg(stage.pid, signal.SIGKILL)
    stage.wait()
    again = run_stage(work)
    assert any(line.get("text") == "resumed from a commit" for line in toys.spool(work))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
