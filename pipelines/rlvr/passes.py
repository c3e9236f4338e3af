"""Forward passes over a step's rows: laid out within a token budget, sharded over processes, read back as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pipelines.base.errors import Interrupted
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.engine import parallel
from pipelines.engine.layout import Layout, best_layouts
from pipelines.engine.policy import Entropy, Policy
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.own_rows import ALONE, Rows
from pipelines.stage.launch import halved

Score = Callable[[Layout, Tensor], Tensor]
"""A layout and the ids of its scored tokens, int64 [M] → values [M] or [M, K]."""


class ForwardPasses:
    """How rows go through the policy, and through whatever has its architecture.

    Args:
        policy: says which layouts its attention takes.
        settings: `micro_batch_tokens`, `share_prefixes`, `gradient_checkpointing`.
        world: the processes that share the work.
    """

    def __init__(self, policy: Policy, settings: Rlvr, world: parallel.World) -> None:
        self.policy, self.settings, self.world = policy, settings, world
        self.budget = max(1, settings.micro_batch_tokens >> halved())
        """Tokens of a pass; halved when memory runs out."""
        self.rows: Rows = ALONE
        """Whether other processes have other rows of the step."""

    def layouts(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[Layout]:
        """Rows laid out within the token budget, shared prefixes computed once where it pays.

        Args:
            tokens: int64 [B, T].
            mask: bool [B, T], the tokens to score.
            rows: int64 [N], rows with a True in the mask.
        """
        sharing = self.policy.sharing(self.settings, self.world.size) | {"few_passes": self.world.size > 1}
        layouts = best_layouts(tokens, mask, rows, self.budget, **sharing)
        if 0 < len(layouts) < self.world.size and not self.rows.divided:
            smaller = max(1, sum(layout.size for layout in layouts) // self.world.size)
            layouts = best_layouts(tokens, mask, rows, min(self.budget, smaller), **sharing)
        return layouts

    def sharded(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[Layout]:
        """This process's layouts. All processes get equally many: passes are collective, so some are repeats."""
        if self.rows.divided:
            return self._of_own_rows(tokens, mask, rows)
        shared = self.world.share_evenly(self.layouts(tokens, mask, rows))
        return [layout if counts else replace(layout, repeat=True) for layout, counts in shared]

    def _of_own_rows(self, tokens: Tensor, mask: Tensor, rows: Tensor) -> list[Layout]:
        """Layouts of this process's rows, and repeats up to as many as the process with the most has."""
        layouts = self.layouts(tokens, mask, rows) if len(rows) else []
        missing = max(self.world.gather(len(layouts))) - len(layouts)
        if missing and not layouts:
            any_token = torch.zeros_like(mask)
            any_token[0, 1] = True
            repeated = self.layouts(tokens, any_token, torch.zeros(1, dtype=torch.int64))[0]
        elif missing:
            repeated = layouts[0]
        return layouts + [replace(repeated, repeat=True) for _ in range(missing)]

    def per_token(self, score: Score, tokens: Tensor, mask: Tensor, values: int = 1) -> Tensor:
        """What `score` gives each token of the mask, float32 [B, T] on the CPU, [B, T, values] for several; 0 elsewhere.

        Each process computes its share, and all have the whole; where they have rows of their own, each computes those.
        """
        filled = torch.zeros(mask.numel(), values)
        for layout in self.sharded(tokens, mask, mask.any(1).nonzero().squeeze(1)):
            scores = score(layout, tokens.flatten()[layout.target]).cpu()
            if not layout.repeat:
                filled[layout.target] = scores.view(len(scores), -1)[:, :values]
        if not self.rows.divided:
            filled = self.world.total(filled)  # all have zeros where others computed
        return filled.view(mask.shape) if values == 1 else filled.view(*mask.shape, values)

    def hidden_statistics(self, tokens: Tensor, mask: Tensor, statistics: HiddenStatistics) -> Tensor:
        """Statistics of each row's hidden states [n, hidden], float32 [B, K]; 0 for a row without tokens.

        The states are those before the row's masked tokens.
        """
        by_row: dict[int, list[float]] = {}
        for layout in self.sharded(tokens, mask, mask.any(1).nonzero().squeeze(1)):
            hidden = self.policy.hidden(layout, statistics.layer).cpu()
            row_of = layout.target // tokens.shape[1]
            for row in [] if layout.repeat else row_of.unique().tolist():
                places = (row_of == row).nonzero().squeeze(1)
                by_row[row] = statistics.summarise(hidden[places[layout.target[places].argsort()]])
        for shard in [] if self.rows.divided else self.world.gather(by_row):
            by_row |= shard
        width = max(self.rows.world.gather(max((len(values) for values in by_row.values()), default=1)))
        return torch.tensor([by_row.get(row, [0.0] * width) for row in range(len(tokens))])

    def log_probs(
        self, layout: Layout, ids: Tensor, *, entropy: Entropy = "value", named: Tensor | None = None
    ) -> Tensor:
        """Log-probability and entropies of the layout's tokens, and log-probabilities of those `named`, float32 [M, C]: `Policy.score`."""
        logp, spread = self.policy.score(layout, ids, entropy=entropy, named=named)
        assert spread is not None
        return torch.cat([logp[:, None], spread.view(len(logp), -1)], 1)

    def shrink(self, widest: int) -> None:
        """Halve the budget after memory ran out.

        Args:
            widest: tokens of the longest row.

        Raises:
            Interrupted: a pass is a single row already.
        """
        if self.budget <= widest:
            raise Interrupted(
                f"out of memory with one row of {widest} tokens in a pass",
                fix="Use gradient_checkpointing, lora, dtype: bfloat16, or lower sampling.max_tokens.",
            )
        self.budget = max(widest, self.budget // 2)


def to_rows(values: Tensor, target: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Scored tokens as [rows, T, C] on the CPU, where the columns live; gradients flow back to their device.

    Args:
        values: [M, C].
        target: int64 [M], flat index into `shape`.
        rows: int64 [N], sorted, the rows that the tokens belong to.
        shape: [B, T].
    """
    place = torch.searchsorted(rows, target // shape[1]) * shape[1] + target % shape[1]
    flattened = torch.zeros(len(rows) * shape[1], values.shape[1]).index_copy(0, place, values.cpu())
    return flattened.view(len(rows), shape[1], -1)
