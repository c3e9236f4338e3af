"""RLPR: Extrapolating RLVR to General Domains without Verifiers.

Presets: rlpr.

The reward is how likely the policy's reasoning makes the reference answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import Passage, Scorer
from pipelines.data import control
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.common.reasoning import own_reasoning
from pipelines.rlvr.scoring import verify


def mean_probability(logp: Tensor) -> float:
    """Mean of the tokens' probabilities; 0 of no token.

    >>> round(mean_probability(torch.tensor([0.5, 0.25]).log()), 6), mean_probability(torch.zeros(0))
    (0.375, 0.0)
    """
    return float(logp.double().exp().mean()) if len(logp) else 0.0


def debiased(after: Tensor, before: Tensor) -> float:
    """What the reasoning adds to the mean probability, at least 0.

    >>> half, quarter = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    >>> round(debiased(half, quarter), 6), debiased(quarter, half)
    (0.25, 0.0)
    """
    return max(0.0, mean_probability(after) - mean_probability(before))


@method(
    paper="2506.18254",
    title="RLPR: Extrapolating RLVR to General Domains without Verifiers",
    checked="official code, 4 cases (its rounding to bfloat16 left out)",
    provenance=("policy",),
)
class rlpr(Reward):
    """max(0, B - A): mean probability of the reference answer's tokens after the policy's reasoning (B), less that without it (A).

    The reasoning is the completion up to the end of its last `marker`, and the record's answer takes the place of the policy's own; an
    empty marker puts it after the whole completion. A has the marker alone after the prompt; `debias: false` leaves A out. A completion
    without the marker gets 0. The weights that sample score, at temperature 1. A mean of probabilities forgives one unlikely token, which
    a product (VeriFree) does not, and so ranks long reference answers better. `correct` stays the verifier's verdict.

    Take it where records have reference answers that no verifier can compare: short free text outside mathematics. The released script
    mixes in 0.1 of a format reward and leaves out problems of little deviation: `reward: [{kind: rlpr, weight: 0.9}, {kind: verifier,
    verifier: regex, weight: 0.1, ...}]` is the one, and the paper's filter, a moving mean of group deviations, is not here.
    """

    label = "answer_probability"
    asks_policy = True

    def __init__(self, *, marker: Annotated[str, Field(max_length=200)] = "<answer>", debias: bool = True) -> None:
        self.marker, self.debias = marker, debias

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer."""
        self.scorer = scorer

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        tokenizer = self.scorer.tokenizer()
        bare = control.encode_text(tokenizer, self.marker)
        asked: list[tuple[Trajectory, Passage, Passage]] = []
        for row in rows:
            if row.stop == Stop.ERROR:
                continue
            row.components = {**row.components, "verifier": float(bool(row.correct))}
            prompt, reasoning = own_reasoning(row, self.marker, tokenizer)
            gold = control.encode_text(tokenizer, problems[row.uid].answer)
            row.score = 0.0 if gold else None
            if reasoning is not None and gold:
                asked.append((row, Passage([*prompt, *reasoning], gold), Passage([*prompt, *bare], gold)))
        after = self.scorer.log_probs([passage for _, passage, _ in asked])
        before = self.scorer.log_probs([passage for _, _, passage in asked] if self.debias else [])
        for n, (row, _, _) in enumerate(asked):
            known = bool(torch.isfinite(after[n]).all())
            row.score = debiased(after[n], before[n] if self.debias else after[n][:0]) if known else None
