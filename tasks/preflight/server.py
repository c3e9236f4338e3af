"""Whether a decoding server that a recipe names can be used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.errors import Problem
from pipelines.base.project import page
from tasks.preflight import http_probe


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
    return http_probe.problems(
        field,
        address.rstrip("/") + "/health",
        {"Authorization": f"Bearer {key}"} if key else {},
        fix=f"Start it on the weights folder ({page('servers')} says how), or leave the sampler section out.",
        refused=(field, "Set api_key_env."),
        shown=address,
    )
