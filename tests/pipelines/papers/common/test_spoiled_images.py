"""Spoiled copies of images are those that the papers' own code makes, given the same random numbers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from pipelines.papers.common.spoiled_images import black_patches, kept_and_noise, mean_patches, noised

IMAGE = Image.frombytes(
    "RGB", (40, 30), bytes((x * 7 + y * 11 + c * 50) % 256 for y in range(30) for x in range(40) for c in range(3))
)


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()[:16]


def test_papo_s_black_patches():
    """random_patch_blackening of MikeWangWZHL/PAPO (fb63bf4) with numpy's seed 0 and its defaults."""
    draw = np.random.RandomState(0)
    assert digest(black_patches(IMAGE, 14, lambda: draw.rand() < 0.6)) == "d3b24e22c587f0e9"


def test_noisy_grpo_s_patches():
    """random_mask_patch of Artanic30/NoisyGRPO (1c92ccf) with numpy's seed 0 and a ratio of 0.3."""
    cells = [2, 4, 10, 11, 22, 26, 28, 29, 31, 33, 34, 35, 40, 43, 45, 52, 54, 61, 62]
    assert digest(mean_patches(IMAGE, 8, cells)) == "109d09ff644f07d0"


@pytest.mark.parametrize(
    ("step", "kept", "deviation"),
    [(0, 0.9999889, 0.0047264), (300, 0.9809839, 0.1940892), (600, 0.7342466, 0.6788828), (999, 0.2850425, 0.9585149)],
)
def test_noisy_grpo_s_diffusion(step, kept, deviation):
    """add_diffusion_noise_pil of the same repository, in single precision there."""
    assert kept_and_noise(step) == pytest.approx((kept, deviation), abs=3e-6)
    noise = torch.randn(30, 40, 3, generator=torch.Generator().manual_seed(step))
    pixels = kept * torch.from_numpy(np.array(IMAGE)).float() / 255 + deviation * noise
    made = torch.from_numpy(np.array(noised(IMAGE, step, noise))).float() / 255
    assert (made - pixels.clamp(0, 1)).abs().max() < 1.01 / 255
