"""Statistics of hidden states, as the methods that read them ask."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.provider import Provider, ProviderContext


@method(
    paper="folklore",
    title="Statistics of the policy's hidden states per row",
    checked="closed form",
    makes=("hidden_stats",),
)
class hidden_statistics(Provider):
    """Each row's hidden states before its trained tokens, reduced by the method that reads them (`HiddenStatistics`)."""

    reads_all_rows: ClassVar[bool] = False
    reads_network = True

    def setup(self, context: ProviderContext) -> None:
        """Note what is asked for."""
        self.passes, self.statistics = context.passes, context.options["hidden_stats"]

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`hidden_stats` [B, K]."""
        columns["hidden_stats"] = self.passes.hidden_statistics(tokens, columns["mask"], self.statistics)
