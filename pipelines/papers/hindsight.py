"""Goal-conditioned Imitation Learning.

arXiv 1906.05838. Presets: hindsight. Parts: hindsight (rollout), hindsight_answers (rollout), hindsight (credit).

Episodes, and the lost ones once more as demonstrations of what they did reach.

Single answers, and the wrong ones once more as demonstrations of the problem that they do solve.

Whole demonstrations are imitated with a constant weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.episode import message_of, play_out, start, take_turns
from pipelines.contract.method import Rollout
from pipelines.contract.played import Episode
from pipelines.contract.rollout import Completion
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data.records import Role, Stop, Trajectory, by_group
from pipelines.papers.common.groups import Groups
from pipelines.recipe.stage_checks import feeding
from pipelines.rlvr.common.answers import answers, teacher_forced
from pipelines.rlvr.ops import demonstrations
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def _episodes_can_be_relabelled(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """The environment of every source can say what an episode did reach."""
    for where, source in feeding(node, node.settings.split):
        if source.task is not None and not environments.can_relabel(source.task):
            raise _cannot_say(part, "environment", where, source.task, "frozen_lake", "multi_turn")


def _answers_can_be_relabelled(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """The verifier of every source can say which problem an answer solves."""
    for where, source in feeding(node, node.settings.split):
        unknown = source.verifier is not None and source.verifier not in verifiers.RELABELLED
        if source.kind == "environment" or unknown:  # an environment's rows name other verifiers
            judge = source.verifier or source.task
            raise _cannot_say(part, "verifier", where, judge, verifiers.RELABELLED[0], "single_turn")


def _cannot_say(part: Bound, what: str, where: str, judge: str | None, example: str, other: str) -> RecipeError:
    return RecipeError(
        "rlvr.rollout",
        f"{part.name} asks the {what} what a lost row did reach, and that of {where} ({judge}) cannot say",
        f"Use problems of {example}, or rollout: {other}.",
    )


@method(
    paper="1906.05838",
    title="Goal-conditioned Imitation Learning (its relabelled episodes)",
    checked="reconstructed (the idea; the paper learns from transitions with an off-policy critic, here whole episodes are imitated)",
    makes=("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "teacher_forced"),
    requires=(("prompting", "plain"),),
    forces_rows=True,
    check=_episodes_can_be_relabelled,
    reduces_to="most 0 is multi_turn",
)
class hindsight(Rollout):
    """Each failed episode becomes a solution of another problem: the one whose goal is where it ended.

    The environment determines which problem that is, and which of the episode's messages lead there (`relabel` of its module; frozen_lake
    has it). These messages are replayed, token for token, from the start, so that every observation shows the new goal; the episode is then
    a row in a group of its own, teacher-forced and scored by the environment, at most `most` a problem. `credit: hindsight` sets how
    strongly such rows are imitated; without it a group of one has advantage 0. Demonstrations belong in an earlier SFT stage.

    The component `hindsight` is 1 for these rows, and `reached` is 1 for those of the others that solved their own problem; `reward/mean`
    and `reward/correct` are over all rows.
    """

    def __init__(
        self,
        *,
        max_turns: Annotated[int, Field(ge=1)] = 10,
        most: Annotated[int, Field(ge=0, le=100_000)] = 100_000,
    ) -> None:
        self.budget, self.most = TurnBudget(max_turns), most

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All episodes of the problems, then the relabelled ones."""
        episodes = play_out(requests, context, self.budget)
        rows = [episode.trajectory(context, self.budget.most_turns) for episode in episodes]
        groups, relabelled = Groups(requests, context), []
        for row, episode in zip(rows, episodes, strict=True):
            if row.score is not None:
                row.components = {**row.components, "reached": float(bool(row.correct))}
                relabelled += [] if row.correct else [(row, episode)]
        for own in by_group(rows).values():
            lost = [(row, episode) for row, episode in relabelled if row.group == own[0].group]
            count = 0
            for row, episode in lost:
                if count < self.most and (again := self._again(row, episode, groups, context)) is not None:
                    rows.append(again)
                    count += 1
        return rows

    def _again(self, row: Trajectory, lost: Episode, groups: Groups, context: RolloutContext) -> Trajectory | None:
        """The episode with the goal that it did reach; None where it reached none."""
        messages = [message_of(lost, place) for place in range(len(lost.texts))]
        relabelled_as = environments.relabel(lost.name, lost.request.problem, messages)
        if relabelled_as is None:
            return None
        problem, turns = relabelled_as
        [prompt] = context.render([problem.prompt], [problem.tools])
        request = replace(lost.request, problem=problem, prompt=prompt, group=groups.next(row), rollouts=1)
        episode = _played(request, [_turn(row, lost, place, context) for place in turns], context)
        if not episode.success:
            return None
        again = episode.trajectory(context, self.budget.most_turns)
        again.role = [int(Role.TEACHER_FORCED) if role == Role.POLICY else role for role in again.role]
        again.components = {**again.components, "hindsight": 1.0}
        again.prompt = problem.prompt
        return again


def _turn(row: Trajectory, lost: Episode, place: int, context: RolloutContext) -> Completion:
    """A turn of a row as the completion that it was; its log-probabilities are the trainer's to fill in."""
    chosen = zip(row.tokens, row.role, row.turn or [], strict=True)
    tokens = [token for token, role, turn in chosen if role == Role.POLICY and turn == place]
    stop, none = Stop.LENGTH if lost.cuts[place] else Stop.END, [0.0] * len(tokens)
    return Completion(tokens, none, stop, none if context.entropy else None)


def _played(request: RolloutRequest, turns: list[Completion], context: RolloutContext) -> Episode:
    """An episode whose messages are given."""
    episode = start(request, context)
    for completion in turns:
        if episode.stop is None:
            take_turns([episode], [completion], context)
    return episode


@method(
    paper="1906.05838",
    title="Goal-conditioned Imitation Learning (its relabelled answers)",
    checked="reconstructed (the idea; the paper relabels the goals of robots)",
    makes=("teacher_forced",),
    forces_rows=True,
    check=_answers_can_be_relabelled,
    requires=(("prompting", "plain"), ("reward", "verifier")),
    reduces_to="most 0 is single_turn",
    scores_rows=True,
)
class hindsight_answers(Rollout):
    """As `hindsight`, for answers: 3 * 4 + 2 does not make 20 but does make 14, so it is a correct answer to the problem that asks for 14.

    The verifier determines which problem an incorrect answer solves (`relabel` of its module; reasoning_gym has it for countdown). The
    answer's tokens follow that problem's prompt, teacher-forced, in a group of their own, verified against that problem; at most `most` a
    problem. `credit: hindsight` weights them.
    """

    def __init__(self, *, most: Annotated[int, Field(ge=0, le=100_000)] = 100_000) -> None:
        self.most = most

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, then the relabelled ones."""
        rows = answers(requests, context)
        problems = {request.problem.uid: request.problem for request in requests}
        verify(rows, problems, on_timeout=context.on_timeout)
        groups, relabelled = Groups(requests, context), []
        counts: dict[int, int] = {}
        for row in rows:
            if row.score is not None:
                row.components = {**row.components, "reached": float(bool(row.correct))}
            if row.status != "incorrect" or counts.get(row.group, 0) >= self.most:
                continue
            request = groups.origin(row)
            problem = verifiers.relabel(request.problem, row.text)
            if problem is None:
                continue
            counts[row.group] = counts.get(row.group, 0) + 1
            [prompt] = context.render([problem.prompt], [problem.tools])
            asked = replace(request, problem=problem, group=groups.next(row))
            again = teacher_forced(asked, prompt, row.tokens[len(request.prompt) :], row.stop, context)
            verify([again], {problem.uid: problem}, on_timeout=context.on_timeout)
            again.components = {**again.components, "hindsight": 1.0}
            again.prompt = problem.prompt
            relabelled.append(again)
        return rows + [row for row in relabelled if row.correct]


@method(
    paper="1906.05838",
    title="Goal-conditioned Imitation Learning (behavioural cloning beside the policy gradient)",
    checked="reconstructed (a constant weight; the paper anneals it)",
    couples="row",
    reduces_to="weight 0 leaves the rows unlearned",
)
def hindsight_credit(
    advantage: PerToken,
    teacher_forced: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0, le=100)] = 0.1,
) -> PerToken:
    """Rows whose every trained token is teacher-forced get the advantage `weight`: with a ratio of 1, the gradient of weight * log pi.

    >>> import torch
    >>> forced = torch.tensor([[True, True], [True, False]])
    >>> hindsight_credit(torch.tensor([[0.0, 0.0], [0.5, 0.5]]), forced, torch.ones(2, 2).bool(), weight=0.2).tolist()
    [[0.2, 0.2], [0.5, 0.5]]
    """
    return torch.where(demonstrations(mask, teacher_forced)[:, None], weight * mask, advantage)
