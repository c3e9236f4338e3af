"""Chunks of a solution: their sizes, how many are shown, and which of their tokens are trained."""

from __future__ import annotations

from itertools import pairwise

import torch

from pipelines.diffusion import inpaint
from pipelines.diffusion.settings import Inpainting


def test_chunks_cover_the_solution_in_order():
    settings = Inpainting(chunk_least=3, chunk_most=5)
    for seed in range(20):
        parts = inpaint.chunks(23, settings, torch.Generator().manual_seed(seed))
        assert parts[0].start == 0 and all(a.stop == b.start for a, b in pairwise(parts))
        assert all(3 <= part.stop - part.start <= 5 for part in parts) and 23 - parts[-1].stop < 3
    assert inpaint.chunks(2, settings, torch.Generator()) == []


def test_what_is_shown_is_the_solution_at_its_places():
    solution, settings = list(range(10, 34)), Inpainting(chunk_least=4, chunk_most=4)
    for share, number in ((0.0, 0), (0.2, 2), (0.5, 3), (1.0, 6)):
        answer = inpaint.shown(solution, 30, 99, share, settings, torch.Generator().manual_seed(1))
        given = answer != 99
        assert answer[given].tolist() == [solution[i] for i in given.nonzero().flatten()]
        assert int(given.sum()) == 4 * number  # of 6 chunks those stay masked that rounding down leaves
    shares = inpaint.shares(8, Inpainting(least=0.2, most=0.6), torch.Generator().manual_seed(0))
    assert shares == sorted(shares) and all(0.2 <= share <= 0.6 for share in shares)


def test_a_share_of_one_trains_every_token():
    entropy, given = torch.rand(3, 7), torch.rand(3, 7) > 0.5
    assert inpaint.trained(entropy, given, 1.0).all()
    kept = inpaint.trained(entropy, given, 0.01)
    assert kept[~given].all() and ((kept & given).sum(1) == given.any(1)).all()
