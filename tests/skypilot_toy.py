"""Managed jobs of SkyPilot for tests, as far as `sky jobs` shows them: jobs whose machines are processes.

Its state is in the folder `TOY_SKYPILOT`. A test holds machines back by a file `hold`, takes them away from a job that runs by a file
`lose` (they are replaced, as SkyPilot does), refuses jobs by a file `refuse`, and is away where there is a file `away`.
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

OVER = ("SUCCEEDED", "FAILED", "CANCELLED")


def install(folder: Path) -> dict[str, str]:
    """Put sky into a folder; the environment variables with which it is found."""
    state, programs = folder / "state", folder / "bin"
    state.mkdir(parents=True)
    programs.mkdir()
    (programs / "sky").write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{__file__}" "$@"\n')
    (programs / "sky").chmod(0o755)
    return {"TOY_SKYPILOT": str(state), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def jobs(state: Path) -> list[dict[str, Any]]:
    """All jobs that there ever were, the newest first."""
    found = [json.loads(path.read_text()) for path in state.glob("*.job")]
    return sorted(found, key=lambda job: -job["job_id"])


def _save(state: Path, job: dict[str, Any], **changed: Any) -> None:
    job.update(changed)
    (state / f"{job['job_id']}.saved").write_text(json.dumps(job))
    (state / f"{job['job_id']}.saved").rename(state / f"{job['job_id']}.job")


def launch(state: Path, *arguments: str) -> None:
    """Take a task file."""
    import yaml

    words = [word for word in arguments if word not in ("--yes", "--detach-run")]
    assert words[0] == "--name" and len(words) == 3
    if (state / "refuse").exists():
        sys.exit((state / "refuse").read_text())
    job = {
        "job_id": len(jobs(state)) + 1,
        "job_name": words[1],
        "task_id": 0,
        "status": "STARTING",
        "failure_reason": None,
    }
    _save(state, job | {"task": yaml.safe_load(Path(words[2]).read_text())})
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, "jobs", "supervise", str(job["job_id"])], start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def supervise(state: Path, number: str) -> None:
    """Be the controller of one job."""
    job = json.loads((state / f"{number}.job").read_text())
    cancelled = state / f"{number}.cancel"
    while True:
        while (state / "hold").exists():
            if cancelled.exists():
                return _save(state, job, status="CANCELLED")
            time.sleep(0.02)
        running = _machines(job["task"])
        _save(state, job, status="RUNNING")
        while None in [each.poll() for each in running] and not any(each.poll() for each in running):
            if cancelled.exists() or (state / "lose").exists():
                break
            time.sleep(0.02)
        codes = [each.poll() for each in running]
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
        if cancelled.exists():
            return _save(state, job, status="CANCELLED")
        if not (state / "lose").exists():
            break
        (state / "lose").unlink()
        _save(state, job, status="RECOVERING")
        time.sleep(0.5)
    reason = "The job's run failed." if any(codes) else None
    _save(state, job, status="FAILED" if any(codes) else "SUCCEEDED", failure_reason=reason)


def _machines(task: dict[str, Any]) -> list[subprocess.Popen[bytes]]:
    """The script of a task, once a machine."""
    environment = {"PATH": os.environ["PATH"], **task["envs"], "SKYPILOT_NODE_IPS": "127.0.0.1\n" * task["num_nodes"]}
    return [
        subprocess.Popen(["bash", "-c", task["run"]], env=environment | {"SKYPILOT_NODE_RANK": str(rank)}, start_new_session=True)
        for rank in range(task["num_nodes"])
    ]  # fmt: skip


def queue(state: Path, *arguments: str) -> None:
    """List jobs as JSON."""
    assert arguments[-2:] == ("--output", "json")
    if not jobs(state):
        sys.exit("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.")
    print(json.dumps(jobs(state), indent=2))


def cancel(state: Path, *arguments: str) -> None:
    """End the jobs of a name, and wait until they have ended."""
    left = [job for job in jobs(state) if job["job_name"] == arguments[-1] and job["status"] not in OVER]
    for job in left:
        (state / f"{job['job_id']}.cancel").touch()
    until = time.monotonic() + 30
    while any(job["status"] not in OVER for job in jobs(state) if job["job_name"] == arguments[-1]):
        assert time.monotonic() < until
        time.sleep(0.02)


if __name__ == "__main__":
    folder = Path(os.environ["TOY_SKYPILOT"])
    if (folder / "away").exists() and sys.argv[2] != "supervise":
        sys.exit("Could not connect to SkyPilot API server at http://127.0.0.1:46580.")
    globals()[sys.argv[2]](folder, *sys.argv[3:])
