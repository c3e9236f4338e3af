"""Internally Rewarded Reinforcement Learning.

arXiv 2302.00270. Presets: irrl. Parts: target_discriminator (providers), irrl (shaping).

A classifier that reads the policy's answers without their prompts, and learns with the policy which target they belong to.

Rows are paid by how well a discriminator that learns beside the policy can tell their target.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, Phase
from pipelines.contract.provider import ProviderContext
from pipelines.engine.critic import zero_head
from pipelines.engine.layout import Layout
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.common.scored_rows import scored_rows, texts_of, tokens_before
from pipelines.rlvr.pack import padded

COLUMNS = {
    "target_probability": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a discriminator",
        "How likely it finds the record's target when it has read the completion, and no prompt.",
        part=True,
        hint="Train a discriminator: providers: [target_discriminator].",
        span=(0.05, 0.9),
    ),
    "target_prior": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a discriminator",
        "The same before reading anything.",
        part=True,
        hint="Train a discriminator: providers: [target_discriminator].",
        span=(0.1, 0.3),
    ),
}

ANSWER = "answer"
"""The `target` that is no field of the record's info."""


@method(
    paper="2302.00270",
    title="Internally Rewarded Reinforcement Learning (the discriminator)",
    checked="official code (read; the text form is ours)",
    makes=("target_probability", "target_prior"),
)
class target_discriminator(LearnedHead):
    r"""q(target | what the policy wrote), by the starting policy's body with a classifier over the targets of the split.

        loss = -mean over rows of log q(target);   one step with the step's rows, after their rewards are computed

    In the paper the policy gathers a discriminator's observations of an object, and the discriminator names the object. Here the policy
    writes, and the discriminator reads what it wrote: **never the prompt**, from which it could name the target by itself. The target is
    the record's answer, or another field of its info by the name `target`, such as a topic, a style or a code that the prompt gives. With
    `until` the discriminator reads only the text before that mark (`\boxed`, `</think>`), so a policy is rewarded for reasoning that
    reveals the target and not for the label itself; of a row without the mark it reads nothing, so leaving it out gains nothing. It learns
    from every row with a trained token, whatever the verdict. `target_prior` is 1 / targets, as in the released code, or with `prevalence:
    frequency` the share of the split's records.
    """

    def __init__(
        self,
        *,
        target: Annotated[str, Field(min_length=1, max_length=200)] = ANSWER,
        until: Annotated[str, Field(min_length=1, max_length=200)] | None = None,
        prevalence: Literal["uniform", "frequency"] = "uniform",
        learning_rate: Annotated[float, Field(gt=0)] = 1e-4,
        epochs: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        self.target, self.until, self.prevalence = target, until, prevalence
        self.learning_rate, self.epochs = learning_rate, epochs

    def setup(self, context: ProviderContext) -> None:
        """Number the targets, and copy the policy's body.

        Raises:
            RecipeError: a record has no such field, or all have the same target.
        """
        self.tokenizer = context.scorer.tokenizer()
        targets = {
            number: problem.answer if self.target == ANSWER else problem.info.get(self.target)
            for number, problem in context.problems.items()
        }
        lacking = [context.problems[number].uid for number, value in targets.items() if value is None]
        if lacking:
            raise RecipeError(
                "rlvr.providers",
                f"target_discriminator predicts the field {self.target}, and {len(lacking)} of {len(targets)} records have none in their "
                f"info, the first {lacking[0]}",
                "Name a field that all have, or target: answer.",
            )
        counts = Counter(str(value) for value in targets.values())
        if len(counts) < 2:
            raise RecipeError(
                "rlvr.providers",
                f"target_discriminator has nothing to tell apart: all records of the split have the same {self.target}.",
            )
        number_of = {value: number for number, value in enumerate(sorted(counts))}
        self.targets = {problem: number_of[str(value)] for problem, value in targets.items()}
        shares = torch.tensor([counts[value] for value in sorted(counts)]) / counts.total()
        self.priors = shares if self.prevalence == "frequency" else torch.full_like(shares, 1 / len(counts))
        self.build(context, lambda width: zero_head(width, len(counts)))

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`target_probability` and `target_prior` [B]; of a row that is not read both are the same."""
        rows, ids, mask, targets = self._readings(tokens, columns)
        known = torch.zeros(len(tokens), dtype=torch.int64)
        known[rows] = targets
        columns["target_prior"] = self.priors[known]
        columns["target_probability"] = self.priors[known]
        if len(rows):
            values = self.passes.per_token(lambda layout, _: self._log_probs(layout, mask, targets).exp(), ids, mask)
            columns["target_probability"][rows] = values.sum(1)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """A step on the cross-entropy of the rows' targets."""
        rows, ids, mask, targets = self._readings(tokens, columns)
        if not len(rows):
            return {}
        total = 0.0
        for _ in range(self.epochs):
            total = 0.0
            for layout in self.passes.layouts(ids, mask, torch.arange(len(ids))):
                loss = -self._log_probs(layout, mask, targets).sum() / len(rows)
                loss.backward()
                total += float(loss.detach())
            self.learn()
        probability = float(columns["target_probability"][rows].mean())
        return {"discriminator/loss": total, "discriminator/target_probability": probability}

    def _readings(self, tokens: Tensor, columns: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is read of a step's rows.

        Returns:
            int64 [N] the rows; int64 [N, W] a start token and what is read of each, bool [N, W] one True a row, after its last token;
            int64 [N] their targets.
        """
        read = [row for row in scored_rows(tokens, columns) if row.problem in self.targets]
        start = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id
        known: dict[int, str] = {}
        texts = [[int(start), *self._before_mark(row.tokens[row.first :], known)] for row in read]
        width = max(map(len, texts), default=0) + 1
        lengths = torch.tensor([len(ids) for ids in texts], dtype=torch.int64)
        mask = torch.arange(width) == lengths[:, None]
        targets = torch.tensor([self.targets[row.problem] for row in read], dtype=torch.int64)
        rows = torch.tensor([row.index for row in read], dtype=torch.int64)
        return rows, padded(texts, width, 0, torch.int64), mask, targets

    def _before_mark(self, ids: list[int], known: dict[int, str]) -> list[int]:
        """The tokens that stand before the mark: all where none is asked for, none where it does not occur."""
        if self.until is None:
            return ids
        return ids[: tokens_before(texts_of(ids, self.tokenizer, known), self.until) or 0]

    def _log_probs(self, layout: Layout, mask: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of the target of each of the layout's rows, float32 [M]."""
        chosen = targets[layout.target // mask.shape[1]].to(self.network.device)
        return self.network(layout).log_softmax(-1).gather(1, chosen[:, None]).squeeze(1)


@method(
    paper="2302.00270",
    title="Internally Rewarded Reinforcement Learning (the clipped linear reward)",
    checked="official code (read)",
    couples="row",
    provenance=("policy",),
)
def irrl(
    reward: PerRow,
    target_probability: PerRow,
    target_prior: PerRow,
    *,
    form: Literal["linear", "log"] = "linear",
    clip: bool = True,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    verifier_weight: Annotated[float, Field(ge=0)] = 0.0,
) -> PerRow:
    """weight max(q - p, 0) + verifier_weight R, with q the discriminator's probability of the row's target and p its prior.

    The log form, weight max(log q - log p, 0), is the mutual information between what is written and the target that skill discovery and
    hard attention maximise. An immature discriminator makes it noisy: an error of q is divided by q. The linear form's error is that of q
    itself, and clipping gives 0 to rows that make the target less likely than its prior; with `clip: false` their reward is negative.
    Without a `verifier_weight` the verifier does not affect the reward: its `correct` only measures the run. The log form raises a
    probability below 1.2e-38, the smallest normal float32, to that value, since a discriminator that is certain of another target gives 0:
    without the clip a row loses 87.3 + log p at most.

    >>> import torch
    >>> q, p = torch.tensor([0.9, 0.1, 0.05]), torch.full((3,), 0.1)
    >>> irrl(q * 0, q, p).tolist(), irrl(q * 0, q, p, clip=False).tolist()
    ([0.8, 0.0, 0.0], [0.8, 0.0, -0.05])
    >>> irrl(q * 0, q, p, form="log").tolist(), irrl(q * 0 + 1, q, p, weight=0.5, verifier_weight=2.0).tolist()
    ([2.197225, 0.0, 0.0], [2.4, 2.0, 2.0])
    """
    if form == "linear":
        told = target_probability - target_prior
    else:
        least = torch.finfo(torch.float32).tiny
        told = target_probability.clamp(min=least).log() - target_prior.clamp(min=least).log()
    if clip:
        told = told.clamp(min=0)
    return weight * told + verifier_weight * reward
