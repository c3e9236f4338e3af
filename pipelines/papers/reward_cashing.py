"""What a turn found out is paid at once: by how much more reward the policy could expect with what it now knows.

Presets: reward_cashing.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerTurn
from pipelines.rlvr.common.part_rules import telescoping_turns


@method(
    paper="2109.08518",
    title="Knowledge is reward: Learning optimal exploration by predictive reward cashing",
    checked="reconstructed (abstract; the policy's likelihood of the gold answer stands for the value of what is known)",
    couples="row",
    shapes_turns=True,
    check=telescoping_turns,
    provenance=("policy",),
)
def reward_cashing(
    turn_reward: PerTurn,
    answer_logp: PerTurn,
    *,
    weight: Annotated[float, Field(gt=0)] = 1.0,
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0,
) -> PerTurn:
    """Adds weight (discount V_{k+1} - V_k) to the reward of turn k, V_k = exp(mean log pi(gold answer | history before turn k)).

    V is 0 at the end. Before that it is the policy's mean reward if it answered now, with 1 for a correct answer: the reward predicted from
    what is known. So reward is given when information is gained, the last turn gets what was not predicted, and with discount 1 a row gets
    its reward less V_1. `igpo` has the same gains, standardised, as advantages. The paper's value is that of acting optimally on the
    current belief, and it learns exploration and exploitation as two policies. A row without a gold answer keeps its rewards.

    >>> import torch
    >>> V = torch.tensor([[0.1, 0.25, 1.0], [0.5, torch.nan, torch.nan]]).log()
    >>> reward_cashing(torch.tensor([[0.0, 0, 1], [0, 0, 0]]), V).tolist()
    [[0.15, 0.75, 0.0], [-0.5, 0.0, 0.0]]
    """
    value = answer_logp.double().exp().nan_to_num(0.0)
    after = torch.nn.functional.pad(value, (0, 1))[:, 1:]
    return (turn_reward + weight * (discount * after - value)).float()
