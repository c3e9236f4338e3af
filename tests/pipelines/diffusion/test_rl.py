"""diffu-GRPO: the official loss, groups and inpainting, and that SIGKILL changes no byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import diffusion_toys
import forks
import pytest
import torch
import toys

from pipelines.base.files import contents
from pipelines.diffusion.rl import SUMS, distance, token_loss
from pipelines.rlvr import graded


def test_loss_of_d1(official):
    case = official["diffu_grpo"]
    logp, old, reference, advantage = (
        torch.tensor(case[n], dtype=torch.float64) for n in ("logp", "old", "reference", "advantage")
    )
    kept = torch.tensor(case["kept"])
    losses = token_loss(logp, old, reference, advantage, case["clip"], case["kl"])
    assert float((losses * kept).sum() / kept.sum()) == pytest.approx(case["loss"], abs=1e-6)
    assert float((distance(logp, reference) * kept).sum() / kept.sum()) == pytest.approx(
        case["metrics"]["kl"], abs=1e-6
    )


def test_a_step_compares_within_groups(begun, tmp_path):
    made = diffusion_toys.trainer(diffusion_toys.recipe(begun), "rl", tmp_path, begun)
    rollouts, _ = made._rollouts(0)
    again, _ = made._rollouts(0)
    assert torch.equal(rollouts.answers, again.answers) and not torch.equal(
        rollouts.answers, made._rollouts(1)[0].answers
    )
    columns = graded.columns(rollouts.verdicts, 4)
    assert columns["group"].tolist() == [row // 4 for row in range(16)]
    assert made.advantage(columns).view(4, 4).sum(1).abs().max() < 1e-5
    for group in range(4):
        assert len({question.problem.uid for question in rollouts.rows[4 * group : 4 * group + 4]}) == 1
    known = made._estimates(rollouts, 0)
    assert torch.allclose(known[0].old, known[0].reference, atol=1e-5)  # the first step starts at the reference
    assert not torch.equal(known[0].old, known[1].old)  # other tokens of the prompts are masked


def test_an_update_moves_towards_what_is_paid(begun, tmp_path):
    made = diffusion_toys.trainer(diffusion_toys.recipe(begun, rl={"kl": 0.0}), "rl", tmp_path, begun)
    rollouts, _ = made._rollouts(0)
    advantage = torch.tensor([1.0, -1.0]).repeat(8)
    rollouts.answers[::2, 0], rollouts.answers[1::2, 0] = 8, 9
    kept = torch.ones_like(rollouts.injected)
    before = made._estimates(rollouts, 0)[0]
    made._update(rollouts, advantage, kept, before, made._draw(0, 0), dict.fromkeys(SUMS, 0.0))
    made.stepper.step(0)
    gain = (made._estimates(rollouts, 0)[0].old - before.old)[:, 0]
    assert (gain[::2] > 0).all() and (gain[1::2] < 0).all()


def test_inpainting_rescues_groups_that_fail(begun, tmp_path):
    fields = {"inpainting": {"least": 1.0, "most": 1.0, "chunk_least": 1, "chunk_most": 1, "replaced": 2}}
    made = diffusion_toys.trainer(diffusion_toys.recipe(begun, rl=fields), "rl", tmp_path / "a", begun)
    plain = diffusion_toys.trainer(diffusion_toys.recipe(begun), "rl", tmp_path / "b", begun)
    seen = 0
    for step in range(6):
        (rollouts, told), (before, _) = made._rollouts(step), plain._rollouts(step)
        for start in range(0, 16, 4):
            group = slice(start, start + 4)
            if any(verdict.correct for verdict in before.verdicts[group]):
                assert (
                    torch.equal(rollouts.answers[group], before.answers[group]) and not rollouts.injected[group].any()
                )
                continue
            correct = [verdict.correct for verdict in rollouts.verdicts[group]]
            assert sum(correct) <= 2 and rollouts.injected[group][:, 0].tolist() == correct
            assert torch.equal(rollouts.answers[start + 2 : start + 4], before.answers[start + 2 : start + 4])
            seen += sum(correct)
        assert 0 <= told["inpainting/rescued"] <= 1
    assert seen


@pytest.mark.slow
def test_a_run_measures_before_and_after(begun, tmp_path):
    fields = {
        "measure": {"limit": 4, "steering": {"particles": 2, "every": 1}},
        "checkpoint_selection": "best",
        "kl": 0.0,
    }
    metrics = diffusion_toys.trainer(diffusion_toys.recipe(begun, rl=fields), "rl", tmp_path, begun).run()
    told = json.loads((tmp_path / "out" / "report" / "heldout.json").read_text())
    assert len(told["questions"]) == 4 and {*told["before"]} == {*told["after"]} == {
        "greedy",
        "sampled",
        "steered",
        "any",
    }
    assert metrics["heldout/gain_greedy_low"] <= metrics["heldout/gain_greedy"] <= metrics["heldout/gain_greedy_high"]
    assert [step for step, _ in toys.history(tmp_path)] == list(range(7))


def job(read, begun, work):
    """The command of the stage's process."""
    node = read.node("rl")
    (work / "out").mkdir(parents=True)
    body = {
        "stage": "diffusion_rl", "seed": 0, "threads": 1, "plugins": ["pipelines.diffusion"],
        "settings": {"diffusion_rl": node.settings.model_dump(), "model": read.model.model_dump()},
        "inputs": {"data": str(begun / "data"), "model": str(begun / "cold" / "out")},
    }  # fmt: skip
    (work / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", node.kind.module, str(work)]


@pytest.mark.slow
def test_a_kill_changes_no_byte(begun, tmp_path):
    """SIGKILL after a commit that is not the last, in the stage's own process; then to the end."""
    read = diffusion_toys.recipe(
        begun, rl={"steps": 12, "inpainting": {"chunk_least": 1, "chunk_most": 1, "replaced": 2}}
    )
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
