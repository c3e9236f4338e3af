"""Co-Reward: Self-supervised Reinforcement Learning via Contrastive Agreement.

arXiv 2508.00410. Presets: co_reward. Parts: paraphrase (prompting), co_reward (reward).

Every problem in two wordings.

Two wordings of a problem vote on each other's answers: no gold answer needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines import verifiers
from pipelines.base.errors import RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import method
from pipelines.contract.method import Prompting, Reward
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.common.views import paraphrased
from pipelines.papers.common.votes import vote
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def _no_window(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """The rows of a problem's two wordings end in the same step."""
    window = node.settings.window
    if window is not None:
        raise RecipeError(
            "rlvr.window",
            f"{window:g}: prompting: {part.name} compares rows of several prompts of a problem, which end in different steps",
            "Leave one of the two out.",
        )


@method(
    paper="2508.00410",
    title="Co-Reward: Self-supervised Reinforcement Learning via Contrastive Agreement (its two views)",
    checked="official code",
    check=_no_window,
)
class paraphrase(Prompting):
    """Each problem is asked a second time in the wording of its record's `info.paraphrase`; each wording is its own group.

    `template`, a text with {prompt}, rewords records that have no paraphrase.
    """

    def __init__(self, *, template: str | None = None) -> None:
        self.template = template

    def build_requests(self, requests: list[RolloutRequest], context: RolloutContext) -> list[RolloutRequest]:
        """What the rollout gets: the originals, then the other wordings."""
        paraphrases = []
        for request in requests:
            text = request.problem.info.get("paraphrase")
            if not text and self.template:
                text = self.template.replace("{prompt}", request.problem.prompt[-1]["content"])
            if not text:
                raise RecipeError(
                    "rlvr.prompting",
                    f"problem {request.problem.uid} has no info.paraphrase",
                    "Add the column to the source, or set prompting.template to a text with {prompt}.",
                )
            paraphrases.append(paraphrased(request, str(text), context))
        return [*requests, *paraphrases]


@method(
    paper="2508.00410",
    title="Co-Reward: Self-supervised Reinforcement Learning for LLM Reasoning via Contrastive Agreement",
    checked="official code, 4 cases (a tied vote leaves the other wording unscored instead of taking the first)",
    requires=(("prompting", "paraphrase"),),
    provenance=("policy",),
)
class co_reward(Reward):
    """1 for the answer that most rollouts of the problem's other wording gave, else 0. Needs `prompting: paraphrase`.

    Empty answers do not vote and get 0; where one wording has no answer at all, the other wording's rows get 0 too. In a tied vote the
    official code takes the answer that came first; ours leaves the rows of the other wording unscored: the order of samples carries no
    information. `correct` stays the verifier's verdict where there is a gold answer, for the metrics alone. The share of problems whose two
    votes agree is in `components`.
    """

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        groups: dict[str, dict[int, list[Trajectory]]] = {}
        for row in rows:
            groups.setdefault(row.uid, {}).setdefault(row.group, []).append(row)
        for uid, by_group in groups.items():
            views = [by_group[g] for g in sorted(by_group)]
            half = len(views) // 2
            if len(views) % 2:
                raise RecipeError(
                    "rlvr.reward", f"co_reward got one wording of problem {uid}; add prompting: paraphrase."
                )
            for view, paired_view in zip(views[:half], views[half:], strict=True):
                _judge(view, paired_view, problems[uid])


def _judge(first: list[Trajectory], second: list[Trajectory], problem: Problem) -> None:
    extracted = [verifiers.extract_answers([(problem.verifier, row.text) for row in view]) for view in (first, second)]
    votes = [vote(answers) for answers in extracted]
    for view, answers, pseudo_label in ((first, extracted[0], votes[1]), (second, extracted[1], votes[0])):
        for row, answer in zip(view, answers, strict=True):
            if row.stop == Stop.ERROR:
                continue
            row.score = None if pseudo_label is None else float(bool(answer) and answer == pseudo_label)
            row.components = {"verifier": float(bool(row.correct)), "views_agree": float(votes[0] == votes[1])}
