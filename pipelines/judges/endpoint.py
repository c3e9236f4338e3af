"""An OpenAI-compatible chat endpoint that is asked many questions at once."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.cache import Cache
from pipelines.base.errors import UserError
from pipelines.base.files import digest
from pipelines.base.project import make_home
from pipelines.base.secrets import redact
from pipelines.data.records import Message

URL_VARIABLE = "OPENAI_BASE_URL"
"""Where the endpoint is if the settings do not say."""
PATIENCE = (0.5, 2.0, 8.0)
"""Seconds between attempts at one question."""
RETRIED = (408, 409, 425, 429)
"""Statuses under 500 that may pass."""


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
        self.concurrency, self.timeout_s, self.patience = concurrency, timeout_s, tuple(patience)
        self.cache = Cache(cache_file() if cache else None)

    def ask(self, questions: Sequence[list[Message]]) -> list[Reply]:
        """A reply to every question, in their order; equal questions are asked once.

        Raises:
            UserError: the endpoint answered none of several questions that it was asked, or refuses us.
        """
        import httpx

        bodies = [self._body(messages) for messages in questions]
        keys = [digest([body]) for body in bodies]
        known = self.cache.read(dict.fromkeys(keys))
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in known}
        replies = {key: Reply(body["text"], cached=True) for key, body in known.items()}
        if missing:
            limits = httpx.Limits(max_connections=self.concurrency)
            with (
                httpx.Client(headers=self.headers, timeout=self.timeout_s, limits=limits) as client,
                ThreadPoolExecutor(self.concurrency) as pool,
            ):
                asked = dict(
                    zip(missing, pool.map(lambda body: self._attempts(client, body), missing.values()), strict=True)
                )
            self.cache.write({key: {"text": reply.text} for key, reply in asked.items() if reply.text is not None})
            failed = [reply for reply in asked.values() if reply.text is None]
            if len(failed) == len(asked) > 0:
                raise UserError(
                    self.field,
                    f"{redact(self.url)} answered none of {len(asked)} questions ({failed[-1].problem})",
                    "Start it, or correct url, model and api_key_env.",
                )
            replies |= asked
        return [replies[key] for key in keys]

    def _body(self, messages: list[Message]) -> dict[str, Any]:
        return {
            "model": self.model, "messages": messages, "temperature": self.temperature, "max_tokens": self.max_tokens,
        }  # fmt: skip

    def _attempts(self, client: Any, body: dict[str, Any]) -> Reply:
        """One question, asked again where the failure may pass."""
        problem = ""
        began = time.perf_counter()
        for pause in (*self.patience, None):
            text, tokens, problem, passes = self._once(client, body)
            if text is not None:
                return Reply(text, tokens, time.perf_counter() - began)
            if not passes or pause is None:
                break
            time.sleep(pause)
        return Reply(None, 0, time.perf_counter() - began, problem=problem)

    def _once(self, client: Any, body: dict[str, Any]) -> tuple[str | None, int, str, bool]:
        """(text, tokens, problem, whether another attempt may help)."""
        import httpx

        try:
            answer = client.post(f"{self.url}/chat/completions", json=body)
        except httpx.HTTPError as error:
            return None, 0, redact(f"{type(error).__name__}: {error}")[:200], True
        if answer.status_code >= 400:
            passes = answer.status_code in RETRIED or answer.status_code >= 500
            return None, 0, redact(f"status {answer.status_code}: {answer.text[:160]}"), passes
        try:
            content = answer.json()
            text = content["choices"][0]["message"]["content"]
            tokens = int((content.get("usage") or {}).get("total_tokens") or 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return None, 0, f"no chat completion: {redact(answer.text[:160])}", False
        if not isinstance(text, str):
            return None, 0, "an answer without text", False
        return text, tokens, "", False


def cache_file() -> Path:
    """Where answers of judges are kept."""
    return make_home() / "judges" / "answers.sqlite"


def address(url: str | None, field: str) -> str:
    """Of the endpoint, without a slash at its end.

    Raises:
        UserError: neither the settings nor the environment have one.
    """
    text = url or os.environ.get(URL_VARIABLE, "")
    if not text.startswith(("http://", "https://")):
        raise UserError(
            f"{field}.url",
            "where is the judge?",
            "Give the address of an OpenAI-compatible endpoint, such as http://localhost:8000/v1, here or in "
            f"{URL_VARIABLE}.",
        )
    return text.rstrip("/")


def authorization(api_key_env: str | None, field: str) -> dict[str, str]:
    """The header with the key; {} where none is asked for.

    Raises:
        UserError: the variable is not set.
    """
    if api_key_env is None:
        return {}
    if not os.environ.get(api_key_env):
        raise UserError(f"{field}.api_key_env", f"the environment has no {api_key_env}", f"export {api_key_env}=...")
    return {"Authorization": f"Bearer {os.environ[api_key_env]}"}
