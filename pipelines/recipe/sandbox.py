"""The field `sandbox`: how programs of a model are confined, here or on a server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from pipelines.contract.fields import Settings, free
from pipelines.recipe.server import Address


class RemoteSandbox(Settings):
    """A server that runs a model's programs, confined on its own machine; verdicts are made here."""

    url: Address = free(...)
    """Of the server, such as http://10.0.0.5:8700."""
    api_key_env: str = free("WHETSTONE_SANDBOX_KEY", pattern=r"^[A-Za-z_]\w*$")
    """Name of an environment variable with the server's key; sent as a bearer token, stored nowhere."""
    timeout_s: float = free(30.0, gt=0, le=3600)
    """Until a request must be answered, beyond what its program may take."""


Sandbox = Annotated[
    Annotated[Literal["auto", "limits_only"], Tag("union[word]")] | Annotated[RemoteSandbox, Tag("union[server]")],
    Discriminator(lambda value: "union[word]" if isinstance(value, str) else "union[server]"),
]
