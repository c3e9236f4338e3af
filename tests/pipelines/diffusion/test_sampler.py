"""The sampler: official values, distributions, blocks, and what stands from the start stays."""

from __future__ import annotations

import pytest
import torch

from pipelines.diffusion.sampler import gumbel, per_step, unmask
from pipelines.diffusion.settings import Unmasking
from pipelines.engine.prompts import Prompts

CPU = torch.device("cpu")


def draws(count, seed=0):
    return [torch.Generator().manual_seed(100 * seed + number) for number in range(count)]


def test_how_many_tokens_each_step_shows(official):
    case = official["get_num_transfer_tokens"]
    assert per_step(torch.tensor(case["masked"]), case["steps"]).tolist() == case["counts"]


def test_gumbel_noise(official):
    case = official["add_gumbel_noise"]
    logits, noise = (torch.tensor(case[name], dtype=torch.float64) for name in ("logits", "noise"))
    scores = gumbel(logits, noise, case["temperature"])
    assert torch.allclose(scores, torch.tensor(case["scores"], dtype=torch.float64), rtol=1e-9)


def test_llada_greedy_answers(official, tables):
    case = official["generate"]
    prompts, mask = Prompts.of(case["prompts"], 0, CPU), official["mask"]
    for each in case["cases"]:
        settings = Unmasking(steps=each["steps"], block=each["block"], temperature=0)
        written = unmask(tables, prompts, torch.full((2, 6), mask), mask, settings, draws(2))
        assert written.tolist() == each["answers"], each


def test_a_draw_follows_the_softmax(official, tables):
    prompts, mask = Prompts.of([[0, 3]] * 4000, 0, CPU), official["mask"]
    blank = torch.full((4000, 1), mask)
    said = tables(*prompts.followed_by(blank))[0, 2].softmax(-1)
    written = unmask(tables, prompts, blank, mask, Unmasking(steps=1), draws(4000))
    shares = torch.bincount(written[:, 0], minlength=len(said)) / 4000
    assert float((shares - said).abs().max()) < 0.03 and float(shares[mask]) == 0


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_a_row_is_the_same_whatever_stands_beside_it(official, tables, remasking):
    prompts, mask = Prompts.of([[0, 3], [1, 2], [4, 4]], 0, CPU), official["mask"]
    settings = Unmasking(steps=4, block=2, remasking=remasking)
    blank = torch.full((3, 4), mask)
    together = unmask(tables, prompts, blank, mask, settings, draws(3))
    for row in range(3):
        alone = unmask(tables, prompts.rows(slice(row, row + 1)), blank[:1], mask, settings, draws(3)[row : row + 1])
        assert torch.equal(alone[0], together[row])
    assert not torch.equal(together, unmask(tables, prompts, blank, mask, settings, draws(3, seed=1)))


def test_what_stands_stays_and_blocks_come_in_order(official, tables):
    prompts, mask = Prompts.of([[0, 3]] * 8, 0, CPU), official["mask"]
    begun = torch.full((8, 6), mask)
    begun[:, 1], begun[:4, 4] = 5, 2
    steps = []

    def keep(step, answers, guesses):
        steps.append(answers != mask)
        assert not (guesses == mask).any()
        return torch.arange(8)

    written = unmask(tables, prompts, begun, mask, Unmasking(steps=6, block=3), draws(8), keep)
    assert torch.equal(written[begun != mask], begun[begun != mask]) and not (written == mask).any()
    assert len(steps) == 6
    for shown in steps[:2]:
        assert torch.equal(shown[:, 3:], (begun != mask)[:, 3:])
    assert steps[2][:, :3].all()
    assert Unmasking(steps=5, block=3).fault(6) and Unmasking(steps=6, block=4).fault(6)
