"""Dual RL: Unification and New Methods for Reinforcement and Imitation Learning.

arXiv 2302.08560. Presets: f_dvl, f_dvl_turns, recoil. Parts: f_dvl (advantage), f_dvl (providers), recoil (objective).

Answers are imitated by how far their reward is above a value that leans towards the best of the group.

Over the turns of stored episodes that value is learned, with Bellman backups from turn to turn.

Demonstrations are imitated and stored answers are used beside them, by the dual of a divergence between mixtures.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.papers.common.step_values import StepValues
from pipelines.rlvr.ops import demonstrations, group_max, group_mean, group_min, group_size, group_sum

HALVINGS = 60
"""Of the interval that the value lies in."""
LARGEST_EXPONENT = 5.0
"""Of reverse_kl in a learned value's loss."""


@method(
    paper="2302.08560",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (f-DVL)",
    checked="official code (read; the minimum of its value loss over the group's rows, in the place of a learned value)",
    couples="group",
    group_of_one="imitates it with the weight 1",
    zero_variance_groups="learns",
)
def f_dvl(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    divergence: Literal["chi_square", "total_variation", "reverse_kl"] = "chi_square",
    alpha: Annotated[float, Field(ge=0.5, lt=1)] = 0.7,
    softness: Annotated[float, Field(gt=0)] = 1.0,
    temperature: Annotated[float, Field(ge=0)] = 3.0,
    cap: Annotated[float, Field(gt=0)] = 100.0,
) -> PerRow:
    """min(exp(temperature (r - V)), cap), for objective: reinforce; V minimises the mean over the group's rows, with d = r - V, of

        chi_square         alpha (d + d^2 / 4 where d > 0, else 0) - (1 - alpha) d
        total_variation    alpha max(d, 0) - (1 - alpha) d
        reverse_kl         exp(d / softness) - d / softness,   so V = softness log E exp(r / softness): extreme Q-learning's

    V is a soft maximum: it depends on the group's answers alone, whichever policy sampled them, so the rows may be stored ones (`rollout:
    stored`). Above 1/2 the larger `alpha`, the nearer V is to the best of them; with total_variation it is one of the rewards. Of several
    minimisers V is the smallest. The released code learns V and Q by networks over steps, as the provider `f_dvl` does over turns; here an
    answer is one step, Q its reward, and V exact. The paper proposes the first two to avoid the instability of the third.

    >>> import torch
    >>> r, g, yes = torch.tensor([1.0, 1, 0, 0]), torch.zeros(4).long(), torch.ones(4).bool()
    >>> f_dvl(r, g, yes, alpha=0.6).tolist()  # V = 1/3: e^2 and 1/e
    [7.389056, 7.389056, 0.367879, 0.367879]
    """
    weights = torch.zeros_like(reward, dtype=torch.float32)
    reward, group = reward[scored].double(), group[scored]
    if not len(reward):
        return weights
    if divergence == "reverse_kl":
        value = _soft_maximum(reward, group, softness)
    else:
        value = _minimum(reward, group, alpha, squared=divergence == "chi_square")
    weights[scored] = (temperature * (reward - value)).exp().clamp(max=cap).float()
    return weights


def _soft_maximum(reward: Tensor, group: Tensor, softness: float) -> Tensor:
    """softness log E exp(r / softness) over each row's group, float64."""
    every = torch.ones_like(group, dtype=torch.bool)
    top = group_max(reward, group, every)
    return top + softness * group_mean(((reward - top) / softness).exp(), group, every).log()


def _minimum(reward: Tensor, group: Tensor, alpha: float, *, squared: bool) -> Tensor:
    """The smallest V of each row's group, from its least reward on, at which the loss no longer falls, float64.

    Its slope, (1 - alpha) - alpha mean_{d > 0}(1 + d / 2), never falls; below the least reward it is not positive, at the largest it is.
    """
    every = torch.ones_like(group, dtype=torch.bool)
    low, high = group_min(reward, group, every), group_max(reward, group, every)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = reward - middle
        slope = 1 - alpha - alpha * group_mean((above > 0) * (1 + above / 2 * squared), group, every)
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return high


@method(
    paper="2302.08560",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (f-DVL over turns)",
    checked="closed form (its minimum over fixed values is the advantage f_dvl's V)",
    makes=("turn_value", "turn_action_value"),
)
class f_dvl_values(StepValues):
    """Q(state, turn) and V(state) over the turns of stored episodes, as by `iql`, with another loss of V; d = min(Q'_1, Q'_2)(s, a) - V(s):

        chi_square         alpha (d + d^2 / 4 where d > 0, else 0) - (1 - alpha) d
        total_variation    alpha max(d, 0) - (1 - alpha) d
        reverse_kl         exp(d / softness) - d / softness

    and Q_i <- r + discount V(next state), 0 after the end. The other settings are `iql`'s. Where d / softness is above 5, reverse_kl goes
    on along its tangent, since the exponential of one far value would move all others; extreme Q-learning clips it.
    """

    def __init__(
        self,
        *,
        divergence: Literal["chi_square", "total_variation", "reverse_kl"] = "chi_square",
        alpha: Annotated[float, Field(ge=0.5, lt=1)] = 0.7,
        softness: Annotated[float, Field(gt=0)] = 1.0,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-4,
        discount: Annotated[float, Field(ge=0, le=1)] = 0.99,
        n_steps: Annotated[int, Field(ge=1, le=10_000)] = 1,
        tau: Annotated[float, Field(gt=0, le=1)] = 0.05,
        epochs: Annotated[int, Field(ge=1)] = 10,
        batch: Annotated[int, Field(ge=1)] = 32,
        capacity: Annotated[int, Field(ge=1)] = 10_000,
        warm_up: Annotated[int, Field(ge=0)] = 0,
        state_tokens: Annotated[int, Field(ge=1)] | None = None,
        turn_limit_ends: bool = False,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate, discount=discount, n_steps=n_steps, tau=tau, epochs=epochs, batch=batch, capacity=capacity,
            warm_up=warm_up, state_tokens=state_tokens, turn_limit_ends=turn_limit_ends,
        )  # fmt: skip
        self.divergence, self.alpha, self.softness = divergence, alpha, softness

    def value_loss(self, excess: Tensor) -> Tensor:
        """The divergence's line of the formula."""
        if self.divergence == "reverse_kl":
            scaled = excess / self.softness
            beyond = (scaled - LARGEST_EXPONENT).clamp(min=0)
            return scaled.clamp(max=LARGEST_EXPONENT).exp() * (1 + beyond) - scaled
        above = excess.clamp(min=0)
        conjugate = above + above.square() / 4 if self.divergence == "chi_square" else above
        return self.alpha * conjugate - (1 - self.alpha) * excess


@method(
    paper="2302.08560",
    title="Dual RL: Unification and New Methods for Reinforcement and Imitation Learning (ReCOIL)",
    checked="closed form (the paper's dual with a whole answer as one action, against its primal)",
    batch_coupled=True,
    not_reinforce="it reads no advantage",
    reduces_to="share 1 without other demonstrations in the group is SFT on the demonstration",
)
def recoil(
    logp: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    teacher_forced: PerToken,
    group: PerRow,
    in_loss: PerRow,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.5,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
) -> PerToken:
    """Of each group with a demonstration, over all its rows' log-ratios s = sum_t logp - logp_ref:

        temperature / (4 share) Var_mix(s) - mean_demo(s)

    Var_mix is the variance over the mixture of demonstrations (`share` in all) and the other rows (the rest), which may come from any
    policy: nothing corrects for the policy that sampled them. The first term keeps the demonstration's log-ratio close to the other rows',
    where SFT (which has the second alone) raises it without end.

    This is ReCOIL's dual with the chi-square divergence,  share (E_pi Q - E_demo Q) + E_mix[Q^2] / 4,  minimised over Q: an answer is one
    action, nothing follows it, and Q = temperature s + V(problem) is the soft Q of which the policy is the softmax over the reference. V is
    the minimising one, so that Q has the mean 0 over the mixture. With that the minimum is minus that of the primal,

        share temperature KL(pi || pi_ref) + chi2(share pi + (1 - share) others || share demo + (1 - share) others)

    over the answers that the group has: no discriminator, and the other rows need not cover the demonstration. With `share` 1 the other
    rows are left out, as in IQ-Learn. The paper's Bellman backups over steps are not here, and a group's rows stand for both distributions.

    Every token of a group's rows holds the group's loss: use `loss_aggregation: row_mean`. A group without a demonstration has none.

    >>> import torch
    >>> s, one, demo = torch.tensor([[0.2], [-0.4]]), torch.ones(2, 1).bool(), torch.tensor([[True], [False]])
    >>> recoil(s, s * 0, one, demo, torch.zeros(2).long(), one[:, 0], temperature=2.0).tolist()  # 0.3^2 - 0.2
    [[-0.11], [-0.11]]
    """
    log_ratio = ((logp - logp_ref) * mask).sum(1)
    shown = demonstrations(mask, teacher_forced) & in_loss
    others = in_loss & ~shown
    count, count_others = group_size(group, shown), group_size(group, others)
    beta = torch.where(count_others > 0, torch.full_like(count, share), 1.0)
    mixture = torch.where(shown, beta / count.clamp(min=1), (1 - beta) / count_others.clamp(min=1)) * in_loss
    deviation = log_ratio - group_sum(mixture * log_ratio, group)
    variance = group_sum(mixture * deviation**2, group)
    imitation = group_sum(shown * log_ratio, group) / count.clamp(min=1)
    loss = torch.where(count > 0, temperature / (4 * share) * variance - imitation, 0.0)
    return loss[:, None].to(logp.dtype) * mask
