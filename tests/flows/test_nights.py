"""A night of a deployed site whose model is worse: what its gate says, where people look and where they are told."""

from __future__ import annotations

import json
import shutil

import deployed
import pytest
import servers
import toys

pytestmark = [pytest.mark.slow, pytest.mark.deployed, pytest.mark.server, pytest.mark.timeout(1500)]
CHAIN, NIGHTLY = "post-training/on-demand", "post-training/nightly"
NOTIFY = "notify={webhook_env: NIGHTLY_WEBHOOK}"


@pytest.fixture(scope="module")
def hook():
    """Where people get their messages."""
    with servers.serving(servers.Webhook("a-token")) as webhook:
        yield webhook


@pytest.fixture(scope="module")
def site(tmp_path_factory, hook):
    """Servers with the toy recipe deployed, and the address of the webhook in everybody's environment; no worker."""
    site = deployed.Deployed(tmp_path_factory.mktemp("site"))
    toys.recipe(site.folder)
    write_benchmark(site.folder / "own" / "short")
    site.env["NIGHTLY_WEBHOOK"] = hook.url
    try:
        site.start()
        site.run("flows.cli.main", "deploy", "--file", str(deployed.write_deployments(site.folder)))
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
    with site.worker():
        given = {"recipe": str(site.folder / "toy.yaml"), "overrides": list(overrides), **more}
        run = site.submit(deployment, **given)
        site.ended(run)
    return run


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
