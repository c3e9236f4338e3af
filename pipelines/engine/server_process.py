"""A vLLM server that the stage starts and stops: on a socket of its own, tied to this process's life, its log kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import torch

from pipelines.base import owner
from pipelines.base.project import python
from pipelines.engine import vllm_worker
from pipelines.engine.vllm_worker import whetstone_worker
from pipelines.recipe.server import Serve

LOG_LINES = 12
"""Of a log, in an error."""
EXTENSION = "whetstone_worker.Reload"
TRANSFER = "--weight-transfer-config"
STOP_S = 10.0
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM 0.32 takes for --max-lora-rank."""


def visible_cards() -> list[str]:
    """Names of the GPUs that this process sees, in the order in which it numbers them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]


class ServerProcess:
    """One server. It listens on a Unix socket in a folder that only this user may enter: vLLM's development endpoints
    call any method of its workers, and must not be on a network.

    Args:
        settings: what to start.
        weights: checkpoint folder, complete before `start`.
        dtype: "float32" or "bfloat16", what the server computes in.
        log: file its output is appended to.
        lora_rank: of the adapters that it will be sent; 0 where it is sent whole weights.
        cards: the GPUs that it sees, as in CUDA_VISIBLE_DEVICES; None for those that this process sees.
        transfer: start it with our engine of weight transfer.
    """

    def __init__(
        self, settings: Serve, *, weights: Path, dtype: str, log: Path, lora_rank: int = 0, cards: str | None = None,
        transfer: bool = False,
    ) -> None:  # fmt: skip
        self.cards, self.transfer = cards, transfer
        self.settings, self.weights, self.dtype, self.log, self.lora_rank = settings, weights, dtype, log, lora_rank
        self.folder = Path(tempfile.mkdtemp(prefix="whetstone-"))  # short: a socket's path has at most 107 bytes
        self.socket = self.folder / "s"
        self.process: subprocess.Popen[bytes] | None = None
        self.sees = False
        """Whether it is sent images."""
        self.images = ""
        """What makes images smaller or larger, "pil" or "torchvision"; empty for the server's own choice."""

    @property
    def command(self) -> list[str]:
        """What is run."""
        fixed = ["--uds", str(self.socket), "--dtype", self.dtype, "--logprobs-mode", "processed_logprobs"]
        fixed += ["--generation-config", "vllm", "--worker-extension-cls", EXTENSION]
        if self.lora_rank:
            most = next((rank for rank in LORA_RANKS if rank >= self.lora_rank), LORA_RANKS[-1])
            fixed += ["--enable-lora", "--max-lora-rank", str(most)]
        if self.transfer:
            fixed += [TRANSFER, json.dumps({"backend": whetstone_worker.ENGINE})]
        if self.sees:
            fixed += ["--enable-scale-out"]  # the route that takes token ids and images
        if self.images:
            fixed += ["--mm-processor-kwargs", json.dumps({"backend": self.images})]
        if not torch.cuda.is_available():
            fixed += ["--no-enable-chunked-prefill"]  # with it, a request's seed ends the CPU build
        return [*self.settings.command, str(self.weights), *fixed, *self.settings.arguments]

    def start(self) -> None:
        """Start the server; it does not answer yet.

        The kernel ends it with the *thread* that calls this, so call it from one that lasts.
        """
        self.socket.unlink(missing_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            owner.PARENT: str(os.getpid()),
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": str(Path(vllm_worker.__file__).parent),  # and nothing of our own environment
        }
        if self.cards is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.cards
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                python("pipelines.stage.owned", *self.command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def knows_no_transfer(self) -> bool:
        """Whether it ended because this vLLM has no weight transfer."""
        return not self.running and f"unrecognized arguments: {TRANSFER}" in self.why()

    def why(self) -> str:
        """The lines of the log that say what went wrong: those with an error in them, else the last ones."""
        text = self.log.read_bytes()[-200_000:].decode(errors="replace") if self.log.exists() else ""
        lines = [line.strip()[-300:] for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\b\w*(Error|Exception|error:)|ended with code", line)]
        return "\n  ".join((errors or lines)[-LOG_LINES:]) or "the log is empty"

    def stop(self) -> None:
        """End the server and everything that it started."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """End it so that it can be started again."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
