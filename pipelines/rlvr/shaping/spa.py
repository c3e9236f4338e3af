"""Turns are paid their progress towards the outcome, and for actions that the environment could execute."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops_turns import turns_taken


@method(
    paper="2505.20732",
    title="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution (the rewards of turns)",
    checked="official code (read; its factor of the turns that are left is not in the paper and not here)",
    shapes_turns=True,
)
def spa(
    reward: PerRow,
    turn_reward: PerTurn,
    turn_progress: PerTurn,
    turn_valid: PerTurn,
    turn: PerToken,
    mask: PerToken,
    step: int,
    *,
    progress: Annotated[float, Field(ge=0)] = 1.0,
    grounding: Annotated[float, Field(ge=0)] = 0.5,
    exact: bool = False,
    warmup: Annotated[int, Field(ge=0)] = 0,
) -> PerTurn:
    """The reward of turn k, in place of all of the row's rewards:

        r_k = progress c_k + grounding g_k

    c_k is the contribution that the progress model predicts, g_k is 1 where the turn's action could be executed. (The released code takes
    the last turn's as executable: no reply follows it.) With `exact` the K turns share the difference between the outcome and the
    contributions' sum: c_k + (R - sum c) / K. The first `warmup` steps keep the turns' own rewards, while the model learns.

    >>> import torch
    >>> c, g = torch.tensor([[0.1, 0.3, 0.5]]), torch.tensor([[1.0, 0.0, 1.0]])
    >>> earned, k = torch.tensor([[0.0, 0.0, 1.0]]), torch.arange(3)[None]
    >>> spa(torch.ones(1), earned, c, g, k, k >= 0, 0).tolist()
    [[0.6, 0.3, 1.0]]
    >>> spa(torch.ones(1), earned, c, g, k, k >= 0, 0, exact=True, grounding=0.0).tolist()
    [[0.133333, 0.333333, 0.533333]]
    """
    if step < warmup:
        return turn_reward
    taken = turns_taken(turn, mask, turn_reward.shape[1])
    count = taken.sum(1).clamp(min=1)
    contribution = turn_progress * taken
    if exact:
        contribution = contribution + ((reward - contribution.sum(1)) / count)[:, None] * taken
    return (progress * contribution + grounding * turn_valid) * taken
