"""Train on the rows whose advantages vary most, and on their tokens with the largest |A| H.

Presets: d3s.
"""

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
    """The rows and tokens that are not chosen leave the loss and its denominators; the others are not rescaled.

    Rows: those whose mean advantages have the largest variance together, the k lowest and the rest from the top. Tokens:
    the largest |A| H among the chosen rows. Both shares move linearly to their final values over the run.

    >>> import torch
    >>> a = torch.tensor([1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5, 0.866, -0.866])[:, None]
    >>> kept, share = d3s(a, a > -9, torch.ones(10, 1), 0, 10, rows=0.4, tokens=1.0)
    >>> kept.flatten().nonzero().flatten().tolist(), int(share.sum())
    ([0, 7, 8, 9], 4)
    """
    progress = step / max(1, total_steps - 1)
    trains = mask.any(1)
    mean = (advantage.double() * mask).sum(1) / mask.sum(1).clamp(min=1)
    chosen = torch.zeros_like(trains)
    n_rows = round(((1 - progress) * rows + progress * rows_final) * int(trains.sum()))
    trained_rows = trains.nonzero().squeeze(1)
    if len(trained_rows):
        chosen[trained_rows[_widest(mean[trained_rows], max(1, n_rows))]] = True
    kept = advantage * chosen[:, None]
    score = (kept.abs().double() * entropy_old).masked_fill(~(mask & chosen[:, None]), -1.0).flatten()
    share = (1 - progress) * tokens + progress * tokens_final
    n_tokens = int((mask & chosen[:, None]).sum())
    order = score.argsort(descending=True, stable=True)[: max(1, round(share * n_tokens))]
    top_tokens = torch.zeros_like(score, dtype=torch.bool)
    top_tokens[order] = True
    in_loss = top_tokens.view_as(mask) & mask & chosen[:, None]
    return kept * in_loss, in_loss.to(advantage.dtype)


def _widest(values: torch.Tensor, n_chosen: int) -> torch.Tensor:
    """Indices of the `want` values with the largest variance; of equal choices the one with fewer low values."""
    n = len(values)
    order = values.argsort(stable=True)
    if n_chosen >= n:
        return order
    ordered = values[order]
    value_sums = torch.nn.functional.pad(ordered.cumsum(0), (1, 0))
    square_sums = torch.nn.functional.pad((ordered**2).cumsum(0), (1, 0))
    from_bottom = torch.arange(n_chosen + 1)
    from_top = n_chosen - from_bottom
    chosen_sum = value_sums[from_bottom] + value_sums[n] - value_sums[n - from_top]
    chosen_squares = square_sums[from_bottom] + square_sums[n] - square_sums[n - from_top]
    variance = chosen_squares / n_chosen - (chosen_sum / n_chosen) ** 2
    n_low = int((variance >= variance.max() - 1e-12).nonzero()[0])
    return torch.cat([order[:n_low], order[n - (n_chosen - n_low) :]])
