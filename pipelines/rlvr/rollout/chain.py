"""Completions with Monte-Carlo values: new continuations of their prefixes are sampled and scored."""

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
    """Before every `interval`-th unsure token, `probes` new continuations; their mean score is the state's Monte-Carlo value.

    A token is unsure where the policy chose it with a probability below `certain`. Continuations may use the rest of the row's token limit;
    the verifier scores them, and they are not trained on.
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
        repeated = [request for request in requests for _ in range(request.rollouts)]
        rows = answers(requests, context)
        states: list[tuple[int, int]] = []
        for row_index, row in enumerate(rows):
            n_context = len(repeated[row_index].prompt) + len(repeated[row_index].hint)
            row.mc_value = [math.nan] * len(row.tokens)
            states += [
                (row_index, n_context + cut) for cut in cuts(row.logp_old[n_context:], self.certain, self.interval)
            ]
        prefixes = [rows[row_index].tokens[:cut] for row_index, cut in states for _ in range(self.probes)]
        completions = context.sampler.extend(prefixes, context.sampling, context.generator)
        for state_index, (row_index, cut) in enumerate(states):
            request, row = repeated[row_index], rows[row_index]
            n_prompt = len(request.prompt)
            tokens_left = context.sampling.max_tokens - (cut - n_prompt - len(request.hint))
            continuations = completions[state_index * self.probes : (state_index + 1) * self.probes]
            texts = [
                context.decode([*row.tokens[n_prompt:cut], *continuation.tokens[:tokens_left]])
                for continuation in continuations
            ]
            scores = [score for score in scores_of(request, texts) if score is not None]
            assert row.mc_value is not None
            row.mc_value[cut] = sum(scores) / len(scores) if scores else 0.0
        return rows


def cuts(logp: list[float], certain: float, interval: int) -> list[int]:
    """Positions in a completion before whose token the state is valued: every `interval`-th unsure one.

    >>> p = [0.95, 0.5, 0.99, 0.6, 0.3, 0.8, 0.97]
    >>> cuts([math.log(x) for x in p], 0.9, 2), cuts([math.log(x) for x in (0.7, 0.95, 0.6, 0.8)], 0.9, 2)
    ([1, 4], [0, 3])
    """
    return [at for at, value in enumerate(logp) if value < math.log(certain)][::interval]
