"""What rewards share that ask a language model about the policy's own tokens."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.judges.asker import Asker


class Judged(Reward):
    """A reward with an `asker`, and the policy's tokenizer once it is connected.

    `language_models` stands in each reward's own class: recipes read it from the file, without importing it.
    """

    asker: Asker

    def connect(self, scorer: Scorer) -> None:
        """Keep the policy's tokenizer, and load the model at `path`."""
        self.tokenizer = scorer.tokenizer()
        self.asker.connect(scorer)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
