"""Monitors of SFT: a rollback goes on from the good commit with a lower learning rate, a kill changes nothing, stop and finish end."""

from __future__ import annotations

import pytest
import torch
import toys
from safetensors.torch import load_file

from pipelines.base.errors import Interrupted
from pipelines.engine import checkpoint
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.sft.run import Trainer
from pipelines.stage.report import Report

RULE = "{kind: metric, metric: optimizer/learning_rate, above: 0.002, after: 5, action: ACTION}"
"""Wrong at step 6, where the rate is at its peak of 0.003; not after it has been halved."""


def trainer(tmp_path, start, action, *overrides):
    rules = f"sft.monitors=[{RULE.replace('ACTION', action)}]"
    flat = "sft.optimizer={learning_rate: 0.003, schedule: constant, warmup: 0}"
    recipe = read_recipe(toys.recipe(tmp_path), [rules, flat, "sft.steps=9", "sft.evaluate_every=4", *overrides])
    check(recipe)
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    report = Report(work, committed=True)
    return Trainer(recipe.sft, recipe.model, data=start / "data", out=work / "out", work=work, report=report, seed=0)


def lines(work, kind):
    return [line for line in toys.spool(work) if line["kind"] == kind]


@pytest.mark.slow
def test_a_rollback_lowers_the_learning_rate_and_a_restart_knows_it(tmp_path, start):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    made = trainer(tmp_path / "a", start, "rollback")
    assert made.run()["steps"] == 9
    steps = [
        (line["step"], line["values"]["optimizer/learning_rate"]) for line in lines(tmp_path / "a/work", "metrics")
    ]
    assert steps == [(i, 0.003) for i in range(1, 7)] + [(i, 0.0015) for i in range(4, 10)], "commits are every 3 steps"
    assert [e["to"] for e in lines(tmp_path / "a/work", "event") if "rollbacks" in e] == [3]
    stopped = trainer(tmp_path / "b", start, "rollback")
    commit = stopped._commit

    def killed(step, score=None):
        commit(step, score)
        if step == 6:
            raise KeyboardInterrupt

    stopped._commit = killed
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    stopped.committer.wait()
    trainer(tmp_path / "b", start, "rollback").run()
    weights = [load_file(tmp_path / name / "work/out/model/model.safetensors") for name in "ab"]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert [line["step"] for line in lines(tmp_path / "b/work", "metrics")] == [step for step, _ in steps]


@pytest.mark.slow
def test_stop_and_finish_end_the_run(tmp_path, start):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    with pytest.raises(Interrupted, match=r"stopped at step 6 by sft\.monitors"):
        trainer(tmp_path / "a", start, "stop").run()
    assert trainer(tmp_path / "b", start, "finish").run()["steps"] == 6
    state = checkpoint.last_good(tmp_path / "b/work/checkpoints")
    saved = load_file(tmp_path / "b/work/out/model/model.safetensors")
    assert state["step"] == 3 and all(
        torch.equal(saved[name], v) for name, v in state["model"].items() if name in saved
    )
