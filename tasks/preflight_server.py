"""Whether a decoding server that a recipe names can be used."""

from __future__ import annotations

import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.recipe.secrets import redact
from tasks.problem import Problem

SERVER_SECONDS = 5.0


def problems(field: str, sampler: Any) -> Iterator[Problem]:
    """What is wrong with the `sampler` section of a stage: no program, folder, key or answer.

    Args:
        field: its name.
    """
    if sampler.serve is not None:
        program = sampler.serve.command[0]
        if shutil.which(program) is None:
            yield Problem(
                f"{field}.serve.command",
                f"there is no program {program}",
                "Give the path of vLLM's executable, such as [/opt/vllm/bin/vllm, serve].",
            )
        return
    if not Path(sampler.weights).expanduser().is_dir():
        yield Problem(
            f"{field}.weights",
            f"there is no folder {sampler.weights}",
            "Name the one that the server was started on.",
        )
    key = os.environ.get(sampler.api_key_env) if sampler.api_key_env else None
    if sampler.api_key_env and not key:
        yield Problem(
            f"{field}.api_key_env",
            f"the environment has no {sampler.api_key_env}",
            f"export {sampler.api_key_env}=...",
        )
    for number, address in enumerate(sampler.urls):
        yield from _health(f"{field}.urls.{number}", address, key)
    if sampler.url is not None:
        yield from _health(f"{field}.url", sampler.url, key)


def _health(field: str, address: str, key: str | None) -> Iterator[Problem]:
    fix = "Start it on the weights folder (docs/recipes.md says how), or leave the sampler section out."
    try:
        request = urllib.request.Request(address.rstrip("/") + "/health")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=SERVER_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            yield Problem(field, f"{redact(address)} refuses us ({error.code})", "Set api_key_env.")
        elif error.code >= 500:
            yield Problem(field, f"{redact(address)} answers {error.code}", fix)
    except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors, http.client.InvalidURL a ValueError
        why = redact(getattr(error, "reason", None) or error)
        yield Problem(field, f"no answer from {redact(address)} in {SERVER_SECONDS:g} s ({why})", fix)
