"""Nights of a deployed site: worse, failed, hanging, on another trainer, as jobs of Slurm; and what another machine does with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import deployed
import pytest
import servers
import slurm_toy
import toys

pytestmark = [pytest.mark.slow, pytest.mark.deployed, pytest.mark.server, pytest.mark.timeout(1500)]
CHAIN, NIGHTLY, UPKEEP = "post-training/on-demand", "post-training/nightly", "upkeep/every-ten-minutes"
NOTIFY = "notify={webhook_env: NIGHTLY_WEBHOOK}"


@pytest.fixture(scope="module")
def hook():
    """Where people get their messages."""
    with servers.serving(servers.Webhook("a-token")) as webhook:
        yield webhook


@pytest.fixture(scope="module")
def site(tmp_path_factory, hook):
    """Servers, a worker and a Slurm with the toy recipe deployed, and the address of the webhook in everybody's environment."""
    site = deployed.Deployed(tmp_path_factory.mktemp("site"))
    toys.recipe(site.folder)
    write_benchmark(site.folder / "own" / "short")
    site.env |= {"NIGHTLY_WEBHOOK": hook.url, **slurm_toy.install(site.folder / "slurm")}
    try:
        site.start()
        site.run("flows.cli.main", "deploy", "--file", str(deployed.write_deployments(site.folder)))
        with site.worker():
            yield site
    finally:
        site.stop()


def write_benchmark(folder):
    """Palindromes as short as those that the toy recipe trains on, which a little SFT solves: the project's own are longer."""
    import reasoning_gym

    shutil.copytree(toys.ROOT / "evaluation/benchmarks/palindromes", folder)
    (folder / "palindromes.yaml").rename(folder / "short.yaml")
    (folder / "short.yaml").write_text((folder / "short.yaml").read_text().replace("task: palindromes", "task: short"))
    made = reasoning_gym.create_dataset("palindrome_generation", size=60, seed=77, min_length=3, max_length=4)
    lines = [
        {
            "question": f"palindrome {''.join(each['metadata']['letters'])}", "answer": each["answer"], "verifier": "reasoning_gym",
            "info": json.dumps({"task": "palindrome_generation", "metadata": json.dumps(each["metadata"])}),
        }
        for each in made
    ]  # fmt: skip
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def asked(site):
    """What the evaluation asks in place of the recipe's benchmark."""
    return (f"evaluate.include={site.folder / 'own'}", "evaluate.tasks=[{name: short, samples: 2}]")


@pytest.fixture(scope="module")
def good(site):
    """A run whose model solves a fifth of the problems; its id in MLflow."""
    run = made(site, CHAIN, *toys.TRAINED, *asked(site))
    assert site.state(run) == "COMPLETED", site.explain(run)
    return run_of(site, run).info.run_id


def made(site, deployment, *overrides, **more):
    """A flow run, made to its end by a worker; its id."""
    run = asked_for(site, deployment, *overrides, **more)
    site.ended(run)
    return run


def asked_for(site, deployment, *overrides, **more):
    """A flow run that the worker takes; its id."""
    given = {"recipe": str(site.folder / "toy.yaml"), "overrides": list(overrides), **more}
    return site.submit(deployment, **given)


def elsewhere(site, home, *arguments):
    """A command in a project folder that has nothing, with the addresses of the servers: exit code, output, errors."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments], env=site.environment(WHETSTONE_HOME=str(site.folder / home)),
        capture_output=True, text=True, timeout=180, cwd=toys.ROOT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def files_of(site, run_id):
    """Names of the files of a run in MLflow."""
    from mlflow import MlflowClient

    return {file.path for file in MlflowClient(tracking_uri=site.tracking).list_artifacts(run_id)}


def run_of(site, flow_run):
    """The pipeline's run in MLflow that a flow run has made."""
    (run,) = [r for r in site.mlflow() if r.data.tags.get("whetstone.prefect.flow_run") == flow_run]
    return run


def test_a_night_that_is_worse_says_so_everywhere(site, hook, good):
    """In the state of its flow run, in MLflow, where it can be filtered, and in a message."""
    hook.bodies.clear()
    gate = f"gate={{against: '{good}', not_worse: {{short: 2}}, looks: 1}}"
    run = made(site, NIGHTLY, "sft.steps=2", *asked(site), gate, NOTIFY)
    state = site.ask(f"/flow_runs/{run}")["state"]
    assert (state["type"], state["name"]) == ("FAILED", "Worse"), site.explain(run)
    tags = run_of(site, run).data.tags
    assert tags["whetstone.gate"] == "worse" and tags["whetstone.prefect.deployment"] == NIGHTLY
    (text,) = hook.texts
    assert text.startswith("whetstone worse: toy\n") and "worse by more than 2 points" in text and site.tracking in text


def test_a_night_that_fails_is_told_with_its_stage(site, hook):
    """After the alarm of its monitor: once, with the reason and the page in MLflow, which has its report."""
    hook.bodies.clear()
    run = made(site, NIGHTLY, "name=failing", "seed=2", "curate.max_prompt_tokens=2", NOTIFY)
    assert site.state(run) == "FAILED", site.explain(run)
    stored = run_of(site, run).info
    alarm, text = hook.texts
    assert alarm.startswith("whetstone alarm: failing, curate\n") and "0 of the 800 rows" in alarm
    assert text.startswith("whetstone failed: failing, curate\n") and "nothing is left after the filters" in text
    assert f"{site.tracking}/#/experiments/{stored.experiment_id}/runs/{stored.run_id}" in text
    assert "report.html" in files_of(site, stored.run_id)


def test_a_night_that_hangs_is_told_at_the_third_that_is_skipped_and_clean_waits_for_it(site, hook):
    """Upkeep tells once; `clean` takes nothing while the worker works."""
    hook.bodies.clear()
    given = ("name=hanging", "seed=3", NOTIFY)
    first = asked_for(site, NIGHTLY, *given, until="sft")
    rank = site.pause("sft", first)
    for number in (1, 2, 3):
        assert site.state(made(site, NIGHTLY, *given, until="sft")) == "CANCELLED"
        assert site.state(made_upkeep(site)) == "COMPLETED"
        assert len(hook.texts) == (number == 3), hook.texts
    made_upkeep(site)
    (text,) = hook.texts
    assert text.startswith("whetstone skipped: hanging, flow run ") and "3 runs in a row were skipped" in text
    known = {path.name for path in site.home.glob("runs/*-*")}
    code, _, error = elsewhere(site, site.home, "clean", "--yes", "--older-than", "0.00001")
    assert code == 2 and "is under way. Clean when it has ended." in error
    rank.resume()
    assert site.ended(first) == "COMPLETED", site.explain(first)
    assert known < {path.name for path in site.home.glob("runs/*-*")}
    code, said, error = elsewhere(site, site.home, "clean", "--older-than", "0.00001")
    assert code == 0 and "nothing was deleted" in said, error


def made_upkeep(site):
    """A run of the upkeep flow that takes nobody for dead; its id."""
    run = site.submit(UPKEEP, unresponsive_after_s=3600)
    site.ended(run)
    return run


def test_a_night_of_another_trainer(site):
    """A stage of kind `external` under the worker: its metrics are in MLflow, and both models are scored."""
    run = made(site, CHAIN, recipe=str(toys.external(site.folder, **toys.FAKE_TRAINER)))
    assert site.state(run) == "COMPLETED", site.explain(run)
    parent = run_of(site, run).info.run_id
    stages = [r for r in site.mlflow() if r.data.tags.get("mlflow.parentRunId") == parent]
    (trained,) = [r.info.run_id for r in stages if r.data.tags["whetstone.stage"] == "rl"]
    assert site.points(trained, "reward") == [1, 2, 3] and len(stages) == 4


def test_a_night_as_jobs_of_slurm(site):
    """A stage is a job; one that is cancelled in Prefect is cancelled in Slurm."""
    state = Path(site.env["TOY_SLURM"])
    launch = "launch={stages: {sft: {}}, poll_s: 0.2}"
    run = made(site, CHAIN, "name=job", "seed=4", launch, until="sft")
    assert site.state(run) == "COMPLETED", site.explain(run)
    site.until(lambda: [job["state"] for job in slurm_toy.jobs(state)] == ["COMPLETED"], 60)
    parent = run_of(site, run).info.run_id
    (trained,) = [r.info.run_id for r in site.mlflow() if r.data.tags.get("whetstone.stage") == "sft"
                  and r.data.tags.get("mlflow.parentRunId") == parent]  # fmt: skip
    assert site.points(trained, "loss/train") == list(range(1, 13))
    long = asked_for(site, CHAIN, "name=job", "seed=5", "sft.steps=100000", launch, until="sft")
    site.until(lambda: [job["state"] for job in slurm_toy.jobs(state)] == ["COMPLETED", "RUNNING"])
    site.ask(f"/flow_runs/{long}/set_state", {"state": {"type": "CANCELLING"}})
    assert site.ended(long, 120) == "CANCELLED"
    site.until(lambda: slurm_toy.jobs(state)[-1]["state"] == "CANCELLED", 60)


def test_another_machine_promotes_and_repeats_with_a_change(site, good):
    """From empty project folders: the alias moves; one stage is made again, and what differs from the run is named."""
    code, said, error = elsewhere(site, "promoting", "promote", good)
    assert code == 0 and "promoted: toy@champion is version" in said, said + error
    code, said, _ = elsewhere(site, "asking", "promote", "--status", "--json")
    assert code == 0 and len(json.loads(said)["champions"]) == 1
    summary = site.folder / "again.json"
    change = ("--only", "rlvr", "--set", "rlvr.advantage=rloo", "--summary", str(summary))
    code, said, error = elsewhere(site, "repeating", "rerun", good[:10], *change)
    assert code == 0, said + error
    assert {name: about["status"] for name, about in json.loads(summary.read_text())["stages"].items()} == {
        "rlvr": "ran"
    }
    code, _, error = elsewhere(site, "repeating", "rerun", good[:10], "--only", "rlvr", "--set", "sft.max_length=48")
    assert code == 2 and f"since run {good[:8]} sft.max_length changed 64 → 48" in error
