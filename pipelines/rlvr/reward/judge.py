"""A language model grades completions, or ticks off a rubric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from pipelines.base.errors import RecipeError
from pipelines.contract import template as templates
from pipelines.contract.catalogue import method
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.judges import asker, questions
from pipelines.judges.endpoint import Reply
from pipelines.rlvr.common.judged import Judged
from pipelines.rlvr.scoring import verify

FIELD = "rlvr.reward"


@method(
    paper="2306.05685",
    title="Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena",
    checked="closed form (how answers are read and weighed; a judge's own quality is measured with `whetstone judge`)",
)
class judge(Judged):
    """A language model's score of a completion, from 0 to 1: `model` behind an OpenAI-compatible endpoint, or the one at `path`.

    `path` is a stage of this recipe that makes a model, or a transformers model by its path (with a slash); it runs in the stage's own
    process, frozen. `url`, `api_key_env`, `concurrency`, `timeout_s` and `cache` are an endpoint's. `form: grade` asks for a whole number
    from `low` to `high`; `reference: true` shows the judge the record's gold answer; `template`, with `{answer}`, is the whole prompt for a
    judge that was trained on another wording (its reply still ends in `Grade: N`, and protection from prompt injection by an answer is then
    up to the template). `form: rubric` asks a yes/no question for each criterion of the record's `info.rubric`, or else of `criteria`; the
    reward is the weighted share that is met, or all or nothing. With `together` it is one question about all criteria, which a judge
    that was trained on verdicts per criterion answers (RIFL, 2511.10507); `template` has `{answer}` and `{criteria}` then. `fixed_criteria`
    puts RIFL's two, each with the weight 1, beside those of every rubric, against reward hacking: the answer does not praise itself, and
    it is not cut off. A reply that cannot be parsed, or a question that failed after all
    attempts, leaves the row unscored; a step in which no question was answered ends the run. Replies are cached on disk by content. The
    judge reads the text after the reasoning, between marks that the completion cannot know, and is instructed that it is data. `correct`
    remains the verdict of the record's verifier. Components: `unread` questions, `tokens` paid and `seconds` waited for per row.
    """

    label = "judge"
    language_models: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(
        self,
        *,
        form: Literal["grade", "rubric"] = "grade",
        instruction: asker.Instruction = "",
        template: Annotated[str | None, Field(max_length=8000)] = None,
        reference: bool = False,
        low: Annotated[int, Field(ge=-1000, le=1000)] = 1,
        high: Annotated[int, Field(ge=-1000, le=1000)] = 10,
        criteria: list[str | dict[str, Any]] | None = None,
        all_or_nothing: bool = False,
        together: bool = False,
        fixed_criteria: bool = False,
        **judge: Any,
    ) -> None:
        questions.check_range(low, high, FIELD)
        if form == "grade" and (criteria or all_or_nothing or together or fixed_criteria):
            raise RecipeError(
                f"{FIELD}.form", "criteria, all_or_nothing, together and fixed_criteria belong to form: rubric."
            )
        if template is not None and form == "rubric" and not together:
            raise RecipeError(f"{FIELD}.template", "it belongs to form: grade, or to form: rubric with together: true.")
        if fault := templates.problem_with(template, ("answer", "criteria") if together else ("answer",)):
            raise RecipeError(f"{FIELD}.template", fault)
        try:
            self.criteria = questions.plain(criteria or [])
        except ValidationError as error:
            raise RecipeError(f"{FIELD}.criteria", f"{error.errors()[0]['msg']}.") from None
        self.form, self.instruction, self.reference, self.low, self.high = form, instruction, reference, low, high
        self.all_or_nothing, self.together, self.template = all_or_nothing, together, template
        self.fixed = list(questions.FIXED) if fixed_criteria else []
        super().__init__(**judge)

    def connect(self, scorer: Scorer) -> None:
        """Load the model at `path`; no tokenizer is asked for, so that a judge can be measured without a policy."""
        self.asker.connect(scorer)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        asked = [row for row in rows if row.stop != Stop.ERROR]
        rubrics = [self._rubric(row.asked(problems)) for row in asked]
        texts = [
            self._questions(row.asked(problems), row.text, rubric) for row, rubric in zip(asked, rubrics, strict=True)
        ]
        replies = iter(self.asker.ask([question for group in texts for question in group]))
        for row, rubric, group in zip(asked, rubrics, texts, strict=True):
            own = [next(replies) for _ in group]
            row.score, unread = self._value(own, rubric)
            row.components = row.components | {
                "judge_unread": float(unread),
                "judge_tokens": float(sum(reply.tokens for reply in own)),
                "judge_seconds": sum(reply.seconds for reply in own),
            }

    def _rubric(self, problem: Problem) -> list[questions.Criterion]:
        return questions.rubric_of(problem, self.criteria) + self.fixed if self.form == "rubric" else []

    def _questions(self, problem: Problem, text: str, rubric: list[questions.Criterion]) -> list[list[dict[str, str]]]:
        shown: dict[str, Any] = {"instruction": self.instruction, "reference": self.reference}
        if self.form == "grade":
            return [questions.grade(problem, text, low=self.low, high=self.high, template=self.template, **shown)]
        criteria = [c.criterion for c in rubric]
        if self.together:
            return [questions.rubric(problem, text, criteria, template=self.template, **shown)]
        return [questions.criterion(problem, text, criterion, **shown) for criterion in criteria]

    def _value(self, replies: list[Reply], rubric: list[questions.Criterion]) -> tuple[float | None, int]:
        """(reward or None, how many answers could not be read)."""
        if self.form == "grade":
            value = questions.read_grade(replies[0].text, self.low, self.high)
            return value, int(value is None)
        if self.together:
            told = questions.read_verdicts(replies[0].text, len(rubric))
            return (None, 1) if told is None else (self._weighted(rubric, told), 0)
        verdicts = [questions.read_verdict(reply.text) for reply in replies]
        known = [verdict for verdict in verdicts if verdict is not None]
        if len(known) < len(verdicts):
            return None, len(verdicts) - len(known)
        return self._weighted(rubric, known), 0

    def _weighted(self, rubric: list[questions.Criterion], verdicts: list[bool]) -> float:
        return questions.weighted(rubric, verdicts, all_or_nothing=self.all_or_nothing)
