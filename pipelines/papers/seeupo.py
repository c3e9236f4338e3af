"""SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees.

arXiv 2602.06554. Presets: seeupo. Parts: seeupo (advantage), seeupo (replay).

Group-centred rewards on the scale of the batch, bounded.

The step's rows turn by turn, the last turn first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.contract.method import PolicyUpdate, Replay, UpdateParts
from pipelines.rlvr.ops import group_mean, group_size, group_std, row_mean


@method(
    paper="2602.06554",
    title="SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees (advantage)",
    checked="official code (by the sheet's example)",
    group_of_one="keeps its reward, as released",
    crosses_groups="standardised over the batch by design",
)
def seeupo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    bound: Annotated[float, Field(gt=0, le=100)] = 3.0,
) -> PerRow:
    """z = (x - mean x) / std x over the batch's rows (ddof 1), within -bound and bound; x = r - mean_group r, of a group of one r itself.

    Where x does not vary over the batch (deviation up to 1e-6) it is only centred.

    >>> import torch
    >>> r = torch.tensor([1.0, 0, 0, 1, 1, 1]); g = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> [round(z, 6) for z in seeupo(r, g, torch.ones(6).bool()).tolist()]
    [1.825742, -0.912871, -0.912871, 0.0, 0.0, 0.0]
    """
    batch = torch.zeros_like(group)
    alone = group_size(group, scored) < 2
    centred = (reward.double() - torch.where(alone, 0.0, group_mean(reward, group, scored))) * scored
    deviation = group_std(centred, batch, scored)
    scale = torch.where(deviation > 1e-6, deviation, 1.0)
    return (((centred - group_mean(centred, batch, scored)) / scale).clamp(-bound, bound) * scored).float()


def _drawn_by_these_weights(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Tokens that older weights drew keep a ratio that corrects for it, in every part of the update."""
    rlvr = node.settings
    waits = rlvr.window is not None and not bound["advantage"].bootstraps
    if rlvr.old_logp == "sampler" and (rlvr.staleness or waits):
        field, value, otherwise = "rlvr.window", rlvr.window, "leave window out"
        if rlvr.staleness:
            field, value, otherwise = "rlvr.staleness", rlvr.staleness, "set staleness: 0"
        raise RecipeError(
            field,
            f"{value} trains on tokens that older weights drew, and replay: {part.name} starts all of its parts but one from the "
            "trainer's own log-probabilities, whose ratio corrects for nothing else",
            f"Set old_logp: trainer with objective: clip and credit: [{{kind: truncated_is}}], or {otherwise}.",
        )


@method(
    paper="2602.06554",
    title="SeeUPO: Sequence-Level Agentic-RL with Convergence Guarantees",
    checked="official code (by the sheet's example)",
    reads=("turn",),
    reduces_to="one turn is no_replay",
    check=_drawn_by_these_weights,
)
class seeupo_replay(Replay):
    """Splits the step's update into one part per turn; the old log-probabilities of each are those of the weights when it starts.

        s = clip(exp(mean_t (logp_after - logp_before)), 1 - clip, 1 + clip)   over the turn that was just trained, 1 without it
        c = clip(c s, 1 - clip, 1 + clip), 1 at first;   A = c x the row's advantage   in the turns still to come

    `order: reverse` goes from the last turn to the first, as in the paper. A part counts all rows, also those that have no such turn,
    and has `mini_batches` and `epochs` of its own. Use `objective: gspo`, whose ratio is then the turn's, with `loss_aggregation:
    row_mean`. Each part but the last costs one forward pass more over its tokens and the next part's.
    """

    def __init__(
        self,
        *,
        order: Literal["reverse", "forward", "random"] = "reverse",
        clip: Annotated[float, Field(ge=0, lt=1)] = 0.2,
    ) -> None:
        self.order, self.clip = order, clip

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, in parts."""
        trained = columns["mask"] & columns["in_loss"][:, None]
        turns = columns["turn"][trained].unique()  # in order
        if self.order == "reverse":
            turns = turns.flip(0)
        elif self.order == "random":
            turns = turns[torch.randperm(len(turns), generator=generator)]
        carried = CarriedRatio(columns["advantage"], self.clip)
        return [
            PolicyUpdate(columns, parts=UpdateParts([columns["turn"] == turn for turn in turns], carried.advantage))
        ]


class CarriedRatio:
    """How much likelier the turns that were trained have become, a factor on the advantage of those to come.

    Args:
        advantage: float32 [B, T], of the whole update.
        clip: the factor lies between 1 - clip and 1 + clip.
    """

    def __init__(self, advantage: Tensor, clip: float) -> None:
        self.unscaled, self.clip = advantage, clip
        self.factor = torch.ones(len(advantage))

    def advantage(self, mask: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Advantage [B, T] of the parts to come; arguments as for `UpdateParts.carry`.

        >>> carried, mask = CarriedRatio(torch.ones(3, 1), 0.2), torch.ones(3, 1).bool()
        >>> first = carried.advantage(mask, torch.zeros(3, 1), torch.tensor([[0.05], [-0.02], [0.3]])).flatten().tolist()
        >>> second = carried.advantage(mask, torch.zeros(3, 1), torch.tensor([[0.1], [-0.3], [0.05]])).flatten().tolist()
        >>> [round(c, 6) for c in first + second]
        [1.051271, 0.980199, 1.2, 1.161834, 0.8, 1.2]
        """
        low, high = 1 - self.clip, 1 + self.clip
        ratio = row_mean(after - before, mask).clamp(-10, 10).exp().clamp(low, high)
        self.factor = (self.factor * ratio).clamp(low, high)
        return self.unscaled * self.factor[:, None]
