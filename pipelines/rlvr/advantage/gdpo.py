"""Each term of the reward against its group, then added."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, RowStatistics
from pipelines.rlvr.ops import standardised, to_tokens, whiten


def one_weight_a_term(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """Weights are as many as the reward has terms.

    Raises:
        RecipeError: they are not.
    """
    weights, terms = part.settings.get("weights"), bound["reward"].fn.term_names
    if weights is not None and terms and len(weights) != len(terms):
        problem = f"{len(weights)} weights, and the reward has {len(terms)} terms ({', '.join(terms)})"
        raise RecipeError("rlvr.advantage.weights", problem, "Give one weight for each, in their order.")


@method(
    paper="2601.05242",
    title="GDPO: Group reward-Decoupled Normalization Policy Optimization",
    checked="third-party code (verl), 10 cases",
    crosses_groups="whitens over all tokens of the batch by design",
    check=one_weight_a_term,
    reduces_to="with one term it is grpo, whitened",
)
def gdpo(
    reward_terms: RowStatistics,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    weights: Annotated[list[float], Field(min_length=1)] | None = None,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Every term of the reward is standardised in the group by itself, weighed, added, and the sum whitened over the batch's tokens.

        A_ik = (r_ik - mean_group r_k) / (std_group r_k + eps);   A_i = whiten(sum_k weights_k A_ik)

    Two rows with the sums 1 + 0 and 0 + 1 are alike to grpo; here each is better in one term. For a reward of several terms, of which one
    is much larger or rarer than the others. The weights of the terms in `reward` change nothing, as a deviation takes them out: `weights`
    has those of the paper, one a term in the order of `reward`, else 1 each. What shaping and a divergence in the reward add is no term
    and stays out. A group of one is 0 before whitening; verl keeps its raw reward.

    >>> import torch
    >>> terms, one = torch.tensor([[1.0, 0.0], [0.0, 0.1], [0.0, 0.0], [1.0, 0.1]]), torch.ones(4, 1).bool()
    >>> gdpo(terms, torch.zeros(4).long(), one[:, 0], one)[:, 0].tolist()
    [0.0, 0.0, -1.224745, 1.224745]
    """
    total = torch.zeros(len(group), dtype=torch.float64, device=group.device)
    for term, weight in zip(reward_terms.unbind(1), weights or [1.0] * reward_terms.shape[1], strict=True):
        total = total + weight * standardised(term, group, scored, eps=eps)
    inside = mask & scored[:, None]
    return whiten(to_tokens(total, inside), inside)
