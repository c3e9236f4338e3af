"""An entropy bonus whose coefficient holds the entropy at a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Method


@method(
    paper="2505.22312",
    title="Skywork Open Reasoner 1 Technical Report (adaptive entropy control)",
    checked="official code, 4 cases",
    reduces_to="delta 0 is entropy, in steps whose entropy is below the target",
    reads=("entropy_old", "mask", "in_loss"),
)
class adaptive_entropy(Method):
    """Minus the coefficient times the entropy, in steps whose mean entropy is below `target`; 0 in the others.

        c <- clip(c + delta where mean H < target, else c - delta, least, most);   l = -c H where mean H < target

    Before the updates of each step, from the entropy in nats of the step's own tokens in the loss when they were drawn; the released
    trainer takes the entropy of the step before. For long runs whose entropy collapses, without a coefficient to tune. The target must
    be one that the starting policy is above: 0.2 in the paper, for reasoning models of 7 and 32 billion weights.
    """

    def __init__(
        self,
        *,
        target: Annotated[float, Field(gt=0)] = 0.2,
        delta: Annotated[float, Field(ge=0)] = 1e-4,
        start: Annotated[float, Field(ge=0)] = 0.0,
        least: Annotated[float, Field(ge=0)] = 0.0,
        most: Annotated[float, Field(gt=0)] = 0.005,
    ) -> None:
        self.target, self.delta, self.least, self.most = target, delta, least, most
        self.coefficient, self.applies = start, True

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """Move the coefficient by the step's entropy."""
        used = columns["entropy_old"][columns["mask"] & columns["in_loss"][:, None]]
        if used.numel():
            self.adapt(float(used.double().mean()))

    def adapt(self, mean: float) -> None:
        """Move the coefficient by a mean entropy in nats.

        >>> part = adaptive_entropy(delta=0.003)
        >>> [(part.adapt(mean), round(part.coefficient, 3), part.applies)[1:] for mean in (0.1, 0.1, 0.3)]
        [(0.003, True), (0.005, True), (0.002, False)]
        """
        self.applies = mean < self.target
        moved = self.coefficient + (self.delta if self.applies else -self.delta)
        self.coefficient = min(max(moved, self.least), self.most)

    def __call__(self, entropy: PerToken) -> PerToken:
        """The term per token.

        >>> import torch
        >>> adaptive_entropy(start=0.5)(torch.tensor([[0.5, 0.0]])).tolist()
        [[-0.25, 0.0]]
        """
        return -(self.coefficient if self.applies else 0.0) * entropy

    def metrics(self) -> dict[str, float]:
        """The coefficient, and whether it is applied in the step."""
        return {"coefficient": self.coefficient, "applies": float(self.applies)}

    def state_dict(self) -> dict[str, Any]:
        """The coefficient and whether it is applied."""
        return {"coefficient": self.coefficient, "applies": self.applies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.coefficient, self.applies = state["coefficient"], state["applies"]
