"""What is done to the training pairs before a reward model learns from them, against its preference for long answers (2310.03716).

After the paper's official code (github.com/PrasannS/rlhf-length-biases), in its order: `truncate` drops pairs by the confidence that
an earlier reward model had in them, `with_random` adds pairs with the answer to another prompt, and `balanced` makes the differences of
lengths symmetric. `Dynamics` collects the confidence while the earlier reward model trains.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.base.files import write_atomic
from pipelines.data.pair_records import Pair
from pipelines.reward_model.pair_settings import RandomPairs, Truncate

FILE = "training_dynamics.jsonl"
"""Of a reward model's artifact: a line for each training pair with `uid`, `confidence`, `variability` and `epochs`."""
RANDOM = "random"
"""Last part of the uid of a pair with the answer to another prompt."""


class Dynamics:
    """How much higher the chosen answers score at the moment at which each pair is trained on, in all epochs but the first.

    The first epoch is left out as in the official code (notebooks/eval/examine_dcarto.ipynb), since scores then are still those of random
    heads. Dataset cartography (2009.10795) takes the probability of the label where these take the difference of the two scores.

    Args:
        count: pairs of an epoch.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sums = torch.zeros(count, 3, dtype=torch.float64)
        """Of each pair: epochs, sum of the differences, sum of their squares."""

    def observe(self, start: int, indices: Sequence[int], difference: Tensor) -> None:
        """Take up the pairs of a step.

        Args:
            start: pairs that were trained on before this step.
            indices: places of the step's pairs.
            difference: score of the chosen minus score of the rejected answer before the update, [P].
        """
        for place, (index, value) in enumerate(zip(indices, difference.tolist(), strict=True)):
            if start + place >= self.count:
                self.sums[index] += torch.tensor([1.0, value, value * value], dtype=torch.float64)

    def write(self, path: Path, uids: Sequence[str]) -> None:
        """One line for each pair that was trained on after the first epoch: mean and standard deviation (ddof 0) of its differences.

        Raises:
            DataError: there is none.
        """
        lines = []
        for uid, (epochs, total, squares) in zip(uids, self.sums.tolist(), strict=True):
            if epochs:
                mean = total / epochs
                variability = max(0.0, squares / epochs - mean * mean) ** 0.5
                lines.append({"uid": uid, "confidence": mean, "variability": variability, "epochs": int(epochs)})
        if not lines:
            raise DataError(
                "reward_model.cartography",
                "training ended within its first epoch, which is left out of the training dynamics",
                "Train for more steps.",
            )
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines))


def truncate(pairs: Sequence[Pair], settings: Truncate, folder: Path) -> list[int]:
    """Places of the pairs whose confidence lies within the bounds, and of those that the earlier stage has not trained on twice.

    Args:
        folder: the earlier stage's artifact.

    Raises:
        DataError: no pair is left, or the earlier stage has read none of them.
    """
    low = float("-inf") if settings.at_least is None else settings.at_least
    high = float("inf") if settings.at_most is None else settings.at_most
    told = {row["uid"]: row["confidence"] for row in map(json.loads, (folder / FILE).read_text().splitlines())}
    if not any(pair.uid in told for pair in pairs):
        raise DataError("reward_model.pairs.truncate.by", f"{settings.by} was trained on none of these pairs.")
    kept = [place for place, pair in enumerate(pairs) if pair.uid not in told or low <= told[pair.uid] <= high]
    if not kept:
        least, most = min(told.values()), max(told.values())
        raise DataError(
            "reward_model.pairs.truncate",
            f"no pair's confidence lies within the bounds: it goes from {least:.4g} to {most:.4g}",
            "Choose other bounds.",
        )
    return kept


def with_random(pairs: Sequence[Pair], settings: RandomPairs, seed: int) -> list[tuple[Pair, int]]:
    """The pairs that random pairing adds, each with the place of the pair whose prompt it has; they depend on seed and pairs alone.

    Of a random share of the pairs, the chosen answer is preferred to the chosen answer of a pair with another prompt, and with
    `of: both` the rejected answer is preferred to it too. A pair for which no other prompt has an answer with another text adds none.

    Raises:
        DataError: a pair is one of parts of episodes, or none can be added.
    """
    part = next((pair for pair in pairs if pair.part is not None), None)
    if part is not None:
        raise DataError(
            "reward_model.pairs.random",
            f"record {part.uid} is a pair of parts of episodes (info.{part.part}), and random pairs are of answers to prompts",
            "Leave it out.",
        )
    draw = random.Random(f"{seed} random pairs")
    prompts = [json.dumps(pair.prompt) for pair in pairs]
    added: list[tuple[Pair, int]] = []
    for place in sorted(draw.sample(range(len(pairs)), max(1, int(len(pairs) * settings.share)))):
        pair, start = pairs[place], draw.randrange(len(pairs))
        texts = {pair.chosen, pair.rejected}
        other = next(
            (
                pairs[i]
                for i in (*range(start, len(pairs)), *range(start))
                if prompts[i] != prompts[place] and pairs[i].chosen not in texts
            ),
            None,
        )
        if other is not None:
            added.append((_random(pair, other, 0), place))
            if settings.of == "both":
                added.append((_random(pair, other, 1), place))
    if not added:
        raise DataError(
            "reward_model.pairs.random",
            "no pair has another prompt with another answer, so that no random pair can be made",
            "Leave it out.",
        )
    return added


def _random(pair: Pair, other: Pair, side: int) -> Pair:
    """One of a pair's two answers (0: chosen, 1: rejected), preferred to the chosen answer of another pair."""
    critiques = None
    if pair.critiques is not None and other.critiques is not None:
        critiques = pair.critiques[side], other.critiques[0]
    return replace(
        pair,
        uid=f"{pair.uid}/{RANDOM}{side}",
        chosen=pair.rejected if side else pair.chosen,
        chosen_cut=pair.rejected_cut if side else pair.chosen_cut,
        rejected=other.chosen,
        rejected_cut=other.chosen_cut,
        critiques=critiques,
        chosen_score=None,
        rejected_score=None,
        margin=None,
        chosen_share=None,
    )


def balanced(lengths: Sequence[tuple[int, int]], width: int, seed: int) -> list[int]:
    """Places of pairs among which, in every bucket of |difference|, as many chosen as rejected answers are the longer one.

    Buckets hold the differences 1 to `width`, `width` + 1 to 2 `width`, and so on, in both directions. Of the direction with more
    pairs a random subset is kept, in the order of the data. Pairs of two equally long answers are all kept; the official code counts
    them with one of the directions, and drops differences over 200 tokens.

    Args:
        lengths: of each pair the tokens of the chosen and of the rejected answer.
        width: of a bucket, in tokens.

    Raises:
        DataError: no pair would be left.

    >>> balanced([(5, 2), (9, 3), (2, 4), (3, 3), (1, 30)], width=10, seed=0)
    [1, 2, 3]
    """
    buckets: dict[int, tuple[list[int], list[int]]] = {}
    kept: list[int] = []
    for place, (chosen, rejected) in enumerate(lengths):
        if chosen == rejected:
            kept.append(place)
        else:
            bucket = (abs(chosen - rejected) - 1) // width
            buckets.setdefault(bucket, ([], []))[chosen < rejected].append(place)
    draw = random.Random(f"{seed} balanced lengths")
    for _, sides in sorted(buckets.items()):
        count = min(map(len, sides))
        for side in sides:
            kept += draw.sample(side, count)
    if not kept:
        raise DataError(
            "reward_model.pairs.balance",
            f"in no bucket of {width} tokens do both directions of the difference of lengths occur, so that no pair would be left",
            "Make the buckets wider, or leave it out.",
        )
    return sorted(kept)
