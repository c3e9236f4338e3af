"""A Slurm of one machine for tests: `sbatch`, `srun`, `squeue`, `scancel`, `scontrol` and `sacct` by the name that it is called by.

Its state is in the folder `TOY_SLURM`. A test holds the queue back by a file `hold`, gives orders to a job by a file `N.order`, and has
an accounting by a file `accounting`. sbatch refuses the option that a file `unknown` holds, and hangs after its work where there is a
file `slow`.
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

PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sacct")
NODE = "127.0.0.1"
ENDINGS = {"cancel": "CANCELLED", "out_of_memory": "OUT_OF_MEMORY", "preempt": "PREEMPTED"}
"""Order → the state in which a job ends; any other has it wait again."""


def install(folder: Path) -> dict[str, str]:
    """Put the programs into a folder; the environment variables with which they are found."""
    state, programs = folder / "state", folder / "bin"
    state.mkdir(parents=True)
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" {name} "$@"\n')
        (programs / name).chmod(0o755)
    return {"TOY_SLURM": str(state), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def order(state: Path, number: str, what: str) -> None:
    """Tell a job what happens to it: cancel, requeue, limit, node_fail, out_of_memory or preempt."""
    (state / f"{number}.new").write_text(what)
    (state / f"{number}.new").rename(state / f"{number}.order")


def jobs(state: Path) -> list[dict[str, Any]]:
    """All jobs, the oldest first."""
    return [json.loads(path.read_text()) for path in sorted(state.glob("*.job"), key=lambda path: int(path.stem))]


def _save(folder: Path, job: dict[str, Any], **changed: Any) -> None:
    job |= changed
    new = folder / f"{job['number']}.saved"
    new.write_text(json.dumps(job))
    new.rename(folder / f"{job['number']}.job")


def sbatch(state: Path, *arguments: str) -> None:
    """Hand a script in."""
    if (state / "refuse").exists():
        sys.exit((state / "refuse").read_text())
    script = Path(arguments[-1])
    testing = "--test-only" in arguments
    lines = arguments if testing else script.read_text().splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith(("#SBATCH ", "--"))]
    if (state / "unknown").exists() and (state / "unknown").read_text() in asked:
        sys.exit(f"sbatch: error: Invalid option: {(state / 'unknown').read_text()}")
    if testing:
        return
    options = dict(line.removeprefix("--").partition("=")[::2] for line in asked)
    number = str(len(jobs(state)) + 1)
    job = {"number": number, "name": options["job-name"], "options": options, "state": "PENDING", "why": "Priority"}
    _save(state, job, restarts=0)
    (state / f"{number}.sh").write_text(script.read_text())
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, "supervise", number],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if (state / "slow").exists():
        time.sleep(60)
    print(number)


def supervise(state: Path, number: str) -> None:
    """Be the daemon of one job."""
    (job,) = (each for each in jobs(state) if each["number"] == number)
    while job["state"] == "PENDING":
        while (state / "hold").exists():
            if _taken(state, number) == "cancel":
                return _save(state, job, state="CANCELLED")
            _save(state, job, why="Resources")
            time.sleep(0.05)
        _run(state, job)


def _taken(state: Path, number: str) -> str:
    path = state / f"{number}.order"
    if not path.exists():
        return ""
    text = path.read_text()
    path.unlink()
    return text


def _run(state: Path, job: dict[str, Any]) -> None:
    """One attempt of a job."""
    number, options = job["number"], job["options"]
    nodes = int(options["nodes"])
    about = {
        "SLURM_JOB_ID": number, "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": ",".join([NODE] * nodes),
        "SLURM_RESTART_COUNT": str(job["restarts"]),
    }  # fmt: skip
    with open(options["output"].strip('"').replace("%%", "%"), "ab") as log:
        batch = subprocess.Popen(
            ["bash", str(state / f"{number}.sh")], env=os.environ | about, cwd=options["chdir"], stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    _save(state, job, state="RUNNING", why="None", pid=batch.pid)
    ends_as, until = "", 1e18
    while (code := batch.poll()) is None and time.monotonic() < until:
        asked = _taken(state, number)
        if asked == "limit":
            batch.send_signal(signal.SIGUSR1)
            ends_as, until = "TIMEOUT", time.monotonic() + 1.0
        elif asked:
            ends_as = ENDINGS.get(asked, "PENDING")
            break
        time.sleep(0.02)
    if code is None:
        os.killpg(batch.pid, signal.SIGKILL)
        code = batch.wait()
    state_now = ends_as or ("COMPLETED" if code == 0 else "FAILED")
    _save(state, job, state=state_now, restarts=job["restarts"] + (state_now == "PENDING"), why="None", code=code)


def srun(_: Path, *arguments: str) -> None:
    """Run a command once a node; the first that fails ends the others."""
    command = arguments[next(n for n, each in enumerate(arguments) if not each.startswith("--")) :]
    nodes = range(int(os.environ["SLURM_NNODES"]))
    running = [subprocess.Popen(command, env=os.environ | {"SLURM_NODEID": str(node)}) for node in nodes]
    while running:
        for each in running:
            if (code := each.poll()) is None:
                continue
            if code != 0:
                for other in running:
                    other.kill()
                sys.exit(128 - code if code < 0 else code)
            running.remove(each)
            break
        time.sleep(0.02)


def squeue(state: Path, *_: str) -> None:
    """List the jobs as `--format=%A|%T|%r|%j`."""
    if (state / "away").exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
    for job in jobs(state):
        if not (state / f"{job['number']}.forgotten").exists():
            print(job["number"], job["state"], job["why"], job["name"], sep="|")


def scancel(state: Path, number: str) -> None:
    """Cancel a job, unless there is a file `deaf`."""
    if not (state / "deaf").exists():
        order(state, number, "cancel")


def scontrol(state: Path, *arguments: str) -> None:
    """`requeue N` and `show hostnames LIST`."""
    if arguments[0] == "requeue":
        order(state, arguments[1], "requeue")
    else:
        print("\n".join(arguments[2].split(",")))


def sacct(state: Path, *arguments: str) -> None:
    """State and exit code of a job as `--format=State,ExitCode`."""
    if not (state / "accounting").exists():
        sys.exit("Slurm accounting storage is disabled")
    for job in jobs(state):
        if job["number"] == arguments[-1] and "code" in job:
            by = " by 0" if job["state"] == "CANCELLED" else ""
            code = job["code"]
            print(f"{job['state']}{by}|{max(0, code)}:{max(0, -code)}")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(os.environ["TOY_SLURM"]), *sys.argv[2:])
