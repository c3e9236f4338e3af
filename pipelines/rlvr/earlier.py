"""Players that are the policy with weights that it has had: opponents in games that it is trained on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.engine import models
from pipelines.engine.policy import causal_lm
from pipelines.engine.sampler import TorchSampler

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion
    from pipelines.contract.sampling import Sampling


class Earlier:
    """Implements `EarlierPolicy` (pipelines/contract/lent_models.py) without a second network.

    Args:
        policy: the model that is trained, unsharded, whenever it is asked.
        tokenizer: of the policy.
        dtype: "float32" or "bfloat16".
        rows: most rows decoded side by side.
    """

    def __init__(self, policy: Callable[[], Any], *, tokenizer: Any, dtype: str, rows: int) -> None:
        self.policy, self.tokenizer, self.dtype, self.rows = policy, tokenizer, dtype, rows

    def player(self, weights: dict[str, Tensor] | None = None) -> EarlierPlayer:
        """The policy with these weights; default: a copy, on the CPU, of those that it has now."""
        if weights is None:
            weights = {name: weight.detach().to("cpu", copy=True) for name, weight in self.trained().items()}
        return EarlierPlayer(self, weights)

    def trained(self) -> dict[str, Tensor]:
        """The parameters that training changes; all, of a copy that is gathered from several processes."""
        named = dict(self.policy().named_parameters())
        return {name: weight for name, weight in named.items() if weight.requires_grad} or named


class EarlierPlayer:
    """The policy with a copy of its weights, as a `CopiedPlayer`."""

    system_prompt: str | None = None

    def __init__(self, source: Earlier, weights: dict[str, Tensor]) -> None:
        self.source, self.weights = source, weights
        self.tokenizer = source.tokenizer

    @property
    def sampler(self) -> EarlierPlayer:
        """Itself."""
        return self

    def extend(
        self,
        prefixes: Sequence[Sequence[int]],
        sampling: Sampling,
        generator: torch.Generator | None,
        *,
        entropy: bool = False,
        streams: Sequence[tuple[int, int]] | None = None,
    ) -> list[Completion]:
        """One completion per prefix, in order; see `Sampler`. The policy has its own weights again afterwards, to the bit."""
        with self._in_place():
            policy: Any = causal_lm(self.source.policy())
            sampler = TorchSampler(
                policy, stop=models.stop_ids(policy, self.tokenizer), pad=self.tokenizer.pad_token_id,
                dtype=self.source.dtype, rows=self.source.rows, fixed=False,
            )  # fmt: skip
            return sampler.extend(prefixes, sampling, generator, entropy=entropy, streams=streams)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        trained = self.source.trained()
        own = {name: weight.detach().clone() for name, weight in trained.items()}
        try:
            _write(trained, self.weights)
            yield
        finally:
            _write(trained, own)


@torch.no_grad()
def _write(into: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, weight in into.items():
        weight.copy_(values[name])
