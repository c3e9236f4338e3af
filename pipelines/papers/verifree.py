"""Reinforcing General Reasoning without Verifiers.

arXiv 2505.21493. Presets: verifree. Parts: verifree (rollout), verifree (reward), verifree (advantage).

The policy reasons, the reference answer follows, and its probability is both the reward and what is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Reward, Rollout
from pipelines.contract.scorer import Passage, Scorer
from pipelines.data import control
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.common.scored_rows import token_at
from pipelines.rlvr.ops import group_size, standardised, to_tokens
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest

PAPER, TITLE = "2505.21493", "Reinforcing General Reasoning without Verifiers (VeriFree)"


@method(
    paper=PAPER,
    title=f"{TITLE}: the reference answer in the place of the policy's",
    checked="official code (read; cut between sampled tokens instead of reading the text again)",
    makes=("teacher_forced",),
    forces_rows=True,
)
class verifree_rollout(Rollout):
    """Rollouts of one turn whose answer, what follows the first `marker`, is replaced by `before`, the record's answer and `after`.

    These tokens are teacher-forced. The reasoning keeps the tokens and log-probabilities that it was sampled with: where the marker
    ends inside a token, that token goes too and the rest of the marker is teacher-forced. So the marker should end before a character that
    tokenizers join to what follows: `<answer` and not `<answer>`, as released. A rollout without the marker stays as it is. `text` stays
    what the policy wrote, so that `correct` is the verdict on its own answer.
    """

    def __init__(
        self,
        *,
        marker: Annotated[str, Field(min_length=1, max_length=200)] = "<answer",
        before: Annotated[str, Field(max_length=200)] = "> \\boxed{ ",
        after: Annotated[str, Field(max_length=200)] = " } </answer>",
    ) -> None:
        self.marker, self.before, self.after = marker, before, after

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts, in order."""
        gold = {request.group: request.problem.answer for request in requests}
        return [self._replaced(row, gold[row.group], context) for row in answers(requests, context)]

    def _replaced(self, row: Trajectory, gold: str, context: RolloutContext) -> Trajectory:
        first = row.role.index(Role.POLICY) if Role.POLICY in row.role else len(row.role)
        texts = [control.decode_text(context.tokenizer, [token]) for token in row.tokens[first:]]
        place = "".join(texts).find(self.marker)
        if place < 0 or not gold:
            return row
        end = place + len(self.marker)
        last = token_at(texts, [end - 1])[0]
        kept = last + 1 if len("".join(texts[: last + 1])) == end else last
        rest = "".join(texts)[len("".join(texts[:kept])) : end]
        forced = control.encode_text(context.tokenizer, f"{rest}{self.before}{gold}{self.after}")
        stay, pad = first + kept, [0.0] * len(forced)
        return replace(
            row,
            tokens=[*row.tokens[:stay], *forced],
            role=[*row.role[:stay], *[int(Role.TEACHER_FORCED)] * len(forced)],
            logp_old=[*row.logp_old[:stay], *pad],
            entropy_old=None if row.entropy_old is None else [*row.entropy_old[:stay], *pad],
            stop=Stop.END,
        )


@method(
    paper=PAPER,
    title=f"{TITLE}: its probability",
    checked="official code (read; reward_source p)",
    requires=(("rollout", "verifree"),),
    provenance=("policy",),
)
class verifree_reward(Reward):
    """exp(sum of the log-probabilities of the row's teacher-forced tokens), by the weights that sample; 0 for a row without any.

    `correct` stays the verdict on the policy's own answer. A long reference answer has a probability near 0 whatever precedes it; `rlpr`
    takes a mean instead.
    """

    label = "answer_probability"
    asks_policy = True

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer."""
        self.scorer = scorer

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        asked = []
        for row in rows:
            if row.stop == Stop.ERROR:
                continue
            row.components = {**row.components, "verifier": float(bool(row.correct))}
            row.score = 0.0
            if Role.TEACHER_FORCED in row.role:
                start = row.role.index(Role.TEACHER_FORCED)
                asked.append((row, Passage(row.tokens[:start], row.tokens[start:])))
        for (row, _), logp in zip(asked, self.scorer.log_probs([passage for _, passage in asked]), strict=True):
            row.score = float(logp.double().sum().exp()) if bool(torch.isfinite(logp).all()) else None


@method(
    paper=PAPER,
    title=f"{TITLE}: leave-one-out on the reasoning, the reward itself on the answer",
    checked="official code, 4 cases",
    couples="group",
)
def verifree_advantage(
    reward: PerRow, group: PerRow, scored: PerRow, teacher_forced: PerToken, mask: PerToken
) -> PerToken:
    """A = r - mean of the group's other rows on the policy's tokens, r itself on teacher-forced ones.

    With r the probability of the reference answer it is the gradient of that probability's mean: through the reasoning by REINFORCE, whose
    variance the baseline lowers, through the answer exactly. A row that is the only one of its group gets 0 on its reasoning.

    Take it where answers are short and no verifier can compare them.

    >>> import torch
    >>> forced = torch.tensor([[False, True], [False, True]]); yes = torch.ones(2).bool()
    >>> verifree_advantage(torch.tensor([0.5, 0.25]), torch.zeros(2).long(), yes, forced, forced | True).tolist()
    [[0.25, 0.5], [-0.25, 0.25]]
    """
    n = group_size(group, scored)
    compared = standardised(reward, group, scored, scale=False) * n / (n - 1).clamp(min=1)
    return torch.where(teacher_forced, to_tokens(reward * scored, mask), to_tokens(compared, mask))
