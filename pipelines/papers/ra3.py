"""A latent thought is worth how likely it makes the expert's next action, less what it costs to switch.

Presets: ra3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import POLICY, Passage, Scorer
from pipelines.data import chat, control
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr.scoring import verify


@method(
    paper="2509.25810",
    title="Learning to Reason as Action Abstractions with Scalable Mid-Training RL (RA3), the reward of its E-step",
    checked="reconstructed (no code; the M-step is an SFT stage on the record's actions after sampled thoughts)",
    provenance=("demonstrations", "model"),
)
class ra3(Reward):
    """sum over tokens of log pi(expert's action | prompt, thought) - switch_cost where the thought is not `stay`.

    The policy writes the thought; the expert's action is the record's `info.solution`, else its answer, after the text `between`. A thought
    that equals `stay` continues the one before and costs nothing, the sticky prior of the paper. `per_token` divides by the action's
    length, so that long actions do not outweigh short ones. The sampling policy computes these log-probabilities, or, with `model`, a stage
    of the recipe or another model by its path (with a slash). Rows are graded against their group alone; `correct` stays the verifier's
    verdict.
    """

    label = "action_likelihood"
    model_paths: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)] = POLICY,
        stay: Annotated[str, Field(max_length=200)] = "<continue>",
        switch_cost: Annotated[float, Field(ge=0)] = 0.1,
        between: Annotated[str, Field(max_length=200)] = "\n",
        per_token: bool = True,
    ) -> None:
        self.model, self.stay, self.switch_cost, self.between, self.per_token = (
            model, stay, switch_cost, between, per_token,
        )  # fmt: skip

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer, and load the model."""
        self.scorer = scorer
        scorer.load(self.model)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        thoughts = [row for row in rows if row.stop != Stop.ERROR]
        tokenizer = self.scorer.tokenizer(self.model)
        prompts = chat.render_prompts(tokenizer, [row.asked(problems).prompt for row in thoughts]) if thoughts else []
        passages = []
        for row, prompt in zip(thoughts, prompts, strict=True):
            problem = row.asked(problems)
            thought = control.encode_text(tokenizer, row.text + self.between)
            action = str(problem.info.get("solution") or problem.answer)
            passages.append(Passage([*prompt, *thought], control.encode_text(tokenizer, action)))
        for row, logp in zip(thoughts, self.scorer.log_probs(passages, model=self.model), strict=True):
            known = len(logp) > 0 and bool(logp.isfinite().all())
            likelihood = float(logp.mean() if self.per_token else logp.sum()) if known else 0.0
            cost = 0.0 if row.text.strip() == self.stay else self.switch_cost
            row.score = likelihood - cost if known else None
