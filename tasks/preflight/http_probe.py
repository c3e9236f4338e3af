"""Asking an address, before the first stage, whether its server answers."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

from pipelines.base.errors import Problem
from pipelines.base.secrets import redact

PROBE_SECONDS = 5.0


def problems(
    field: str, url: str, headers: dict[str, str], *, fix: str, refused: tuple[str, str], shown: str | None = None
) -> Iterator[Problem]:
    """What is wrong with a server: it refuses the key, fails, or does not answer within `PROBE_SECONDS`.

    A status that is neither a refusal nor a failure, such as 404, is an answer.

    Args:
        field: the one that names the server.
        url: what is asked by GET.
        headers: of the request.
        fix: advice where it fails or is silent.
        refused: (field, advice) where it refuses the key.
        shown: its address in messages; `url` where None.
    """
    address = redact(shown or url)
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PROBE_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            yield Problem(refused[0], f"{address} refuses us ({error.code})", refused[1])
        elif error.code >= 500:
            yield Problem(field, f"{address} answers {error.code}", fix)
    except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors, http.client.InvalidURL a ValueError
        why = redact(getattr(error, "reason", None) or error)
        yield Problem(field, f"no answer from {address} in {PROBE_SECONDS:g} s ({why})", fix)
