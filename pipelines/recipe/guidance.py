"""The fields of decoding with guidance: how far an answer goes from a base towards the model that was made from it, and beyond."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pipelines.contract.fields import Label, Settings

Weight = Annotated[float, Field(ge=0, le=100)]
"""w of `pipelines.engine.guided`: 0 is the base, 1 the guided model."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class Guidance(Settings):
    """Decode with log p = (1 - weight) log p_base + weight log p_model at each token (RLG, arXiv 2508.21016)."""

    base: Label
    """The stage whose model the sampled one was trained from."""
    weight: Weight


class GuidedColumns(Settings):
    """Guidance of evaluated models: a column for each of them that was trained from the base, and each weight."""

    base: Label
    """One of the evaluated models, or `base` where the recipe's own is among them."""
    weight: Annotated[list[Weight], BeforeValidator(_listed, json_schema_input_type=Weight | list[Weight])] = Field(
        min_length=1
    )
    """One weight, or a list."""

    @model_validator(mode="after")
    def _distinct(self) -> GuidedColumns:
        if len(self.suffixes) < len(self.weight):
            raise ValueError("weight: two of the weights are equal in six digits, and each makes a column")
        return self

    @property
    def suffixes(self) -> dict[str, float]:
        """What the names of the columns end with, by weight.

        >>> GuidedColumns(base="cold", weight=[0, 1.5]).suffixes
        {'w0': 0.0, 'w1.5': 1.5}
        """
        return {f"w{weight:g}": weight for weight in self.weight}
