"""Train on the rows whose advantages vary most and on their most telling tokens."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2509.22115",
    title="Learning More with Less: Dynamic Dual-Level Down-Sampling (D3S)",
    checked="reconstructed (population variance, tie rules and defaults are ours)",
)
def d3s(
    advantage: PerToken,
    mask: PerToken,
    entropy_old: PerToken,
    step: int,
    total_steps: int,
    *,
    rows: Annotated[float, Field(gt=0, le=1)] = 0.5,
    rows_final: Annotated[float, Field(gt=0, le=1)] = 1.0,
    tokens: Annotated[float, Field(gt=0, le=1)] = 0.5,
    tokens_final: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> tuple[PerToken, PerToken]:
    """The rows and tokens that are not chosen leave the loss and its denominators; the others are not scaled anew.

    Rows: those whose mean advantages have the largest variance together, the k lowest and the rest from the top. Tokens:
    the largest |A| H among the chosen rows. Both shares move linearly to their final values over the run.

    >>> import torch
    >>> a = torch.tensor([1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5, 0.866, -0.866])[:, None]
    >>> kept, share = d3s(a, a > -9, torch.ones(10, 1), 0, 10, rows=0.4, tokens=1.0)
    >>> kept.flatten().nonzero().flatten().tolist(), int(share.sum())
    ([0, 7, 8, 9], 4)
    """
    progress = step / max(1, total_steps - 1)
    live = mask.any(1)
    mean = (advantage.double() * mask).sum(1) / mask.sum(1).clamp(min=1)
    chosen = torch.zeros_like(live)
    want = round(((1 - progress) * rows + progress * rows_final) * int(live.sum()))
    live_rows = live.nonzero().squeeze(1)
    if len(live_rows):
        chosen[live_rows[_widest(mean[live_rows], max(1, want))]] = True
    kept = advantage * chosen[:, None]
    score = (kept.abs().double() * entropy_old).masked_fill(~(mask & chosen[:, None]), -1.0).flatten()
    share = (1 - progress) * tokens + progress * tokens_final
    count = int((mask & chosen[:, None]).sum())
    best = score.argsort(descending=True, stable=True)[: max(1, round(share * count))]
    use = torch.zeros_like(score, dtype=torch.bool)
    use[best] = True
    inside = use.view_as(mask) & mask & chosen[:, None]
    return kept * inside, inside.to(advantage.dtype)


def _widest(values: torch.Tensor, want: int) -> torch.Tensor:
    """Indices of the `want` values with the largest variance; of equal choices the one with fewer low values."""
    n = len(values)
    order = values.argsort(stable=True)
    if want >= n:
        return order
    ordered = values[order]
    low = torch.nn.functional.pad(ordered.cumsum(0), (1, 0))
    square = torch.nn.functional.pad((ordered**2).cumsum(0), (1, 0))
    k = torch.arange(want + 1)
    top = want - k
    total = low[k] + low[n] - low[n - top]
    squares = square[k] + square[n] - square[n - top]
    variance = squares / want - (total / want) ** 2
    best = int((variance >= variance.max() - 1e-12).nonzero()[0])
    return torch.cat([order[:best], order[n - (want - best) :]])
