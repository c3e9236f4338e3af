"""Problems as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.contract.catalogue import method

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context


@method(paper="folklore", title="No hints", checked="closed form")
class plain:
    """Every problem is asked once, without anything added to its prompt."""

    def ask(self, asked: list[Asked], context: Context) -> list[Asked]:
        """What the rollout gets."""
        return asked
