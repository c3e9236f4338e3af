"""The trackers that a stage's run is mirrored to, each through its own client.

A mirror that keeps its run on this machine is written again from the start of the feed by every process: what the one before it had in its
buffers when it was killed is not missing, and nothing is there twice. One that sends to a server goes on after what the server has.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Client(Protocol):
    """A run of a tracker."""

    held: int
    """Points of the feed that it has from earlier processes."""

    def send(self, number: int, point: dict[str, Any]) -> None:
        """Add a point: `step`, `time` in ms, `values`; `number` counts the points of the feed."""

    def finish(self, status: str, scores: dict[str, float], about: dict[str, str]) -> None:
        """End the run. The same call of a later process may go on with it.

        Args:
            status: `FINISHED`, `FAILED` or `KILLED`.
            scores: final scores, by name, that no point has had.
            about: what is known at the end, as text: the run of MLflow.
        """


def plain(name: str) -> str:
    """A name as a project, folder or file of every tracker may be called.

    >>> plain("gsm8k sweep/rloo")
    'gsm8k-sweep-rloo'
    """
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-.")[:120] or "whetstone"


class Wandb:
    """Weights & Biases: offline, in `wandb/` of the project folder, unless somebody is logged in or WANDB_MODE says otherwise."""

    def __init__(self, job: dict[str, Any], sent: int) -> None:
        for name, value in (("WANDB_ERROR_REPORTING", "false"), ("WANDB_SILENT", "true")):
            os.environ.setdefault(name, value)
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if self.logged_in() else "offline")
        folder = os.environ.get("WANDB_DIR") or job["home"]
        if mode == "offline":
            for earlier in Path(folder).glob(f"wandb/offline-run-*-{job['id']}"):
                shutil.rmtree(earlier)
        Path(folder).mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, init_timeout=60
        )
        self.run = wandb.init(
            project=plain(job["experiment"]), id=job["id"], name=job["name"], group=job["group"], job_type=job["kind"],
            config=job["params"] | {"whetstone": job["tags"]}, mode=mode, dir=folder, settings=settings,
            resume=None if mode == "offline" else "allow", reinit=True,  # after a stage whose mirror failed in this process
        )  # fmt: skip
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        self.held = 0 if mode == "offline" else self.run.step

    @staticmethod
    def logged_in() -> bool:
        """Whether there is a key for the server, in the environment or in the file that `wandb login` writes."""
        from requests.utils import get_netrc_auth

        server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
        return bool(os.environ.get("WANDB_API_KEY") or get_netrc_auth(server))

    def send(self, number: int, point: dict[str, Any]) -> None:
        """A point is a row of the history; wandb's own step counts the points, since its steps cannot go back."""
        self.run.log(point["values"] | {"step": point["step"], "_timestamp": point["time"] / 1000}, step=number)

    def finish(self, status: str, scores: dict[str, float], about: dict[str, str]) -> None:
        """Scores and what is known go to the summary."""
        self.run.summary.update(scores | about)
        self.run.finish(exit_code=0 if status == "FINISHED" else 1)


class Tensorboard:
    """TensorBoard's event files, in `tensorboard/EXPERIMENT/PIPELINE RUN/STAGE` of the project folder."""

    held = 0

    def __init__(self, job: dict[str, Any], sent: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._text = Event, Summary, text_pb
        name = f"{plain(job['name'])}-{job['id']}"
        folder = Path(job["home"]) / "tensorboard" / plain(job["experiment"]) / plain(job["group"]) / name
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))
        self.last = (0, time.time())
        self._add(hparams_pb(job["params"], start_time_secs=job["began"]))
        rows = [f"| {key} | {value} |" for key, value in {**job["params"], **job["tags"]}.items()]
        self._add(self._text("params", "\n".join(["| name | value |", "|---|---|", *rows])))

    def _add(self, summary: Any) -> None:
        step, seconds = self.last
        self.writer.add_event(self._event(step=step, wall_time=seconds, summary=summary))

    def _scalars(self, values: dict[str, float]) -> None:
        self._add(self._summary(value=[self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]))

    def send(self, number: int, point: dict[str, Any]) -> None:
        """A point is an event with its step and time."""
        self.last = (point["step"], point["time"] / 1000)
        self._scalars(point["values"])

    def finish(self, status: str, scores: dict[str, float], about: dict[str, str]) -> None:
        """Scores are scalars at the last step, what is known is a text."""
        self._scalars(scores)
        for name, text in about.items():
            self._add(self._text(name, text))
        self.writer.close()


class Trackio:
    """trackio: its local database, or the Space or server that TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names."""

    def __init__(self, job: dict[str, Any], sent: int) -> None:
        import trackio

        name, project = f"{job['name']}-{job['id']}", plain(job["experiment"])
        remote = any(os.environ.get(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"))
        if not remote:
            with contextlib.suppress(ValueError):  # there is no such project yet
                for earlier in [run for run in trackio.Api().runs(project) if run.name == name]:
                    earlier.delete()
        self.held = sent if remote else 0
        self.run = trackio.init(
            project=project, name=name, group=job["group"], config=job["params"] | job["tags"], resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip
        self.last = 0

    def send(self, number: int, point: dict[str, Any]) -> None:
        """A point is a row with its step."""
        self.last = point["step"]
        self.run.log(point["values"], step=point["step"])

    def finish(self, status: str, scores: dict[str, float], about: dict[str, str]) -> None:
        """Scores and what is known are a row of their own at the last step."""
        if scores or about:
            self.run.log({**scores, **about}, step=self.last)
        self.run.finish()


CLIENTS: dict[str, Callable[[dict[str, Any], int], Client]] = {
    "wandb": Wandb,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}
