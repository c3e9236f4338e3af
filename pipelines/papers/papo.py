"""Perception-Aware Policy Optimization (PAPO), on masked images or a masked text context.

arXiv 2507.06448. Presets: papo_images, papo. Parts: masked_images, masked_context (providers), papo (auxiliary_loss).

The policy's own tokens, scored with parts of the images or of the context masked.

Reward for tokens that depend on the context: a divergence from the policy given a masked context, maximised.
"""

from __future__ import annotations

from functools import partial
from math import nan
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import Passage, TokenStatistics
from pipelines.data import chat
from pipelines.data.marks import FIRST_ID
from pipelines.data.records import Problem
from pipelines.engine import distribution
from pipelines.papers.common.masked_text import Unit, context_of, masked, with_text
from pipelines.rlvr.common.scored_rows import Row, scored_rows

COLUMNS = {
    "logp_masked": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "the policy, given masked images or a masked context",
        "Log-probability of the token where parts of the images or of the context are masked; NaN for a row without any.",
        fill=nan,
        part=True,
        hint="Mask what the answer depends on: providers: [masked_images] or [masked_context].",
        span=(-2.0, 0.0),
    ),
}

MASKS = 5
"""RNG stream id of what is masked."""


class _Masked(Provider):
    """The policy's log-probabilities of completions in another context."""

    asks_policy = True
    reads_network = True

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer, the problems and the policy's sampling settings."""
        self.scorer, self.problems, self.seed, self.policy = (
            context.scorer,
            context.problems,
            context.seed,
            context.policy,
        )

    def _score(self, tokens: Tensor, columns: dict[str, Any], twins: list[tuple[Row, Passage]]) -> None:
        """Fill `logp_masked` [B, T] with the values of rows whose completions stand in other contexts."""
        sampling = self.policy.sampling
        statistics = TokenStatistics(1, lambda logits, ids, _: distribution.log_prob(logits, ids, sampling)[:, None])
        values = torch.full(tokens.shape, torch.nan)
        scored = self.scorer.statistics([passage for _, passage in twins], statistics)
        for (row, _), logp in zip(twins, scored, strict=True):
            values[row.index, row.first : len(row.tokens)] = logp[:, 0]
        columns["logp_masked"] = values.masked_fill(~columns["mask"], torch.nan)


@method(
    paper="2507.06448",
    title="Perception-Aware Policy Optimization: log-probabilities given masked images",
    checked="official code, one masked image to the byte",
    makes=("logp_masked",),
)
class masked_images(_Masked):
    """Log-probabilities of the completion at the policy's temperature and truncation, given masked copies of all images.

    Each square of `patch` x `patch` pixels of an image is black with probability `share`, drawn in every step, for all rows of a problem
    alike. In an episode so are the images that the environment shows after the prompt. Rows without images have no value.
    """

    def __init__(
        self,
        *,
        patch: Annotated[int, Field(ge=1, le=4096)] = 14,
        share: Annotated[float, Field(ge=0, le=1)] = 0.6,
    ) -> None:
        self.patch, self.share = patch, share

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_masked` [B, T]."""
        from pipelines.data.images import IMAGES  # most data have none

        step, twins = int(columns["step"]), []
        with IMAGES.passing():
            for row in scored_rows(tokens, columns):
                if max(row.tokens) < FIRST_ID:
                    continue
                uid = self.problems[row.problem].uid
                twin = IMAGES.exchanged(row.tokens, partial(self._covered, step=step, uid=uid))
                twins.append((row, Passage(twin[: row.first], twin[row.first :])))
            self._score(tokens, columns, twins)

    def _covered(self, digest: str, step: int, uid: str) -> str:
        """Digest of an image's masked copy."""
        from pipelines.data.images import IMAGES
        from pipelines.data.marks import marked
        from pipelines.papers.common.spoiled_images import black_patches

        draw = distribution.generator(torch.device("cpu"), self.seed, step, MASKS, uid, digest)
        image = IMAGES.image(digest)
        copy = black_patches(image, self.patch, lambda: float(torch.rand((), generator=draw)) < self.share)
        return marked(IMAGES.add(copy))[0]


@method(
    paper="2507.06448",
    title="Perception-Aware Policy Optimization: log-probabilities given a corrupted input",
    checked="reconstructed (the official code masks image patches with probability 0.6; masking text is ours)",
    makes=("logp_masked",),
)
class masked_context(_Masked):
    """Log-probabilities of the completion at the policy's temperature and truncation, given a prompt whose context is corrupted.

    The context is the record's `info` field named `field` (dots address nested ones), a text that occurs in the prompt; each of its
    sentences (or `unit`s) is replaced by `mark` with probability `share`, drawn in every step, for all rows of a problem alike. The
    question around it is left alone. Rows whose prompt differs from the record's (hints), and rows without a context, have no value.
    """

    info_fields: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(
        self,
        *,
        field: Annotated[str, Field(min_length=1, max_length=200)] = "context",
        unit: Unit = "sentence",
        share: Annotated[float, Field(ge=0, le=1)] = 0.6,
        mark: Annotated[str, Field(max_length=100)] = "[...]",
    ) -> None:
        self.field, self.unit, self.share, self.mark = field, unit, share, mark

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_masked` [B, T]."""
        prompts: dict[int, tuple[list[int], list[int]] | None] = {}
        twins = []
        for row in scored_rows(tokens, columns):
            if row.problem not in prompts:
                prompts[row.problem] = self._prompts(self.problems[row.problem], int(columns["step"]))
            prompt = prompts[row.problem]
            if prompt is None or row.tokens[: row.first] != prompt[0]:
                continue
            twins.append((row, Passage(prompt[1], row.tokens[row.first :])))
        self._score(tokens, columns, twins)

    def _prompts(self, problem: Problem, step: int) -> tuple[list[int], list[int]] | None:
        """Token ids of the prompt and of its corrupted twin; None where the problem has no context in its prompt."""
        context = context_of(problem, self.field)
        if context is None:
            return None
        draw = distribution.generator(torch.device("cpu"), self.seed, step, MASKS, problem.uid)
        covered = masked(context, self.unit, lambda: float(torch.rand((), generator=draw)) < self.share, self.mark)
        twin = with_text(problem, context, covered)
        own, other = chat.render_prompts(self.scorer.tokenizer(), [problem.prompt, twin])
        return own, other


@method(
    paper="2507.06448",
    title="Perception-Aware Policy Optimization (PAPO)",
    checked="official code, 4 cases",
)
def papo(
    logp: PerToken,
    logp_masked: PerToken,
    *,
    bound: Annotated[float, Field(gt=0)] = 10.0,
    entropy: Annotated[float, Field(ge=0)] = 0.0,
) -> PerToken:
    """-min(k3, bound) - entropy log pi, with k3 = exp(d) - d - 1 and d = log pi(t | masked) - log pi(t | images or context as they are).

    k3 estimates KL(pi(. | as they are) || pi(. | masked)); the masked side carries no gradient. A row without images or context contributes
    nothing. The paper's weight is 0.01 to 0.02; its double entropy loss is off by default there too, and of its two terms only the one
    with a gradient is here (`entropy`, relative to the weight). Unbounded, a token that masking makes likelier would pull the loss to
    minus infinity.

    >>> import torch
    >>> logp, masked = torch.tensor([[-0.2, -1.0, -0.5]]), torch.tensor([[-1.2, -1.1, -0.5]])
    >>> round(papo(logp, masked).mean().item(), 6), round(papo(logp, masked, entropy=1.5).mean().item(), 6)
    (-0.124239, 0.725761)
    """
    known = logp_masked.isfinite()
    difference = (torch.where(known, logp_masked, logp.detach()) - logp).clamp(-20, 20)
    divergence = (torch.expm1(difference) - difference).clamp(max=bound)
    return (-divergence - entropy * logp) * known
