"""A Kubernetes of one machine for tests, as far as `kubectl` shows it: jobs whose pods are processes.

Its state is in the folder `TOY_KUBERNETES`. A test holds pods back by a file `hold` (no machine) or `image` (no image), gives orders to a
job by a file `NAME.order` (evict, deadline or oom), refuses jobs by a file `refuse`, and is away where there is a file `away`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENDINGS = {
    "evict": ("BackoffLimitExceeded", ""),
    "deadline": ("DeadlineExceeded", ""),
    "oom": ("BackoffLimitExceeded", "OOMKilled"),
}
LABEL = "whetstone/job"


def install(folder: Path) -> dict[str, str]:
    """Put kubectl into a folder; the environment variables with which it is found."""
    state, programs = folder / "state", folder / "bin"
    state.mkdir(parents=True)
    programs.mkdir()
    (programs / "kubectl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "$@"\n')
    (programs / "kubectl").chmod(0o755)
    return {"TOY_KUBERNETES": str(state), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def order(state: Path, name: str, what: str) -> None:
    """Tell a job what happens to it."""
    (state / f"{name}.new").write_text(what)
    (state / f"{name}.new").rename(state / f"{name}.order")


def jobs(state: Path) -> list[dict[str, Any]]:
    """All jobs that there are."""
    return [json.loads(path.read_text()) for path in sorted(state.glob("*.job"))]


def _save(state: Path, job: dict[str, Any]) -> None:
    name = job["metadata"]["name"]
    (state / f"{name}.saved").write_text(json.dumps(job))
    (state / f"{name}.saved").rename(state / f"{name}.job")


def create(state: Path, *arguments: str) -> None:
    """Take a list of objects from standard input."""
    items = json.load(sys.stdin)["items"]
    if (state / "refuse").exists():
        sys.exit((state / "refuse").read_text())
    if "--dry-run=server" in arguments:
        return
    (job,) = (each for each in items if each["kind"] == "Job")
    name = job["metadata"]["name"]
    if (state / f"{name}.job").exists():
        sys.exit(f'Error from server (AlreadyExists): jobs.batch "{name}" already exists')
    _save(state, job | {"status": {}, "pods": []})
    with open(state / "created", "a") as log:
        log.write(f"{name}\n")
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, "supervise", name], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _taken(state: Path, name: str) -> str:
    path = state / f"{name}.order"
    if not path.exists():
        return ""
    text = path.read_text()
    path.unlink()
    return text


def supervise(state: Path, name: str) -> None:
    """Be the controller of one job."""
    job = json.loads((state / f"{name}.job").read_text())
    while (state / "hold").exists() or (state / "image").exists():
        if _taken(state, name) == "delete":
            return (state / f"{name}.job").unlink()
        unscheduled = {
            "type": "PodScheduled",
            "status": "False",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
        waits = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        held = {"conditions": [unscheduled]} if (state / "hold").exists() else {"containerStatuses": [waits]}
        _save(state, job | {"pods": [{"status": {"phase": "Pending", **held}}]})
        time.sleep(0.02)
    spec = job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    script = container["command"][2].replace(f"{name}-0.{name}", "127.0.0.1")  # what the service's DNS would answer
    environment = {"PATH": os.environ["PATH"], **{each["name"]: each["value"] for each in container["env"]}}
    running = [
        subprocess.Popen(
            ["bash", "-c", script], env=environment | {"JOB_COMPLETION_INDEX": str(index)}, cwd=container["workingDir"],
            start_new_session=True,
        )
        for index in range(job["spec"].get("completions", 1))
    ]  # fmt: skip
    _save(state, job | {"pods": [{"status": {"phase": "Running"}} for _ in running]})
    ended_by = ""
    while not ended_by and (None in [each.poll() for each in running]) and not any(each.poll() for each in running):
        ended_by = _taken(state, name)
        time.sleep(0.02)
    for each in running:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    if ended_by == "delete":
        return (state / f"{name}.job").unlink()
    _save(state, job | _ending(ended_by, [each.returncode for each in running]))
    while _taken(state, name) != "delete":
        time.sleep(0.02)
    (state / f"{name}.job").unlink()


def _ending(ended_by: str, codes: list[int]) -> dict[str, Any]:
    if not ended_by and not any(codes):
        return {"status": {"conditions": [{"type": "Complete", "status": "True"}]}, "pods": []}
    reason, why = ENDINGS.get(ended_by, ("BackoffLimitExceeded", "Error"))
    pods: list[dict[str, Any]] = []
    for number, code in enumerate(codes):
        end = {
            "exitCode": 128 - code if code < 0 else code,
            "reason": why or "Error",
            "finishedAt": f"2026-01-01T00:00:0{number}Z",
        }
        status: dict[str, Any] = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": end}}]}
        if ended_by == "evict":
            status["conditions"] = [
                {"type": "DisruptionTarget", "status": "True", "message": "Preempted by another pod"}
            ]
        pods.append({"status": status})
    message = (
        "Job was active longer than specified deadline"
        if ended_by == "deadline"
        else "Job has reached the specified backoff limit"
    )
    return {
        "status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": message}]},
        "pods": pods,
    }


def get(state: Path, what: str, *arguments: str) -> None:
    """List objects as JSON."""
    if what == "events":
        return print(json.dumps({"items": []}))
    label, _, value = arguments[arguments.index("-l") + 1].partition("=")
    chosen = [job for job in jobs(state) if job["metadata"]["labels"].get(label) == value]
    items = chosen if what == "job" else [pod for job in chosen for pod in job["pods"]]
    print(json.dumps({"items": items}))


def delete(state: Path, what: str, *arguments: str) -> None:
    """End the jobs of a label, and wait until they are gone."""
    assert what == "job,service"
    value = arguments[arguments.index("-l") + 1].partition("=")[2]
    if (state / "deaf").exists():
        sys.exit("error: timed out waiting for the condition")
    until = time.monotonic() + 30
    while (state / f"{value}.job").exists() and time.monotonic() < until:
        order(state, value, "delete")
        time.sleep(0.05)


if __name__ == "__main__":
    folder = Path(os.environ["TOY_KUBERNETES"])
    words = [word for word in sys.argv[1:] if not word.startswith(("--namespace", "--context"))]
    if (folder / "away").exists() and words[0] != "supervise":
        sys.exit("Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout")
    globals()[words[0]](folder, *words[1:])
