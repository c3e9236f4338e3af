"""The entry point of a Ray job: reserve a stage's machines, run its processes there, and end as they do.

    python -m pipelines.stage.on_ray WORK --nodes 2 --each '{"CPU": 8, "GPU": 8}' --folder FOLDER --command 'exec python ...'

Each machine runs the command by bash, with WHETSTONE_NODE (its number), WHETSTONE_FIRST (the first machine's address) and WHETSTONE_OWNER
(the process with which it must end). Output goes to the stage's log. The placement group and the actors are the job's: Ray frees them
when it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base import owner
from pipelines.base.files import write_atomic

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

STATE = "ray.state.json"
"""In the stage's work folder, for the pipeline that watches the job: `phase` (waiting or running) and `words`."""
LOST, TIMED_OUT = 91, 92
"""Exit codes: a machine is gone, the time limit was reached."""
SAY_S = 30.0
"""How often a job that waits for machines says so."""


class Machine:
    """Runs the stage's command on one machine."""

    def address(self) -> str:
        """By which the others reach it."""
        from ray.util import get_node_ip_address

        return str(get_node_ip_address())

    def run(self, command: str, folder: str, log: str, variables: dict[str, str]) -> int:
        """Its exit code, -N where a signal N has killed it."""
        environment = {**os.environ, **variables, "WHETSTONE_OWNER": str(os.getpid())}
        with open(log, "ab") as output:
            child = subprocess.Popen(
                ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            return child.wait()
        finally:
            owner.end_group(child)


def main() -> None:
    """Run to the end of the stage, and exit with its code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.stage.on_ray", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("work", type=Path, help="the stage's work folder")
    parser.add_argument("--nodes", type=int, default=1, help="machines")
    parser.add_argument("--each", type=json.loads, default={"CPU": 1}, help="what each must lend, as JSON")
    parser.add_argument("--folder", default=".", help="in which the command runs")
    parser.add_argument("--command", required=True, help="bash")
    parser.add_argument("--limit", type=float, help="seconds, from the moment when the machines are there")
    arguments = parser.parse_args()
    import ray

    ray.init(address="auto", log_to_driver=False)
    code = _run(arguments, _reserved(arguments))
    sys.exit(128 - code if code < 0 else code)


def _reserved(arguments: argparse.Namespace) -> PlacementGroup:
    """The machines, once Ray has them."""
    from ray.util.placement_group import placement_group

    group = placement_group([arguments.each] * arguments.nodes, strategy="STRICT_SPREAD")
    words = f"{arguments.nodes} x {json.dumps(arguments.each)}"
    _say(arguments.work, "waiting", f"for {words}")
    while not group.wait(timeout_seconds=SAY_S):
        print(f"Ray does not have {words} yet.", flush=True)
    _say(arguments.work, "running", "")
    return group


def _run(arguments: argparse.Namespace, group: PlacementGroup) -> int:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    each = dict(arguments.each)
    asked = {
        "num_cpus": each.pop("CPU", 0),
        "num_gpus": each.pop("GPU", 0),
        "memory": each.pop("memory", None),
        "resources": each,
    }
    actor = ray.remote(max_restarts=0, max_task_retries=0, **asked)(Machine)
    machines: list[Any] = [
        actor.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, number)).remote()
        for number in range(arguments.nodes)
    ]
    try:
        # All are there before any begins: Ray waits in silence for a machine that is lost before its actor was.
        first, *_ = ray.get([machine.address.remote() for machine in machines])
        running = [
            machine.run.remote(
                arguments.command, arguments.folder, str(arguments.work / "stage.log"),
                {"WHETSTONE_NODE": str(number), "WHETSTONE_FIRST": first},
            )
            for number, machine in enumerate(machines)
        ]  # fmt: skip
        return _wait(running, arguments.limit)
    except ray.exceptions.RayError as error:
        print(f"A machine was lost: {error}", flush=True)
        return LOST
    finally:
        for machine in machines:
            ray.kill(machine)


def _wait(running: list[Any], limit: float | None) -> int:
    """The code of the first machine on which the stage fails; 0 where it ended well on all."""
    import ray

    until = time.monotonic() + limit if limit else float("inf")
    while running:
        done, running = ray.wait(running, timeout=1.0)
        for each in done:
            if code := int(ray.get(each)):
                return code
        if running and time.monotonic() >= until:
            print("The time limit was reached.", flush=True)
            return TIMED_OUT
    return 0


def _say(work: Path, phase: str, words: str) -> None:
    write_atomic(work / STATE, json.dumps({"phase": phase, "words": words}), durable=False)


if __name__ == "__main__":
    main()
