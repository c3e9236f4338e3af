"""Compacted contexts through the real trainer: what is trained, what is shown, and the bytes of a run that is killed."""

from __future__ import annotations

import pytest
import ranks
import toys
from stand_in import StandIn, until_the_test_ends

from pipelines.data.records import Role
from pipelines.rlvr import algorithm
from pipelines.rlvr.pack import pack

COMPACT = (
    "rlvr.rollout={kind: multi_turn, max_turns: 4, invalid_cost: 0.1, "
    "compact: {at_tokens: 45, max_tokens: 6, prompt: map, resume: map}}"
)
MORE = [COMPACT, "rlvr.sampling.max_tokens=7", "rlvr.advantage={kind: grpo, scale: none}"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A lake, and a model that has seen some moves."""
    return toys.start_lake(tmp_path_factory.mktemp("lake"))


@pytest.mark.slow
def test_rows_of_an_episode_train_with_its_outcome(tmp_path, begun):
    made = toys.trainer(tmp_path, begun, begun / "toy.yaml", *MORE)
    rows, _ = made.collect(0)
    several = [row for row in rows if "episode" in row.extras]
    assert several and len({row.score for row in rows}) > 1
    credited = algorithm.assign_credit(made.update, pack(rows, step=0, total_steps=3))
    for group in {row.group for row in rows}:
        own = [place for place, row in enumerate(rows) if row.group == group]
        episodes = {}
        for place in own:
            episodes.setdefault(rows[place].extras.get("episode", -1 - place), []).append(place)
        assert len(episodes) == 4, "of the group's size"
        mean = sum(rows[places[0]].score for places in episodes.values()) / 4
        for places in episodes.values():
            assert len({rows[place].score for place in places}) == 1
            for place in places:
                drawn = [t for t, role in enumerate(rows[place].role) if role == Role.POLICY]
                advantage = credited["advantage"][place]
                assert advantage[drawn].tolist() == pytest.approx([rows[place].score - mean] * len(drawn), abs=1e-6)
    made.run()
    lines = [line["values"] for line in toys.spool(tmp_path / "work") if line["kind"] == "metrics"]
    assert all(line["mismatch/max"] < 1e-4 and 0 < line["reward_component/summaries"] <= 3 for line in lines)
    assert not toys.unlisted_metrics(made.settings, lines[0])


@pytest.fixture
def server(tmp_path, monkeypatch):
    yield from until_the_test_ends(StandIn(tmp_path / "served"), monkeypatch)


@pytest.mark.slow
def test_a_decoding_server_draws_summaries_too(tmp_path, begun, server):
    where = f"rlvr.sampler={{urls: ['{server.url}'], weights: {server.weights}}}"
    alone = "rlvr.rollout.asynchronous=true"
    toys.trainer(tmp_path, begun, begun / "toy.yaml", *MORE, where, alone, "rlvr.steps=1").run()
    [line] = [line["values"] for line in toys.spool(tmp_path / "work") if line["kind"] == "metrics"]
    assert line["mismatch/max"] < 1e-3 and line["reward_component/summaries"] > 0 and line["rollout/error_share"] == 0


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path, begun):
    works = [toys.job(tmp_path / name, begun, *MORE, of=begun / "toy.yaml") for name in ("whole", "killed")]
    ranks.finish_alone(works[0])
    ranks.kill_alone(works[1])
    ranks.finish_alone(works[1])
    assert toys.result(works[0]) == toys.result(works[1])
    assert any(values["reward/group_std"] > 0 for _, values in toys.history(works[0]))
