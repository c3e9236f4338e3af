"""The work pool whose flow runs are Jobs of Kubernetes: our manifest, by prefect-kubernetes itself where it is."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import uuid
from pathlib import Path

import pytest
import toys
import yaml

from flows import deploy

TEMPLATE = toys.ROOT / "docs/kubernetes-pool.yaml"
GOLDEN = Path(__file__).parent / "kubernetes_flow_run.yaml"


def test_every_variable_of_the_manifest_is_described():
    pool = deploy._pool(TEMPLATE)
    assert (pool.name, pool.type) == ("whetstone", "kubernetes")
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(pool.base_job_template["job_configuration"])))
    described = pool.base_job_template["variables"]["properties"]
    assert used == set(described) and all("default" in each for each in described.values())


def test_what_is_no_template_is_refused(tmp_path):
    (tmp_path / "bad.yaml").write_text("job_configuration: {image: '{{ image }}'}\n")
    for name in ("bad.yaml", "none.yaml"):
        with pytest.raises(deploy.DeployError, match=name) as caught:
            deploy._pool(tmp_path / name)
        assert caught.value.problems[0].field == "--kubernetes"


@pytest.mark.skipif(
    importlib.util.find_spec("prefect_kubernetes") is None,
    reason="no prefect-kubernetes (make test-prefect-kubernetes)",
)
def test_prefect_kubernetes_makes_the_job():
    """With the job variables that our deployments have; what Prefect adds of its own version and address is left out."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

    variables = yaml.safe_load((toys.ROOT / "prefect.yaml").read_text())["definitions"]["quiet"]
    template = yaml.safe_load(TEMPLATE.read_text())
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):  # nobody answers there, and nobody is asked
        configuration = asyncio.run(KubernetesWorkerJobConfiguration.from_template_and_values(template, variables))
    assert configuration.stream_output is False and configuration.pod_watch_timeout_seconds == 3600
    configuration.prepare_for_flow_run(FlowRun(flow_id=uuid.UUID(int=1), id=uuid.UUID(int=2), name="toy"))
    job = json.loads(json.dumps(configuration.job_manifest))
    for part in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert part["labels"]["prefect.io/flow-run-id"] == str(uuid.UUID(int=2))
        del part["labels"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    names = {each["name"]: each["value"] for each in container.pop("env")}
    assert names["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30" and names["PREFECT__FLOW_RUN_ID"] == str(uuid.UUID(int=2))
    assert job == yaml.safe_load(GOLDEN.read_text())
