"""Copies of images with less to see in them: patches covered, or noise over all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

STEPS = 1000
"""Of the diffusion process."""


def black_patches(image: Image, patch: int, covered: Callable[[], bool]) -> Image:
    """An image in which some of its squares of `patch` pixels are black; those at its right and lower edges may be smaller.

    Args:
        covered: asked once for each square, row by row.
    """
    copy = image.copy()
    for top in range(0, image.height, patch):
        for left in range(0, image.width, patch):
            if covered():
                copy.paste((0, 0, 0), (left, top, min(left + patch, image.width), min(top + patch, image.height)))
    return copy


def mean_patches(image: Image, side: int, covered: Collection[int]) -> Image:
    """An image in which some cells of a grid have the image's mean colour; what the grid's whole pixels do not reach stays as it is.

    Args:
        side: rows and columns of the grid.
        covered: numbers of cells, row by row.
    """
    from PIL import ImageStat

    mean = tuple(int(value) for value in ImageStat.Stat(image).mean)
    width, height = image.width // side, image.height // side
    copy = image.copy()
    for row, column in (divmod(cell, side) for cell in sorted(covered)):
        copy.paste(mean, (column * width, row * height, (column + 1) * width, (row + 1) * height))
    return copy


def kept_and_noise(step: int) -> tuple[float, float]:
    """What a diffusion process leaves of an image after `step` of its 1,000 steps, and the deviation of its noise.

    The variance that step t adds is beta_t = 1e-5 + (0.005 - 1e-5) sigmoid(12 t / 999 - 6), as NoisyGRPO's code has it (after VCD's).

    >>> [tuple(round(v, 4) for v in kept_and_noise(step)) for step in (300, 600, 900)]
    [(0.981, 0.1941), (0.7342, 0.6789), (0.3649, 0.9311)]
    """
    betas = torch.linspace(-6, 6, STEPS, dtype=torch.float64).sigmoid() * (0.5e-2 - 1e-5) + 1e-5
    kept = float((1 - betas).cumprod(0)[step])
    return kept**0.5, (1 - kept) ** 0.5


def noised(image: Image, step: int, noise: Tensor) -> Image:
    """An image after `step` steps of diffusion; values beyond black and white become these.

    Args:
        noise: standard normal, float32 [height, width, 3].
    """
    from PIL import Image as Images

    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, 3)
    kept, deviation = kept_and_noise(step)
    changed = (kept * pixels / 255 + deviation * noise).clamp(0, 1).mul(255).to(torch.uint8)
    return Images.frombytes("RGB", image.size, changed.numpy().tobytes())
