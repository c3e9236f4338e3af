"""Methods for tools through the real trainer: a small agent with a calculator."""

from __future__ import annotations

import pytest
import torch
import toys


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Data with tool calls and a little model that has seen some."""
    folder = tmp_path_factory.mktemp("tools")
    return toys.start(folder, toys.tools(folder), [])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["steptool", "matchtir", "gtpo_turn", "aspo", "userrl", "turn_control"])
@pytest.mark.few(3)
def test_a_preset_trains(tmp_path, begun, preset):
    made = toys.trainer(
        tmp_path, begun, toys.tools(tmp_path), f"presets=[{preset}]", "rlvr.rollout.max_turns=2", "rlvr.steps=2"
    )
    before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
    made.run()
    lines = [line["values"] for line in toys.spool(tmp_path / "work") if line["kind"] == "metrics"]
    assert len(lines) == 2 and all(torch.isfinite(torch.tensor(list(line.values()))).all() for line in lines)
    assert all(line["rollout/error_share"] == 0 and "reward_component/calls" in line for line in lines)
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert not torch.equal(before, after)


@pytest.mark.slow
def test_rows_know_their_calls(tmp_path, begun):
    made = toys.trainer(tmp_path, begun, toys.tools(tmp_path))
    rows, _ = made.collect(0)
    called = [row for row in rows if row.turn_calls]
    assert called, "60 steps of SFT teach the form"
    costs = {"ok": 0.1, "failed": 0.3, "bad_arguments": 0.3, "unknown_tool": 0.3, "malformed": 0.4}
    for row in called:
        assert len(row.turn_calls) == len(row.turn_components) == max(row.turn) + 1
        for calls, parts in zip(row.turn_calls, row.turn_components, strict=True):
            if calls:
                assert sum(parts.values()) == pytest.approx(-sum(costs[call["outcome"]] for call in calls))
