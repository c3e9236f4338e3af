"""A client of servers that speak OpenAI's chat completions: many requests at once, and what was answered once is not paid for again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import SimpleQueue
from typing import Any

from pipelines.base.cache import Cache
from pipelines.base.errors import UserError
from pipelines.base.files import digest
from pipelines.base.secrets import redact

PATIENCE = (0.5, 2.0, 8.0)
"""Seconds between attempts at one question."""
RETRIED = (408, 409, 425, 429)
"""Statuses under 500 that may pass."""
LONGEST_PAUSE_S = 300.0
"""However long a server asks to be left alone."""
FUTILE = 32
"""Refusals without a single answer after which no more is asked."""
Body = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    text: str | None
    """None: no answer, or one without text."""
    reasoning: str = ""
    """What a reasoning model wrote in a field of its own (`reasoning_content`, `reasoning`)."""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """As the server wrote them."""
    finish: str | None = None
    """`stop`, `length`, `tool_calls`, ..., where the server says."""
    prompt_tokens: int | None = None
    """As the server counts them; None where it does not say."""
    completion_tokens: int | None = None
    total_tokens: int = 0
    """0 where the server does not say."""
    seconds: float = 0.0
    cached: bool = False
    problem: str = ""
    """Why there is no answer."""
    passes: bool = False
    """Whether the problem may have passed when it is asked again."""

    def plain(self) -> dict[str, Any]:
        """What a cache keeps; fields without content are left out."""
        values = {
            "reasoning": self.reasoning, "tool_calls": self.tool_calls, "finish": self.finish,
            "prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens,
        }  # fmt: skip
        return {"text": self.text, **{name: value for name, value in values.items() if value not in ("", [], None)}}


class ChatClient:
    """Asks `POST {url}/chat/completions`.

    Args:
        url: up to and with `/v1`, without a slash at its end.
        headers: of every request.
        field: of the recipe, for errors.
        named_in: the field below it that holds the model's name.
        concurrency: requests under way at once.
        timeout_s: of one attempt.
        cache: where answers are kept, each as soon as it is there.
        patience: seconds between attempts at one request; a server's `Retry-After` counts instead, for all requests.
        needs_text: an answer of reasoning or of tool calls alone is none.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        field: str,
        named_in: str = "model",
        concurrency: int,
        timeout_s: float,
        cache: Cache,
        patience: Sequence[float] = PATIENCE,
        needs_text: bool = False,
    ) -> None:
        self.url, self.headers, self.field, self.named_in = url, dict(headers), field, named_in
        self.concurrency, self.timeout_s, self.patience, self.cache = concurrency, timeout_s, tuple(patience), cache
        self.needs_text = needs_text
        self._answered, self._not_before = 0, 0.0
        self._closing, self._writing = threading.Event(), threading.Lock()
        self._unwritten: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()

    def ask(
        self,
        bodies: Sequence[Body],
        draws: Sequence[int] | None = None,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> list[Answer]:
        """An answer to every request, in their order; equal requests are asked once.

        Args:
            draws: number of each request among equal ones that are to be answered independently.
            on_answer: called with each distinct answer, those of the cache first.

        Raises:
            UserError: the server refuses us, or it answered none of the requests; a restart that asks only what was refused before goes on.
        """
        salts: Sequence[list[int]] = [[] for _ in bodies] if draws is None else [[draw] for draw in draws]
        keys = [digest([body, *salt]) for body, salt in zip(bodies, salts, strict=True)]
        known = self.cache.read(dict.fromkeys(keys))
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in known}
        answers = {key: Answer(**body, cached=True) for key, body in known.items()}
        for answer in answers.values():
            on_answer(answer)
        asked: dict[str, Answer] = {}
        for key, answer in self._ask(missing, FUTILE if not known else len(missing)):
            asked[key] = answer
            on_answer(answer)
        failed = [answer for answer in asked.values() if answer.problem]
        if len(failed) == len(asked) > 0 and (not known or failed[-1].passes):
            raise self._none_of(len(asked), failed[-1].problem)
        return [(answers | asked)[key] for key in keys]

    def _none_of(self, count: int, why: str) -> UserError:
        return UserError(
            self.field,
            f"{redact(self.url)} answered none of {count} questions ({why})",
            f"Start it, or correct url, {self.named_in} and api_key_env.",
        )

    def _ask(self, missing: Mapping[str, Body], futile: int) -> Iterator[tuple[str, Answer]]:
        """(key, answer) as they come; what has come is kept, also what was under way when a request was refused for good.

        Args:
            futile: refusals without an answer after which no more is asked.
        """
        if not missing:
            return
        import httpx

        came: SimpleQueue[tuple[str, Answer | BaseException]] = SimpleQueue()
        limits = httpx.Limits(max_connections=self.concurrency)
        self._closing.clear()
        refusals, answered = 0, 0
        with (
            httpx.Client(headers=self.headers, timeout=self.timeout_s, limits=limits) as client,
            ThreadPoolExecutor(self.concurrency) as pool,
        ):

            def attempt(key: str, body: Body) -> None:
                if self._closing.is_set():
                    return
                try:
                    answer = self._attempts(client, body)
                    self._store(key, answer)
                    came.put((key, answer))
                except BaseException as error:
                    self._closing.set()
                    came.put((key, error))

            for key, body in missing.items():
                pool.submit(attempt, key, body)
            try:
                for left in range(len(missing) - 1, -1, -1):
                    key, answer = came.get()
                    if isinstance(answer, BaseException):
                        raise answer
                    answered, refusals = answered + (not answer.problem), refusals + bool(answer.problem)
                    if not answered and refusals >= max(futile, self.concurrency) and left:
                        raise self._none_of(refusals, answer.problem)
                    yield key, answer
            finally:
                self._closing.set()
                pool.shutdown(cancel_futures=True)

    def _store(self, key: str, answer: Answer) -> None:
        """Write an answer, before its thread asks for another: a kill loses no more than what is under way. One thread writes for all that
        wait to."""
        if answer.problem:
            return
        self._unwritten.put((key, answer.plain()))
        with self._writing:
            self.cache.write(dict(self._unwritten.get() for _ in range(self._unwritten.qsize())))

    def _attempts(self, client: Any, body: Body) -> Answer:
        """One request, made again where the failure may pass.

        While other requests are answered, being told to wait (429) takes no patience: the server is there, and slow.
        """
        began, tries, answered = time.perf_counter(), 0, -1
        while True:
            self._wait(self._not_before - time.monotonic())
            answer, pause = self._once(client, body)
            if not answer.problem:
                self._answered += 1
            last = tries >= len(self.patience) or self._closing.is_set()
            if not answer.passes or last:
                return Answer(**{**vars(answer), "seconds": time.perf_counter() - began})
            own = self.patience[tries]
            if pause is None or self._answered == answered:
                tries += 1
            answered = self._answered
            if pause is not None:
                self._not_before = max(self._not_before, time.monotonic() + (pause or own))
            else:
                self._wait(own)

    def _wait(self, seconds: float) -> None:
        """Up to a quarter longer, so that not all come back at once; not at all where nobody waits any more."""
        if seconds > 0:
            self._closing.wait(seconds * (1 + random.random() / 4))

    def _once(self, client: Any, body: Body) -> tuple[Answer, float | None]:
        """The answer, and where the server is too busy the seconds that it asks for, 0 where it names none."""
        import httpx

        try:
            response = client.post(f"{self.url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            return Answer(None, problem=redact(f"{type(error).__name__}: {error}")[:200], passes=True), None
        status, excerpt = response.status_code, redact(response.text[:160])
        if status < 400:
            return read_answer(response, self.needs_text), None
        self._refuse(status, excerpt, response.text)
        passes = status in RETRIED or status >= 500
        pause = retry_after(response.headers.get("Retry-After")) if passes else None
        if status == 429 and pause is None:
            pause = 0.0
        return Answer(None, problem=f"status {status}: {excerpt}", passes=passes), pause

    def _refuse(self, status: int, excerpt: str, text: str) -> None:
        """What no other request will do better with."""
        where = redact(self.url)
        if status == 401:
            field = f"{self.field}.api_key_env"
            raise UserError(
                field, f"{where} refuses the key (status 401: {excerpt})", "Name the variable with a valid key."
            )
        if status == 404:
            raise UserError(
                f"{self.field}.{self.named_in}",
                f"{where} does not know it (status 404: {excerpt})",
                f"Correct the model's name, or the url, which goes up to and with /v1 (GET {where}/models lists the names).",
            )
        if status == 402 or (status == 429 and "insufficient_quota" in text):
            raise UserError(
                self.field,
                f"{where} wants to be paid (status {status}: {excerpt})",
                "Add credit and run again; what was answered is kept.",
            )


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After` header, at most `LONGEST_PAUSE_S`; None where it says nothing.

    >>> retry_after("2"), retry_after("-1"), retry_after("soon"), retry_after(None), retry_after("1e9")
    (2.0, 0.0, None, None, 300.0)
    >>> retry_after("Wed, 21 Oct 2015 07:28:10 GMT", datetime(2015, 10, 21, 7, 28, tzinfo=UTC))
    10.0
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(0.0, seconds), LONGEST_PAUSE_S) if seconds == seconds else None


def read_answer(response: Any, needs_text: bool) -> Answer:
    """A chat completion's first choice; an answer that was withheld, or is none, has a `problem`."""
    try:
        content = response.json()
        choice = content["choices"][0]
        message, usage = choice["message"], content.get("usage") or {}
        text, calls = _text(message.get("content")), message.get("tool_calls") or []
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
        finish = choice.get("finish_reason")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer(None, problem=f"no chat completion: {redact(response.text[:160])}")
    if finish == "content_filter" and not text:
        return Answer(None, problem="the answer was withheld (content_filter)")
    if text is None and (needs_text or not (calls or reasoning)):
        return Answer(None, problem="an answer without text")
    asked, answered, total = (count if isinstance(count, int) else None for count in counts)
    return Answer(
        text, str(reasoning), [call for call in calls if isinstance(call, dict)], finish,
        prompt_tokens=asked, completion_tokens=answered, total_tokens=total or (asked or 0) + (answered or 0),
    )  # fmt: skip


def _text(content: Any) -> str | None:
    """A message's text; parts of text stand one after the other."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else None
