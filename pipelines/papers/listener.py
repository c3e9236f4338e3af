"""A frozen second model reads the reasoning and says how likely it makes the gold answer.

Presets: barfi, listener.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.contract.scorer import REFERENCE, Passage, Scorer
from pipelines.data import chat, control
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.rlvr.scoring import verify


@method(
    paper="2506.22832",
    title="Listener-Rewarded Thinking in VLMs for Image Preferences, in text",
    checked="reconstructed (the idea of the abstract; the reward's other terms are those of the composite)",
)
class listener(Reward):
    """exp(mean log-probability of the gold answer's tokens | prompt, the policy's reasoning, `before`) under the listener, from 0 to 1.

    The reasoning is the completion up to its last `until`, or all of it where that does not occur: set `until` to what separates reasoning
    from answer, so that the listener does not read the policy's own answer. The listener is the model that the run started from, a stage of
    the recipe, or any other by its path (with a slash), with its own tokenizer and chat template. Use it beside the verifier: `reward:
    [verifier, {kind: listener, weight: 0.5}]`. A row that does not fit the listener's context is unscored.
    """

    label = "listener"
    model_paths: ClassVar[tuple[str, ...]] = ("model",)

    def __init__(
        self,
        *,
        model: Annotated[str, Field(min_length=1, max_length=4096)] = REFERENCE,
        until: Annotated[str, Field(min_length=1, max_length=200)] = chat.THINK_END,
        before: Annotated[str, Field(max_length=2000)] = "",
    ) -> None:
        self.model, self.until, self.before = model, until, before

    def connect(self, scorer: Scorer) -> None:
        """Keep the scorer, and load the model."""
        self.scorer = scorer
        scorer.load(self.model)

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        heard = [row for row in rows if row.stop != Stop.ERROR]
        tokenizer = self.scorer.tokenizer(self.model)
        prompts = chat.render_prompts(tokenizer, [row.asked(problems).prompt for row in heard]) if heard else []
        passages = []
        for row, prompt in zip(heard, prompts, strict=True):
            reasoning = control.encode_text(tokenizer, self.reasoning(row.text) + self.before)
            gold = control.encode_text(tokenizer, row.asked(problems).answer)
            passages.append(Passage([*prompt, *reasoning], gold))
        for row, logp in zip(heard, self.scorer.log_probs(passages, model=self.model), strict=True):
            known = len(logp) > 0 and bool(logp.isfinite().all())
            row.score = float(logp.mean().exp()) if known else None

    def reasoning(self, text: str) -> str:
        """What the listener reads of a completion.

        >>> listener(until="=").reasoning("2 + 2 = 4"), listener(until="=").reasoning("four")
        ('2 + 2 ', 'four')
        """
        return text.rpartition(self.until)[0] if self.until in text else text
