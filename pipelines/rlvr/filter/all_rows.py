"""Everything trains."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="folklore",
    title="No filter",
    checked="closed form",
    couples="row",
)
def all_rows(in_loss: PerRow) -> PerRow:
    """Every row that may train does.

    >>> import torch
    >>> all_rows(torch.tensor([True, False])).tolist()
    [True, False]
    """
    return in_loss
