"""A sampler of the policy mixed with the model that the run started from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pipelines.engine import models
from pipelines.engine.guided import Guided
from pipelines.engine.policy import causal_lm
from pipelines.engine.sampler import TorchSampler

if TYPE_CHECKING:
    import torch

    from pipelines.contract.rollout import Completion
    from pipelines.contract.sampling import Sampling


class Mixture:
    """A `Sampler` (pipelines/contract/rollout.py) in this process, whatever draws the stage's own rollouts.

    Args:
        weights: the policy, unsharded, as it is whenever it is asked.
        start: the model that the run started from.
        reference: its share of the mixture, from 0 to 1; at both ends one model is decoded, with its own bits.
        tokenizer: of both.
        dtype: "float32" or "bfloat16".
        rows: most rows decoded side by side.
    """

    def __init__(
        self, weights: Callable[[], Any], start: Any, reference: float, *, tokenizer: Any, dtype: str, rows: int
    ) -> None:
        self.weights, self.start, self.reference = weights, start, reference
        self.tokenizer, self.dtype, self.rows = tokenizer, dtype, rows

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
        policy: Any = causal_lm(self.weights()) if self.reference < 1 else self.start
        model = policy if self.reference in (0, 1) else Guided(policy, self.start, 1 - self.reference)
        sampler = TorchSampler(
            model, stop=models.stop_ids(policy, self.tokenizer), pad=self.tokenizer.pad_token_id, dtype=self.dtype,
            rows=self.rows, fixed=False,
        )  # fmt: skip
        return sampler.extend(prefixes, sampling, generator, entropy=entropy, streams=streams)
