"""Only tokens drawn from a distribution with enough entropy are trained."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2605.06241",
    title="Rethinking RL for LLM Reasoning: Sparse Policy Selection (ReasonMaxxer's gate)",
    checked="third-party code (the gate; `presets: [reason_maxxer]` is the offline objective around it)",
    reduces_to="thresholds of 0 keep every token whose entropy is above 0",
)
def entropy_gate(
    advantage: PerToken,
    entropy_old: PerToken,
    *,
    right: Annotated[float, Field(ge=0)] = 1.4,
    wrong: Annotated[float, Field(ge=0)] = 1.4,
    others: Literal["drop", "keep"] = "drop",
) -> tuple[PerToken, PerToken]:
    """A_t where the token's entropy in nats is above the threshold of its sign; the other tokens leave the loss.

    With `others: keep` they stay in it with the advantage 0, for a divergence that holds them in place.

    >>> import torch
    >>> H = torch.tensor([[1.9, 0.3, 1.5, 1.0]])
    >>> entropy_gate(torch.ones(1, 4), H)[0].tolist(), entropy_gate(-torch.ones(1, 4), H, wrong=0.5)[1].tolist()
    ([[1.0, 0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0, 1.0]])
    """
    threshold = (advantage >= 0) * right + (advantage < 0) * wrong
    kept = entropy_old > threshold
    return advantage * kept, kept.to(advantage.dtype) if others == "drop" else torch.ones_like(advantage)
