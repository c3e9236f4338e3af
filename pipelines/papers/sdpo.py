"""Reinforcement Learning via Self-Distillation (SDPO), and Self-Distillation Enables Continual Learning (SDFT).

arXiv 2601.20802, 2601.19897. Presets: sdpo, sdft. Parts: self_teacher, self_teacher_top (providers).

The policy is its own teacher once its prompt says how the problem is solved: by a correct answer of the same group, by the record's
solution, or by what an environment says of the answer itself. Its tokens are then distilled into the policy that is not told
(`distillation`, `generalised_jsd`).
"""

from __future__ import annotations

import copy
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import load_function, name_of
from pipelines.contract.catalogue import method
from pipelines.contract.fields import Function, Strict
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import POLICY, REFERENCE, Passage, TokenStatistics
from pipelines.data import chat
from pipelines.data.records import Problem, Role, Stop, Trajectory
from pipelines.engine import distribution
from pipelines.rlvr import function_keywords, scoring
from pipelines.rlvr.common.scored_rows import Row, scored_rows

TEMPLATE = "{prompt}\nCorrect solution:\n\n{solution}\n\nCorrectly solve the original question.\n"
"""Of the last user message, as released."""
FEEDBACK_TEMPLATE = (
    "{prompt}\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback}\n\n"
    "Correctly solve the original question.\n"
)
"""The same where there is feedback and no solution."""
FIELD = "rlvr.providers"


class Telling(Strict):
    """What the teacher is told, and whose weights it has."""

    solution: Literal["group", "record"] = "group"
    """`group`: the first other answer of the problem in the step whose reward is at least `threshold`; `record`: the field `solution` of
    the record's info, or its answer."""
    threshold: float = 1.0
    weights: Literal["policy", "start", "average"] = "policy"
    """`policy`: those at the start of the step; `start`: those that the run started from; `average`: a moving average, which starts there
    and is kept as a copy of what is trained."""
    rate: float = Field(0.05, gt=0, le=1)
    """Of the average: after each step it is (1 - rate) times itself plus rate times the policy."""
    template: str = Field(TEMPLATE, max_length=10_000)
    """Of the last user message, with {prompt} and {solution} in it."""
    feedback: Function | None = None
    """What the environment says of an answer: a function with the arguments of a reward function (`prompts`, `completions`, `answer`,
    `info`, ...) that returns a text or None for each row. It is told where there is no solution, as in the released default."""
    feedback_template: str = Field(FEEDBACK_TEMPLATE, max_length=10_000)
    """Of the last user message, with {prompt} and {feedback} in it."""


class Told(Provider):
    """A provider that scores a row's completion after a prompt with a solution; its settings are `Telling` and its own."""

    reads_network = True
    shared_settings = Telling
    reads = ("raw_reward",)

    def __init__(self, **telling: Any) -> None:
        self.telling = Telling(**telling)
        for template, told in (("template", "{solution}"), ("feedback_template", "{feedback}")):
            if missing := [name for name in ("{prompt}", told) if name not in getattr(self.telling, template)]:
                raise RecipeError(FIELD, f"{template} has no {' and no '.join(missing)}", "Put it in.")
        self.model = REFERENCE if self.telling.weights == "start" else POLICY
        self.asks_policy = self.model == POLICY
        self.feedback = load_function(self.telling.feedback, f"{FIELD}.feedback") if self.telling.feedback else None

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer, the problems and the policy's sampling settings; an average starts from the policy."""
        self.shares: dict[str, float] = {}
        self.scorer, self.problems, self.policy = context.scorer, context.problems, context.policy
        self.timeout_s = context.rlvr.reward_timeout_s
        self.average: Any = None
        self.followed: int | None = None
        if self.telling.weights == "average":
            model = context.policy.model
            frozen = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
            self.average = copy.deepcopy(model, frozen).requires_grad_(False)
            self.averaged = [name for name, weight in model.named_parameters() if weight.requires_grad]
            of_policy: Any = context.scorer
            self.weights_now = of_policy.weights
            self.scorer = of_average = copy.copy(of_policy)
            of_average.weights = lambda: self.average

    def scored(
        self, tokens: Tensor, columns: dict[str, Any], asked: TokenStatistics, *, untold: bool
    ) -> list[tuple[Row, Tensor]]:
        """Statistics of the completion of each row that is told a solution, and with `untold` of the others after their own prompts."""
        self._follow(columns["step"])
        rows = scored_rows(tokens, columns)
        prompts = self._prompts(rows, columns)
        plain = [Passage(row.tokens[: row.first], row.tokens[row.first :]) for row in rows]
        told = {n: Passage(prompt, plain[n].text) for n, prompt in prompts.items()}
        statistics = dict(zip(told, self.scorer.statistics(list(told.values()), asked, model=self.model), strict=True))
        statistics = {n: values for n, values in statistics.items() if not values.isnan().any()}
        self.shares = {
            "told": len(statistics) / max(1, len(rows)),
            "too_long": (len(told) - len(statistics)) / max(1, len(rows)),
        }
        if untold:
            others = [n for n in range(len(rows)) if n not in statistics]
            of_plain = self.scorer.statistics([plain[n] for n in others], asked, model=self.model)
            statistics |= dict(zip(others, of_plain, strict=True))
        return [(rows[n], statistics[n]) for n in sorted(statistics)]

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Shares of the step's rows: those that were told something, and those whose prompt got too long for the model with it."""
        return {f"self_teacher/{name}": share for name, share in self.shares.items()}

    def _follow(self, step: int) -> None:
        """Move the average by the policy of the steps before, once a step; here, because here every process has all of its weights."""
        if self.average is None or step == self.followed:
            return
        self.followed = step
        average, now = dict(self.average.named_parameters()), dict(self.weights_now().named_parameters())
        with torch.no_grad():
            for name in self.averaged:
                average[name].lerp_(now[name].to(average[name]), self.telling.rate)

    def state_dict(self) -> dict[str, Any]:
        """The average, which has not followed the step's own updates yet."""
        if self.average is None:
            return {}
        average = dict(self.average.named_parameters())
        return {name: average[name] for name in self.averaged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        average = dict(self.average.named_parameters()) if state else {}
        self.followed = None
        with torch.no_grad():
            for name, weight in state.items():
                average[name].copy_(weight)

    def _prompts(self, rows: list[Row], columns: dict[str, Any]) -> dict[int, list[int]]:
        """Place in `rows` of each that there is something to tell, and token ids of its prompt with that."""
        tokenizer = self.scorer.tokenizer()
        solutions = self._solutions(rows, columns)
        untold = [place for place in range(len(rows)) if place not in solutions]
        feedback = dict(zip(untold, self._feedback([rows[place] for place in untold]), strict=True))
        messages: dict[int, list[Any]] = {}
        for place, row in enumerate(rows):
            if place in solutions:
                messages[place] = self._messages(row, self.telling.template, "{solution}", solutions[place])
            elif feedback[place]:
                messages[place] = self._messages(row, self.telling.feedback_template, "{feedback}", feedback[place])
        rendered = chat.render_prompts(tokenizer, list(messages.values())) if messages else []
        return dict(zip(messages, rendered, strict=True))

    def _solutions(self, rows: list[Row], columns: dict[str, Any]) -> dict[int, str]:
        """Place in `rows` → the solution that it is told."""
        good: dict[int, list[Row]] = {}
        for row in rows:
            if float(columns["raw_reward"][row.index]) >= self.telling.threshold:
                good.setdefault(int(columns["group"][row.index]), []).append(row)
        solutions: dict[int, str] = {}
        for place, row in enumerate(rows):
            if self.telling.solution == "record":
                problem = self.problems[row.problem]
                solutions[place] = str(problem.info.get("solution") or problem.answer)
            else:
                others = [other for other in good.get(int(columns["group"][row.index]), []) if other is not row]
                solutions[place] = self._text(others[0]) if others else ""
        return {place: solution for place, solution in solutions.items() if solution}

    def _feedback(self, rows: list[Row]) -> list[str]:
        """What the environment says of each answer; empty where it says nothing.

        Raises:
            RecipeError: the function raises, hangs, or returns something else than a text or None for each row.
        """
        if self.feedback is None or not rows:
            return [""] * len(rows)
        reference = str(self.telling.feedback)
        trajectories = [self._trajectory(row, self.problems[row.problem]) for row in rows]
        by_uid = {problem.uid: problem for row in rows for problem in [self.problems[row.problem]]}
        name = name_of(reference)
        try:
            called_with = function_keywords.keywords(name, self.feedback, trajectories, by_uid)
            texts = scoring.call(name, self.feedback, called_with, len(rows), self.timeout_s)
        except RecipeError as error:
            raise error.moved("rlvr.reward_functions", f"{FIELD}.feedback") from None
        if not isinstance(texts, list | tuple) or len(texts) != len(rows):
            raise RecipeError(
                f"{FIELD}.feedback",
                f"{reference} returned no list of {len(rows)} texts",
                "Return a text or None for each completion.",
            )
        if wrong_type := next((text for text in texts if text is not None and not isinstance(text, str)), None):
            raise RecipeError(
                f"{FIELD}.feedback",
                f"{reference} returned {wrong_type!r:.60}",
                "Return a text or None for each completion.",
            )
        return [(text or "").strip() for text in texts]

    def _trajectory(self, row: Row, problem: Problem) -> Trajectory:
        count = len(row.tokens)
        return Trajectory(
            uid=problem.uid, group=0, tokens=row.tokens, logp_old=[0.0] * count, max_tokens=count, stop=Stop.END, version=0,
            role=[int(Role.PROMPT)] * row.first + [int(Role.POLICY)] * (count - row.first), text=self._text(row),
        )  # fmt: skip

    def _text(self, row: Row) -> str:
        return chat.completion_text(self.scorer.tokenizer(), row.tokens[row.first :])

    def _messages(self, row: Row, template: str, field: str, told: str) -> list[Any]:
        *before, last = self.problems[row.problem].prompt
        text = template.replace("{prompt}", str(last["content"])).replace(field, told)
        return [*before, last | {"content": text}]


@method(
    paper="2601.20802",
    title="Reinforcement Learning via Self-Distillation (SDPO): the policy's own log-probabilities, told a solution",
    checked="closed form",
    makes=("logp_teacher",),
)
class self_teacher(Told):
    """`logp_teacher`: log-probability of each token under the policy, told a solution or, where there is none, an environment's feedback.

    In a row with nothing to tell it is that of the sampler, and distillation of such a row is 0. The released form is `weights: average`
    with `feedback`; a verifier that says no more than 0 or 1 leaves the solutions of the group.
    """

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`logp_teacher` [B, T]."""
        sampling = self.policy.sampling
        asked = TokenStatistics(1, lambda logits, ids, _: distribution.log_prob(logits, ids, sampling)[:, None])
        values = columns["logp_old"].clone()
        for row, logp in self.scored(tokens, columns, asked, untold=False):
            values[row.index, row.first : len(row.tokens)] = logp[:, 0]
        columns["logp_teacher"] = torch.where(columns["mask"], values, columns["logp_old"])


@method(
    paper="2601.20802",
    title="Reinforcement Learning via Self-Distillation (SDPO): what the policy finds most probable, told a solution",
    checked="closed form",
    makes=("teacher_top_id", "logp_teacher_top"),
)
class self_teacher_top(Told):
    """`teacher_top_id` and `logp_teacher_top` of the policy, told a solution: its `top` most probable tokens in the place of each.

    A row with none to tell, or whose prompt gets too long with it, has those of the policy as it is: no divergence at first. The released
    code takes the most probable tokens of the policy that is not told, and leaves such rows out.
    """

    def __init__(self, *, top: Annotated[int, Field(ge=1, le=1 << 20)] = 100, **telling: Any) -> None:
        super().__init__(**telling)
        self.top = top

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`teacher_top_id` and `logp_teacher_top` [B, T, V]."""
        top = min(self.top, self.policy.config.vocab_size)
        heat = self.policy.sampling.temperature
        asked = TokenStatistics(2 * top, lambda logits, ids, _: distribution.most_probable(logits, heat, top))
        both = torch.zeros(*tokens.shape, 2 * top)
        for row, values in self.scored(tokens, columns, asked, untold=True):
            both[row.index, row.first : len(row.tokens)] = values
        columns["teacher_top_id"], columns["logp_teacher_top"] = both[..., :top].long(), both[..., top:].contiguous()
