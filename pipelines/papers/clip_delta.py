"""Step scores of a process model, clipped and differenced, so that repeating a good step pays nothing.

Presets: clip_delta.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken, PerTurn
from pipelines.rlvr.common.part_rules import several_steps
from pipelines.rlvr.ops_turns import carried_values, turn_ends, turns_taken, turns_to_tokens


@method(
    paper="2410.15115",
    title="On Designing Effective RL Reward at Training Time for LLM Reasoning (Clip and Delta)",
    checked="reconstructed (detailed notes of the paper; the threshold is ours)",
    couples="row",
    makes=("token_reward",),
    check=several_steps,
)
def clip_delta(
    step_potential: PerTurn,
    turn: PerToken,
    mask: PerToken,
    *,
    threshold: Annotated[float, Field(ge=0, le=1)] | None = 0.5,
    delta: bool = True,
    weight: Annotated[float, Field(ge=0, le=1000)] = 0.02,
) -> PerToken:
    """Adds to the reward on the last token of step k of K, with p_k its score:

        clip:   c_k = min(p_k - threshold, 0);  threshold: null leaves c_k = p_k
        delta:  d_k = c_k - c_{k+1} for k < K - 1, d_{K-1} = c_{K-1}, d_K = 0;  delta: false leaves d_k = c_k
        paid:   weight d_k

    With delta the return from a step k < K on is weight c_k plus the reward: it telescopes, so repeating a good step does not raise the
    return, and the last step is left to the verifier. A high threshold penalises nearly every step, a low one almost none: use a low
    quantile of your model's scores (0.2 to 0.5). Reconstructed; the paper's threshold is not known. A step without a score keeps the one
    before it; where there is none before it, c_k is 0, so a row without any score is not penalised. Scores come from `reward:
    process_model` or `reward: exprl`, beside a verifier with `weight: 0.0`. Needs an advantage that reads rewards of tokens, such as `gae`
    or `reinforce_pp`.

    >>> import torch
    >>> p = torch.tensor([[0.9, 0.95, 0.4, 0.92]]); k = torch.arange(4)[None]
    >>> clip_delta(p, k, k >= 0).tolist(), clip_delta(p, k, k >= 0, threshold=None, weight=1.0).tolist()
    ([[0.0, 0.002, -0.002, 0.0]], [[-0.05, 0.55, 0.4, 0.0]])
    """
    taken = turns_taken(turn, mask, step_potential.shape[1])
    scores = carried_values(step_potential)
    if threshold is not None:
        known = step_potential.isfinite().cummax(1).values
        scores = torch.where(known, (scores - threshold).clamp(max=0), 0.0)
    if delta:
        scores = differences(scores, taken)
    return (weight * turns_to_tokens(scores, turn) * turn_ends(turn, mask)).float()


def differences(scores: Tensor, taken: Tensor) -> Tensor:
    """Each step's score less the next one's, where the last step counts as 0; float64 [B, S], 0 where no step is taken."""
    result, following = torch.zeros_like(scores), torch.zeros(len(scores), dtype=torch.float64)
    followed = torch.zeros(len(taken), dtype=torch.bool)
    for s in range(scores.shape[1] - 1, -1, -1):
        own = torch.where(followed, scores[:, s], 0.0)
        result[:, s] = torch.where(taken[:, s], own - following, 0.0)
        following = torch.where(taken[:, s], own, following)
        followed = followed | taken[:, s]
    return result
