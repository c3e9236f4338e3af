"""Preference optimisation in two processes: the weights and metrics of one, and the same bytes after a kill."""

from __future__ import annotations

import adapted
import pytest
import torch
from pair_toys import job
from ranks import handed_on, kill_stage, metrics, run_stage, run_stages
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.long]
"""Reward models, which train by the same loop, show in CI that ranks change nothing."""
MODULE = "pipelines.preference"
SMALL = {"micro_batch_tokens": 64}
"""Several passes a step, of an odd number at times."""
CASES = {
    "dpo": ("pairs", {"loss": "dpo", "sft_weight": 0.1, "micro_batch_tokens": 40, "pairs_per_step": 7}),
    "one pass a step": ("pairs", {"loss": "simpo", "track_drift": True}),
    "one pair a step": ("pairs", {"loss": "rpo", "pairs_per_step": 1}),
    "labels": ("labels", SMALL | {"loss": "kto"}),
    "labels of pairs": ("pairs", SMALL | {"loss": "kto"}),
    "adapters, the best weights": ("pairs", SMALL | {"loss": "apo", "lora": {"rank": 4}, "checkpoint_selection": "best"}),
    "recomputed blocks, offloaded": ("pairs", SMALL | {"loss": "orpo", "gradient_checkpointing": True, "activation_offload": True}),
    "ranks of a step": ("pairs", SMALL | {"loss": {"kind": "aot", "paired": False}, "reference_every": 3}),
    "a mean of all steps": ("labels", SMALL | {"loss": "bco"}),
    "heads": ("pairs", SMALL | {"loss": "ld_dpo"}),
    "weights of pairs": ("pairs", SMALL | {"loss": "wpo"}),
    "rows by themselves": ("pairs", SMALL | {"loss": "ipo", "share_prefixes": False}),
}  # fmt: skip
CASES["gone back after a measurement"] = ("pairs", SMALL | {
    "loss": "dpo", "evaluate_every": 1,
    "monitors": [{"kind": "metric", "metric": "optimizer/learning_rate", "above": 0.002, "after": 3, "action": "rollback"}],
})  # fmt: skip
OF_LAYOUTS = {"time/step_s", "tokens/per_s", "tokens/padding_share", "tokens/computed_share"}
"""Metrics that depend on how passes are laid out."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pairs, labels):
    """Case → what one process and two have made of it."""
    folder, data = tmp_path_factory.mktemp("ranks"), {"pairs": pairs, "labels": labels}
    for ranks in (1, 2):
        works = [
            job(data[name], folder / case / str(ranks), processes=ranks, **changes)
            for case, (name, changes) in CASES.items()
        ]
        run_stages(MODULE, works, ranks)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_give_the_weights_and_metrics_of_one(ran, case, pairs, labels):
    one, two = (handed_on(ran / case / ranks) for ranks in "12")
    base = load_file((labels if CASES[case][0] == "labels" else pairs) / "model/model.safetensors")
    assert one.keys() == two.keys() == {f"model {name}" for name in base}
    moved = max(float((one[f"model {name}"] - base[name]).abs().max()) for name in base)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=0.02 * moved, rtol=0, msg=name)
    alone, shared = (metrics(ran / case / ranks) for ranks in "12")
    assert alone.keys() == shared.keys()
    for name in alone.keys() - OF_LAYOUTS:
        # where the policy is its own reference, as before the first update, the rewards of a pair are equal but for rounding
        every = CASES[case][1].get("reference_every", len(alone[name]))
        told = [step for step in range(len(alone[name])) if name != "accuracy/train" or step % every]
        assert len(shared[name]) == len(alone[name])
        ours, theirs = ([values[name][step] for step in told] for values in (shared, alone))
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-4), name
    assert not (ran / case / "2/rank1/checkpoints").exists()
    if "lora" in CASES[case][1]:
        adapted.check(ran / case / "2/out", pairs / "model", str(pairs / "model"))


@pytest.mark.parametrize(("data", "loss"), [("pairs", "dpo"), ("labels", "kto")])
def test_two_processes_killed_and_resumed_end_with_the_same_bytes(tmp_path, request, data, loss):
    begun = request.getfixturevalue(data)
    changes = {"loss": loss, "processes": 2, "steps": 12, "micro_batch_tokens": 64, "commit": {"every": 2}}
    whole = run_stage(MODULE, job(begun, tmp_path / "whole", **changes))
    work = job(begun, tmp_path / "killed", **changes)
    kill_stage(MODULE, work, step=4)
    again = run_stage(MODULE, work)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
