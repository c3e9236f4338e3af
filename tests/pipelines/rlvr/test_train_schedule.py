"""The learning rate's schedule ends with the run, however many updates each step makes."""

from __future__ import annotations

import pytest
import toys

WORDINGS = "rlvr.prompting={kind: paraphrase, template: 'again {prompt}'}"


def indices(tmp_path, start, *overrides):
    """The places in the schedule of each step's mini-batches, and the rates that were used; four steps."""
    decaying = "rlvr.optimizer={learning_rate: 0.001, schedule: linear, warmup: 0}"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), decaying, *overrides)
    one_update, places, rates = made.learner._one_update, [], []

    def watched(batch, ratios, metrics):
        places[-1].append(batch.schedule_index)
        total = one_update(batch, ratios, metrics)
        rates.append(metrics.get("optimizer/learning_rate"))
        return total

    made.learner._one_update = watched
    for step in range(4):
        places.append([])
        made.step(step)
    return made, places, [rate for rate in rates if rate is not None]


def test_an_update_of_each_step_has_a_place_of_its_own(tmp_path, start):
    _, places, _ = indices(tmp_path, start, "rlvr.mini_batches=2", "rlvr.epochs=2")
    assert places == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_step_of_more_groups_than_prompts_does_not_run_past_the_end(tmp_path, start, schedule):
    """Two wordings of four prompts are eight mini-batches: from the middle of the run on the rate was below 0, or rose again."""
    more = (WORDINGS, "rlvr.mini_batches=8", f"rlvr.optimizer.schedule={schedule}")
    made, places, rates = indices(tmp_path, start, *more)
    assert places == [[4 * step + place // 2 for place in range(8)] for step in range(4)]
    assert made.learner.updates_done == 32, "the version that rows are drawn by still counts updates"
    assert rates == sorted(rates, reverse=True) and rates[-1] > 0


def test_a_step_of_fewer_groups_takes_fewer_places(tmp_path, start):
    """Groups without variance leave; the warm-up, and so the schedule, counts the updates that are made."""
    _, places, _ = indices(tmp_path, start, "rlvr.filter=mixed", "rlvr.mini_batches=4")
    assert any(0 < len(step) < 4 for step in places)
    flat = [place for step in places for place in step]
    assert flat == list(range(len(flat)))


@pytest.mark.slow
def test_a_resumed_run_is_where_it_was_in_the_schedule(tmp_path, start):
    more = (
        WORDINGS,
        "rlvr.mini_batches=8",
        "rlvr.optimizer={learning_rate: 0.001, schedule: linear, warmup: 0}",
        "rlvr.commit.every=1",
    )
    results = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            return toys.trainer(folder, start, toys.recipe(folder), *more)

        run = toys.run_stopped(build) if name == "stopped" else build()
        if name == "whole":
            run.run()
        assert run.learner.places_taken == 16
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]
