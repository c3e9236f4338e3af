"""On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD).

arXiv 2306.13649. Presets: gkd, sdft. Parts: teacher_top (providers), generalised_jsd (auxiliary_loss), no_policy_gradient (objective),
fixed_share (rollout).

A teacher's distribution at each token of the policy's own answers, over the tokens that the teacher finds the most probable; how far the
policy is from it; and an objective that leaves the loss to that.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken, PerTokenTop
from pipelines.contract.method import Rollout
from pipelines.contract.provider import ProviderContext
from pipelines.data.records import by_group
from pipelines.engine.distribution import most_probable
from pipelines.rlvr.common.answers import answers, demonstration
from pipelines.rlvr.providers.teacher import teacher

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory

PAPER, TITLE = "2306.13649", "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD)"
LEAST = 1e-7
"""Least probability left for the tokens that are not named."""


@method(
    paper=PAPER,
    title=f"{TITLE}: the teacher's most probable tokens",
    checked="closed form",
    makes=("teacher_top_id", "logp_teacher_top"),
)
class teacher_top(teacher):
    """The `top` most probable tokens of a frozen teacher and their log-probabilities, at the sampling temperature, without truncation.

    `path` and `revision` are those of `teacher`. Each token of the rows takes 12 bytes times `top`. A `top` of the vocabulary's size
    or above keeps the whole distribution.
    """

    model_paths: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self, *, path: str, revision: str | None = None, top: Annotated[int, Field(ge=1, le=1 << 20)] = 64
    ) -> None:
        super().__init__(path=path, revision=revision)
        self.top = top

    def setup(self, context: ProviderContext) -> None:
        """As of `teacher`."""
        super().setup(context)
        self.top = min(self.top, self.policy.config.vocab_size)

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`teacher_top_id` and `logp_teacher_top` [B, T, V], V the number of tokens kept."""
        asked = partial(most_probable, temperature=self.policy.sampling.temperature, count=self.top)
        both = self.passes.per_token(
            lambda layout, ids: self.policy.of_logits(layout, ids, lambda logits, _: asked(logits)),
            tokens, columns["mask"], values=2 * self.top,
        )  # fmt: skip
        columns["teacher_top_id"] = both[..., : self.top].long()
        columns["logp_teacher_top"] = both[..., self.top :].contiguous()


@method(paper=PAPER, title=TITLE, checked="third-party code (TRL), 7 cases", couples="row", provenance=("model",))
def generalised_jsd(
    logp_top: PerTokenTop, logp_teacher_top: PerTokenTop, *, beta: Annotated[float, Field(ge=0, le=1)] = 0.5
) -> PerToken:
    """Generalised Jensen-Shannon divergence of teacher P and policy Q in nats, at each token (eq. 1 of the paper).

        JSD_b(P || Q) = b KL(P || M) + (1 - b) KL(Q || M),   M = b P + (1 - b) Q;   b = 0: KL(P || Q);   b = 1: KL(Q || P)

    `beta` 0 covers all that the teacher would say, 1 settles on some of it. The tokens that the teacher does not name are one more, with
    what is left of the probability, so that the divergence is 0 only where the named tokens have the teacher's probabilities.

    >>> p, q = torch.tensor([[[0.5, 0.25]]]).log(), torch.tensor([[[0.25, 0.25]]]).log()
    >>> [round(float(generalised_jsd(q, p, beta=b)), 4) for b in (0.0, 1.0)]  # 0.5 ln 2 - 0.25 ln 2; the same by symmetry
    [0.1733, 0.1733]
    """
    teacher_logp, policy_logp = _with_rest(logp_teacher_top), _with_rest(logp_top)
    if beta == 0:
        return _kl(teacher_logp, policy_logp)
    if beta == 1:
        return _kl(policy_logp, teacher_logp)
    mean = torch.logaddexp(teacher_logp + math.log(beta), policy_logp + math.log1p(-beta))
    return beta * _kl(teacher_logp, mean) + (1 - beta) * _kl(policy_logp, mean)


def _with_rest(logp: PerTokenTop) -> PerTokenTop:
    """The log-probabilities, and that of all other tokens together."""
    named = logp.logsumexp(-1, keepdim=True).clamp(max=-LEAST)
    return torch.cat([logp, (-torch.expm1(named)).log()], -1)


def _kl(of: PerTokenTop, to: PerTokenTop) -> PerToken:
    return (of.exp() * (of - to)).sum(-1)


@method(
    paper=PAPER,
    title="No policy gradient: divergence and auxiliary losses alone",
    checked="closed form",
    not_reinforce="it is 0",
)
def no_policy_gradient(logp: PerToken) -> PerToken:
    """0 everywhere, for recipes whose other terms of the loss say all that is learned.

    >>> no_policy_gradient(torch.tensor([[-1.0, -2.0]])).tolist()
    [[-0.0, -0.0]]
    """
    return 0.0 * logp


@method(
    paper=PAPER,
    title=f"{TITLE}: a share of fixed data",
    checked="closed form",
    makes=("teacher_forced",),
    forces_rows=True,
    sets_group_size=True,
    reduces_to="share 0 is single_turn",
)
class fixed_share(Rollout):
    """Each problem with the chance `share` gets its record's solution (or answer) in place of rollouts; the others are answered as usual.

    `share` is the paper's 1 - lambda: 0 is on-policy distillation, 1 supervised distillation on the data. The solution is one
    teacher-forced row, however many rollouts a group has. Which problems get it depends on the seed and the step alone. Take a share
    above 0 where the policy is still too weak for its own answers to be worth the teacher's time.
    """

    def __init__(self, *, share: Annotated[float, Field(ge=0, le=1)] = 0.5) -> None:
        self.share = share

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The rows of the problems, in order."""
        fixed = {request.group for request in requests if context.streams.uniform(request.group) < self.share}
        rows = by_group(answers([request for request in requests if request.group not in fixed], context))
        return [
            row
            for request in requests
            for row in ([demonstration(request, context)] if request.group in fixed else rows.get(request.group, []))
        ]
