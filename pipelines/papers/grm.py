"""Regularizing Hidden States Enables Learning Generalizable Reward Model for LLMs.

arXiv 2406.10216. No preset uses it. Parts: grm (loss), grm_dpo (loss).

The language head stays, and its loss on the chosen answer regularises the decoder.

The language head stays, and DPO's loss against the model at the start regularises the decoder.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2406.10216",
    title="Regularizing Hidden States Enables Learning Generalizable Reward Model for LLMs",
    checked="official code (by the sheet's example)",
)
def grm(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_logp: PerPair,
    rejected_logp: PerPair,
    *,
    weight: Annotated[float, Field(ge=0, le=1)] = 0.01,
    beta: Annotated[float, Field(gt=0, le=1e6)] = 0.1,
    form: Literal["sft", "sum", "dpo"] = "sft",
) -> PerPair:
    """(1 - weight) (-log sigmoid(r_chosen - r_rejected)) + weight * regulariser.

    `sft`: -log sigmoid(beta log pi(chosen)), with the log-probability of the whole answer; `sum`: -log pi(chosen); `dpo`: DPO's loss
    without a reference; `grm_dpo` has one. Only the scalar head is passed on.

    >>> r = torch.tensor([1.2]), torch.tensor([0.4]), torch.tensor([-20.0]), torch.tensor([-26.0])
    >>> grm(*r), grm(*r, form="sum", weight=0.5), grm(*r, form="dpo", weight=1.0)
    (tensor([0.3887]), tensor([10.1856]), tensor([0.4375]))
    """
    regulariser = {
        "sft": lambda: -F.logsigmoid(beta * chosen_logp),
        "sum": lambda: -chosen_logp,
        "dpo": lambda: -F.logsigmoid(beta * (chosen_logp - rejected_logp)),
    }[form]()
    return torch.lerp(-F.logsigmoid(chosen_reward - rejected_reward), regulariser, weight)


@method(
    paper="2406.10216",
    title="Regularizing Hidden States Enables Learning Generalizable Reward Model for LLMs (DPO regularisation)",
    checked="official code (by the sheet's example)",
)
def grm_dpo(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_logp: PerPair,
    rejected_logp: PerPair,
    chosen_logp_ref: PerPair,
    rejected_logp_ref: PerPair,
    *,
    weight: Annotated[float, Field(ge=0, le=1)] = 0.01,
    beta: Annotated[float, Field(gt=0, le=1e6)] = 0.1,
) -> PerPair:
    """(1 - weight) (-log sigmoid(r_chosen - r_rejected)) + weight (-log sigmoid(beta (log-ratio of chosen - log-ratio of rejected))).

    The reference is the model that training starts from, scored once.

    >>> r, logp = (torch.tensor([1.2]), torch.tensor([0.4])), (torch.tensor([-20.0]), torch.tensor([-26.0]))
    >>> grm_dpo(*r, *logp, torch.tensor([-22.0]), torch.tensor([-25.0]))
    tensor([0.3729])
    """
    ratio = (chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref)
    return torch.lerp(-F.logsigmoid(chosen_reward - rejected_reward), -F.logsigmoid(beta * ratio), weight)
