"""Deployed for real: a Prefect server, a process pool, a worker; a schedule fires and the run is in a real MLflow server."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import deployed
import pytest
import toys
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(1500)]


def test_every_deployment_names_a_flow_that_exists():
    import importlib

    from flows import deploy

    body = yaml.safe_load((toys.ROOT / "prefect.yaml").read_text())
    assert any(d.get("schedules") for d in body["deployments"])
    for deployment, name in zip(body["deployments"], deploy.names(), strict=True):
        module, function = deployment["entrypoint"].rsplit(".", 1)
        flow = getattr(importlib.import_module(module), function)
        asked_for = {"run": "3f2a"} if deployment["entrypoint"] == "flows.approval.promote" else {}
        flow.validate_parameters(deployment["parameters"] | asked_for)
        assert name == f"{flow.name}/{deployment['name']}"
        assert (toys.ROOT / deployment["parameters"].get("recipe", "prefect.yaml")).exists()


def test_a_schedule_fires(tmp_path):
    """And the run's page says what it is: a name, the way to MLflow, bars, the scores; its form says what a parameter is."""
    site = deployed.Deployed(tmp_path)
    toys.recipe(tmp_path)
    try:
        site.start()
        for mark in (
            "more",
            "less",
        ):  # safe to repeat; the first time with one deployment more, and from a relative path
            soon = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
            schedule = {"interval": 3600, "anchor_date": soon, "slug": "soon"}
            file = deployed.write_deployments(tmp_path, schedules=[schedule])
            if mark == "more":
                body = yaml.safe_load(file.read_text())
                body["deployments"].append(body["deployments"][1] | {"name": "former"})
                file.write_text(yaml.safe_dump(body))
            told = site.run("flows.cli.main", "deploy", "--file", os.path.relpath(file, toys.ROOT))
            names = [d["name"] for d in site.ask("/deployments/filter", {})]
            assert ("former" in names) == (mark == "more") == ("removed post-training/former" not in told)
        automations = [a["name"] for a in site.ask("/automations/filter", {})]
        assert sorted(automations) == [
            "whetstone: a flow run without heartbeats is Crashed",
            "whetstone: after a crash, upkeep at once",
        ]
        nightly = site.ask("/deployments/name/post-training/nightly")
        assert nightly["pull_steps"] == [] and nightly["work_queue_name"] == "gpu"
        assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        from_stage = nightly["parameter_openapi_schema"]["properties"]["from_stage"]
        choices, named, nothing = from_stage["anyOf"]
        assert {"sft", "rlvr", "preference"} <= set(choices["enum"]) and nothing["type"] == "null"
        assert named["type"] == "string" and "enum" not in named, "any recipe's stages, by name"
        assert from_stage["description"].startswith("run this stage")
        form = site.ask("/deployments/name/sft/stage")["parameter_openapi_schema"]["properties"]
        assert all(field["description"] for field in form.values())
        digits = site.ask("/deployments/name/promotion/on-demand")["parameter_openapi_schema"]["properties"]["run"]
        assert "integer" in [kind["type"] for kind in digits["anyOf"]], "12345678 is an id too"
        wanted = {
            "deployments": {"id": {"any_": [nightly["id"]]}},
            "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        }
        with site.worker():
            site.until(lambda: site.ask("/flow_runs/filter", wanted), 300)
        (run,) = site.ask("/flow_runs/filter", wanted)
        assert run["name"] == "toy"
        shown = site.ask("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
        about = {a["key"]: a for a in shown}
        assert {"mlflow", "benchmarks", "run", "progress-sft", "progress-rlvr"} <= set(about)
        parent_page = "[This run in MLflow](http"
        assert about["run"]["description"] == "toy: ran curate, sft, rlvr, evaluate"
        assert "| sft | ran |" in about["run"]["data"] and parent_page in about["run"]["data"]
        logs = site.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}})
        lines = [line["message"] for line in logs]
        assert "curate: will run: it has not run before" in lines and any(
            line.startswith("rlvr: ran in") for line in lines
        )
        assert about["progress-rlvr"]["data"] == 100 and "workflowType=machine_learning" in about["mlflow"]["data"]
        (parent,) = [r for r in site.mlflow() if r.data.tags["whetstone.kind"] == "pipeline"]
        tags = parent.data.tags
        assert (tags["whetstone.trigger"], tags["whetstone.prefect.deployment"]) == (
            "schedule",
            "post-training/nightly",
        )
        assert tags["whetstone.prefect.url"].endswith(f"/runs/flow-run/{run['id']}")
        assert tags["whetstone.prefect.url"] in tags["mlflow.note.content"]
        assert parent.info.status == "FINISHED" and parent.info.run_id in about["mlflow"]["data"]
        assert {"sft/palindromes/pass_at_1", "rlvr/palindromes/pass_at_1"} <= set(parent.data.metrics)
    finally:
        site.stop()
