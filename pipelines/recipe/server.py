"""The section `rlvr.sampler`: decoding servers, our own or somebody else's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pipelines.contract.fields import ADDRESS, Line, Settings, free

Address = Annotated[Line, Field(pattern=ADDRESS)]
"""Such as http://localhost:8000, without user, password or key: those come from `api_key_env`."""


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
