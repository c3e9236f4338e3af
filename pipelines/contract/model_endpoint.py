"""A model behind an OpenAI-compatible server, where a recipe could name a model of its own: `{endpoint: NAME, url: ...}`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, JsonValue, model_validator

from pipelines.contract.fields import ADDRESS, Identifier, Label, Settings, free

ModelName = Annotated[str, Field(min_length=1, max_length=300)]
"""What an endpoint knows a model by."""
Url = Annotated[str, Field(pattern=ADDRESS)]
Concurrency = Annotated[int, Field(ge=1, le=1024)]
Timeout = Annotated[float, Field(gt=0, le=1e6)]
"""Seconds."""
PER_MILLION = 1_000_000
Price = Annotated[float, Field(ge=0, le=1e6)]


class TokenPrices(Settings):
    """What a million tokens cost, in whatever currency."""

    prompt: Price = free(0.0)
    completion: Price = free(0.0)

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """What so many tokens cost.

        >>> TokenPrices(prompt=3, completion=15).cost(1_000_000, 100_000)
        4.5
        """
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / PER_MILLION


class ModelEndpoint(Settings):
    """A model behind an OpenAI-compatible server: a service, or a vLLM server that is running."""

    endpoint: ModelName
    """What the server knows the model by; it is in the stage's key, and the address is not."""
    label: Label | None = None
    """What tables call it; default: `endpoint`, with `-` for what a file's name cannot have."""
    url: Url | None = free(None)
    """Up to and with `/v1`; default: the environment's OPENAI_BASE_URL."""
    api_key_env: Identifier | None = free(None)
    """Name of the environment variable that holds the key; it is sent as a bearer token and stored nowhere."""
    concurrency: Concurrency = free(16)
    """Requests under way at once."""
    timeout_s: Timeout = free(600.0)
    """Of one attempt at a request."""
    price: TokenPrices | None = free(None)
    """`{prompt: 2.5, completion: 10}` for a million tokens each: progress, metrics and `whetstone plan` then tell the cost."""
    stop: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field([], max_length=16)
    """Texts that end an answer, and are not part of it."""
    seeds: bool = True
    """Send a seed with each request; a few servers refuse it."""
    extra_body: dict[str, JsonValue] = Field({})
    """More fields of each request, such as `{reasoning_effort: low}`; null leaves a field out: `{max_tokens: null,
    max_completion_tokens: 4096}`."""

    @model_validator(mode="after")
    def _own_fields(self) -> ModelEndpoint:
        if taken := sorted(self.extra_body.keys() & {"model", "messages", "tools", "n", "stream"}):
            raise ValueError(f"extra_body: {taken[0]} is what every request says itself; leave it out")
        return self

    @property
    def name(self) -> str:
        """What tables and folders call it.

        >>> ModelEndpoint(endpoint="meta-llama/Llama-3.1-8B").name
        'meta-llama-Llama-3.1-8B'
        """
        return self.label or (re.sub(r"[^A-Za-z0-9._+-]+", "-", self.endpoint).strip("._+-") or "endpoint")[:120]
