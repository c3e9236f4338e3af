"""Flattening Hierarchies with Policy Bootstrapping.

arXiv 2505.14975. Presets: saw. Parts: saw (rollout), saw (advantage).

Answers to the problem, and answers to the problem with a hint, which train after the problem alone too.

Answers are imitated, each with a weight that grows exponentially with its advantage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import by_group
from pipelines.papers.common.groups import Groups
from pipelines.rlvr.common.answers import answers, solution_tokens, teacher_forced
from pipelines.rlvr.ops import demonstrations, group_mean, group_size

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Message, Problem, Trajectory


TEMPLATE = "{problem}\nHint: {hint}"


@method(
    paper="2505.14975",
    title="Flattening Hierarchies with Policy Bootstrapping (SAW: the sub-goal policy is the policy with a hint)",
    checked="official code (read; on text, where a sub-goal is a hint in the prompt)",
    makes=("teacher_forced",),
    forces_rows=True,
    sets_group_size=True,
    requires=(("prompting", "plain"),),
    reduces_to="share 0 is single_turn",
)
class saw(Rollout):
    """A `share` of each problem's rollouts is sampled from a prompt with a hint, and each of them becomes two rows:

        after the problem alone, teacher-forced      a sample of the policy that knows the sub-goal, in the problem's own group
        after the prompt with the hint               the policy that knows the sub-goal, in a group of its own

    The hint is the record's `info` field of the name `field`, or else the beginning of its solution (its answer where it has none), cut at
    a random place from `low` to `high` of its tokens: a way-point on a known path to the goal, as the paper takes one from a trajectory of
    its data set. A problem has one hint a step, and none if there is no such field or the solution is a single token; then all its rollouts
    are plain. With `hinted_rows: false` the second row is left out: the policy with the hint is then not trained. `advantage: saw` sets
    each row's weight. Reward metrics are over all rows; evaluation never sees a hint.
    """

    info_fields: ClassVar[tuple[str, ...]] = ("field",)

    def __init__(
        self,
        *,
        share: Annotated[float, Field(ge=0, lt=1)] = 0.5,
        field: Annotated[str, Field(min_length=1, max_length=200)] | None = None,
        low: Annotated[float, Field(ge=0, le=1)] = 0.25,
        high: Annotated[float, Field(gt=0, le=1)] = 0.75,
        template: Annotated[str, Field(min_length=1, max_length=8000)] = TEMPLATE,
        hinted_rows: bool = True,
    ) -> None:
        for place in ("{problem}", "{hint}"):
            if place not in template:
                raise RecipeError(
                    "rlvr.rollout.template", f"it has no {place}, so nothing would be put into it", f"Add {place}."
                )
        if low > high:
            raise RecipeError("rlvr.rollout.low", f"{low:g} is above high, {high:g}", "Exchange them.")
        self.share, self.field, self.low, self.high = share, field, low, high
        self.template, self.hinted_rows = template, hinted_rows

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """The rows of each problem: plain ones, hinted ones after the plain prompt, hinted ones after their own."""
        hinted = self._hinted(requests, context)
        counts = {request.group: own.rollouts for request, own in hinted}
        plain = [replace(request, rollouts=request.rollouts - counts.get(request.group, 0)) for request in requests]
        groups = by_group(answers([*plain, *(own for _, own in hinted)], context))
        told = {request.group: own for request, own in hinted}
        rows = []
        for request in requests:
            rows += groups.get(request.group, [])
            if request.group not in told:
                continue
            asked = told[request.group]
            own = groups.get(asked.group, [])
            rows += [
                teacher_forced(
                    request,
                    request.prompt,
                    row.tokens[len(asked.prompt) :],
                    row.stop,
                    context,
                    drawn_elsewhere=not self.hinted_rows,
                )
                for row in own
            ]
            rows += own if self.hinted_rows else []
        return rows

    def _hinted(
        self, requests: list[RolloutRequest], context: RolloutContext
    ) -> list[tuple[RolloutRequest, RolloutRequest]]:
        """Of each problem that gets a hint: its request, and that for its hinted rows."""
        groups = Groups(requests, context)
        places = [context.streams.uniform(request.group) for request in requests]
        chosen = []
        for request, place in zip(requests, places, strict=True):
            count = round(self.share * request.rollouts)
            hint = self._hint(request, self.low + (self.high - self.low) * place, context) if count else ""
            if hint:
                chosen.append((request, hint, count))
        if not chosen:
            return []
        prompts = context.render(
            [self._conversation(request.problem, hint) for request, hint, _ in chosen],
            [request.problem.tools for request, _, _ in chosen],
        )
        return [
            (request, replace(request, prompt=prompt, group=groups.next(request), rollouts=count))
            for (request, _, count), prompt in zip(chosen, prompts, strict=True)
        ]

    def _hint(self, request: RolloutRequest, share: float, context: RolloutContext) -> str:
        """What the prompt tells; empty for nothing."""
        if self.field is not None:
            return str(request.problem.info.get(self.field) or "").strip()
        tokens = solution_tokens(request, context)
        length = min(max(1, round(share * len(tokens))), len(tokens) - 1)
        return context.decode(tokens[: max(0, length)]).strip()

    def _conversation(self, problem: Problem, hint: str) -> list[Message]:
        """The problem with the hint in its last message."""
        *before, question = problem.prompt
        text = self.template.replace("{hint}", hint, 1).replace("{problem}", question["content"], 1)
        return [*before, {**question, "content": text}]


@method(
    paper="2505.14975",
    title="Flattening Hierarchies with Policy Bootstrapping (SAW: advantage-weighted regression and way-point bootstrapping)",
    checked="official code (read; means of the group's rows in the place of the learned value)",
    couples="group",
    group_of_one="imitates it with the weight 1",
    zero_variance_groups="learns",
    reduces_to="weight 0 is advantage-weighted regression on all rows",
)
def saw_advantage(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    teacher_forced: PerToken,
    *,
    alpha: Annotated[float, Field(ge=0)] = 3.0,
    beta: Annotated[float, Field(ge=0)] = 3.0,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    cap: Annotated[float, Field(gt=0)] = 100.0,
) -> PerRow:
    """Weights of log-likelihoods (`objective: reinforce`), the released objective's terms:

        any row                                       min(exp(alpha (r - V)), cap)
        a hinted row after the plain prompt, added     weight min(exp(beta (V_hint - V)), cap)

    V is the mean reward of the group's rows that the policy sampled from this very prompt, V_hint that of the rows drawn with the hint. The
    second term is the bootstrapping one, exp(beta A(s, w, g)) KL(pi(. | s, w) || pi(. | s, g)): the hinted rows are draws of pi(. | s, w),
    which has no gradient there, so imitating them, correct or incorrect, has the gradient of that divergence on average. Its weight grows
    with the hint's benefit. The first one is advantage-weighted regression; on rows that keep their hinted prompt, which are a group of
    their own, it trains the policy that knows the sub-goal.

    The paper learns V by expectile regression over single steps of stored trajectories; here an answer is one step, and V a mean.

    >>> import torch
    >>> r, told = torch.tensor([0.0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]).bool()[:, None]
    >>> one = torch.ones(4).bool()
    >>> saw_advantage(r, torch.zeros(4).long(), one, one[:, None], told, alpha=2.0, beta=1.0).tolist()  # e^-1, e, e + e^0.5 twice
    [0.367879, 2.718282, 4.367003, 4.367003]
    """
    told = demonstrations(mask, teacher_forced) & scored
    own = scored & ~told
    value_told = group_mean(reward, group, told)
    value = torch.where(group_size(group, own) > 0, group_mean(reward, group, own), value_told)
    regression = (alpha * (reward - value)).exp().clamp(max=cap)
    bootstrapping = (beta * (value_told - value)).exp().clamp(max=cap)
    return ((regression + weight * bootstrapping * told) * scored).float()
