"""A length price that rises while accuracy is above its reference and falls below it.

Presets: adlp.
"""

from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.contract.method import Method


@method(
    paper="2505.18298",
    title="Thinking Fast and Right: Balancing Accuracy and Reasoning Length with Adaptive Rewards (A-DLP)",
    checked="official code, 4 cases",
)
class adlp(Method):
    """reward - price * length; after the step: price <- max(0, price + rate * (mean correct - reference)).

    A step's rewards use the price from before it. Unscored rows stay out of the mean. `only_correct` applies the price to correct rows
    alone (ours; the official code applies it to all).
    """

    def __init__(
        self,
        *,
        price: Annotated[float, Field(ge=0)] = 1e-3,
        rate: Annotated[float, Field(ge=0)] = 1e-3,
        reference: Annotated[float, Field(ge=0, le=1)] = 0.62,
        only_correct: bool = False,
    ) -> None:
        self.price, self.rate, self.reference, self.only_correct = price, rate, reference, only_correct

    def __call__(self, reward: PerRow, correct: PerRow, scored: PerRow, length: PerRow) -> PerRow:
        """The shaped reward; moves the price."""
        charged = (correct > 0) if self.only_correct else scored
        shaped = reward - self.price * length * charged
        if scored.any():
            accuracy = float((correct * scored).sum() / scored.sum())
            self.price = max(0.0, self.price + self.rate * (accuracy - self.reference))
        return shaped

    def state_dict(self) -> dict[str, Any]:
        """The price."""
        return {"price": self.price}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.price = state["price"]
