"""A reward model in two processes: the weights and the card of one, and the same bytes after a kill."""

from __future__ import annotations

import adapted
import pytest
import torch
from ranks import handed_on, kill_stage, metrics, run_stage, run_stages
from reward_pairs import begin, job, pairs_file, steps_file
from safetensors.torch import load_file

from pipelines.base.files import read_json

pytestmark = pytest.mark.slow
MODULE = "pipelines.reward_model"
EQUAL = "test_two_processes_give_the_weights_and_the_card_of_one"
SMALL = {"micro_batch_tokens": 128}
"""Several passes a step, of an odd number at times."""
STEPS = SMALL | {"loss": "step_bce", "step_labels": {"separator": "-"}}
DATA = {
    "pairs": pairs_file,
    "steps": steps_file,
    "critiques": lambda folder: pairs_file(folder, critiques=True),
    "users": lambda folder: pairs_file(folder, user="ann"),
}
CASES = {
    "one pass a step": ("pairs", {}),
    "an ensemble": ("pairs", SMALL | {"heads": 3, "pairs_per_step": 7}),
    "steps": ("steps", STEPS | {"heads": 2}),
    "coupled pairs": ("pairs", SMALL | {"loss": "odin"}),
    "users": ("users", SMALL | {
        "loss": "vpl", "users": {"latent": 4, "hidden": 8, "context": 3},
        "optimizer": {"learning_rate": 0.003, "eps": 1e-4},  # gradients of the encoder are so small that rounding decides their sign
    }),
    "a reference": ("pairs", SMALL | {"loss": "grm_dpo"}),
    "labels that move": ("pairs", SMALL | {"loss": "iterative_smoothing", "steps": 24}),
    "adapters, the best weights": ("pairs", SMALL | {"lora": {"rank": 4}, "checkpoint_selection": "best"}),
    "recomputed blocks, offloaded": ("pairs", SMALL | {"gradient_checkpointing": True, "activation_offload": True}),
    "own critiques": ("critiques", SMALL | {
        "loss": "cloud", "critique": {"instruction": "well?", "source": "own", "sampling": {"max_tokens": 4}},
    }),
}  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Name of the data → curated rows and a random model."""
    folder = tmp_path_factory.mktemp("data")
    for name in DATA:
        (folder / name).mkdir()
    return {name: begin(folder / name, write(folder / name)) for name, write in DATA.items()}


@pytest.fixture(scope="module")
def ran(request, tmp_path_factory, prepared):
    """Case → what one process and two have made of it, of the cases that are asked for."""
    folder = tmp_path_factory.mktemp("ranks")
    asked = {item.callspec.params["case"] for item in request.session.items if item.name.startswith(EQUAL)}
    for ranks in (1, 2):
        for case in asked:
            data, changes = CASES[case]
            job(prepared[data], folder / case / str(ranks), processes=ranks, **changes)
        run_stages(MODULE, [folder / case / str(ranks) for case in asked], ranks)
    return folder


@pytest.mark.parametrize("case", CASES)
@pytest.mark.few(4, always=["an ensemble", "steps", "adapters, the best weights"])
def test_two_processes_give_the_weights_and_the_card_of_one(ran, prepared, case):
    one, two = (handed_on(ran / case / ranks) for ranks in "12")
    base = load_file(prepared[CASES[case][0]] / "model/model.safetensors")
    assert one.keys() == two.keys()
    known = {name: one[f"model {name}"] for name in base if f"model {name}" in one}
    moved = max(float((weight - base[name]).abs().max()) for name, weight in known.items())
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=0.02 * moved, rtol=0, msg=name)
    alone, shared = (metrics(ran / case / ranks) for ranks in "12")
    assert alone.keys() == shared.keys()
    for name in alone:
        if name.startswith(("loss/", "reward/", "optimizer/", "accuracy/")):
            assert shared[name] == pytest.approx(alone[name], rel=5e-3, abs=1e-3), name
    cards = [read_json(ran / case / ranks / "out/report/reward_model.json") for ranks in "12"]
    assert cards[1]["heldout"] == pytest.approx(cards[0]["heldout"], abs=0.02)
    assert not (ran / case / "2/rank1/checkpoints").exists()
    if "lora" in CASES[case][1]:
        start = prepared[CASES[case][0]]
        adapted.check(ran / case / "2/out", start / "model", str(start / "model"), scores=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "changes"), [("pairs", {"loss": "grm_dpo"}), ("steps", STEPS)], ids=["pairs", "steps"]
)
def test_two_processes_killed_and_resumed_end_with_the_same_bytes(prepared, tmp_path, data, changes):
    changes = {**SMALL, **changes, "processes": 2, "commit": {"every": 2}}
    for name in ("whole", "killed"):
        job(prepared[data], tmp_path / name, **changes)
    whole = run_stage(MODULE, tmp_path / "whole")
    kill_stage(MODULE, tmp_path / "killed", step=4)
    again = run_stage(MODULE, tmp_path / "killed")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
