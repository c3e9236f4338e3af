"""Rollouts from a remote engine: the same `extend`, by the weights that it trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipelines.base.errors import Interrupted
from pipelines.contract.rollout import Completion
from pipelines.contract.sampling import Sampling
from pipelines.data.records import Stop
from pipelines.engine.distinct_prompts import requests
from pipelines.engine.tinker.session import Session


class TinkerSampler:
    """A `Sampler` whose tokens come from the server that trains. Equal prefixes are one request.

    Args:
        session: with the server.
        stop: token ids that end a completion.
        context: most tokens of a conversation.
    """

    def __init__(self, session: Session, *, stop: Sequence[int], context: int) -> None:
        self.session, self.stop, self.context = session, sorted(stop), context

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        *,
        entropy: bool = False,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order; see `Sampler`."""
        if entropy:
            raise Interrupted("engine", "a remote engine reports no entropies", "Choose methods without entropy_old.")
        out = [Completion([], [], Stop.ERROR) for _ in prefixes]
        asked = requests(prefixes, self.context, generator, streams)
        sampled = self.session.sample(
            [
                (each.prompt, len(each.places), self._fields(sampling, each.seed, self.context - len(each.prompt)))
                for each in asked
            ]
        )
        for each, sequences in zip(asked, sampled, strict=True):
            if len(sequences) != len(each.places):
                raise Interrupted("engine", f"the server answered {len(sequences)} of {len(each.places)} completions.")
            for i, sequence in zip(each.places, sequences, strict=True):
                out[i] = self._completion(sequence)
        return out

    def _fields(self, sampling: Sampling, seed: int, room: int) -> dict[str, Any]:
        return {
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "seed": seed,
            "stop": self.stop,
        }

    def _completion(self, sequence: Any) -> Completion:
        """What the server sampled.

        Raises:
            Interrupted: it has no log-probability for every token, or leaves out the token that ended the completion.
        """
        tokens, logp = list(sequence.tokens), sequence.logprobs
        if logp is None or len(logp) != len(tokens):
            raise Interrupted("engine", "the server returned no log-probability for each sampled token.")
        ended = bool(tokens) and tokens[-1] in self.stop
        if sequence.stop_reason == "stop" and not ended:
            raise Interrupted("engine", "the server leaves out the token that ends a completion, which is trained too.")
        return Completion(tokens, [float(x) for x in logp], Stop.END if ended else Stop.LENGTH)
