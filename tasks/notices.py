"""Messages to people: a webhook that takes Slack's JSON, and mail. Nothing here fails or delays a run.

Addresses with tokens and passwords are in environment variables, whose names the recipe's section `notify` holds. They are read when
something is sent, and no message, log or store has them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import smtplib
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from functools import partial
from typing import Any

from pipelines.base.secrets import HIDDEN, redact
from pipelines.recipe.settings import Email, Notify
from tasks.tracking import links

log = logging.getLogger("whetstone.notices")
LONGEST = 3000
"""Characters of a message."""
_under_way: list[tuple[threading.Thread, float]] = []


@dataclass(frozen=True)
class Message:
    """What somebody is told."""

    event: str
    """One of `pipelines.recipe.settings.EVENTS`, or "test"."""
    subject: str
    lines: tuple[str, ...] = ()

    def text(self) -> str:
        """Subject and lines without secrets, cut where they are long."""
        return redact("\n".join([f"{self.event}: {self.subject}", *self.lines]))[:LONGEST]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes where the address says, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass(frozen=True)
class Channel:
    """A way to people."""

    name: str
    variables: list[str]
    """Environment variables that it needs."""
    send: Callable[[Message, Notify], None]
    reach: Callable[[Notify], None]
    """Tries it without a message."""

    @property
    def unset(self) -> list[str]:
        """The variables that are not there."""
        return [name for name in self.variables if not os.environ.get(name)]


def tell(settings: Notify | None, message: Message) -> None:
    """Send a message on every channel, in threads of their own; what goes wrong is one line of the log."""
    if settings is None or message.event not in settings.events:
        return
    for channel in channels(settings):
        thread = threading.Thread(
            target=_try, args=(channel, message, settings), daemon=True, name=f"message {channel.name}"
        )
        thread.start()
        _under_way.append((thread, time.monotonic() + settings.timeout_s))


def of_run(settings: Notify, body: dict[str, Any], gate: list[str]) -> None:
    """Tell of a run that failed, or that its gate stopped; nothing of any other.

    Args:
        body: its summary.
        gate: what the gate has said.
    """
    page = links.served_run(body.get("experiment_id"), body.get("parent_run_id"))
    address = (page,) if page else ()
    failed = body.get("failed")
    if failed:
        stage = f", {failed['stage']}" if failed.get("stage") else ""
        tell(settings, Message("failed", f"{body['recipe']}{stage}", (str(failed.get("error")), *address)))
    elif (body.get("gate") or {}).get("failed"):
        tell(settings, Message("worse", str(body["recipe"]), (*gate, *address)))


def of_alarms(name: str, settings: Notify) -> Callable[[str, str], None]:
    """What tells people of the alarms of a stage.

    Args:
        name: of the recipe.
    """
    return lambda stage, sentence: tell(settings, Message("alarm", f"{name}, {stage}", (sentence,)))


def finish() -> None:
    """Wait for what is under way, each message for its time limit at most; called before a process ends."""
    while _under_way:
        thread, until = _under_way.pop()
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            log.warning("%s: no answer in time; the run goes on", thread.name)


def now(settings: Notify, message: Message) -> Iterator[tuple[str, str | None]]:
    """Send a message on every channel, one after the other: (channel, what went wrong or None)."""
    for channel in channels(settings):
        yield channel.name, _fault(partial(channel.send, message, settings), settings)


def reached(settings: Notify) -> Iterator[tuple[str, str | None]]:
    """Try every channel without a message: (channel, what would keep one from being sent or None).

    A mail server is logged in to. Of a webhook only the host is tried: whether it knows the address shows when a message is sent.
    """
    for channel in channels(settings):
        yield channel.name, _fault(partial(channel.reach, settings), settings)


def unset(settings: Notify) -> list[str]:
    """Environment variables that the section names and that are not there."""
    return [name for channel in channels(settings) for name in channel.unset]


def channels(settings: Notify) -> list[Channel]:
    """What the section names."""
    listed, mail = [], settings.email
    if settings.webhook_env:
        listed.append(Channel(f"webhook of {settings.webhook_env}", [settings.webhook_env], _post, _reach_webhook))
    if mail:
        secrets = [name for name in (mail.user_env, mail.password_env) if name]
        listed.append(Channel(f"mail to {', '.join(mail.to)}", secrets, _mail, _reach_mail))
    return listed


def _try(channel: Channel, message: Message, settings: Notify) -> None:
    fault = _fault(partial(channel.send, message, settings), settings)
    if fault is not None:
        log.warning("%s: %r was not sent: %s", channel.name, message.event, fault)


def _fault(action: Callable[[], None], settings: Notify) -> str | None:
    """What went wrong, on one line and without the secrets; None where nothing did."""
    missing = unset(settings)
    try:
        action()
    except KeyError:
        return f"the environment has no {' and no '.join(missing)}"
    except Exception as error:  # whatever it is, the run goes on; a traceback might hold an address
        text = " ".join(f"{type(error).__name__}: {error}".split())
        for secret in _secrets(settings):
            text = text.replace(secret, HIDDEN)
        return redact(text)[:300]
    return None


def _secrets(settings: Notify) -> list[str]:
    """Values of the variables, the longest first: one may be a part of another."""
    named = [name for channel in channels(settings) for name in channel.variables]
    return sorted((value for name in named if (value := os.environ.get(name, ""))), key=len, reverse=True)


def _value(name: str) -> str:
    """Of an environment variable that has to be there.

    Raises:
        KeyError: it is not.
    """
    value = os.environ.get(name, "")
    if not value:
        raise KeyError(name)
    return value


def _address(settings: Notify) -> str:
    """Of the webhook.

    Raises:
        KeyError: the variable is not there.
        ValueError: it holds no address.
    """
    assert settings.webhook_env is not None
    address = _value(settings.webhook_env)
    if not address.startswith(("https://", "http://")):
        raise ValueError(f"{settings.webhook_env} holds no address such as https://hooks.example.com/...")
    return address


def _reach_webhook(settings: Notify) -> None:
    """Connect to the host, or to the proxy on the way to it, and say nothing."""
    target = urllib.parse.urlsplit(_address(settings))
    proxy = None if urllib.request.proxy_bypass(target.netloc) else urllib.request.getproxies().get(target.scheme)
    nearest = urllib.parse.urlsplit(proxy) if proxy else target
    port = nearest.port or (443 if nearest.scheme == "https" else 80)
    with socket.create_connection((nearest.hostname or "", port), settings.timeout_s) as plain:
        if nearest is target and target.scheme == "https":
            ssl.create_default_context().wrap_socket(plain, server_hostname=target.hostname).close()


def _post(message: Message, settings: Notify) -> None:
    """To a webhook, as Slack's, Mattermost's and Rocket.Chat's take it."""
    address = _address(settings)
    text = message.text().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")  # as Slack asks for
    body = json.dumps({"text": f"whetstone {text}"}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=settings.timeout_s) as reply:
        reply.read(1000)


def _mail(message: Message, settings: Notify) -> None:
    """By SMTP."""
    assert settings.email is not None
    mail, letter = settings.email, EmailMessage()
    letter["From"], letter["To"] = mail.sender, ", ".join(mail.to)
    letter["Subject"] = " ".join(f"[whetstone] {redact(message.subject)}: {message.event}".split())[:200]
    letter.set_content(message.text())
    with _logged_in(mail, settings.timeout_s) as server:
        server.send_message(letter)


def _reach_mail(settings: Notify) -> None:
    assert settings.email is not None
    with _logged_in(settings.email, settings.timeout_s) as server:
        server.noop()


@contextlib.contextmanager
def _logged_in(mail: Email, timeout_s: float) -> Iterator[smtplib.SMTP]:
    user = _value(mail.user_env) if mail.user_env else None
    password = _value(mail.password_env) if mail.password_env else None
    with _opened(mail, timeout_s) as server:
        if user is not None and password is not None:
            server.login(user, password)
        yield server


def _opened(mail: Email, timeout_s: float) -> smtplib.SMTP:
    context = ssl.create_default_context()
    if mail.security == "tls":
        return smtplib.SMTP_SSL(mail.host, mail.port, timeout=timeout_s, context=context)
    server = smtplib.SMTP(mail.host, mail.port, timeout=timeout_s)
    if mail.security == "starttls":
        try:
            server.starttls(context=context)
        except BaseException:
            server.close()
            raise
    return server


__all__ = ["Message", "finish", "now", "reached", "tell", "unset"]
