"""The policy writes variants of half-solved problems from its correct answers, and solves them.

Presets: svs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data import chat
from pipelines.data.records import Stop, Trajectory, by_group
from pipelines.papers.common.groups import Groups
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.scoring import verify

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Message

    Asked = tuple[RolloutRequest, list[Message]]
    """A request, and its prompt as messages."""

TEMPLATE = (
    "Below is a correct answer to a problem that is not shown. Work out what the answer is about, how it reasons and what it concludes; "
    "then write one problem of your own whose answer is the same. It must be complete, unambiguous and as hard as the answer shows.\n\n"
    "[Answer]\n{answer}\n\nEnd with the problem alone, between ```text and ```."
)
SLACK = 1e-9
"""Of the bounds on pass rates, for rounding."""

Share = Annotated[float, Field(ge=0, le=1)]
Rows = Annotated[int, Field(ge=1, le=1000)]


@method(
    paper="2508.14029",
    title="Beyond Pass@1: Self-Play with Variational Problem Synthesis Sustains RLVR (SvS)",
    checked="official code (read; the prompt's wording is ours, variants are drawn with the step's own sampling settings)",
    requires=(("prompting", "plain"), ("reward", "verifier")),
    reduces_to="half_solved [0, 0] is single_turn: nothing was solved that could be rewritten",
    scores_rows=True,
)
class svs(Rollout):
    """Three groups of rows: answers to problems, problems written from correct answers, and answers to those.

    Of a problem whose share of correct answers lies in `half_solved`, each correct answer (the first `rewritten` of them) is put into
    `template` in place of {answer}; the policy sees the answer and not the problem, and writes `variants` texts. The text between the marks
    `opening` and `closing`, after any reasoning, is a new problem with the old one's answer: put into `question` in place of {problem}, it
    replaces the old one in the prompt and gets `solutions` answers, which the old problem's verifier scores. The reward of a text is

        1 if the share of its correct answers lies in `useful`, else 0

    so a variant that is too easy, that has another answer, or that the policy never solves earns nothing; nor does a text without a
    problem. A text whose answers are all unscored is unscored. The texts of one answer are a group, the answers to one variant another, and
    all of them train; with `filter: mixed` groups of equal correctness do not, as in the released code. Defaults are those of its scripts:
    shares of eight, and as many variants and solutions as `group_size`, which is many: a half-solved problem with eight rollouts has up to
    four answers with eight variants each and eight answers to each of these. Lower the three where that is too much.

    The verifier must compare with the gold answer alone: one that checks an answer against the question (an environment's, some of
    reasoning-gym's) does not see the variant. Components: `variant` (the reward of a text), `variant_answer` (the score of an answer to
    one); `verifier` remains that of the problems themselves, while `reward/mean` and `reward/correct` are over all rows.
    """

    def __init__(
        self,
        *,
        half_solved: Annotated[list[Share], Field(min_length=2, max_length=2)] = [0.125, 0.5],  # noqa: B006
        useful: Annotated[list[Share], Field(min_length=2, max_length=2)] = [0.125, 0.625],  # noqa: B006
        rewritten: Rows | None = None,
        variants: Rows | None = None,
        solutions: Rows | None = None,
        template: Annotated[str, Field(min_length=1, max_length=8000)] = TEMPLATE,
        question: Annotated[str, Field(min_length=1, max_length=8000)] = "{problem}",
        opening: Annotated[str, Field(min_length=1, max_length=100)] = "```text",
        closing: Annotated[str, Field(min_length=1, max_length=100)] = "```",
    ) -> None:
        for name, place, text in (("template", "{answer}", template), ("question", "{problem}", question)):
            if place not in text:
                raise RecipeError(
                    f"rlvr.rollout.{name}", f"it has no {place}, so nothing would be put into it", f"Add {place}."
                )
        for name, bounds in (("half_solved", half_solved), ("useful", useful)):
            if bounds[0] > bounds[1]:
                raise RecipeError(
                    f"rlvr.rollout.{name}", f"the smaller share comes first (got {bounds[0]:g}, {bounds[1]:g})."
                )
        self.half_solved, self.useful = half_solved, useful
        self.rewritten, self.variants, self.solutions = rewritten, variants, solutions
        self.template, self.question, self.opening, self.closing = template, question, opening, closing

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """Answers to the problems, then the texts, then the answers to what they ask; all scored."""
        problems = {request.problem.uid: request.problem for request in requests}
        rows = answers(requests, context)
        verify(rows, problems, on_timeout=context.on_timeout)
        groups = Groups(requests, context)
        writing = self._writing(requests, by_group(rows), groups, context)
        texts = _answers(writing, context)
        solving = self._solving(texts, groups, context)
        solutions = _answers([asked for _, asked in solving], context)
        verify(solutions, problems, on_timeout=context.on_timeout)
        of_group = by_group(solutions)
        solved = {id(text): of_group.get(request.group, []) for text, (request, _) in solving}
        for text in texts:
            self._pay(text, solved.get(id(text)))
        for row in solutions:
            if row.score is not None:
                row.components = {"variant_answer": row.score}
        return rows + texts + solutions

    def _writing(
        self,
        requests: Sequence[RolloutRequest],
        rows: Mapping[int, list[Trajectory]],
        groups: Groups,
        context: RolloutContext,
    ) -> list[Asked]:
        """What asks for the texts of each correct answer to a half-solved problem."""
        chosen = []
        for request in requests:
            own = rows.get(request.group, [])
            if _inside(own, self.half_solved):
                chosen += [(request, row) for row in [row for row in own if row.correct][: self.rewritten]]
        if not chosen:
            return []
        contents = [self.template.replace("{answer}", row.text) for _, row in chosen]
        conversations: list[list[Message]] = [[{"role": "user", "content": content}] for content in contents]
        writing = [
            replace(request, prompt=prompt, group=groups.next(request), rollouts=self.variants or request.rollouts)
            for (request, _), prompt in zip(chosen, context.render(conversations), strict=True)
        ]
        return list(zip(writing, conversations, strict=True))

    def _solving(
        self, texts: Sequence[Trajectory], groups: Groups, context: RolloutContext
    ) -> list[tuple[Trajectory, Asked]]:
        """The texts that hold a problem, each with what asks for its answers."""
        held = [
            (text, groups.origin(text), variant)
            for text in texts
            if (variant := chat.between(text.text, self.opening, self.closing))
        ]
        if not held:
            return []
        conversations = []
        for _, origin, variant in held:
            *before, last = origin.problem.prompt
            conversations.append([*before, {**last, "content": self.question.replace("{problem}", variant)}])
        prompts = context.render(conversations, [origin.problem.tools for _, origin, _ in held])
        solving = []
        for (text, origin, variant), prompt, messages in zip(held, prompts, conversations, strict=True):
            text.logged = {**text.logged, "variant": variant}
            rollouts = self.solutions or origin.rollouts
            request = replace(origin, prompt=prompt, group=groups.next(text), rollouts=rollouts)
            solving.append((text, (request, messages)))
        return solving

    def _pay(self, text: Trajectory, solutions: list[Trajectory] | None) -> None:
        """Score a text by the answers to its problem; None: it holds none."""
        if text.stop == Stop.ERROR:
            return
        if solutions is not None and all(row.score is None for row in solutions):
            text.status = "verifier_failed"
            return
        useful = solutions is not None and _inside(solutions, self.useful)
        text.score, text.correct = float(useful), useful
        text.status = "unparsable" if solutions is None else "correct" if useful else "incorrect"
        text.components = {"variant": text.score}


def _answers(asked: Sequence[Asked], context: RolloutContext) -> list[Trajectory]:
    """Answers to prompts that are no problem's own, each with its prompt for logs."""
    rows = answers([request for request, _ in asked], context) if asked else []
    conversations = {request.group: messages for request, messages in asked}
    for row in rows:
        row.prompt = conversations[row.group]
    return rows


def _inside(rows: Sequence[Trajectory], bounds: Sequence[float]) -> bool:
    """Whether the share of correct rows among the scored ones lies in the bounds, both included; not without scored rows.

    >>> _inside([], [0, 1])
    False
    """
    scored = [row for row in rows if row.score is not None]
    share = sum(bool(row.correct) for row in scored) / max(1, len(scored))
    return bool(scored) and bounds[0] - SLACK <= share <= bounds[1] + SLACK
