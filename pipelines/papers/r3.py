"""R^3: Replay, Reflection, and Ranking Rewards.

arXiv 2601.19620. Presets: r3. Parts: reflection (prompting), serr (shaping), r3 (replay).

Problems that keep failing are asked once more, with a failed answer to reflect on.

In groups without a correct answer, rows with high peak and low mean entropy are ranked first.

Groups without any difference get stored answers that differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import PolicyUpdate, Prompting, Replay
from pipelines.data.records import Trajectory, by_group
from pipelines.papers.common.views import paraphrased
from pipelines.rlvr.ops import group_size, row_mean

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (in-context self-reflection)",
    checked="paper (threshold and wording are ours)",
    reduces_to="below 0 is plain",
)
class reflection(Prompting):
    """A problem that was sampled before and has a mean score under `below` so far gets a second group: its question, a stored incorrect
    answer, and the instruction to reflect.
    """

    def __init__(
        self,
        *,
        below: Annotated[float, Field(ge=0, le=1)] = 0.25,
        instruction: str = "An earlier answer to this was wrong:\n{answer}\nFind the mistake, then answer correctly.",
    ) -> None:
        self.below, self.instruction = below, instruction
        self.past: dict[str, list[Any]] = {}

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Note scores, and the last incorrect answer of each problem."""
        for row in rows:
            if row.score is None:
                continue
            total, count, incorrect_answer = self.past.get(row.uid, [0.0, 0, ""])
            incorrect_answer = incorrect_answer if row.correct else row.text
            self.past[row.uid] = [total + row.score, count + 1, incorrect_answer]
        return rows

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the problems, then the reflections."""
        reflections = []
        for request in requests:
            total, count, incorrect_answer = self.past.get(request.problem.uid, [0.0, 0, ""])
            if not incorrect_answer or total / count >= self.below:
                continue
            text = f"{request.problem.prompt[-1]['content']}\n{self.instruction.replace('{answer}', incorrect_answer)}"
            reflections.append(paraphrased(request, text, context))
        return [*requests, *reflections]

    def state_dict(self) -> dict[str, Any]:
        """Sum and count of scores and an incorrect answer, by problem."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = {k: list(v) for k, v in state["past"].items()}


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (structural entropy ranking)",
    checked="paper (ties share their ranks' mean, a group of one gets half; the defaults are ours)",
    couples="group",
)
def serr(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    correct: PerRow,
    replayed: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    *,
    most: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    share: Annotated[float, Field(gt=0, le=1)] = 0.2,
) -> PerRow:
    """reward + most (1 - rank / (N - 1)) in groups without a correct answer, replayed ones apart; other rewards stay.

    i beats j where its peak entropy is higher and its mean entropy lower; the rank is by the number of rows that a row beats. The peak is
    the mean over the `share` of its tokens with the highest entropy.

    >>> import torch
    >>> beats(torch.tensor([2.0, 1.5, 1.8, 1.0]), torch.tensor([0.3, 0.4, 0.2, 0.5]), torch.ones(4, 4).bool()).tolist()
    [2, 1, 2, 0]
    >>> H, yes = torch.tensor([[0.0, 1.0], [0.5, 0.6], [0.0, 0.8], [0.9, 0.9]]), torch.ones(4).bool()
    >>> r, m = torch.zeros(4), torch.ones(4, 2).bool()
    >>> [round(v, 3) for v in serr(r, r.long(), yes, r, ~yes, m, H).tolist()]
    [0.5, 0.083, 0.333, 0.083]
    """
    eligible = scored & ~replayed
    no_correct = eligible & (group_size(group, eligible & (correct > 0)) == 0)
    used = mask & scored[:, None]
    mean = row_mean(entropy_old, used)
    count = (share * used.sum(1)).long().clamp(min=1)
    ordered = entropy_old.masked_fill(~used, 0.0).sort(1, descending=True).values
    top = torch.arange(mask.shape[1]) < count[:, None]
    peak = (ordered * top).sum(1) / count
    same_group = (group[:, None] == group[None, :]) & no_correct[:, None] & no_correct[None, :]
    n_beaten = beats(peak, mean, same_group)
    above = (same_group & (n_beaten[None, :] > n_beaten[:, None])).sum(1)
    equal = (same_group & (n_beaten[None, :] == n_beaten[:, None])).sum(1)
    rank = above + (equal - 1).clamp(min=0) / 2
    n = same_group.sum(1)
    rank_reward = torch.where(n > 1, most * (1 - rank / (n - 1).clamp(min=1)), torch.full_like(reward, most / 2))
    return reward + rank_reward * no_correct


def beats(peak: torch.Tensor, mean: torch.Tensor, same_group: torch.Tensor) -> torch.Tensor:
    """How many rows each one beats, int64 [B]; `same_group` is bool [B, B]."""
    wins = (peak[:, None] > peak[None, :]) & (mean[:, None] < mean[None, :]) & same_group
    return wins.sum(1)


@method(
    paper="2601.19620",
    title="R^3: Replay, Reflection, and Ranking Rewards (cross-context replay)",
    checked="paper (k, alpha and the buffer's size are ours)",
    reduces_to="answers 0 is no_replay",
)
class r3(Replay):
    """A group without a correct answer gets its problem's last correct ones, one without an incorrect answer the last incorrect ones.

    They keep the log-probabilities and the prompt they were sampled with, enter the group's advantage like any member, and their own
    advantage is then multiplied by `alpha`. A mixed group gets none. The last `stored` answers of either kind are kept for the `problems`
    seen last; they are part of every commit.
    """

    def __init__(
        self,
        *,
        answers: Annotated[int, Field(ge=0)] = 1,
        alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
        stored: Annotated[int, Field(ge=1)] = 4,
        problems: Annotated[int, Field(ge=1)] = 1024,
    ) -> None:
        self.answers, self.alpha, self.stored, self.problems = answers, alpha, stored, problems
        self.past: dict[str, dict[str, list[dict[str, Any]]]] = {}

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """The sampled rows, with stored ones after their groups; then remember the sampled ones."""
        out: list[Trajectory] = []
        for number, group in by_group(rows).items():
            out += group
            kinds = {bool(row.correct) for row in group if row.score is not None}
            if len(kinds) == 1 and self.answers:
                wanted = "wrong" if kinds == {True} else "right"
                stored = self.past.get(group[0].uid, {}).get(wanted, [])[-self.answers :]
                out += [replace(Trajectory.from_plain(plain_row), group=number, replayed=True) for plain_row in stored]
        self._remember(rows)
        return out

    def _remember(self, rows: list[Trajectory]) -> None:
        for row in rows:
            if row.score is None:
                continue
            kept = self.past.pop(row.uid, {"right": [], "wrong": []})
            kind = "right" if row.correct else "wrong"
            kept[kind] = [*kept[kind], row.to_plain()][-self.stored :]
            self.past[row.uid] = kept  # now the last: the problems seen longest ago are forgotten first
        for uid in list(self.past)[: -self.problems]:
            del self.past[uid]

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, in which stored rows have a smaller advantage."""
        factor = torch.where(columns["replayed"], self.alpha, 1.0)
        return [PolicyUpdate(columns | {"advantage": columns["advantage"] * factor[:, None]})]

    def state_dict(self) -> dict[str, Any]:
        """The last right and wrong answers of each problem."""
        return {"past": self.past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.past = {uid: {k: list(v) for k, v in both.items()} for uid, both in state["past"].items()}
