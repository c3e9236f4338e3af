"""Supervised training: it learns, measures, keeps what it must, and a stopped run ends with the same bytes."""

from __future__ import annotations

import diffusion_toys
import pytest
import torch
import toys

from pipelines.base.errors import DataError
from pipelines.base.files import contents


def test_it_learns_and_is_measured(begun):
    history = dict(toys.history(begun / "cold"))
    assert history[40]["loss/train"] < history[1]["loss/train"] / 2
    assert history[40]["loss/heldout"] < history[20]["loss/heldout"]
    assert 0 <= history[20]["heldout/correct_greedy"] <= 1 and "heldout/correct_sampled" in history[40]


def test_answers_are_filled_up_with_end_tokens(begun, tmp_path):
    made = diffusion_toys.trainer(diffusion_toys.recipe(begun), "cold", tmp_path, begun)
    end = made.tokenizer.eos_token_id
    assert made.answers.shape[1] == 4 and (made.answers[:, 1:] == end).all() and (made.answers[:, 0] != end).all()
    assert all(row.prompt[-1] != made.mask for row in made.rows)
    with pytest.raises(DataError, match="answer_length"):
        diffusion_toys.trainer(
            diffusion_toys.recipe(begun, cold={"answer_length": 1, "sampling": {"steps": 1}}),
            "cold",
            tmp_path / "short",
            begun,
        )


def test_passes_of_any_size_have_one_gradient(begun, tmp_path):
    losses = []
    for tokens in (64, 8192):
        read = diffusion_toys.recipe(
            begun, cold={"micro_batch_tokens": tokens, "steps": 2, "measure": None, "heldout": None}
        )
        made = diffusion_toys.trainer(read, "cold", tmp_path / str(tokens), begun)
        made.run()
        losses.append([values["loss/train"] for _, values in toys.history(tmp_path / str(tokens))])
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4)


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bytes(begun, tmp_path):
    read = diffusion_toys.recipe(begun)
    toys.run_stopped(lambda: diffusion_toys.trainer(read, "cold", tmp_path, begun), step=22, part=None)
    assert contents(tmp_path / "out") == contents(begun / "cold" / "out")
    assert toys.history(tmp_path) == toys.history(begun / "cold")
