"""Asking a model behind an OpenAI-compatible server that a recipe names: its requests, its answers, and what they cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines import tools
from pipelines.base.cache import Cache
from pipelines.base.errors import UserError
from pipelines.base.secrets import authorization
from pipelines.contract.model_endpoint import ModelEndpoint, TokenPrices
from pipelines.contract.sampling import Sampling
from pipelines.data.control import THINK_END, THINK_START, after_thinking, thought_first
from pipelines.data.fallbacks import tool_in_user
from pipelines.data.images import as_content
from pipelines.data.records import Message
from pipelines.judges.client import Answer, Body, ChatClient
from pipelines.judges.endpoint import address, cache_file

PATIENCE = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Seconds between attempts at one request: five minutes in all, since a run that stops here has to be started again by somebody."""
LARGEST_SEED = 2**31 - 1
"""What every server takes."""
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Request:
    """What is asked once."""

    messages: Sequence[Message]
    sampling: Sampling
    seed: int = 0
    """Of this draw: equal requests with another one are answered independently."""
    tools: Sequence[dict[str, Any]] = ()
    stop: Sequence[str] = ()


@dataclass
class Usage:
    """Tokens that answers took, and how many of the answers say so."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    answers: int = 0
    uncounted: int = 0
    """Answers without a count."""

    def add(self, answer: Answer) -> None:
        """One more."""
        if answer.problem:
            return
        self.answers += 1
        self.uncounted += answer.prompt_tokens is None or answer.completion_tokens is None
        self.prompt_tokens += answer.prompt_tokens or 0
        self.completion_tokens += answer.completion_tokens or 0

    def cost(self, price: TokenPrices | None) -> float | None:
        """In the price's currency; None without a price."""
        return None if price is None else price.cost(self.prompt_tokens, self.completion_tokens)

    def shown(self, price: TokenPrices | None) -> str:
        """For a line of progress.

        >>> Usage(1200, 300, 2).shown(None), Usage(1200, 300, 2).shown(TokenPrices(prompt=1, completion=10))
        ('1,200 + 300 tokens', '1,200 + 300 tokens, cost 0.0042')
        """
        cost = self.cost(price)
        told = "" if cost is None else f", cost {cost:.4g}"
        return f"{self.prompt_tokens:,} + {self.completion_tokens:,} tokens{told}"

    def metrics(self, price: TokenPrices | None) -> dict[str, float]:
        """`usage/prompt_tokens`, `usage/completion_tokens` where the server counts them, and with a price `usage/cost`."""
        if self.uncounted == self.answers:
            return {}
        cost = self.cost(price)
        counts = {"usage/prompt_tokens": self.prompt_tokens, "usage/completion_tokens": self.completion_tokens}
        return {name: float(count) for name, count in counts.items()} | ({} if cost is None else {"usage/cost": cost})


class EndpointModel:
    """Asks the model of a `ModelEndpoint`.

    Args:
        field: of the recipe, for errors.

    Raises:
        UserError: there is no address, or the variable of the key is not set.
    """

    def __init__(self, settings: ModelEndpoint, field: str, *, patience: Sequence[float] = PATIENCE) -> None:
        self.settings, self.field = settings, field
        self.client = ChatClient(
            address(settings.url, field, "the model"),
            authorization(settings.api_key_env, field),
            field=field,
            named_in="endpoint",
            concurrency=settings.concurrency,
            timeout_s=settings.timeout_s,
            cache=Cache(cache_file()),
            patience=patience,
        )
        self.usage = Usage()

    def ask(self, requests: Sequence[Request], progress: Callable[[int], None] = lambda done: None) -> list[Answer]:
        """An answer to each request, in their order. Each is kept as soon as it has come, so that whoever asks again is told the same
        and pays nothing; one that the server refuses for good has a `problem`.

        Args:
            progress: called with the distinct answers so far.

        Raises:
            UserError: the server refuses us, has no time for a request in five minutes, or counts no tokens that have a price.
        """
        done = 0

        def on_answer(answer: Answer) -> None:
            nonlocal done
            done += 1
            if self.settings.price is not None and not answer.problem and answer.completion_tokens is None:
                raise UserError(
                    f"{self.field}.price",
                    f"{self.settings.endpoint} answers without `usage`, so nobody knows what an answer costs",
                    "Leave price out, or have the server count tokens.",
                )
            self.usage.add(answer)
            progress(done)

        answers = self.client.ask([self.body(each) for each in requests], [each.seed for each in requests], on_answer)
        waiting = [answer for answer in answers if answer.passes and answer.problem]
        if waiting:
            raise UserError(
                self.field,
                f"{len(waiting)} of {len(answers)} requests got no answer after {len(PATIENCE) + 1} attempts ({waiting[0].problem})",
                "Run again, with less concurrency where the server is busy: what was answered is kept.",
            )
        return answers

    def body(self, request: Request) -> Body:
        """The request as JSON."""
        own, sampling = self.settings, request.sampling
        body: Body = {
            "model": own.endpoint,
            "messages": spoken(request.messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        for name, without in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if getattr(sampling, name) != without:
                body[name] = getattr(sampling, name)
        if stop := [*own.stop, *request.stop]:
            body["stop"] = stop
        if request.tools:
            body["tools"] = list(request.tools)
        if own.seeds:
            body["seed"] = request.seed & LARGEST_SEED
        body |= own.extra_body
        return {name: value for name, value in body.items() if value is not None}


def full_text(answer: Answer) -> str:
    """An answer as the project writes one: reasoning in think tags, the text, then each tool call in its tags. Reasoning that was cut has
    no end tag.

    >>> full_text(Answer("4", reasoning="2 + 2", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]))
    '<think>\\n2 + 2\\n</think>\\n\\n4\\n<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>'
    """
    text = "\n".join(filter(None, [answer.text, *map(_call, answer.tool_calls)]))
    if not text and answer.finish == "length":
        return f"{THINK_START}\n{answer.reasoning}" if answer.reasoning else ""
    if not answer.reasoning.strip() or THINK_END in text:
        return text
    return thought_first(answer.reasoning.strip(), text)


def _call(call: dict[str, Any]) -> str:
    """A call as text; arguments that are no JSON stay what they are, for the verifier to see."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    name, arguments = str(function.get("name")), function.get("arguments") or {}
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
    return tools.call_text(name, parsed)


def spoken(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """A conversation as the protocol has it: earlier answers without their reasoning, calls of tools and the replies to them with ids.

    A reply to no call that can be read goes to the user's side.

    >>> called = {"role": "assistant", "content": '<tool_call>{"name": "f", "arguments": {}}</tool_call>'}
    >>> spoken([called, {"role": "tool", "content": "4"}])[1]
    {'role': 'tool', 'content': '4', 'tool_call_id': 'call_0'}
    """
    out: list[dict[str, Any]] = []
    called, replied = 0, 0
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            out += (
                [{"role": role, "content": content, "tool_call_id": f"call_{replied}"}]
                if replied < called
                else tool_in_user([message])
            )
            replied += 1
            continue
        if role != "assistant":
            out.append({"role": role, "content": as_content(content)})
            continue
        text = after_thinking(content)
        calls = _calls_in(text)
        if calls is None:
            out.append({"role": role, "content": text})
            continue
        listed = [
            {"id": f"call_{called + place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
        replied, called = called, called + len(calls)
        out.append({"role": role, "content": _CALL.sub("", text).strip(), "tool_calls": listed})
    return out


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """(name, arguments as JSON) of the calls in an earlier answer; None where there is none, or one that cannot be read."""
    calls = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
        except ValueError:
            return None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        calls.append((call["name"], json.dumps(call.get("arguments") or {})))
    return calls or None
