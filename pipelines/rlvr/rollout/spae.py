"""Answers probed at the end of each step: how sure is the policy, and how likely does it find the gold answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.contract.scorer import Passage
from pipelines.data import control
from pipelines.data.chat import THINK_END
from pipelines.data.records import Role, Stop
from pipelines.rlvr.rollout._answers import answers

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
        steps: list[int] = []
        for row, request in zip(rows, repeated, strict=True):
            ends = self._steps(row, context)
            steps.append(len(ends))
            gold = control.encode_text(context.tokenizer, request.problem.answer)
            for end in ends:
                prefixes.append([*row.tokens[:end], *ask])
                passages.append(Passage(prefixes[-1], gold))
        confidence = self._confidence(prefixes, context)
        scored = context.scorer.log_probs(passages)
        accuracy = [float(logp.exp().mean()) if len(logp) else math.nan for logp in scored]
        values = iter(zip(accuracy, confidence, strict=True))
        for row, count in zip(rows, steps, strict=True):
            row.potential = [1.5 * acc * conf + 0.5 * acc - conf for acc, conf in (next(values) for _ in range(count))]
            row.turn_state = list(range(count))
        return rows

    def _confidence(self, prefixes: list[list[int]], context: RolloutContext) -> list[float]:
        """How sure the policy is after each prefix, from 0 to 1."""
        sampling = context.sampling.model_copy(update={"max_tokens": self.tokens, "temperature": self.temperature})
        repeated = [prefix for prefix in prefixes for _ in range(self.probes)]
        drawn = context.sampler.extend(repeated, sampling, context.generator, entropy=True)
        sure = [math.exp(-sum(c.entropy) / len(c.entropy)) if c.entropy else 0.0 for c in drawn]
        return [sum(sure[at : at + self.probes]) / self.probes for at in range(0, len(sure), self.probes)]

    def _steps(self, row: Trajectory, context: RolloutContext) -> list[int]:
        """One past the last token of each step, the end token left out; fills `turn`."""
        start = row.role.index(Role.POLICY) if Role.POLICY in row.role else len(row.role)
        row.turn = [-1] * start
        stop = len(row.tokens) - (row.stop == Stop.END)
        ends: list[int] = []
        text = ""
        for place in range(start, len(row.tokens)):
            row.turn.append(len(ends))
            text += context.tokenizer.decode(row.tokens[place : place + 1], skip_special_tokens=True)
            inside = THINK_END not in text and len(ends) < self.most - 1
            if inside and text.endswith(self.separator) and place + 1 < stop:
                ends.append(place + 1)
        return [*ends, max(stop, start)] if start < len(row.tokens) else []
