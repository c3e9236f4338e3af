"""Two heads: one learns what length explains, the other the rest, and only the other is used.

No preset uses it.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2402.07319",
    title="ODIN: Disentangled Reward Mitigates Hacking in RLHF",
    checked="official code (by the sheet's example)",
    batch_coupled=True,
)
def odin(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_length_reward: PerPair,
    rejected_length_reward: PerPair,
    chosen_length: PerPair,
    rejected_length: PerPair,
    head_cosine: PerPair,
    *,
    length: Annotated[float, Field(ge=0, le=1e6)] = 1.0,
    orthogonality: Annotated[float, Field(ge=0, le=1e6)] = 1.0,
    total_correlation: bool = False,
) -> PerPair:
    """-log sigmoid of the difference of both heads' sum + length (|rho(Q, n)| + 1 - rho(L, n)) + orthogonality |cos(W_Q, W_L)|.

    Q is the quality head, which the reward reads, L the length head; rho is Pearson's correlation with the length n over all answers of the
    optimizer step, 0 where either does not vary. `total_correlation` adds length |rho(Q + L, n)|, as the released code does.

    >>> Q, L = torch.tensor([[1, 0.2], [0.5, 0.6], [0.9, -0.3]]), torch.tensor([[0.4, 0.1], [0.3, 0.2], [0.6, 0.5]])
    >>> n = torch.tensor([[400.0, 200.0], [300.0, 250.0], [500.0, 450.0]])
    >>> arguments = (*Q.unbind(1), *L.unbind(1), *n.unbind(1), torch.tensor(0.138675))
    >>> odin(*arguments).mean(), odin(*arguments, total_correlation=True).mean()
    (tensor(0.6931), tensor(1.1633))
    """
    quality, by_length = (
        torch.cat([chosen_reward, rejected_reward]),
        torch.cat([chosen_length_reward, rejected_length_reward]),
    )
    tokens = torch.cat([chosen_length, rejected_length])
    chosen, rejected = (quality + by_length).chunk(2)
    correlations = correlation(quality, tokens).abs() + 1 - correlation(by_length, tokens)
    if total_correlation:
        correlations = correlations + correlation(quality + by_length, tokens).abs()
    return -F.logsigmoid(chosen - rejected) + length * correlations + orthogonality * head_cosine.abs()


def correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's correlation, a scalar; 0 without gradient where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = x.norm() * y.norm()
    if float(size.detach()) <= 1e-12 * len(x):
        return x.new_zeros(())
    return (x * y).sum() / size
