"""HRPO's loss against the official code, steps, the twin, and that SIGKILL changes no byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import forks
import latent_toys
import pytest
import torch
import toys
from safetensors.torch import load_file

from pipelines.base.errors import DataError, ModelError
from pipelines.base.files import contents
from pipelines.engine import models
from pipelines.engine.optimizer import FACTOR
from pipelines.latent.gate_files import FILE
from pipelines.latent.rl import GAP, SUMS, token_loss
from pipelines.recipe.model_path import made_as
from pipelines.rlvr.ops import row_mean

OFFICIAL = {
    "reference": [[[-0.22, 0.15, 0.67, -0.51], [-1.59, -0.75, 0.65, 0.91], [1.08, 0.34, 0.72, 0.83]],
                  [[0.51, -1.53, -1.9, 0.25], [0.03, 0.24, 0.78, -1.0], [1.19, 0.41, 0.18, -0.15]]],
    "logits": [[[-0.38, 0.91, -0.42, -1.19], [-0.04, -0.59, -1.07, -0.11], [-0.53, 1.45, 0.15, 2.17]],
               [[-1.5, -0.73, 0.56, 0.62], [-0.55, -0.17, -0.03, 3.12], [-1.2, -0.01, 0.04, 0.05]]],
    "tokens": [[0, 3, 1], [2, 2, 0]],
    "kept": [[True, True, True], [True, True, False]],
    "advantage": [0.7, -0.7],
    "beta": 0.1,
    "loss": 0.24044033652171498,
    "gradient": [[[-0.0983519, 0.0709132, 0.0187549, 0.0086838], [0.0436358, 0.0251757, 0.0155783, -0.0843898],
                  [0.0043564, -0.0777768, 0.0085989, 0.0648215]],
                 [[-0.0101992, -0.0220279, 0.1171979, -0.0849708], [0.0020751, 0.0030343, -0.0865593, 0.0814499],
                  [0.0, 0.0, 0.0, 0.0]]],
}  # fmt: skip
"""`grpo_compute_loss` of the official code and its gradient, run in float64 and float32."""


def test_official_loss():
    logits = torch.tensor(OFFICIAL["logits"], requires_grad=True)
    tokens, kept = torch.tensor(OFFICIAL["tokens"])[..., None], torch.tensor(OFFICIAL["kept"])
    logp = logits.log_softmax(-1).gather(-1, tokens)[..., 0]
    reference = torch.tensor(OFFICIAL["reference"]).log_softmax(-1).gather(-1, tokens)[..., 0]
    advantage = torch.tensor(OFFICIAL["advantage"])
    loss = row_mean(token_loss(logp, logp.detach(), reference, advantage[:, None], 0.2, OFFICIAL["beta"]), kept).mean()
    loss.backward()
    assert loss.item() == pytest.approx(OFFICIAL["loss"], abs=1e-6)
    assert torch.allclose(logits.grad, torch.tensor(OFFICIAL["gradient"]), atol=1e-6)


def test_a_step_draws_scores_and_moves_the_gates(begun, tmp_path):
    fields = {"gates": {"learning_rate": 0.01, "decay_learning_rate": 0.1}, "updates": 2}
    made = latent_toys.trainer(latent_toys.recipe(begun, rl=fields), "rl", tmp_path, begun)
    before = {name: value.clone() for name, value in made.model.gates.state_dict().items()}
    rates = {
        group.get(FACTOR, 1.0): {id(weight) for weight in group["params"]} for group in made.optimizer.param_groups
    }
    gates = made.model.gates
    assert rates[10.0] == {id(w) for each in (gates.recurrence, gates.admission) for w in each.parameters()}
    assert rates[100.0] == {id(gates.decay)}
    assert sum(len(group["params"]) for group in made.optimizer.param_groups) == len([*made.model.parameters()])
    rewards = torch.tensor([1.0, 0.0] * 8)
    made.advantage = lambda columns: rewards - 0.5  # whatever the toy answers, there is something to learn
    metrics = made.make_step(0)
    assert metrics[GAP] < 1e-4 and 0 < metrics["latent/places"] < 1 and 0.9 < metrics["latent/token_share"] < 1
    assert metrics["policy/kl"] > 0  # the reference reads tokens alone
    for name, value in made.model.gates.state_dict().items():
        assert not torch.equal(value, before[name])
    matrix, decay = (made.model.gates.state_dict()[n] - before[n] for n in ("recurrence.bias", "decay"))
    assert decay.abs().max() > 5 * matrix.abs().max()  # AdamW's first steps are as long as the rate


def test_an_update_moves_towards_what_is_paid(begun, tmp_path):
    """Of two answers to each prompt that were both drawn, that which is paid gains probability, and the other loses it."""
    made = latent_toys.trainer(latent_toys.recipe(begun, rl={"kl": 0.0}), "rl", tmp_path, begun)
    rows = [question for question in made.questions[:4] for _ in range(2)]
    written = made.writer.write(rows, list(range(8)))
    everything, advantage = slice(0, 8), torch.tensor([1.0, -1.0]).repeat(4)[:, None].expand(written.kept.shape)
    before = made._score(made.model, rows, written, everything).logp.detach()
    made._update(rows, written, None, advantage, torch.ones(8, dtype=torch.bool), dict.fromkeys(SUMS, 0.0))
    made.stepper.step(0)
    gain = row_mean(made._score(made.model, rows, written, everything).logp.detach() - before, written.kept)
    assert gain[::2].mean() > 0 > gain[1::2].mean()


@pytest.mark.parametrize("own", [{}, {"superposed": {"tokens": 6}}], ids=["gates", "superposed"])
def test_parts_of_an_update_add_up(begun, tmp_path, own):
    """The loss and the gradients do not depend on how many answers a pass has."""
    results = []
    for tokens in (4800, 48):
        read = latent_toys.recipe(begun, rl={"micro_batch_tokens": tokens, "kl": 0.0} | own)
        made = latent_toys.trainer(read, "rl", tmp_path / str(tokens), begun)
        rows = made.questions[:8]
        assert len([*made.writer.parts(rows)]) == (1 if tokens == 4800 else 3)
        written, sums = made.writer.write(rows, list(range(8))), dict.fromkeys(SUMS, 0.0)
        advantage = torch.arange(1.0, 9.0)[:, None].expand(written.kept.shape)
        made._update(rows, written, None, advantage, torch.ones(8, dtype=torch.bool), sums)
        gradient = torch.cat([weight.grad.flatten() for weight in made.model.parameters() if weight.grad is not None])
        results.append((sums["loss"], gradient))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-4)


def test_tokens_alone_is_the_same_loop_without_gates(begun, tmp_path):
    made = latent_toys.trainer(latent_toys.recipe(begun), "tokens", tmp_path, begun)
    assert made.model.gates is None
    metrics = made.make_step(0)
    assert metrics["latent/places"] == 0 and metrics[GAP] < 1e-4 and "latent/token_share" not in metrics
    assert metrics["policy/kl"] == pytest.approx(0, abs=1e-6)


def test_a_run_is_compared_with_its_twin(begun, tmp_path):
    metrics = latent_toys.trainer(latent_toys.recipe(begun), "rl", tmp_path, begun).run()
    ours, twin = (json.loads((f / "out" / "heldout.json").read_text()) for f in (tmp_path, begun / "tokens"))
    assert ours["questions"] == twin["questions"] and len(twin["questions"]) == 8
    gains = [a - b for a, b in zip(ours["after"]["sampled"], twin["after"]["sampled"], strict=True)]
    assert metrics["heldout/over_twin_sampled"] == pytest.approx(sum(gains) / 8)
    assert metrics["heldout/over_twin_sampled_low"] <= 0 <= metrics["heldout/over_twin_sampled_high"]
    assert {*load_file(tmp_path / "out" / "model" / FILE)} == {
        "recurrence.weight", "recurrence.bias", "admission.weight", "admission.bias", "decay",
    }  # fmt: skip
    assert not (begun / "tokens" / "out" / "model" / FILE).exists()
    assert [step for step, _ in toys.history(tmp_path)] == list(range(7))
    read = latent_toys.recipe(begun)
    again = latent_toys.Trainer(
        read.node("rl").settings, read.model, start=str(tmp_path / "out" / "model"), data=begun / "data",
        out=tmp_path / "next", work=tmp_path / "next", report=latent_toys.Report(tmp_path / "next", committed=True), seed=1,
    )  # fmt: skip
    assert torch.equal(again.model.gates.decay, load_file(tmp_path / "out" / "model" / FILE)["decay"])
    superposed = latent_toys.recipe(begun, rl={"superposed": {}})
    for settings, match in (
        (read.node("tokens").settings, "latent: false would drop"),
        (superposed.node("rl").settings, "superposed would drop"),
    ):
        with pytest.raises(ModelError, match=match):
            latent_toys.Trainer(
                settings, read.model, start=str(tmp_path / "out" / "model"), data=begun / "data",
                out=tmp_path / "more", work=tmp_path / "more", report=latent_toys.Report(tmp_path / "more", committed=True), seed=1,
            )  # fmt: skip
    assert (
        made_as(tmp_path / "out" / "model") == "latent_model" and made_as(begun / "tokens" / "out" / "model") == "model"
    )
    with pytest.raises(ModelError, match=r"model\.path: .* is a latent_model"):
        models.load_model(tmp_path / "out" / "model", read.model)


def test_a_twin_that_was_asked_other_questions_is_refused(begun, tmp_path):
    made = latent_toys.trainer(latent_toys.recipe(begun), "rl", tmp_path, begun)
    made.asked = made.asked[1:]
    with pytest.raises(DataError, match="other held-out questions"):
        made._twin(begun / "tokens" / "out")


def test_questions_without_room_are_refused(begun, tmp_path):
    read = latent_toys.recipe(begun, tokens={"max_length": 11})
    with pytest.raises(DataError, match=r"max_length: all .* have more than the 1 tokens"):
        latent_toys.trainer(read, "tokens", tmp_path, begun)


def job(read, begun, work):
    """The command of the stage's process."""
    node = read.node("rl")
    (work / "out").mkdir(parents=True)
    body = {
        "stage": "latent_rl", "seed": 0, "threads": 1, "plugins": ["pipelines.latent"],
        "settings": {"latent_rl": node.settings.model_dump(), "model": read.model.model_dump()},
        "inputs": {
            "data": str(begun / "data"), "model": str(begun / "cold" / "out"), "twin": str(begun / "tokens" / "out"),
        },
    }  # fmt: skip
    (work / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", node.kind.module, str(work)]


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"superposed": {"tokens": 6}}], ids=["gates", "superposed"])
def test_a_kill_changes_no_byte(begun, tmp_path, own):
    """SIGKILL after a commit that is not the last, in the stage's own process; then to the end."""
    read = latent_toys.recipe(begun, rl={"steps": 12, "updates": 2} | own)
    forks.run(job(read, begun, tmp_path / "whole"), cwd=toys.ROOT, check=True, capture_output=True)
    killed = tmp_path / "killed"
    command = job(read, begun, killed)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL)
    while not (killed / "checkpoints" / "LATEST.json").exists():
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (killed / "out" / "model").exists()
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(tmp_path / "whole" / "out") == contents(killed / "out")
    assert toys.history(killed) == toys.history(tmp_path / "whole")
