"""An OpenAI-compatible chat endpoint that is asked many questions at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.cache import Cache
from pipelines.base.errors import UserError
from pipelines.base.project import make_home
from pipelines.base.secrets import authorization
from pipelines.data import marks
from pipelines.data.images import as_content
from pipelines.data.records import Message
from pipelines.judges.client import PATIENCE, Answer, ChatClient

URL_VARIABLE = "OPENAI_BASE_URL"
"""Where the endpoint is if the settings do not say."""


@dataclass(frozen=True)
class Reply:
    """What came of one question."""

    text: str | None
    """None: no answer after all attempts."""
    tokens: int = 0
    """Prompt and completion together, as the endpoint counts them; 0 where it was not asked."""
    seconds: float = 0.0
    cached: bool = False
    problem: str = ""
    """Why there is no answer."""


class ChatEndpoint:
    """Asks `POST {url}/chat/completions`.

    Args:
        model: the name that the endpoint knows it by.
        url: up to and with `/v1`; default: the environment's OPENAI_BASE_URL.
        api_key_env: the environment variable that holds the key; it is sent as a bearer token and stored nowhere.
        field: of the recipe, for errors.
        max_tokens: of an answer.
        concurrency: questions under way at once.
        timeout_s: of one attempt.
        cache: keep answers below the project folder, by content.

    Raises:
        UserError: there is no address, or the variable of the key is not set.
    """

    def __init__(
        self,
        *,
        model: str,
        url: str | None,
        api_key_env: str | None,
        field: str,
        temperature: float = 0.0,
        max_tokens: int = 512,
        concurrency: int = 16,
        timeout_s: float = 120.0,
        cache: bool = True,
        patience: Sequence[float] = PATIENCE,
    ) -> None:
        self.url = address(url, field)
        self.headers = authorization(api_key_env, field)
        self.model, self.field, self.temperature, self.max_tokens = model, field, temperature, max_tokens
        kept = Cache(cache_file() if cache else None)
        self.client = ChatClient(
            self.url, self.headers, field=field, concurrency=concurrency, timeout_s=timeout_s, cache=kept, patience=patience,
            needs_text=True,
        )  # fmt: skip

    def ask(self, questions: Sequence[list[Message]]) -> list[Reply]:
        """A reply to every question, in their order; equal questions are asked once.

        Raises:
            UserError: the endpoint answered none of several questions that it was asked, or refuses us.
        """
        answers = self.client.ask([self._body(messages) for messages in questions])
        return [_reply(answer) for answer in answers]

    def _body(self, messages: list[Message]) -> dict[str, Any]:
        sent = [{**message, "content": as_content(message["content"])} for message in messages]
        return {"model": self.model, "messages": sent, "temperature": self.temperature, "max_tokens": self.max_tokens}


def _reply(answer: Answer) -> Reply:
    """What a judge makes of an answer: its text alone."""
    if answer.text is None:
        return Reply(None, 0, answer.seconds, problem=answer.problem)
    tokens = 0 if answer.cached else answer.total_tokens
    return Reply(marks.unnamed(answer.text), tokens, answer.seconds, cached=answer.cached)


def cache_file() -> Path:
    """Where answers of judges are kept."""
    return make_home() / "judges" / "answers.sqlite"


def address(url: str | None, field: str, who: str = "the judge") -> str:
    """Of the endpoint, without a slash at its end.

    Raises:
        UserError: neither the settings nor the environment have one.
    """
    text = url or os.environ.get(URL_VARIABLE, "")
    if not text.startswith(("http://", "https://")):
        raise UserError(
            f"{field}.url",
            f"where is {who}?",
            "Give the address of an OpenAI-compatible endpoint, such as http://localhost:8000/v1, here or in "
            f"{URL_VARIABLE}.",
        )
    return text.rstrip("/")
