"""What rewards share that ask a language model about the policy's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, ClassVar

from pipelines.contract.method import Reward
from pipelines.contract.scorer import Scorer
from pipelines.data import control
from pipelines.data.records import Message, Role, Trajectory
from pipelines.judges.asker import Asker, JudgeSettings


class Judged(Reward):
    """A reward with an `asker`, and the policy's tokenizer once it is connected.

    Its settings are `JudgeSettings` and its own; a reward whose default differs names that setting in its signature and hands it on.
    `language_models` stands in each reward's own class: recipes read it from the file, without importing it.
    """

    shared_settings = JudgeSettings
    judge_required: ClassVar[bool] = True

    def __init__(self, **judge: Any) -> None:
        self.asker = Asker(JudgeSettings(**judge), "rlvr.reward", required=self.judge_required)

    def connect(self, scorer: Scorer) -> None:
        """Keep the policy's tokenizer, and load the model at `path`."""
        self.tokenizer = scorer.tokenizer()
        self.asker.connect(scorer)

    def _decode(self, tokens: Sequence[int]) -> str:
        return control.decode_text(self.tokenizer, tokens)

    def _messages(self, row: Trajectory) -> list[Message]:
        """What was said after the prompt: by the policy (assistant), and by the environment (user)."""
        return [{"role": who, "content": self._decode(tokens).strip()} for who, tokens in segments(row)]


def segments(row: Trajectory) -> list[tuple[str, list[int]]]:
    """(role, token ids) of each message after the prompt: the policy's, and what the environment answered."""
    pairs = [
        (role, token) for role, token in zip(row.role, row.tokens, strict=True) if role not in (Role.PROMPT, Role.HINT)
    ]
    return [
        ("user" if environment else "assistant", [token for _, token in part])
        for environment, part in groupby(pairs, key=lambda pair: pair[0] == Role.ENVIRONMENT)
    ]
