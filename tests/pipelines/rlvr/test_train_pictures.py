"""Episodes whose every observation is a picture, through the real trainer: sampled, trained, stored and resumed like text."""

from __future__ import annotations

import pytest
import torch
import toys
import vision_models

from pipelines.data.images import IMAGES
from pipelines.data.marks import FIRST_ID, PLACE_BITS
from pipelines.data.records import Role
from pipelines.engine import checkpoint


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Data of a drawn lake, and a little model that has seen some of it."""
    folder = tmp_path_factory.mktemp("drawn_lake")
    short = ("sft.steps=120", "sft.tokens_per_step=1000", "sft.optimizer.learning_rate=0.006")
    return toys.start(folder, vision_models.lake(folder), short)


def _pictures(row):
    """Of each token of a row the picture that it is a place of."""
    return [(token >> PLACE_BITS) if token >= FIRST_ID else 0 for token in row.tokens]


@pytest.mark.slow
def test_what_is_recorded_of_several_pictures_is_what_the_model_computes(tmp_path, begun):
    made = toys.trainer(tmp_path, begun, vision_models.lake(tmp_path))
    rows, _ = made.collect(0)
    assert max(len({*_pictures(row)} - {0}) for row in rows) > 1, "episodes in which something moves"
    for row in rows:
        assert all(
            Role(role) != Role.POLICY for token, role in zip(row.tokens, row.role, strict=True) if token >= FIRST_ID
        )
        with torch.no_grad():
            logits = made.learner.model(torch.tensor([row.tokens])).logits[0].float().log_softmax(-1)
        drawn = [place for place, role in enumerate(row.role) if role == Role.POLICY]
        again = torch.stack([logits[place - 1, row.tokens[place]] for place in drawn])
        torch.testing.assert_close(torch.tensor([row.logp_old[place] for place in drawn]), again, atol=2e-5, rtol=0)
    made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert (
        max(values.get("mismatch/max", 0) for values in history)
        < 1e-4
        < max(values["reward/mean"] for values in history)
    )


@pytest.mark.slow
def test_another_process_knows_the_pictures_of_stored_rows(tmp_path, begun):
    """A run with a buffer of rows ends with the same bytes where it is stopped, and goes on in a process that has drawn nothing."""
    results = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        folder.mkdir()
        path = vision_models.lake(folder)

        def build(folder=folder, path=path):
            IMAGES.__init__()
            return toys.trainer(folder, begun, path, "rlvr.replay=ssb", "rlvr.advantage=grpo", "rlvr.steps=4")

        toys.run_stopped(build) if name == "stopped" else build().run()
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]
    assert checkpoint.load(tmp_path / "stopped/work/checkpoints")["drawn"]
