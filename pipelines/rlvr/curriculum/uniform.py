"""Every problem once per pass, in a shuffled order."""

from __future__ import annotations

from pipelines.contract.catalogue import method
from pipelines.rlvr.common.passes_over_data import Passes


@method(paper="folklore", title="Shuffled passes", checked="closed form")
class uniform(Passes):
    """Problems in passes; each pass is a new permutation that depends on the seed and the pass only."""
