"""Whether a decoding server that a recipe names can be used."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.base.errors import Problem, UserError
from pipelines.base.project import page
from pipelines.base.secrets import authorization
from pipelines.recipe.server import Serve, Server
from tasks import machine
from tasks.preflight import http_probe


def problems(field: str, sampler: Server, processes: int = 1) -> Iterator[Problem]:
    """What is wrong with the `sampler` section of a stage: no program, GPUs, folder, key or answer.

    Args:
        field: its name.
        processes: of the stage, each on a GPU of its own.
    """
    if sampler.serve is not None:
        program = sampler.serve.command[0]
        if shutil.which(program) is None:
            yield Problem(
                f"{field}.serve.command",
                f"there is no program {program}",
                "Give the path of vLLM's executable, such as [/opt/vllm/bin/vllm, serve].",
            )
        yield from _cards(field, sampler.serve, processes, len(machine.gpu_bytes()))
        return
    if not Path(str(sampler.weights)).expanduser().is_dir():
        yield Problem(
            f"{field}.weights",
            f"there is no folder {sampler.weights}",
            "Name the one that the server was started on.",
        )
    try:
        headers = authorization(sampler.api_key_env, field)
    except UserError as error:
        yield from error.problems
        headers = {}
    for number, address in enumerate(sampler.urls):
        yield from _health(f"{field}.urls.{number}", address, headers)
    if sampler.url is not None:
        yield from _health(f"{field}.url", sampler.url, headers)


def _cards(field: str, serve: Serve, processes: int, cards: int) -> Iterator[Problem]:
    """Servers have GPUs beside those of the processes, or a share of their memory."""
    needed = serve.cards_together
    if cards == 0 or serve.names_cards or processes + needed <= cards:
        return
    if serve.cards_each > cards:
        yield Problem(
            f"{field}.serve.arguments",
            f"a server computes on {serve.cards_each} GPUs, and this machine has {cards}",
            "Lower --tensor-parallel-size.",
        )
    elif not serve.has_memory_share:
        yield Problem(
            f"{field}.serve",
            f"GPUs wanted: {processes} for processes, {needed} for servers; there: {cards}, and a server takes nearly all of one's memory",
            f"Lower processes or {field}.serve.count, or let them share: add --gpu-memory-utilization and a share such as 0.4 to "
            f"{field}.serve.arguments.",
        )


def _health(field: str, address: str, headers: dict[str, str]) -> Iterator[Problem]:
    return http_probe.problems(
        field,
        address.rstrip("/") + "/health",
        headers,
        fix=f"Start it on the weights folder ({page('servers')} says how), or leave the sampler section out.",
        refused=(field, "Set api_key_env."),
        shown=address,
    )
