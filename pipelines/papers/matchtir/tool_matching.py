"""How much tool calls are like reference calls, and which call stands for which (MatchTIR, quchangle1/MatchTIR)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from pipelines.verifiers import overlap
from pipelines.verifiers.tool_calls import same

NamedCall = tuple[str, dict[str, Any]]
Matching = Literal["optimal", "greedy", "soft"]
REGULARISER = 0.1
ITERATIONS = 1000
SEPARATORS = str.maketrans(dict.fromkeys(string.punctuation, " "))
"""ASCII punctuation becomes white space, as in the released code."""


def similarity(predicted: NamedCall, reference: NamedCall) -> float:
    """(1 + Jaccard of the parameters' names + equal values) / (2 + reference parameters), 0 where the functions differ.

    >>> similarity(("search", {"q": "a", "k": 3}), ("search", {"q": "b", "k": 3}))
    0.75
    """
    if predicted[0].lower() != reference[0].lower():
        return 0.0
    own, wanted = predicted[1], reference[1]
    shared, either = own.keys() & wanted.keys(), own.keys() | wanted.keys()
    jaccard = len(shared) / len(either) if either else 1.0
    return (1 + jaccard + sum(same(own[key], wanted[key]) for key in shared)) / (2 + len(wanted))


def rewards(predicted: Sequence[NamedCall], references: Sequence[NamedCall], how: Matching = "optimal") -> list[float]:
    """A reward for each predicted call; zeros where there is nothing to match.

    `optimal` pairs calls one to one so that the similarities sum to the most, `greedy` takes the most similar pair first, as the released
    code does, and `soft` is entropic optimal transport between equal masses.
    """
    if not predicted or not references:
        return [0.0] * len(predicted)
    scores = np.array([[similarity(call, reference) for reference in references] for call in predicted])
    if how == "soft":
        return (transport(scores) * scores).sum(1).tolist()
    out = np.zeros(len(predicted))
    if how == "optimal":
        from scipy.optimize import linear_sum_assignment  # half a second, and the catalogue imports this module

        rows, columns = linear_sum_assignment(scores, maximize=True)
        out[rows] = scores[rows, columns]
        return out.tolist()
    for _ in range(min(scores.shape)):
        row, column = np.unravel_index(scores.argmax(), scores.shape)
        out[row] = max(0.0, scores[row, column])
        scores[row, :] = scores[:, column] = -1.0
    return out.tolist()


def transport(scores: np.ndarray) -> np.ndarray:
    """Sinkhorn's plan of the cost -scores with uniform marginals, float64 [calls, references]."""
    kernel = np.exp((scores - scores.max()) / REGULARISER)
    row_mass, column_mass = 1 / scores.shape[0], 1 / scores.shape[1]
    column_scale = np.ones(scores.shape[1])
    for _ in range(ITERATIONS):
        row_scale = row_mass / (kernel @ column_scale)
        column_scale = column_mass / (kernel.T @ row_scale)
    return row_scale[:, None] * kernel * column_scale


def set_f1(text: str, gold: str) -> float:
    """F1 between two texts' sets of words in lower case; punctuation separates words, and is none.

    >>> set_f1("It is 42.", "42"), set_f1("New-York!", "(new york)")
    (0.5, 1.0)
    """
    own, wanted = (each.lower().translate(SEPARATORS).split() for each in (text, gold))
    return overlap.set_f1(wanted, own) if own and wanted else 0.0
