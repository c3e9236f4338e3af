"""The sections of other processes: `sampler`, which decodes, `engine`, which trains too, and `dask`, whose workers curate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.contract.fields import ADDRESS, Line, Settings, free

Address = Annotated[Line, Field(pattern=ADDRESS)]
"""Such as http://localhost:8000, without user, password or key: those come from `api_key_env`."""

SERVED_ALONE = "processes: servers decode for one process; leave `sampler` out, or set processes: 1"
"""Of stages whose processes share what they ask a model."""


class Serve(Settings):
    """How the stage starts a vLLM server itself."""

    command: list[Line] = free(["vllm", "serve"], min_length=1)
    """The program and its first arguments; `env NAME=VALUE` in front sets variables. The rest follows: the weights
    folder, the socket, dtype and log-probability mode."""
    arguments: list[Line] = free([])
    """Added at the end, such as --max-model-len and 4096."""
    count: int = free(1, ge=1, le=64)
    """Servers, all from the same weights."""
    startup_s: float = free(900.0, gt=0, le=1e6)
    """Until a server must answer."""

    @property
    def cards_each(self) -> int:
        """GPUs that one server computes on: tensor times pipeline parallel size."""
        return self._number("--tensor-parallel-size", "-tp") * self._number("--pipeline-parallel-size", "-pp")

    @property
    def cards_together(self) -> int:
        """GPUs that all servers compute on."""
        return self.count * self.cards_each

    @property
    def names_cards(self) -> bool:
        """Whether the command itself says which GPUs servers compute on."""
        return any(word.startswith("CUDA_VISIBLE_DEVICES=") for word in self.command)

    @property
    def has_memory_share(self) -> bool:
        """Whether the share of a GPU's memory that a server takes is given; vLLM's default is nearly all of it."""
        return self._argument("--gpu-memory-utilization") is not None

    def cards(self, processes: int, visible: Sequence[str]) -> list[str] | None:
        """For each server its GPUs, as CUDA_VISIBLE_DEVICES says it; None where servers choose for themselves.

        Processes have the first GPUs and servers those after them. Where these are too few, servers share from the last one on.

        Args:
            processes: that train or ask, each on a GPU of its own.
            visible: names of the GPUs that this machine lends, in order.
        """
        each = self.cards_each
        if self.names_cards or len(visible) < 2:
            return None
        free = list(visible[processes:])
        if self.cards_together > len(free):
            free = list(reversed(visible))
        starts = (number * each % max(1, len(free) - each + 1) for number in range(self.count))
        return [",".join(free[start : start + each]) for start in starts]

    def _number(self, *names: str) -> int:
        text = next((value for name in names if (value := self._argument(name)) is not None), "1")
        return int(text) if text.isdigit() and int(text) > 0 else 1

    def _argument(self, name: str) -> str | None:
        """Value of an argument, written `--name value` or `--name=value`."""
        words = [part for word in self.arguments for part in (word.split("=", 1) if word.startswith("-") else [word])]
        return next((following for word, following in pairwise(words) if word == name), None)


class Server(Settings):
    """vLLM servers that decode; they get this step's weights before every step."""

    url: Address | None = free(None)
    """One server."""
    urls: list[Address] = free([])
    """Several servers, which share the rollouts; one that dies is dropped and its prompts are asked elsewhere."""
    serve: Annotated[
        Serve | None,
        BeforeValidator(
            lambda value: {} if value is True else None if value is False else value,
            json_schema_input_type=bool | Serve | None,
        ),
    ] = free(None)
    """`true`, or how: the stage starts and stops the server."""
    api_key_env: str | None = free(None, pattern=r"^[A-Za-z_]\w*$")
    """Name of an environment variable with the servers' API key; sent as a bearer token, stored nowhere."""
    weights: Line | None = free(None)
    """Folder the servers were started on, on a disk all see; with `serve` the default is in the work folder."""
    weight_transfer: Literal["auto", "folder", "gloo", "nccl"] = free("auto")
    """How whole weights reach the servers. folder: they read `weights` again. gloo: vLLM's weight transfer, tensor by tensor through host
    memory. nccl: from GPU to GPU, which must be different ones. auto: gloo where a server offers it, else folder."""
    model: Line | None = free(None)
    """The model's name on the servers; default: what a server says, else the folder."""
    seeds: bool | None = free(None)
    """Send a seed with every request; default: yes, but not to a CPU build with chunked prefill, which seeds end."""
    timeout_s: float = free(600.0, gt=0, le=1e7)

    @property
    def addresses(self) -> list[str]:
        """Every server that is listed."""
        return [*([self.url] if self.url else []), *self.urls]

    @model_validator(mode="before")
    @classmethod
    def _weights_given(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("serve"):
            if not data.get("url") and not data.get("urls") and "url" not in data:
                raise ValueError("name a server with `url`, several with `urls`, or set `serve: true`")
            if data.get("weights") is None:
                raise ValueError("`weights` is required with a server of your own: the folder it was started on")
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> Server:
        if self.serve is not None and self.addresses:
            raise ValueError("give either servers of your own (`url`, `urls`) or `serve`, not both")
        if len(set(self.addresses)) < len(self.addresses):
            raise ValueError("urls: each server may be named once")
        return self


class RemoteEngine(Settings):
    """A server of the Tinker protocol: it holds the weights, computes gradients, steps and decodes; batches, rewards and losses stay here.

    What is trained are LoRA adapters of its base model.
    """

    kind: Literal["tinker"] = "tinker"
    url: Address = free(...)
    """Of the server, such as http://127.0.0.1:8000."""
    base_model: Line | None = None
    """What the server calls the recipe's model; default: as `model.path` says it."""
    rank: int = Field(32, ge=1, le=65_536)
    """Of the adapters. What else there is to choose of them (alpha, the matrices) is the server's."""
    api_key_env: str = free("TINKER_API_KEY", pattern=r"^[A-Za-z_]\w*$")
    """Name of an environment variable with the server's API key; stored nowhere. A server of one's own may want none."""
    timeout_s: float = free(3600.0, gt=0, le=1e7)
    """Until a request must be answered; the server's queue and its compilation count."""
    checkpoint_days: float | None = free(None, gt=0, le=36_500)
    """How long the server keeps the checkpoints that a restart and later stages need; default: as long as it likes."""


class Dask(Settings):
    """Worker processes that make and check the records of a stage, which reads and writes them; the rows and the key stay the same."""

    workers: int | None = Field(None, ge=1, le=1000)
    """So many processes of this machine."""
    address: Line | None = None
    """Those of a scheduler, such as `tcp://10.0.0.1:8786`."""
    block: int = Field(500, ge=1, le=100_000)
    """Rows of a task."""

    @model_validator(mode="after")
    def _exclusive(self) -> Dask:
        if (self.workers is None) == (self.address is None):
            raise ValueError("name either workers, of this machine, or the address of a scheduler")
        return self
