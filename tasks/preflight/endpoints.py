"""Models behind servers, before the first stage: each answers, and what asking it will cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluation import benchmark_size
from pipelines.base.errors import Problem, UserError
from pipelines.base.secrets import authorization
from pipelines.contract.model_endpoint import ModelEndpoint
from pipelines.data import dataset
from pipelines.judges import endpoint
from pipelines.recipe import graph
from pipelines.recipe.settings import Evaluate
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
        field = f"{node.name}.{port}"
        if about.many:
            out |= {f"{field}.{place}": each for place, each in graph.endpoints(node, port)}
        else:
            out[field] = getattr(node.settings, port)
    return out


def problems(node: Node) -> Iterator[Problem]:
    """What is wrong with the servers that a stage asks."""
    for field, asked in of_node(node).items():
        try:
            address = endpoint.address(asked.url, field, "the model")
            headers = authorization(asked.api_key_env, field)
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
    uncounted: tuple[str, ...] = ()
    """Benchmarks that are asked too, and whose size is not known before lm-eval has read them."""

    def __str__(self) -> str:
        besides = f"; {', '.join(self.uncounted)} not counted" if self.uncounted else ""
        if not self.requests:
            return f"{self.stage} asks {self.model}{besides}"
        of = " for each problem" if self.each else ""
        prompts = "" if self.prompt_tokens is None else f"about {self.prompt_tokens:,} prompt tokens and "
        beside = " beside the prompts" if self.prompt_tokens is None else ""
        cost = "" if self.cost is None else f", cost at most {self.cost:.4g}{beside}"
        times = "once" if self.requests == 1 else f"{self.requests:,} times"
        most = f"at most {self.completion_tokens:,} completion tokens"
        return f"{self.stage} asks {self.model} {times}{of}: {prompts}{most}{cost}{besides}"


def estimates(node: Node, data: Path | None) -> Iterator[Estimate]:
    """What asking the models behind servers of a stage will take: of one that draws samples, or that evaluates.

    Args:
        data: the artifact with the problems that samples are drawn for, where it is there.
    """
    if isinstance(node.settings, Evaluate):
        yield from _of_evaluation(node.name, node.settings)
        return
    if node.kind.makes != SAMPLES or not node.asks_endpoint("model"):
        return
    own, asked = node.settings, node.settings.model
    problems = dataset.read_split(data, own.split)[: own.problems] if data is not None else None
    count = len(problems) if problems is not None else own.problems
    prompt_tokens = None
    if problems is not None and own.new_prompts is None:
        texts = [json.dumps([p.prompt, p.tools or []], ensure_ascii=False) for p in problems]
        prompt_tokens = own.k * _tokens(texts)
    requests = own.k * (1 if count is None else count)
    most = requests * own.sampling.max_tokens
    yield _estimate(node.name, asked, requests, prompt_tokens, most, each=count is None)


def _of_evaluation(stage: str, evaluate: Evaluate) -> Iterator[Estimate]:
    """Every model is asked the same: all questions of all tasks."""
    if not evaluate.models:
        return
    sizes = {task.name: benchmark_size.size(task, evaluate.include) for task in evaluate.tasks}
    known = [each for each in sizes.values() if each is not None]
    requests = sum(each.questions * each.repeats for each in known)
    most = sum(each.questions * each.repeats * each.max_tokens for each in known)
    prompt_tokens: int | None = 0
    for each in known:
        if each.prompts is None or prompt_tokens is None:
            prompt_tokens = None
        else:
            prompt_tokens += each.repeats * (1 + each.few_shot) * _tokens(each.prompts)
    uncounted = tuple(name for name, each in sizes.items() if each is None)
    for asked in evaluate.models:
        assert asked is not None
        yield _estimate(stage, asked, requests, prompt_tokens, most, uncounted=uncounted)


def _tokens(texts: Iterable[str]) -> int:
    """About so many, of all texts together."""
    return sum(math.ceil(len(text) / CHARACTERS) for text in texts)


def _estimate(
    stage: str, asked: ModelEndpoint, requests: int, prompt_tokens: int | None, most: int, *, each: bool = False,
    uncounted: tuple[str, ...] = (),
) -> Estimate:  # fmt: skip
    cost = None if asked.price is None else asked.price.cost(prompt_tokens or 0, most)
    return Estimate(stage, asked.endpoint, each, requests, prompt_tokens, most, cost, uncounted)
