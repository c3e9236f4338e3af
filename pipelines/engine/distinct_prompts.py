"""What a server is asked for a list of prefixes: equal ones are one request for several completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Request:
    """A prompt, and whose completions are asked for it."""

    prompt: list[int]
    places: list[int]
    """Which of the prefixes it is."""
    seed: int


def requests(
    prefixes: Sequence[Sequence[int]],
    context: int,
    generator: torch.Generator | None,
    streams: Sequence[tuple[int, int]] | None,
) -> list[Request]:
    """One request for each distinct prefix that leaves room in the context; arguments as in `Sampler.extend`."""
    places: dict[tuple[int, ...], list[int]] = {}
    for i, prefix in enumerate(prefixes):
        if 0 < len(prefix) < context:
            places.setdefault(tuple(prefix), []).append(i)
    if streams is not None:
        first = [streams[indices[0]] for indices in places.values()]
        seeds = [(stream + drawn) % 2**31 for stream, drawn in first]
    else:
        assert generator is not None
        seeds = torch.randint(2**31, (len(places),), generator=generator, device=generator.device).tolist()
    return [Request(list(prefix), own, seed) for (prefix, own), seed in zip(places.items(), seeds, strict=True)]
