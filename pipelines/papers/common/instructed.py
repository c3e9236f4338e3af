"""Experts' episodes with an instruction in words, and a small network that reads such words."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pipelines import environments
from pipelines.base.errors import DataError
from pipelines.environments._observed import ALL, MOST_MESSAGES, last_step

BUCKETS = 4096
"""Words are told apart by a hash into so many."""


@dataclass(frozen=True)
class Demonstration:
    """An expert's episode that succeeded."""

    instruction: str
    actions: list[str]
    observations: list[str]
    """After each action; the last one is of the state in which the instruction is carried out."""


def demonstrations(
    name: str, count: int, seed: int, config: dict[str, Any], instruction: str, field: str
) -> list[Demonstration]:
    """Episodes of an environment's expert.

    Args:
        name: of the environment.
        config: its settings.
        instruction: the field of a problem's info that says what is to be done.
        field: the recipe's, for errors.

    Raises:
        DataError: its problems have no such field, or no expert ends their episodes.
    """
    return list(islice(_of_expert(name, seed, config, instruction, field), count))


def _of_expert(name: str, seed: int, config: dict[str, Any], instruction: str, field: str) -> Iterator[Demonstration]:
    without = 0
    for row in environments.problems(name, ALL, seed, {**config, "demonstrations": True}):
        info = row["info"]
        if not isinstance(info.get(instruction), str):
            raise DataError(field, f"problems of {name} have no text in info.{instruction}.")
        without += 1
        if without > MOST_MESSAGES:
            raise DataError(field, f"none of {MOST_MESSAGES:,} messages of the expert of {name} ended an episode.")
        if info.get("expert_turns", 1) != 1:
            continue
        before, step = last_step(name, row)
        if step.done and step.info.get("success"):
            without = 0
            actions = [message["content"] for message in before if message["role"] == "assistant"]
            observations = [message["content"] for message in before if message["role"] == "user"]
            yield Demonstration(
                info[instruction],
                [*actions, str(info["solution"])],
                [*observations[len(observations) - len(actions) :], step.observation],
            )


class TextEncoder(nn.Module):
    """The mean state of a GRU over the words of a text; words are hashed, so that no text is refused."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(BUCKETS, width, padding_idx=0)
        self.read = nn.GRU(width, width, batch_first=True)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """float32 [N, width]; that of a text without words is 0."""
        if not texts:
            return torch.zeros(0, self.words.embedding_dim)
        words = [[word_number(word) for word in text.lower().split()] or [0] for text in texts]
        lengths = torch.tensor([len(each) for each in words])
        ids = torch.zeros(len(words), int(lengths.max()), dtype=torch.int64)
        for row, each in enumerate(words):
            ids[row, : len(each)] = torch.tensor(each)
        states, _ = self.read(self.words(ids))
        inside = torch.arange(ids.shape[1]) < lengths[:, None]
        return (states * inside[..., None]).sum(1) / lengths[:, None]


def word_number(word: str) -> int:
    """Number of a word from 1; the same in every process.

    >>> word_number("red") == word_number("red") != word_number("blue")
    True
    """
    return 1 + zlib.crc32(word.encode()) % (BUCKETS - 1)


def mlp(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of ReLUs."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
    )
