"""Step Potential Advantage Estimation.

arXiv 2601.03823. Presets: spae. Parts: spae (rollout), spae (advantage).

Answers probed at the end of each step: how sure is the policy, and how likely does it find the gold answer.

Steps that bring the answer nearer are paid, and what follows a solved step earns less of the outcome.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.method import Rollout
from pipelines.contract.scorer import Passage
from pipelines.data import control
from pipelines.data.chat import THINK_END
from pipelines.data.records import Role, Stop
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.ops import SAME, group_mean
from pipelines.rlvr.ops_turns import turns_taken, turns_to_tokens

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2601.03823",
    title="Step Potential Advantage Estimation (SPAE): probes at the ends of steps",
    checked="official code (read; its accuracy is read off the probes' own distributions, ours is teacher-forced as in the paper)",
    makes=("turn", "step_potential"),
)
class spae(Rollout):
    """Potential of a step: 1.5 Acc Conf + 0.5 Acc - Conf, from -1 (confident and incorrect) to 1 (confident and correct).

    A step ends where the reasoning's text ends with `separator`; steps beyond `most`, and the text after the reasoning, belong to the last
    one. After each step the policy is prompted with `ask`: Conf is the mean over `probes` continuations of `tokens` tokens of exp(-mean
    entropy), Acc the mean probability of the gold answer's tokens, teacher-forced. Probes are not trained. The column `turn` holds the
    step.
    """

    asks_policy = True

    def __init__(
        self,
        *,
        separator: Annotated[str, Field(min_length=1, max_length=40)] = ".\n\n",
        ask: Annotated[str, Field(max_length=400)] = "**Final Answer**\n\\boxed{",
        probes: Annotated[int, Field(ge=1, le=64)] = 5,
        tokens: Annotated[int, Field(ge=1, le=1000)] = 10,
        temperature: Annotated[float, Field(gt=0, le=10)] = 0.6,
        most: Annotated[int, Field(ge=1, le=1000)] = 32,
    ) -> None:
        self.separator, self.ask, self.probes, self.tokens = separator, ask, probes, tokens
        self.temperature, self.most = temperature, most

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, with `turn` and `potential` filled."""
        repeated = [request for request in requests for _ in range(request.rollouts)]
        rows = answers(requests, context)
        ask = context.tokenizer(self.ask, add_special_tokens=False)["input_ids"] if self.ask else []
        prefixes: list[list[int]] = []
        passages: list[Passage] = []
        groups: list[int] = []
        steps: list[int] = []
        for row, request in zip(rows, repeated, strict=True):
            ends = self._steps(row, context)
            steps.append(len(ends))
            groups += [row.group] * len(ends)
            gold = control.encode_text(context.tokenizer, request.problem.answer)
            for end in ends:
                prefixes.append([*row.tokens[:end], *ask])
                passages.append(Passage(prefixes[-1], gold))
        confidence = self._confidence(prefixes, groups, context)
        scored = context.scorer.log_probs(passages)
        accuracy = [float(logp.exp().mean()) if len(logp) else math.nan for logp in scored]
        values = iter(zip(accuracy, confidence, strict=True))
        for row, count in zip(rows, steps, strict=True):
            row.potential = [1.5 * acc * conf + 0.5 * acc - conf for acc, conf in (next(values) for _ in range(count))]
            row.turn_state = list(range(count))
        return rows

    def _confidence(self, prefixes: list[list[int]], groups: list[int], context: RolloutContext) -> list[float]:
        """How sure the policy is after each prefix, from 0 to 1."""
        sampling = context.sampling.model_copy(update={"max_tokens": self.tokens, "temperature": self.temperature})
        repeated = [prefix for prefix in prefixes for _ in range(self.probes)]
        drawn = context.extend(
            repeated, [group for group in groups for _ in range(self.probes)], sampling=sampling, entropy=True
        )
        sure = [math.exp(-sum(c.entropy) / len(c.entropy)) if c.entropy else 0.0 for c in drawn]
        return [sum(sure[at : at + self.probes]) / self.probes for at in range(0, len(sure), self.probes)]

    def _steps(self, row: Trajectory, context: RolloutContext) -> list[int]:
        """One past the last token of each step, the end token left out; fills `turn`."""
        start = row.role.index(Role.POLICY) if Role.POLICY in row.role else len(row.role)
        row.turn = [-1] * start
        stop = len(row.tokens) - (row.stop == Stop.END)
        ends: list[int] = []
        text = ""
        for position in range(start, len(row.tokens)):
            row.turn.append(len(ends))
            text += control.decode_text(context.tokenizer, row.tokens[position : position + 1])
            inside = THINK_END not in text and len(ends) < self.most - 1
            if inside and text.endswith(self.separator) and position + 1 < stop:
                ends.append(position + 1)
        return [*ends, max(stop, start)] if start < len(row.tokens) else []


@method(
    paper="2601.03823",
    title="Step Potential Advantage Estimation (SPAE)",
    checked="reconstructed (formula from a summary; scope of the scaling, the means and the deviation assumed: all steps of the batch)",
    crosses_groups="rises of the potential are scaled over the batch",
    zero_variance_groups="learns",
)
def spae_advantage(
    reward: PerRow,
    step_potential: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    saturated: Annotated[float, Field(ge=-1, le=1)] = 0.9,
    damping: Annotated[float, Field(ge=0, le=1)] = 0.5,
    weight: Annotated[float, Field(ge=0)] = 0.5,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerToken:
    """Standardised over the batch's steps: (r - mean_group r) f_k + weight g_k, spread over the tokens of step k.

    f_k = 1 - damping (1 - exp(-c_k)), c_k the number of steps before k whose potential is above `saturated`; g_k = exp(n_k) - its mean over
    steps, n_k the rise of the potential scaled to 0..1 over steps, and 0 for a first step. A step without a potential rises by 0.

    >>> import torch
    >>> V = torch.tensor([[-0.205, 0.1, 0.8915, 0.93545]]); k = torch.arange(4)[None]
    >>> raw = shaped(V.double(), k >= 0, torch.tensor([0.5]), saturated=0.85, damping=0.5, weight=0.5)
    >>> [round(v, 4) for v in raw[0].tolist()]
    [0.2193, 0.4544, 1.0785, 0.0898]
    >>> one = torch.ones(1).bool()
    >>> [round(v, 4) for v in spae_advantage(torch.ones(1), V, k, torch.zeros(1).long(), one, k >= 0, weight=1.0)[0].tolist()]
    [-0.7024, -0.1142, 1.4476, -0.631]
    """
    taken = turns_taken(turn, mask, step_potential.shape[1])
    if taken.sum() < 2:
        return torch.zeros_like(mask, dtype=torch.float32)
    centred = reward - group_mean(reward, group, scored)
    raw = shaped(step_potential.double(), taken, centred, saturated=saturated, damping=damping, weight=weight)
    values = raw[taken]
    standard = torch.where(taken, (raw - values.mean()) / (values.std() + eps), 0.0)
    return turns_to_tokens(standard, turn) * mask


def shaped(
    potential: torch.Tensor,
    taken: torch.Tensor,
    centred: torch.Tensor,
    *,
    saturated: float,
    damping: float,
    weight: float,
) -> torch.Tensor:
    """The steps' advantages before they are standardised, float64 [B, S]; there is a step.

    Args:
        potential: float64 [B, S]; NaN where a step has none.
        taken: bool [B, S], steps that exist.
        centred: float [B], rewards less the group's mean.
    """
    solved = ((potential > saturated) & taken).double()
    factor = 1 - damping * (1 - (-(solved.cumsum(1) - solved)).exp())
    rise = torch.nn.functional.pad(potential[:, 1:] - potential[:, :-1], (1, 0)).nan_to_num(0.0)
    known = rise[taken]
    spread = known.max() - known.min()
    scaled = (rise - known.min()) / spread if spread > SAME else torch.zeros_like(rise)
    gain = scaled.exp() - scaled[taken].exp().mean()
    return (centred.double()[:, None] * factor + weight * gain) * taken
