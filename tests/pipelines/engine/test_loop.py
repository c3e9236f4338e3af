"""A third kind of stage on fixed data is one short file: it has the recipe's checks, the loop's resume, rollbacks and selection."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forks
import pytest
import toy_stage
import toys
import yaml
from pair_toys import prepare, rows
from safetensors.torch import load_file

from pipelines.base.errors import Interrupted, RecipeError
from pipelines.contract.model_settings import Model
from pipelines.engine import checkpoint, sharded_commits
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.stage_kind import stage_kinds
from pipelines.stage.report import Report

SETTINGS = {
    "steps": 8, "max_length": 64, "evaluate_every": 2, "optimizer": {"learning_rate": 0.003, "schedule": "constant", "warmup": 0},
    "commit": {"every": 2},
}  # fmt: skip
RULE = {"kind": "metric", "metric": "optimizer/learning_rate", "above": 0.002, "after": 4}
"""Wrong at step 5, unless the rate of 0.003 has been halved."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    answers = [{"prompt": row["prompt"], "answer": row["chosen"], "verifier": "exact"} for row in rows(40)]
    return prepare(tmp_path_factory.mktemp("answers"), answers)


def trainer(begun, work, **changes):
    (work / "out").mkdir(parents=True, exist_ok=True)
    settings, model = toy_stage.Toy.model_validate(SETTINGS | changes), str(begun / "model")
    return toy_stage.Trainer(
        settings, Model(path=model), start=model, data=begun / "data", out=work / "out", work=work,
        report=Report(work, committed=True), seed=0,
    )  # fmt: skip


def job(begun, work, **changes):
    """The command of the stage in a folder of its own."""
    (work / "out").mkdir(parents=True)
    settings = {"toy": SETTINGS | changes, "model": Model(path=str(begun / "model")).model_dump()}
    body = {"seed": 0, "threads": 1, "settings": settings, "inputs": {"data": str(begun / "data")}}
    (work / "job.json").write_text(json.dumps(body))
    return [sys.executable, "-m", "toy_stage", str(work)]


def weights(work):
    return (work / "out/model/model.safetensors").read_bytes()


def test_it_costs_about_sixty_lines():
    lines = [line for line in Path(toy_stage.__file__).read_text().splitlines() if line.strip()]
    assert len(lines) <= 60


def test_it_learns_and_hands_on_the_best_weights(begun, tmp_path):
    made = trainer(begun, tmp_path, checkpoint_selection="best", evaluate_every=1)
    losses = iter([5.0, 4.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0])
    real, measured = made.measure, []

    def measure():
        measured.append(real()["loss/heldout"])
        return {"loss/heldout": next(losses)}

    made.measure = measure
    numbers = made.run()
    assert numbers == {"steps": 8.0, "loss_heldout": 1.5, "tokens": 0.0}
    assert measured[-1] < measured[0]
    best = checkpoint.best(tmp_path / "checkpoints")
    saved = load_file(tmp_path / "out/model/model.safetensors")
    assert best["step"] == 3 and all((saved[name] == best["model"][name]).all() for name in saved)
    [event] = [line for line in toys.spool(tmp_path) if line["kind"] == "event"]
    assert (event["text"], event["step"], event["heldout"]) == ("the best weights are handed on", 3, 1.5)


@pytest.mark.slow
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bytes(begun, tmp_path):
    trainer(begun, tmp_path / "whole").run()
    for step in (1, 3, 6):
        work = tmp_path / str(step)
        assert toys.run_stopped(lambda work=work: trainer(begun, work), step, None).start_step == step - step % 2
        assert weights(work) == weights(tmp_path / "whole")
        assert toys.history(work) == toys.history(tmp_path / "whole")


def test_a_rollback_lowers_the_learning_rate_and_one_too_many_stops_the_run(begun, tmp_path):
    made = trainer(begun, tmp_path / "a", monitors=[RULE | {"action": "rollback"}])
    assert made.run()["steps"] == 8
    steps = [(step, values["optimizer/learning_rate"]) for step, values in toys.history(tmp_path / "a")]
    assert steps == [(i, 0.003) for i in range(1, 6)] + [(i, 0.0015) for i in range(5, 9)]
    assert [values["monitor/alarms"] for _, values in toys.history(tmp_path / "a")] == [0.0] * 4 + [1.0] * 5
    always = RULE | {"action": "rollback", "above": 0.0}
    with pytest.raises(Interrupted, match=r"stopped at step 5 by toy\.monitors: .* has gone back 1 times already"):
        trainer(begun, tmp_path / "b", monitors=[always], rollback={"limit": 1}).run()
    with pytest.raises(Interrupted, match="stopped at step 5"):
        trainer(begun, tmp_path / "b", monitors=[always], rollback={"limit": 1}).run()


def test_an_alarm_that_finishes_hands_on_the_last_good_weights(begun, tmp_path):
    made = trainer(begun, tmp_path, monitors=[RULE | {"action": "finish"}])
    assert made.run()["steps"] == 5
    good = checkpoint.last_good(tmp_path / "checkpoints")
    saved = load_file(tmp_path / "out/model/model.safetensors")
    assert good["step"] == 4 and all((saved[name] == good["model"][name]).all() for name in saved)


@pytest.mark.slow
def test_sigkill_in_its_process_changes_no_byte(begun, tmp_path):
    changes = {"steps": 60, "commit": {"every": 5}}
    run = {"cwd": toys.ROOT, "env": toys.environment(), "capture_output": True}
    forks.run(job(begun, tmp_path / "whole", **changes), check=True, **run)
    command = job(begun, tmp_path / "killed", **changes)
    child = forks.Popen(command, cwd=toys.ROOT, env=toys.environment(), stdout=subprocess.DEVNULL)
    while not list((tmp_path / "killed/checkpoints").glob("step-*1[05]/meta.json")):
        assert child.poll() is None
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (tmp_path / "killed/metrics.json").exists()
    forks.run(command, check=True, **run)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert json.loads((tmp_path / "killed/metrics.json").read_text())["steps"] == 60


def staged(folder, **fields):
    """A recipe with a stage of the kind `toy` between SFT and nothing."""
    body = yaml.safe_load(toys.recipe(folder).read_text())
    data, sft = (body.pop(kind) for kind in ("curate", "sft"))
    body = {name: value for name, value in body.items() if name not in ("rlvr", "evaluate")}
    toy = {"kind": "toy", "data": "data", "model": "cold", "steps": 3, **fields}
    stages = {"data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft}, "more": toy}
    (folder / "stages.yaml").write_text(yaml.safe_dump(body | {"stages": stages}))
    read = read_recipe(folder / "stages.yaml")
    check(read)
    return read


def test_recipes_know_it_and_are_checked_as_for_the_others(tmp_path, monkeypatch):
    monkeypatch.setitem(stage_kinds(), "toy", toy_stage.KIND)
    node = staged(tmp_path, max_length=32, rows_per_step=2).node("more")
    assert node.settings.rows_per_step == 2 and node.settings.commit.every == 20 and node.parents == ["cold"]
    reads = node.kind.reads(node)
    assert reads.settings["toy"]["rows_per_step"] == 2 and "pipelines.monitor.flat_loss" in reads.modules
    assert "commit" in reads.settings["toy"] and reads.settings["toy"]["commit"] == {}, "it cannot change a result"
    for fields, message in (
        ({"steps": None}, "give either `epochs` or `steps`"),
        ({"heldout": None, "checkpoint_selection": "best"}, "name a `heldout` split"),
        ({"heldout": "train"}, r"more\.heldout: train is what the stage trains on"),
        ({"split": "trian"}, r"more\.split: data makes no split called 'trian'"),
        ({"model": "base"}, "a fresh model must be trained before TOY"),
        ({"monitors": ["repetition"]}, "looks at rollouts, which toy has none of"),
        ({"monitors": [RULE | {"after": 9}]}, "9 steps of 3 are left out"),
        ({"monitors": [{"kind": "metric", "metric": "reward/mean", "above": 1}]}, "toy measures no reward/mean"),
        ({"rows_per_steps": 2}, "rows_per_step"),
    ):
        with pytest.raises(RecipeError, match=message):
            staged(tmp_path, **fields)


def test_machines_without_a_shared_folder(begun, tmp_path, monkeypatch):
    """What the others would have to read from the first one's disk is refused, or made by each itself."""
    monkeypatch.setattr(sharded_commits, "one_disk", lambda world, folder: False)
    made = trainer(begun, tmp_path)
    assert made.needs_values() == ""
    made.one_disk = made._one_disk()
    assert not made.one_disk and made.needs_values() == "", "a model that each machine has"
    made.origin = None
    assert "base" in made.needs_values()
    changes = {"monitors": [RULE | {"action": "rollback"}]}, {"checkpoint_selection": "best"}
    for number, change in enumerate(changes):
        with pytest.raises(Interrupted, match="share no work folder"):
            trainer(begun, tmp_path / str(number), **change)._one_disk()
