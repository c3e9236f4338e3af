"""Rollouts from a vLLM server: the same `extend`, over HTTP, with the weights of this step.

The server is another engine, so its log-probabilities are its own: they are kept, the difference to the trainer's
is measured every step (`mismatch/*`), and `rlvr.old_logp: trainer` with `credit: truncated_is` corrects for it.

Endpoints and fields were checked against the source of vLLM 0.33.0; no server was run. Start it on the folder named in
the recipe, with log-probabilities of the distribution that is sampled from:

    VLLM_SERVER_DEV_MODE=1 vllm serve WEIGHTS --logprobs-mode processed_logprobs
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pipelines.contract.rollout import Completion
from pipelines.data.records import Stop
from pipelines.errors import Interrupted
from pipelines.recipe.settings import Sampling, Server

AT_ONCE = 64
"""Requests under way; the server batches them."""
PATIENCE = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts while the server does not answer."""


class ServerSampler:
    """A `Sampler` whose tokens come from an OpenAI-compatible completions endpoint of vLLM.

    Args:
        settings: address, weights folder, timeout.
        stop: token ids that end a completion.
        context: most tokens of a conversation.

    Raises:
        Interrupted: from any call, when the server stays away or answers something else than asked for.
    """

    def __init__(self, settings: Server, *, stop: Sequence[int], context: int) -> None:
        import httpx

        self.settings, self.stop, self.context = settings, sorted(stop), context
        self.client = httpx.Client(base_url=settings.url, timeout=settings.timeout_s, headers=_authorization(settings))

    def push(self, model: Any, tokenizer: Any) -> None:
        """Write the weights where the server reads them, and have it load them; cached prefixes are forgotten."""
        folder = Path(self.settings.weights)
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self._post("/collective_rpc", {"method": "reload_weights"})
        for _ in _attempts():
            if self._post("/reset_prefix_cache", {}).get("success", True):  # older servers return no status
                return
        raise Interrupted("rlvr.sampler: the server keeps its old prefix cache; something else is using it.")

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator,
        *,
        entropy: bool = False,
    ) -> list[Completion]:
        """One completion per prefix, in order; see `Sampler`."""
        if entropy:
            raise Interrupted(
                "rlvr.sampler: a server reports no entropies, and a method here needs entropy_old. Remove the sampler section, or "
                "choose another method."
            )
        out: list[Completion] = [Completion([], [], Stop.ERROR) for _ in prefixes]
        places: dict[tuple[int, ...], list[int]] = {}
        for i, prefix in enumerate(prefixes):
            if 0 < len(prefix) < self.context:
                places.setdefault(tuple(prefix), []).append(i)
        seeds = torch.randint(2**31, (len(places),), generator=generator, device=generator.device).tolist()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [
                pool.submit(self._complete, list(prefix), len(indices), sampling, seed)
                for (prefix, indices), seed in zip(places.items(), seeds, strict=True)
            ]
            for indices, future in zip(places.values(), futures, strict=True):
                for i, completion in zip(indices, future.result(), strict=True):
                    out[i] = completion
        return out

    def _complete(self, prompt: list[int], count: int, sampling: Sampling, seed: int) -> list[Completion]:
        """Several completions of one prompt. vLLM seeds them seed, seed + 1, ...; equal prompts in a list would all be
        seeded alike and answered alike."""
        body = {
            "model": self.settings.model or str(self.settings.weights),
            "prompt": prompt,
            "n": count,
            "max_tokens": min(sampling.max_tokens, self.context - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "logprobs": 0,
            "seed": seed,
            "stop_token_ids": self.stop,
            "return_token_ids": True,
            "skip_special_tokens": False,
        }
        if sampling.temperature == 0:
            body["n"] = 1  # a greedy request may ask for one answer only
        choices = sorted(self._post("/v1/completions", body)["choices"], key=lambda c: c["index"])
        if len(choices) != body["n"]:
            raise Interrupted(f"rlvr.sampler: the server answered {len(choices)} of {body['n']} completions.")
        return [self._read(choice) for choice in choices * (count // len(choices))]

    def _read(self, choice: dict[str, Any]) -> Completion:
        tokens, logprobs = choice.get("token_ids"), choice.get("logprobs") or {}
        logp = logprobs.get("token_logprobs")
        if not isinstance(tokens, list) or not isinstance(logp, list) or len(tokens) != len(logp):
            raise Interrupted(
                "rlvr.sampler: the server returned no token ids with a log-probability each. It must be a vLLM that knows "
                "return_token_ids (0.10.2 or later)."
            )
        ended = bool(tokens) and tokens[-1] in self.stop
        return Completion(tokens, [float(x) for x in logp], Stop.END if ended else Stop.LENGTH)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        import httpx

        for _ in _attempts():
            try:
                answer = self.client.post(path, json=body)
            except httpx.TransportError as error:
                problem = str(error) or type(error).__name__
            else:
                if answer.status_code < 400:
                    return answer.json() if answer.content else {}
                problem = f"status {answer.status_code}: {answer.text[:300]}"
                if answer.status_code < 500:
                    raise Interrupted(f"rlvr.sampler: {path} was refused with {problem}")
        raise Interrupted(f"rlvr.sampler: {self.settings.url}{path} does not answer ({problem}).")


def _authorization(settings: Server) -> dict[str, str]:
    if settings.api_key_env is None:
        return {}
    key = os.environ.get(settings.api_key_env, "")
    if not key:
        raise Interrupted(f"rlvr.sampler.api_key_env: the environment variable {settings.api_key_env} is not set.")
    return {"Authorization": f"Bearer {key}"}


def _attempts() -> Iterator[None]:
    """One attempt now, and one after each wait."""
    yield
    for wait in PATIENCE:
        time.sleep(wait)
        yield
