"""Reinforcement Learning via Self-Distillation (SDPO), and Self-Distillation Enables Continual Learning (SDFT).

arXiv 2601.20802, 2601.19897. Presets: sdpo, sdft. Parts: self_teacher, self_teacher_top (providers).

The policy is its own teacher once its prompt says how the problem is solved: by a correct answer of the same group, or by the record's
solution. Its tokens are then distilled into the policy that is not told (`distillation`, `generalised_jsd`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.fields import Strict
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.contract.scorer import POLICY, REFERENCE, Passage, TokenStatistics
from pipelines.data import chat
from pipelines.engine import distribution
from pipelines.rlvr.common.scored_rows import Row, scored_rows

TEMPLATE = "{prompt}\nCorrect solution:\n\n{solution}\n\nCorrectly solve the original question.\n"
"""Of the last user message, as released."""


class Telling(Strict):
    """What the teacher is told, and whose weights it has."""

    solution: Literal["group", "record"] = "group"
    """`group`: the first other answer of the problem in the step whose reward is at least `threshold`; `record`: the field `solution` of
    the record's info, or its answer."""
    threshold: float = 1.0
    weights: Literal["policy", "start"] = "policy"
    """`policy`: those at the start of the step; `start`: those that the run started from."""
    template: str = Field(TEMPLATE, max_length=10_000)
    """Of the last user message, with {prompt} and {solution} in it."""


class Told(Provider):
    """A provider that scores a row's completion after a prompt with a solution; its settings are `Telling` and its own."""

    reads_network = True
    shared_settings = Telling
    reads = ("raw_reward",)

    def __init__(self, **telling: Any) -> None:
        self.telling = Telling(**telling)
        if missing := [name for name in ("{prompt}", "{solution}") if name not in self.telling.template]:
            raise RecipeError("rlvr.providers", f"template has no {' and no '.join(missing)}", "Put it in.")
        self.model = POLICY if self.telling.weights == "policy" else REFERENCE
        self.asks_policy = self.model == POLICY

    def setup(self, context: ProviderContext) -> None:
        """Keep the scorer, the problems and the policy's sampling settings."""
        self.shares: dict[str, float] = {}
        self.scorer, self.problems, self.policy = context.scorer, context.problems, context.policy

    def scored(
        self, tokens: Tensor, columns: dict[str, Any], asked: TokenStatistics, *, untold: bool
    ) -> list[tuple[Row, Tensor]]:
        """Statistics of the completion of each row that is told a solution, and with `untold` of the others after their own prompts."""
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
        """Shares of the step's rows: those that were told a solution, and those whose prompt got too long for the model with it."""
        return {f"self_teacher/{name}": share for name, share in self.shares.items()}

    def _prompts(self, rows: list[Row], columns: dict[str, Any]) -> dict[int, list[int]]:
        """Place in `rows` of each that there is a solution for, and token ids of its prompt with that."""
        tokenizer = self.scorer.tokenizer()
        good: dict[int, list[Row]] = {}
        for row in rows:
            if float(columns["raw_reward"][row.index]) >= self.telling.threshold:
                good.setdefault(int(columns["group"][row.index]), []).append(row)
        messages: dict[int, list[Any]] = {}
        for place, row in enumerate(rows):
            if self.telling.solution == "record":
                problem = self.problems[row.problem]
                solution = str(problem.info.get("solution") or problem.answer)
            else:
                others = [other for other in good.get(int(columns["group"][row.index]), []) if other is not row]
                solution = chat.completion_text(tokenizer, others[0].tokens[others[0].first :]) if others else ""
            if solution:
                messages[place] = self._messages(row, solution)
        rendered = chat.render_prompts(tokenizer, list(messages.values())) if messages else []
        return dict(zip(messages, rendered, strict=True))

    def _messages(self, row: Row, solution: str) -> list[Any]:
        *before, last = self.problems[row.problem].prompt
        text = self.telling.template.replace("{prompt}", str(last["content"])).replace("{solution}", solution)
        return [*before, last | {"content": text}]


@method(
    paper="2601.20802",
    title="Reinforcement Learning via Self-Distillation (SDPO): the policy's own log-probabilities, told a solution",
    checked="closed form",
    makes=("logp_teacher",),
)
class self_teacher(Told):
    """`logp_teacher`: log-probability of each token under the policy, told a solution; that of the sampler in a row with none to tell.

    Distillation of such a row is 0. The released code also has a moving average of the weights as teacher.
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
