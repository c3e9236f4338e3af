"""Experience is the Best Teacher: Motivating Effective Exploration in Reinforcement Learning for LLMs.

https://github.com/sikelifei/HeRL. Presets: herl. Parts: herl (rollout), herl (objective).

The best answers that miss something are rewritten with what they miss, and the best rewrite takes a place in the group.

Dual-clipped policy gradient on rollouts, and a shaped ratio without a clip on rewrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import Stop, Trajectory, by_group
from pipelines.judges import questions
from pipelines.papers.herl.rubric import RubricJudge
from pipelines.rlvr.common.answers import answers, teacher_forced
from pipelines.rlvr.ops import clipped, dual_clipped, ratio
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest


CORRECT = "The answer is correct."
"""The rubric's only criterion where no judge is asked."""
TEMPLATE = (
    "Improve the answer to a task. Keep what it does well, put right what it does not, and add nothing else.\n\n"
    "[Task]\n{task}\n\n[Met]\n{met}\n\n[Not met]\n{unmet}\n\n[Answer]\n{answer}\n\nWrite the improved answer and nothing else."
)
PLACES = ("{task}", "{met}", "{unmet}", "{answer}")
EQUAL = 1e-6


@dataclass
class _Rewrite:
    """A rewrite of one row."""

    request: RolloutRequest
    candidate: Trajectory
    row: Trajectory


@method(
    paper="https://github.com/sikelifei/HeRL",
    title="Experience is the Best Teacher: Motivating Effective Exploration in Reinforcement Learning for LLMs (HeRL)",
    checked="official code (read; the wording of the rewrite's prompt is ours, and a group whose rewrites are all worse stays as it is)",
    makes=("teacher_forced",),
    forces_rows=True,
    scores_rows=True,
)
class herl(Rollout):
    """In groups whose best score is below `threshold`, the answers with that score are rewritten, given the criteria they meet and miss.

        r' = r + alpha (r_rewrite - r)     for an answer that was rewritten

    The best `replace` of a group's rewrites that are no worse than its best answer replace randomly chosen rows, with teacher-forced
    tokens: `objective: herl` weights them by a shaped ratio. With `rewrite_prompt` such a row keeps the prompt that the rewrite was sampled
    from, as in the released scripts; without it the row has the problem's. `judge` is a language model behind an endpoint (`{model, url,
    criteria, instruction, ...}`, the fields of `reward: judge`), which checks the criteria of the record's `info.rubric` or its own; the
    score is the weighted share that is met. Without a judge the only criterion is the verifier's verdict, and the score is the verifier's.
    Use `reward: verifier`, which keeps the scores set here. An answer whose verdicts cannot be parsed is unscored and not rewritten.
    `template` is the rewrite's prompt, with the placeholders {task}, {met}, {unmet} and {answer}.
    """

    def __init__(
        self,
        *,
        judge: dict[str, Any] | None = None,
        threshold: float = 1.0,
        candidates: Annotated[int, Field(ge=1, le=1000)] = 16,
        replace: Annotated[int, Field(ge=0, le=1000)] = 1,
        alpha: Annotated[float, Field(ge=0, le=1)] = 0.05,
        temperature: Annotated[float, Field(ge=0, le=10)] = 0.3,
        rewrite_prompt: bool = True,
        template: Annotated[str, Field(min_length=1, max_length=8000)] | None = None,
    ) -> None:
        self.judge = None if judge is None else RubricJudge(judge, "rlvr.rollout.judge")
        self.threshold, self.candidates, self.replace, self.alpha = threshold, candidates, replace, alpha
        self.temperature, self.rewrite_prompt, self.template = temperature, rewrite_prompt, template or TEMPLATE
        self._met: dict[int, list[bool]] = {}

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, scored; a rewrite stands where the row stood whose place it took."""
        rows = answers(requests, context)
        self._met = {}
        self._score(requests, rows, context)
        groups = by_group(rows)
        rewrites = self._rewrites(requests, groups, context)
        self._score(requests, [rewrite.row for rewrite in rewrites], context)
        best = {group: max(_scores(own), default=0.0) for group, own in groups.items()}
        for rewrite in rewrites:
            _note_gain(rewrite)
        for group, own in groups.items():
            drawn = [r.row for r in rewrites if r.request.group == group and r.row.score is not None]
            drawn = sorted((r for r in drawn if float(r.score or 0) >= best[group]), key=lambda r: -float(r.score or 0))
            if not drawn or not self.replace:
                continue
            order = torch.randperm(len(own), generator=context.streams.generator(group)).tolist()
            for position, row in zip(order, drawn[: self.replace], strict=False):
                own[position] = row
        kept = [row for request in requests for row in groups.get(request.group, [])]
        for row in kept:
            if row.score is not None:
                row.score += self.alpha * row.components.get("rewrite_gain", 0.0)
        return kept

    def _score(self, requests: Sequence[RolloutRequest], rows: list[Trajectory], context: RolloutContext) -> None:
        """Score rows in place, and note which criteria each meets."""
        problems = {request.problem.uid: request.problem for request in requests}
        verify(rows, problems, on_timeout=context.on_timeout)
        finished = [row for row in rows if row.stop != Stop.ERROR]
        if self.judge is None:
            self._met |= {id(row): [bool(row.correct)] for row in finished}
            return
        verdicts = self.judge.verdicts([(problems[row.uid], row.text) for row in finished])
        for row, met in zip(finished, verdicts, strict=True):
            row.components = row.components | {"judge_unread": float(met is None)}
            row.score = None if met is None else questions.weighted(self.judge.rubric(problems[row.uid]), met)
            if met is not None:
                self._met[id(row)] = met

    def _rewrites(
        self, requests: list[RolloutRequest], groups: dict[int, list[Trajectory]], context: RolloutContext
    ) -> list[_Rewrite]:
        """A rewrite of every candidate, drawn side by side."""
        chosen = [(request, row) for request in requests for row in self._candidates(groups.get(request.group, []))]
        if not chosen:
            return []
        prompts = context.render([[{"role": "user", "content": self._prompt(*pair)}] for pair in chosen])
        sampling = context.sampling.model_copy(update={"temperature": self.temperature})
        drawn = context.extend(prompts, [request.group for request, _ in chosen], sampling=sampling, entropy=False)
        return [
            _Rewrite(request, row, self._row(request, prompt, completion, context))
            for (request, row), prompt, completion in zip(chosen, prompts, drawn, strict=True)
        ]

    def _candidates(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Rows with the group's best score where that is below the threshold; those that meet the most criteria first."""
        scored = [row for row in rows if row.score is not None and row.stop != Stop.ERROR]
        best = max(_scores(scored), default=self.threshold)
        if best >= self.threshold:
            return []
        tied = [row for row in scored if abs(float(row.score or 0) - best) < EQUAL]
        return sorted(tied, key=lambda row: -sum(self._met[id(row)]))[: self.candidates]

    def _prompt(self, request: RolloutRequest, row: Trajectory) -> str:
        """What asks for the rewrite of a row."""
        criteria = [CORRECT]
        if self.judge is not None:
            criteria = [c.criterion for c in self.judge.rubric(request.problem)]
        lists: dict[bool, list[str]] = {True: [], False: []}
        for criterion, met in zip(criteria, self._met[id(row)], strict=True):
            lists[met].append(f"- {criterion}")
        task = "\n".join(message["content"] for message in request.problem.prompt)
        texts = (task, "\n".join(lists[True]) or "none", "\n".join(lists[False]) or "none", row.text)
        return _filled(self.template, dict(zip(PLACES, texts, strict=True)))

    def _row(
        self, request: RolloutRequest, prompt: list[int], completion: Completion, context: RolloutContext
    ) -> Trajectory:
        """A rewrite as a row of its group."""
        shown = prompt if self.rewrite_prompt else [*request.prompt, *request.hint]
        stop = completion.stop if completion.tokens else Stop.ERROR
        return teacher_forced(request, shown, completion.tokens, stop, context, drawn_elsewhere=True)


def _filled(template: str, parts: dict[str, str]) -> str:
    """The template with its places filled; what a text holds is never taken for a place.

    >>> _filled("{task}: {answer}", {"{task}": "say {answer}", "{answer}": "no"})
    'say {answer}: no'
    """
    positions = [(template.find(position), position) for position in parts if position in template]
    if not positions:
        return template
    start, position = min(positions)
    return template[:start] + parts[position] + _filled(template[start + len(position) :], parts)


def _scores(rows: Sequence[Trajectory]) -> list[float]:
    return [row.score for row in rows if row.score is not None]


def _note_gain(rewrite: _Rewrite) -> None:
    """By how much the rewrite's score is above its candidate's, as a component of both."""
    if rewrite.row.score is None or rewrite.candidate.score is None:
        return
    gain = rewrite.row.score - rewrite.candidate.score
    rewrite.candidate.components = rewrite.candidate.components | {"rewrite_gain": gain}
    rewrite.row.components = rewrite.row.components | {"rewrite": 1.0}


@method(
    paper="https://github.com/sikelifei/HeRL",
    title="Experience is the Best Teacher: Motivating Effective Exploration in Reinforcement Learning for LLMs (HeRL)",
    checked="official code (read; the mixed loss of core_algos)",
    zero_gradient_at_zero_advantage=True,
    ratio_level="token",
    reduces_to="without teacher-forced tokens it is clip with dual 3",
)
def herl_objective(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    teacher_forced: PerToken,
    *,
    gamma: Annotated[float, Field(ge=0)] = 0.1,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    dual: Annotated[float, Field(gt=1)] | None = 3.0,
) -> PerToken:
    """Clipped loss on the policy's tokens; on teacher-forced ones

        l = -A rho / (rho + gamma);   rho = exp(logp - logp_old)

    whose gradient is largest where the policy gives a token about gamma times its old probability. `gamma` 0 is -rho A, as in the released
    code. A teacher-forced token's old log-probability is the trainer's own, so rho starts at 1 and the weight at 1 / (1 + gamma).

    >>> import torch
    >>> rho, A = torch.tensor([[-2.0, 0.0, 0.5]]), torch.ones(1, 3)
    >>> [round(-v, 6) for v in herl_objective(rho, torch.zeros(1, 3), A, torch.ones(1, 3).bool())[0].tolist()]
    [0.575074, 0.909091, 0.942815]
    """
    rho = ratio(logp, logp_old)
    shaped = rho if gamma == 0 else rho / (rho + gamma)
    on_policy_loss = dual_clipped(clipped(rho, advantage, low, high), advantage, dual)
    return torch.where(teacher_forced, -shaped * advantage, on_policy_loss)
