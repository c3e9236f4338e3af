"""What the policy's distributions say at the tokens that it chose, row by row: rewards without a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pipelines.contract.method import Reward
from pipelines.contract.scorer import Passage, Scorer, TokenStatistics
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.rlvr.scoring import verify


class OwnTokens(Reward):
    """A row's score is the mean over its own tokens of something of the distributions that they were drawn from.

    `correct` stays the verifier's verdict where there is an answer, for the metrics alone. A row without a token, or longer than the
    model's context, is unscored.
    """

    asks_policy = True
    reads_network = True
    of_logits: Callable[[Tensor], Tensor]
    """Logits [M, V] → the value of each token [M]."""

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer."""
        self.scorer = scorer

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        own = [row for row in rows if row.stop != Stop.ERROR]
        for row, value in zip(own, self._means(own), strict=True):
            row.components = {**row.components, "verifier": float(bool(row.correct))}
            row.score = value

    def _means(self, rows: Sequence[Trajectory]) -> list[float | None]:
        chosen = [[i for i, role in enumerate(row.role) if role == Role.POLICY] for row in rows]
        asked = [n for n, places in enumerate(chosen) if places]
        passages = [Passage(rows[n].tokens[: chosen[n][0]], rows[n].tokens[chosen[n][0] :]) for n in asked]
        each = TokenStatistics(1, lambda logits, ids, embeddings: type(self).of_logits(logits)[:, None])
        means: list[float | None] = [None] * len(rows)
        for n, values in zip(asked, self.scorer.statistics(passages, each), strict=True):
            mean = values[[place - chosen[n][0] for place in chosen[n]], 0].double().mean()
            means[n] = float(mean) if bool(torch.isfinite(mean)) else None
        return means
