"""The record of draws: complete, and equal after a restart whatever was written past the commit."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pipelines.data.records import Stop, Trajectory
from pipelines.rlvr.output_log import DRAWS, ROLLOUTS, OutputLog, draws


def row(uid: str, score: float | None) -> Trajectory:
    return Trajectory(
        uid=uid, group=0, tokens=[1, 2], role=[0, 3], logp_old=[0.0, -1.0], max_tokens=4, stop=Stop.END, version=0, score=score,
        correct=score == 1, text="t",
    )  # fmt: skip


def test_every_row_is_recorded(tmp_path):
    log = OutputLog(tmp_path)
    log.append(DRAWS, [draws(1, [row("a", 1.0), row("b", None), row("a", 0.0)])])
    log.append(DRAWS, [draws(2, [row("a", 0.5)])])
    lines = [json.loads(line) for line in (tmp_path / "draws.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "rewards": {"a": [1.0, 0.0], "b": [None]}}, {"step": 2, "rewards": {"a": [0.5]}}]


def test_the_chances_that_a_curriculum_told_are_recorded():
    told, untold = row("a", 1.0), row("b", 0.0)
    told.propensity = 0.25
    assert draws(3, [told, untold, told]) == {
        "step": 3, "rewards": {"a": [1.0, 1.0], "b": [0.0]}, "propensities": {"a": [0.25, 0.25]},
    }  # fmt: skip


@given(st.integers(0, 4), st.integers(0, 3))
def test_a_restart_goes_on_as_if_nothing_had_been_written_since_the_commit(tmp_path_factory, commit, lost):
    folder, straight = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("straight")
    log, other = OutputLog(folder), OutputLog(straight)

    def write(to: OutputLog, step: int, uid: str) -> None:
        to.append(DRAWS, [draws(step, [row(uid, float(step))])])
        to.append(ROLLOUTS, [{"step": step, "uid": uid}])

    sizes: dict[str, int] = {}
    for step in range(1, commit + 1):
        write(log, step, "a")
        sizes = log.sizes()
    for step in range(commit + 1, commit + 1 + lost):
        write(log, step, "lost")
    log.rewind(sizes)
    for step in range(1, 7):
        write(other, step, "a")
        if step > commit:
            write(log, step, "a")
    for name in (ROLLOUTS, DRAWS):
        assert (folder / name).read_bytes() == (straight / name).read_bytes()
