"""Passwords and keys: read from the environment, found in addresses, taken out of texts. None belongs in a recipe, a log or a store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from pipelines.base.errors import UserError

HIDDEN = "***"
_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][\w+.\-]*://)[^/?#\s'\"<>]*@")
_USERINFO_WITH_SLASH = re.compile(r"(?P<scheme>[a-zA-Z][\w+.\-]*://)[^/?#\s'\"<>:]*:(?!\d+(?:/|$))[^\s'\"<>]*@")
_QUERY = re.compile(
    r"(?i)(?P<name>[?&;#](?!viewStateShareKey=)[\w.\-]*(?:key|token|secret|passw|pwd|auth|sig|credential)[\w.\-]*=)[^&;\s'\"#<>]+"
)
_HEADER = re.compile(r"(?P<name>\b(?:Basic|Bearer)\s+)[\w+/=.~\-]{6,}")
VARIABLES = (
    "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "HF_TOKEN",
    "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "FSSPEC_S3_SECRET", "FSSPEC_S3_TOKEN",
)  # fmt: skip
"""Environment variables whose values are secrets."""


def authorization(api_key_env: str | None, section: str, error: type[UserError] = UserError) -> dict[str, str]:
    """The header that sends a server its key as a bearer token; {} where it has none.

    Args:
        section: of the recipe, which has `api_key_env`.

    Raises:
        UserError: the environment has no such variable.
    """
    if api_key_env is None:
        return {}
    key = os.environ.get(api_key_env)
    if not key:
        raise error(f"{section}.api_key_env", f"the environment has no {api_key_env}", f"export {api_key_env}=...")
    return {"Authorization": f"Bearer {key}"}


def redact(text: object) -> str:
    """The text without passwords: userinfo of addresses, key-like query fields, authorization headers, known secrets.

    >>> redact("no answer from https://ann:pw@host/x?api_key=1&n=2")
    'no answer from https://***@host/x?api_key=***&n=2'
    """
    redacted = _USERINFO.sub(rf"\g<scheme>{HIDDEN}@", str(text))
    redacted = _USERINFO_WITH_SLASH.sub(rf"\g<scheme>{HIDDEN}@", redacted)
    redacted = _HEADER.sub(rf"\g<name>{HIDDEN}", _QUERY.sub(rf"\g<name>{HIDDEN}", redacted))
    for name in VARIABLES:
        secret = os.environ.get(name, "")
        for part in {secret, secret.partition(":")[2]}:
            if len(part) >= 6:
                redacted = redacted.replace(part, HIDDEN)
    return redacted


def redact_all(value: Any) -> Any:
    """The value with every text in it, whatever lists and mappings it is in, without secrets; what JSON does not know becomes text."""
    if isinstance(value, dict):
        return {str(name): redact_all(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redact_all(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(value)


def secret_in(address: str) -> str | None:
    """What is secret in an address, in words; None where nothing is.

    >>> secret_in("http://ann:pw@host:8000"), secret_in("http://host:8000/v1")
    ('a user name or password', None)
    """
    address = address[:4096]  # nothing longer is an address, and the patterns take quadratic time
    if not re.match(r"[a-zA-Z][\w+.\-]*://", address):
        return None
    if _USERINFO.match(address) or _USERINFO_WITH_SLASH.match(address):
        return "a user name or password"
    key_field = _QUERY.search(address)
    return f"a key ({key_field['name'].lstrip('?&;#').rstrip('=')})" if key_field else None


def secrets_in(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """(field, what is secret in it) for every address below a recipe's value."""
    if isinstance(value, str):
        secret = secret_in(value)
        if secret:
            yield field, secret
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from secrets_in(entry, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from secrets_in(entry, f"{field}.{index}")
