"""Arithmetic that several preference losses share, so that edge cases have one answer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def classification(logit: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Negative log-likelihood of the label under Bern(sigmoid(logit)), the label being false with probability `label_smoothing`.

    >>> classification(torch.tensor([0.3]), 0.1)
    tensor([0.5844])
    """
    return -(1 - label_smoothing) * F.logsigmoid(logit) - label_smoothing * F.logsigmoid(-logit)


def per_token(logp: Tensor, length: Tensor) -> Tensor:
    """Mean log-probability of an answer's tokens; an answer without tokens has 0."""
    return logp / length.clamp(min=1)


def deformed(x: Tensor, alpha: float, largest: float) -> Tensor:
    """(1 - e^(-alpha x)) / alpha, which is x for alpha 0; the exponent -alpha x is at most `largest`, and has no gradient beyond.

    >>> deformed(torch.tensor([-1.0, 2.0]), 0.5, 20.0)
    tensor([-1.2974,  1.2642])
    """
    return x if abs(alpha) < 1e-8 else -torch.expm1((-alpha * x).clamp(max=largest)) / alpha


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x < 0, accurate at both ends; x is taken as at most -1e-6, where an answer is all but certain.

    >>> log1mexp(torch.tensor([-1e-3, -20.0]))
    tensor([-6.9083e+00, -2.0612e-09])
    """
    x = x.clamp(max=-1e-6)
    # Each branch is fed a harmless value where the other is taken: a gradient of 0 times infinity would be NaN.
    near = torch.log(-torch.expm1(torch.where(x > -math.log(2), x, -0.5)))
    far = torch.log1p(-torch.exp(torch.where(x > -math.log(2), -1.0, x)))
    return torch.where(x > -math.log(2), near, far)
