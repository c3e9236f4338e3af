"""Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems.

Presets: dr_mas.

Each agent's rows are compared with those of the same agent.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import pair_index


@method(
    paper="2602.08847",
    title="Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems",
    checked="official code, 5 cases (an agent with one row gets 0)",
    couples="group",
    reduces_to="with one player it is grpo",
)
def dr_mas(
    reward: PerRow,
    group: PerRow,
    player: PerRow,
    scored: PerRow,
    *,
    scale: bool = True,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """A = (r - mean) / (std + eps) over the rows of the same player in the same group; ddof 1.

    Players whose rewards differ in size (who moves first wins more, a solver scores less than its checker) share no baseline, so that
    none of them trains on the difference between the players. `scale: false` does not divide. Take it for games and teams of several
    players who share one policy; `mars` also compares the turns of each. Games of `multi_turn` have a group for each seat, where it is
    `grpo`; a rollout that puts a team into one group needs it. The released code keeps the raw reward of a player with one row in
    its group; here it is 0.

    >>> import torch
    >>> r, p = torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([0, 0, 1, 1])
    >>> dr_mas(r, torch.zeros(4).long(), p, torch.ones(4).bool(), scale=False).tolist()
    [0.5, -0.5, 0.0, 0.0]
    """
    return standardised(reward, pair_index(group, player), scored, scale=scale, eps=eps).float()
