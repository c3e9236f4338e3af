"""Models behind servers, before the first stage: each answers, and what asking it will cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.base.errors import Problem, UserError
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.data import dataset
from pipelines.judges import endpoint
from pipelines.recipe.stage_kind import SAMPLES, Node
from tasks.preflight import http_probe

CHARACTERS = 3.5
"""Of a token, rather too few than too many."""


def of_node(node: Node) -> dict[str, ModelEndpoint]:
    """Field → the models behind servers that a stage asks."""
    out: dict[str, ModelEndpoint] = {}
    for port, about in node.kind.ports.items():
        if not node.asks_endpoint(port):
            continue
        asked = getattr(node.settings, port)
        field = f"{node.name}.{port}"
        out |= {f"{field}.{place}": each for place, each in enumerate(asked)} if about.many else {field: asked}
    return out


def problems(node: Node) -> Iterator[Problem]:
    """What is wrong with the servers that a stage asks."""
    for field, asked in of_node(node).items():
        try:
            address = endpoint.address(asked.url, field, "the model")
            headers = endpoint.authorization(asked.api_key_env, field)
        except UserError as error:
            yield from error.problems
            continue
        refused = (f"{field}.api_key_env", "Name the variable with a valid key.")
        yield from http_probe.problems(
            f"{field}.url", f"{address}/models", headers, fix="Start the server, or correct the url.", refused=refused,
            shown=address,
        )  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """What asking a model will take, before it is asked; what was answered before, and is kept, counts too."""

    stage: str
    model: str
    each: bool
    """The numbers are those of one problem: how many there are is not known yet."""
    requests: int
    prompt_tokens: int | None
    """About so many; None where the prompts are not known yet."""
    completion_tokens: int
    """At most."""
    cost: float | None
    """At most, as far as the tokens are known; None without a price."""

    def __str__(self) -> str:
        of = " for each problem" if self.each else ""
        prompts = "" if self.prompt_tokens is None else f"about {self.prompt_tokens:,} prompt tokens and "
        beside = " beside the prompts" if self.prompt_tokens is None else ""
        cost = "" if self.cost is None else f", cost at most {self.cost:.4g}{beside}"
        times = "once" if self.requests == 1 else f"{self.requests:,} times"
        return f"{self.stage} asks {self.model} {times}{of}: {prompts}at most {self.completion_tokens:,} completion tokens{cost}"


def estimates(node: Node, data: Path | None) -> Iterator[Estimate]:
    """What a sample stage that asks an endpoint will take.

    Args:
        data: the artifact with its problems, where it is there.
    """
    if node.kind.makes != SAMPLES or not node.asks_endpoint("model"):
        return
    own, asked = node.settings, node.settings.model
    problems = dataset.read_split(data, own.split)[: own.problems] if data is not None else None
    count = len(problems) if problems is not None else own.problems
    prompt_tokens = None
    if problems is not None and own.new_prompts is None:
        texts = [json.dumps([p.prompt, p.tools or []], ensure_ascii=False) for p in problems]
        prompt_tokens = own.k * sum(math.ceil(len(text) / CHARACTERS) for text in texts)
    requests = own.k * (1 if count is None else count)
    most = requests * own.sampling.max_tokens
    cost = None if asked.price is None else asked.price.cost(prompt_tokens or 0, most)
    yield Estimate(node.name, asked.endpoint, count is None, requests, prompt_tokens, most, cost)
