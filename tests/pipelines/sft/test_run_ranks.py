"""SFT in two processes: the weights of one, up to float rounding, and the same bytes after a kill."""

from __future__ import annotations

import adapted
import pytest
import torch
import toys
from ranks import kill_stage, metrics, run_stage
from safetensors.torch import load_file

pytestmark = pytest.mark.slow
MODULE = "pipelines.sft"


@pytest.mark.parametrize(
    "more",
    [
        ("sft.tokens_per_step=256", "sft.micro_batch_tokens=64"),
        pytest.param(
            ("sft.lora={rank: 4}", "sft.tokens_per_step=512", "sft.micro_batch_tokens=64"), marks=pytest.mark.long
        ),
        pytest.param(
            ("sft.optimizer.kind=muon", "sft.tokens_per_step=256", "sft.micro_batch_tokens=64"), marks=pytest.mark.long
        ),
    ],
    ids=["several passes", "adapters", "muon"],
)
def test_two_processes_give_the_weights_of_one(tmp_path, start, more):
    """Also where a step has an odd number of passes: one process then repeats a pass that counts nothing."""
    more = (*more, "sft.steps=6", "sft.evaluate_every=3")
    one = run_stage(MODULE, toys.sft_job(tmp_path / "one", start, *more))
    two = run_stage(MODULE, toys.sft_job(tmp_path / "two", start, *more, "sft.processes=2"))
    base = {f"model {name}": value for name, value in load_file(tmp_path / "one/out/base/model.safetensors").items()}
    assert one.keys() == two.keys()
    moved = max(float((one[name] - base[name]).abs().max()) for name in one)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=0.02 * moved, rtol=0, msg=name)
    for name in ("loss/train", "loss/heldout", "optimizer/grad_norm", "tokens/trained", "tokens/padding_share"):
        assert metrics(tmp_path / "two")[name] == pytest.approx(metrics(tmp_path / "one")[name], rel=1e-3), name
    assert not (tmp_path / "two/rank1/checkpoints").exists()
    if "lora" in more[0]:
        adapted.check(tmp_path / "two/out", tmp_path / "two/out/base", "../base")


def test_offloaded_activations_change_no_bit_of_two_processes(tmp_path, start):
    """What sharded blocks keep is of gathered weights, which the hooks leave to FSDP."""
    more = ("sft.processes=2", "sft.steps=3", "sft.tokens_per_step=256", "sft.micro_batch_tokens=64")
    kept = run_stage(MODULE, toys.sft_job(tmp_path / "kept", start, *more))
    moved = run_stage(MODULE, toys.sft_job(tmp_path / "moved", start, *more, "sft.activation_offload=true"))
    assert kept.keys() == moved.keys()
    assert all(torch.equal(kept[name], moved[name]) for name in kept)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_two_processes_killed_and_resumed_end_with_the_same_bytes(tmp_path, start, kind):
    more = (
        f"sft.optimizer.kind={kind}",
        "sft.processes=2",
        "sft.steps=12",
        "sft.commit.every=2",
        "sft.tokens_per_step=256",
        "sft.micro_batch_tokens=64",
    )
    whole = run_stage(MODULE, toys.sft_job(tmp_path / "whole", start, *more))
    work = toys.sft_job(tmp_path / "killed", start, *more)
    kill_stage(MODULE, work, step=4)
    again = run_stage(MODULE, work)
    assert any(line.get("text") == "resumed from a commit" for line in toys.spool(work))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
