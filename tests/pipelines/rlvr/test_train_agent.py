"""An agent program through the real trainer: what is recorded is what the model computes, and a killed run repeats its episodes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import agents
import pytest
import ranks
import torch
import toys

from pipelines.data.records import Role, Stop
from pipelines.recipe.read import read_recipe

PAYING = agents.FOLLOWING.replace(
    'print(message["content"])',
    """message = ask([{"role": "user", "content": "in short " + message["content"][:2].encode("ascii", "ignore").decode()}])["message"]
print(sum(map(ord, message["content"])) % 7 / 7)""",
)
"""Asks twice in one conversation, then in another one."""


def recipe(folder):
    """A recipe of a program that asks three times, whatever the policy says."""
    plans = [
        {"first": [{"role": "user", "content": f"say {n}"}], "then": [[{"role": "user", "content": "again"}]]}
        for n in range(16)
    ]
    asked = [{"task": json.dumps(plan), "answer": str(n)} for n, plan in enumerate(plans)]
    config = {"command": agents.program(folder, PAYING), "tasks": agents.tasks(folder, *asked), "result": "reward"}
    return toys.recipe(
        folder,
        curate={
            "sources": [{"kind": "environment", "task": "agent", "size": 16, "seed": 1, "config": config}],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.8, "heldout": 0.2},
        },
        rlvr={
            "steps": 3, "prompts": 4, "group_size": 2, "rollout": {"kind": "multi_turn", "max_turns": 3}, "sampling": {"max_tokens": 12},
        },
        evaluate={"tasks": [{"name": "adding", "environment": {"task": "agent", "size": 8, "config": config}}]},
    )  # fmt: skip


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Data from the program, and a little model that has seen some."""
    folder = tmp_path_factory.mktemp("agent")
    return toys.start(folder, recipe(folder), [])


@pytest.mark.slow
def test_recorded_log_probabilities_are_the_model_s(tmp_path, begun):
    made = toys.trainer(tmp_path, begun, begun / "toy.yaml")
    rows, _ = made.collect(0)
    assert [max(row.turn) for row in rows] == [1, 0] * 8 and all(row.stop == Stop.ENVIRONMENT for row in rows)
    assert all(
        first.score == second.score and first.group == second.group
        for first, second in zip(rows[::2], rows[1::2], strict=True)
    )
    for row in rows:
        with torch.no_grad():
            logits = made.learner.model(torch.tensor([row.tokens])).logits[0].float().log_softmax(-1)
        drawn = [place for place, role in enumerate(row.role) if role == Role.POLICY]
        again = torch.stack([logits[place - 1, row.tokens[place]] for place in drawn])
        torch.testing.assert_close(torch.tensor([row.logp_old[place] for place in drawn]), again, atol=1e-4, rtol=0)
    made.run()
    lines = [line["values"] for line in toys.spool(tmp_path / "work") if line["kind"] == "metrics"]
    assert max(line["mismatch/max"] for line in lines) < 1e-4 and all(
        line["rollout/error_share"] == 0 for line in lines
    )


@pytest.mark.slow
def test_a_stopped_run_repeats_its_episodes(tmp_path, begun):
    results = []
    for name in ("whole", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            return toys.trainer(folder, begun, begun / "toy.yaml")

        toys.run_stopped(build) if name == "stopped" else build().run()
        results.append(toys.result(folder / "work"))
    assert results[0] == results[1]


@pytest.mark.slow
def test_asynchronous_episodes_end_with_the_same_bytes_when_they_are_killed(tmp_path, begun):
    """The program takes another time in every episode of every run; nothing but the clock tells the two apart."""
    agents.program(begun, "import random, time; time.sleep(random.random() / 4)\n" + PAYING)
    asynchronous = "rlvr.rollout={kind: multi_turn, max_turns: 3, asynchronous: true, batch_invariant: true}"
    read = read_recipe(begun / "toy.yaml", [asynchronous])
    works = [toys.job(tmp_path / name, begun, asynchronous, of=begun / "toy.yaml") for name in ("whole", "killed")]
    ranks.finish_alone(works[0])
    ranks.kill_alone(works[1], later_s=0.1)  # in the episodes of the next step
    ranks.finish_alone(works[1])
    assert toys.result(works[0]) == toys.result(works[1])
    metrics = [line["values"] for line in toys.spool(works[1]) if line["kind"] == "metrics"]
    assert all(0 < values["time/rollout_idle_share"] < 1 for values in metrics)
    assert not toys.unlisted_metrics(read.rlvr, metrics[0])


@pytest.mark.slow
def test_a_taskset_of_verifiers_trains(tmp_path):
    """With the package itself, in a Python of its own: turns of its user, by its rewards."""
    python = os.environ.get("WHETSTONE_VERIFIERS")
    if not python:
        pytest.skip("WHETSTONE_VERIFIERS names no Python that has verifiers 0.4 (make test-ecosystem)")
    taskset = Path(__file__).parents[2] / "ecosystem" / "hints_taskset.py"
    config = {"python": python, "env": {"taskset": {"id": str(taskset)}}}
    own = toys.recipe(
        tmp_path,
        curate={
            "sources": [{"kind": "environment", "task": "verifiers_v1", "size": 6, "seed": 1, "config": config}],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.8, "heldout": 0.2},
        },
        rlvr={
            "steps": 2, "prompts": 2, "group_size": 2, "rollout": {"kind": "multi_turn", "max_turns": 5}, "sampling": {"max_tokens": 4},
        },
    )  # fmt: skip
    own.write_text(own.read_text().replace("max_position_embeddings: 64", "max_position_embeddings: 128"))
    begun = toys.start(tmp_path, own, [])
    (tmp_path / "rl").mkdir()
    toys.trainer(tmp_path / "rl", begun, own).run()
    lines = [line["values"] for line in toys.spool(tmp_path / "rl" / "work") if line["kind"] == "metrics"]
    assert len(lines) == 2 and all("mismatch/max" in line for line in lines), lines
    assert max(line["mismatch/max"] for line in lines) < 1e-4
    assert all(line["rollout/error_share"] == 0 and line["reward/group_std"] > 0 for line in lines)
