"""ReMax: the greedy answer is drawn, scored and taken out, and the others are compared with it."""

from __future__ import annotations

from math import isnan

import torch
import toys
from scripted import context, request

from pipelines.contract.catalogue import bind
from pipelines.rlvr.pack import pack


def test_the_greedy_answer_is_drawn_without_temperature_and_leaves_its_score():
    part = bind("rlvr.rollout", "remax").fn
    ctx = context(lambda prefix, number: f"{prefix}{number}")
    temperatures = []
    real = ctx.sampler.extend

    def extend(prefixes, sampling, generator, **more):
        temperatures.append((sampling.temperature, len(prefixes)))
        return real(prefixes, sampling, generator, **more)

    ctx.sampler.extend = extend
    rows = part.run([request("ab", 3, group=5), request("cd", 1, group=2)], ctx)
    assert sorted(temperatures) == [(0.0, 2), (1.0, 4)]
    assert sorted(row.group for row in rows) == [2, 2, 5, 5, 5, 5]
    for number, row in enumerate(rows):
        row.score = float(number)
    rows[-1].score = None  # the greedy answer of group 2
    left = part.on_rollouts(rows)
    assert [row.group for row in left] == [5, 5, 5, 2] and not any("greedy" in row.extras for row in left)
    greedy = pack(left, step=0, total_steps=1)["greedy_reward"].tolist()
    assert greedy[:3] == [4.0] * 3 and isnan(greedy[3])
    assert part.metrics() == {"greedy_reward": 4.0} and part.metrics() == {}


def test_the_entropies_that_a_run_asks_for_are_those_of_the_rows_that_train():
    ctx = context(lambda prefix, number: "x", entropy=True)
    part = bind("rlvr.rollout", "remax").fn
    rows = part.on_rollouts(part.run([request("ab", 2)], ctx))
    assert len(rows) == 2 and all(row.entropy_old is not None for row in rows)


def test_a_step_compares_with_the_answer_that_the_weights_like_best(tmp_path, start):
    """A group of one has a signal, and the answers that train are as many as the recipe says."""
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "presets=[remax]", "rlvr.group_size=1")
    sampled, rows = made.collect(0)
    assert len({row.group for row in rows}) == len(rows) == made.settings.prompts == len(sampled) // 2
    columns = pack(rows, step=0, total_steps=1)
    assert torch.isfinite(columns["greedy_reward"]).all()
