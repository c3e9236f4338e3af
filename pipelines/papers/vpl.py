"""Each user has rewards of their own, by a latent that is inferred from a few of their pairs.

No preset uses it.
"""

import math
from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2408.10075",
    title="Personalizing Reinforcement Learning from Human Feedback with Variational Preference Learning",
    checked="official code (by the sheet's example)",
)
def vpl(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    latent_kl: PerPair,
    progress: PerPair,
    *,
    kl_weight: Annotated[float, Field(ge=0, le=1e6)] = 0.01,
    cycles: Annotated[int, Field(ge=1, le=10_000)] = 4,
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.5,
) -> PerPair:
    """-log sigmoid(r_chosen - r_rejected) + w KL(posterior of z || N(0, 1)), r of the answer and z (`reward_model.users`).

    w rises from 0 to `kl_weight` by half a cosine over the first `ratio` of each of `cycles` cycles, and stays there for the rest. The
    released scripts use a `kl_weight` of 3e-6 or 0.

    >>> import torch
    >>> r, still = (torch.tensor([0.6, -0.1, 0.9]), torch.zeros(3)), torch.tensor(0.125)
    >>> vpl(*r, torch.full((3,), 0.929217), still).mean()
    tensor(0.5170)
    >>> [round(annealed(step / 200, cycles=4, ratio=0.5), 6) for step in (0, 12, 25, 60)]
    [0.0, 0.4686, 1.0, 0.345492]
    """
    weight = kl_weight * annealed(float(progress), cycles=cycles, ratio=ratio)
    return -F.logsigmoid(chosen_reward - rejected_reward) + weight * latent_kl


def annealed(progress: float, *, cycles: int, ratio: float) -> float:
    """Share of the full weight after `progress` of the run, 0 to 1."""
    within = (progress * cycles) % 1.0
    return 0.5 - 0.5 * math.cos(math.pi * min(1.0, within / ratio))
