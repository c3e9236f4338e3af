"""The step's own rows."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.method import PolicyUpdate, Replay


@method(paper="folklore", title="No replay", checked="closed form")
class no_replay(Replay):
    """Every update sees the rows sampled in its step and no others."""

    reads_all_rows: ClassVar[bool] = False

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update."""
        return [PolicyUpdate(columns)]
