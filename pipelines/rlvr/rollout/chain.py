"""Answers whose prefixes are tried again, to see what each was worth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.rlvr.rollout._answers import answers, scores_of

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (chain sampling)",
    checked="official code",
    makes=("mc_value",),
)
class chain(Rollout):
    """Before every `interval`-th unsure token of an answer, `probes` fresh continuations; their mean score is the state's value.

    A token is unsure where the policy chose it with a probability below `certain`. Continuations have what the row
    had left of its token limit, and their scores are the verifier's. They are not trained.
    """

    def __init__(
        self,
        *,
        interval: Annotated[int, Field(ge=1)] = 5,
        probes: Annotated[int, Field(ge=1)] = 9,
        certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
    ) -> None:
        self.interval, self.probes, self.certain = interval, probes, certain

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, with `mc_value` filled."""
        each = [one for one in requests for _ in range(one.rollouts)]
        rows = answers(requests, context)
        wanted: list[tuple[int, int]] = []
        for number, row in enumerate(rows):
            head = len(each[number].prompt) + len(each[number].hint)
            row.mc_value = [math.nan] * len(row.tokens)
            wanted += [(number, head + at) for at in cuts(row.logp_old[head:], self.certain, self.interval)]
        prefixes = [rows[number].tokens[:at] for number, at in wanted for _ in range(self.probes)]
        made = context.sampler.extend(prefixes, context.sampling, context.generator)
        for place, (number, at) in enumerate(wanted):
            one, row = each[number], rows[number]
            start = len(one.prompt)
            room = context.sampling.max_tokens - (at - start - len(one.hint))
            continuations = made[place * self.probes : (place + 1) * self.probes]
            texts = [context.decode([*row.tokens[start:at], *more.tokens[:room]]) for more in continuations]
            scores = [score for score in scores_of(one, texts) if score is not None]
            assert row.mc_value is not None
            row.mc_value[at] = sum(scores) / len(scores) if scores else 0.0
        return rows


def cuts(logp: list[float], certain: float, interval: int) -> list[int]:
    """Places of an answer before whose token the state is valued: every `interval`-th unsure one.

    >>> p = [0.95, 0.5, 0.99, 0.6, 0.3, 0.8, 0.97]
    >>> cuts([math.log(x) for x in p], 0.9, 2), cuts([math.log(x) for x in (0.7, 0.95, 0.6, 0.8)], 0.9, 2)
    ([1, 4], [0, 3])
    """
    return [at for at, value in enumerate(logp) if value < math.log(certain)][::interval]
