"""How varied the words and sentences of an answer are: eight lexical signals.

Presets: multirole_r1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Reward
from pipelines.data.records import Problem, Trajectory
from pipelines.rlvr.scoring import verify

SIGNALS = ("vocabulary", "entropy", "lengths", "openings", "adjacent", "yule", "bigrams", "function_words")
"""Names of the signals, in the order of `signals`."""
_FUNCTION_WORDS = (
    "a an the this that these those i me my we us our you your he him his she her it its they them their who whom which what "
    "and or nor but if because although though while unless until since so than as of in on at by for with from into onto to over "
    "under between through during before after about against within without not no be am is are was were been being have has had "
    "do does did will would shall should can could may might must there here"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?。！？]+(?=\s|$)|\n+")


@method(
    paper="2507.20187",
    title="Diversity-Enhanced Reasoning for Subjective Questions (MultiRole-R1): lexical diversity as a reward",
    checked="reconstructed (its list of signals; their scalings, the weights and the windows are ours)",
)
class multirole_r1(Reward):
    """sum_k w_k D_k over eight signals of the answer's text, each from 0 to 1.

        vocabulary      distinct words / words
        entropy         entropy of the words / log(words)
        lengths         standard deviation of the sentences' lengths in words / their mean, at most 1
        openings        distinct first words of sentences / sentences
        adjacent        mean over neighbouring sentences of 1 - (shared distinct words / distinct words of both)
        yule            1 / (1 + K / 100), K = 10^4 (sum_w count_w^2 - words) / words^2
        bigrams         distinct pairs of neighbouring words / pairs
        function_words  distinct function words / function words

    The signals of words fall with a text's length, so they are means over windows of `window` words, a last partial one left out. An
    empty text has 0 in all, a single sentence 0 in lengths, openings and adjacent, a single word 0 in entropy and bigrams. Each signal
    is a component. As a term the paper's reward is `[{kind: verifier, weight: 0.9}, {kind: multirole_r1, weight: 0.1}]`: a correct
    answer stays above every incorrect one. With `gate: {term: verifier, at_least: 1}` incorrect answers get nothing for variety.

    Args:
        weights: signal → its share; they are divided by their sum, and signals that are not named count nothing. Default: all alike.
        window: words.

    Raises:
        RecipeError: a signal that does not exist, or weights without a sum above 0.
    """

    label = "lexical_diversity"

    def __init__(
        self,
        *,
        weights: dict[str, Annotated[float, Field(ge=0, le=1e6)]] | None = None,
        window: Annotated[int, Field(ge=2, le=100_000)] = 100,
    ) -> None:
        chosen = dict.fromkeys(SIGNALS, 1.0) if weights is None else weights
        unknown = sorted(set(chosen) - set(SIGNALS))
        if unknown or not sum(chosen.values()) > 0:
            problem = f"there is no signal {unknown[0]!r}" if unknown else "the weights add up to 0"
            raise RecipeError("rlvr.reward.weights", problem, f"Choose from {', '.join(SIGNALS)}.")
        self.weights = [chosen.get(name, 0.0) / sum(chosen.values()) for name in SIGNALS]
        self.window = window

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        for row in rows:
            if row.score is None:
                continue
            values = signals(row.text, self.window)
            row.score = math.fsum(weight * value for weight, value in zip(self.weights, values, strict=True))
            row.components = row.components | dict(zip(SIGNALS, values, strict=True))


def signals(text: str, window: int = 100) -> list[float]:
    """The eight signals of a text, in the order of `SIGNALS`.

    >>> [round(value, 6) for value in signals("The cat sat. The cat sat. The cat sat.")]
    [0.333333, 0.5, 0.0, 0.333333, 0.0, 0.043062, 0.375, 0.333333]
    >>> signals("")
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    sentences = [words for part in _SENTENCE_END.split(text) if (words := _WORD.findall(part.lower()))]
    words = [word for sentence in sentences for word in sentence]
    if not words:
        return [0.0] * len(SIGNALS)
    last = len(words) // window * window or len(words)
    windows = [_of_words(words[at : min(at + window, last)]) for at in range(0, last, window)]
    vocabulary, entropy, yule, bigrams, function_words = (_mean(column) for column in zip(*windows, strict=True))
    lengths, openings, adjacent = _of_sentences(sentences)
    return [vocabulary, entropy, lengths, openings, adjacent, yule, bigrams, function_words]


def _of_words(words: Sequence[str]) -> tuple[float, float, float, float, float]:
    """Vocabulary, entropy, Yule's K inverted, bigrams, function words."""
    total = len(words)
    counts = Counter(words)
    # log(n) - sum c log c / n is the entropy: of n words alike it is exactly 0
    entropy = 1 - math.fsum(c * math.log(c) for c in counts.values()) / (total * math.log(total)) if total > 1 else 0.0
    yule = 1e4 * (sum(c * c for c in counts.values()) - total) / total**2
    pairs = list(pairwise(words))
    function_words = [word for word in words if word in FUNCTION_WORDS]
    return (
        len(counts) / total,
        max(0.0, entropy),
        1 / (1 + yule / 100),
        len(set(pairs)) / len(pairs) if pairs else 0.0,
        len(set(function_words)) / len(function_words) if function_words else 0.0,
    )


def _of_sentences(sentences: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Variation of lengths, openings, dissimilarity of neighbours; 0 of a single sentence."""
    if len(sentences) < 2:
        return 0.0, 0.0, 0.0
    sizes = [len(sentence) for sentence in sentences]
    mean = _mean(sizes)
    deviation = math.sqrt(_mean([(size - mean) ** 2 for size in sizes]))
    openings = len({sentence[0] for sentence in sentences}) / len(sentences)
    sets = [set(sentence) for sentence in sentences]
    adjacent = [1 - len(a & b) / len(a | b) for a, b in pairwise(sets)]
    return min(1.0, deviation / mean), openings, _mean(adjacent)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
