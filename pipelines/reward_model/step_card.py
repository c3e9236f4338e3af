"""What a process reward model is worth on answers that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

BINS = 10
RULES = ("product", "min", "last")
"""How the probabilities of an answer's steps become one number."""


def accuracy(p: Tensor, labels: Tensor) -> float:
    """Share of steps that are on the right side of a half.

    >>> import torch
    >>> accuracy(torch.tensor([0.9, 0.2, 0.6]), torch.tensor([1.0, 0.0, 0.4]))
    0.6666666666666666
    """
    return float(((p >= 0.5) == (labels >= 0.5)).double().mean())


def measures(
    p: Tensor,
    labels: Tensor,
    sizes: Sequence[int],
    prompts: Sequence[str],
    gapless: Sequence[bool] | None = None,
    judged: Sequence[bool] | None = None,
) -> dict[str, float]:
    """Metrics of scored steps; those that the answers cannot tell are left out.

    Args:
        p: probability that a step is correct, answer by answer, float32 [N].
        labels: from 0 to 1; a step is correct from 0.5 on, an answer where its last step is.
        sizes: steps of each answer.
        prompts: of each answer, equal for equal prompts.
        gapless: answers without an unlabelled step before a labelled one; default: all.
        judged: answers whose last step has a label; default: all.

    Returns:
        accuracy: share of steps on the right side of 0.5; brier: mean (p - label)^2; ece: expected calibration error over ten bins of p;
        label_mean: the mean. first_error_f1 (ProcessBench, 2412.06559): the harmonic mean of first_error_hit, the share of answers with a
        wrong step whose first one is also the first with p < 0.5, and first_error_none, the share of the others without such a step.
        best_of_n/product, /min, /last: share of prompts with several judged answers whose best one by that number is correct, a tie shared;
        best_of_n/mean: mean share of correct answers of these prompts.

    >>> import torch
    >>> p, labels = torch.tensor([0.95, 0.45, 0.85, 0.95, 0.35]), torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    >>> m = measures(p, labels, [3, 2], ["a", "a"])
    >>> {name: round(value, 4) for name, value in m.items()}
    {'accuracy': 0.6, 'brier': 0.2705, 'ece': 0.41, 'label_mean': 0.6, 'first_error_hit': 1.0, 'first_error_none': 0.0,
    'first_error_f1': 0.0, 'best_of_n/product': 0.0, 'best_of_n/min': 0.0, 'best_of_n/last': 0.0, 'best_of_n/mean': 0.5}
    """
    p, labels = p.double(), labels.double()
    metrics = {
        "accuracy": accuracy(p, labels),
        "brier": float((p - labels).square().mean()),
        "ece": calibration_error(p, labels),
        "label_mean": float(labels.mean()),
    }
    answers = list(zip(p.split(list(sizes)), labels.split(list(sizes)), strict=True))
    known = [answer for answer, complete in zip(answers, gapless or [True] * len(answers), strict=True) if complete]
    positions = [index for index, has_verdict in enumerate(judged or [True] * len(answers)) if has_verdict]
    compared = best_of_n([answers[index] for index in positions], [prompts[index] for index in positions])
    return metrics | first_errors(known) | compared


def calibration_error(p: Tensor, labels: Tensor) -> float:
    """Expected calibration error: mean over steps of |mean label - mean p| of the step's bin, ten bins of equal width."""
    position = (p * BINS).long().clamp(max=BINS - 1)
    error = 0.0
    for each in position.unique().tolist():
        inside = position == each
        error += float(inside.double().mean()) * abs(float((labels[inside] - p[inside]).mean()))
    return error


def first_errors(answers: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """ProcessBench's measure of answers, each with its p and labels; {} where all have an incorrect step, or none."""
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for p, labels in answers:
        first, told = _first(labels), _first(p)
        hits[first is not None].append(first == told)
    if not hits[True] or not hits[False]:
        return {}
    hit, none = (sum(hits[has_error]) / len(hits[has_error]) for has_error in (True, False))
    f1 = 2 * hit * none / (hit + none) if hit + none else 0.0
    return {"first_error_hit": hit, "first_error_none": none, "first_error_f1": f1}


def _first(values: Tensor) -> int | None:
    """Index of the first value below a half."""
    below = (values < 0.5).nonzero()
    return int(below[0]) if len(below) else None


def best_of_n(answers: Sequence[tuple[Tensor, Tensor]], prompts: Sequence[str]) -> dict[str, float]:
    """Share of prompts with several answers whose best one by each rule is correct; {} where no prompt has several."""
    of_prompt: dict[str, list[tuple[Tensor, bool]]] = {}  # p of the steps, whether the last one is correct
    for prompt, (p, labels) in zip(prompts, answers, strict=True):
        of_prompt.setdefault(prompt, []).append((p, bool(labels[-1] >= 0.5)))
    groups = [group for group in of_prompt.values() if len(group) > 1]
    if not groups:
        return {}
    shares = {f"best_of_n/{rule}": sum(_best(group, rule) for group in groups) / len(groups) for rule in RULES}
    mean = sum(sum(correct for _, correct in group) / len(group) for group in groups) / len(groups)
    return shares | {"best_of_n/mean": mean}


def _best(group: Sequence[tuple[Tensor, bool]], rule: str) -> float:
    scores = [score(p, rule) for p, _ in group]
    best = [correct for value, (_, correct) in zip(scores, group, strict=True) if value == max(scores)]
    return sum(best) / len(best)


def score(p: Tensor, rule: str) -> float:
    """One number of an answer's steps.

    >>> import torch
    >>> [round(score(torch.tensor([0.5, 0.4, 0.8]).double(), rule), 6) for rule in RULES]
    [0.16, 0.4, 0.8]
    """
    return float({"product": p.prod(), "min": p.min(), "last": p[-1]}[rule])
