"""Parts that change nothing: the share is exact, and a run says once which part it is."""

from __future__ import annotations

import functools
import json

import judge_server
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import spec

from pipelines.contract.catalogue import bind, names
from pipelines.contract.metrics import metric
from pipelines.recipe.settings import Rlvr
from pipelines.rlvr.algorithm import Update, assign_credit
from pipelines.rlvr.diagnostics import changed
from pipelines.rlvr.effects import Effects
from tasks.tracking.alarms import alarms_of, tag

PAID = ("reward", "turn_reward", "token_penalty")
"""What parts of the slot `shaping` change in the end."""
NEVER_PAYS = "rlvr.shaping=[{kind: soft_overlong, factor: 0}]"


def run_credit(settings, columns):
    """The columns after credit, and the share that each part changed, by its field."""
    update, shares = Update.of(settings), {}
    for part in (*update.shaping, *update.credit):
        part.fn.setup(toys.setup_context(sorted(set(columns["problem"].tolist()))))
        part.fn.on_batch(columns)
    credited = assign_credit(update, columns, lambda place, part, share, step: shares.update({place: share}))
    return credited, shares


@pytest.mark.parametrize("name", names("rlvr.shaping"))
@given(seed=st.integers(0, 500), equal=st.booleans())
@pytest.mark.few(6)
def test_a_share_is_0_if_and_only_if_the_rewards_stay_as_they_are(name, seed, equal):
    batch = toys.rough(seed)
    if equal:  # every step and answer alike: some parts have nothing to pay
        batch.step_potential = torch.ones_like(batch.step_potential)
        batch.velocity_deviation = torch.ones_like(batch.velocity_deviation)
        batch.length = torch.full_like(batch.length, 2.0)
    columns = toys.columns_of(batch)
    shaped, shares = run_credit(Rlvr(advantage="reinforce_pp", shaping=[spec("shaping", name)]), columns)
    plain, _ = run_credit(Rlvr(advantage="reinforce_pp"), columns)
    (share,) = shares.values()
    assert 0 <= share <= 1
    assert (share == 0) == all(torch.equal(shaped[column], plain[column]) for column in PAID)


@pytest.mark.parametrize("name", names("rlvr.credit"))
@given(seed=st.integers(0, 500))
@pytest.mark.few(6)
def test_the_share_of_credit_is_of_advantages_and_shares_of_the_loss(name, seed):
    columns = toys.columns_of(toys.rough(seed))
    credited, shares = run_credit(Rlvr(credit=[spec("credit", name)]), columns)
    plain, _ = run_credit(Rlvr(), columns)
    assert set(shares) == {"rlvr.credit.0"} and 0 <= shares["rlvr.credit.0"] <= 1
    equal = [torch.equal(credited[column], plain[column]) for column in ("advantage", "loss_share")]
    assert (shares["rlvr.credit.0"] == 0) == all(equal)


def test_what_a_share_counts():
    mask = torch.tensor([[False, True, True, True], [False, True, True, False], [False, True, False, False]])
    turn = torch.tensor([[-1, 0, 0, 1], [-1, 0, 0, -1], [-1, 0, -1, -1]])
    columns = {"scored": torch.tensor([True, True, False]), "mask": mask, "turn": turn}
    turns, tokens = torch.zeros(3, 2), torch.zeros(3, 4)
    turn_paid, token_paid = turns.clone(), tokens.clone()
    turn_paid[0, 1] = turn_paid[2, 0] = 1.0
    token_paid[0, 3] = token_paid[0, 0] = token_paid[2, 1] = -0.5
    assert changed("turn_reward", columns | {"turn_reward": turns}, columns | {"turn_reward": turn_paid}) == (1, 3)
    beyond = turns.clone()
    beyond[1, 1] = 1.0  # a turn without a trained token: what it is paid counts for the row all the same
    assert changed("turn_reward", columns | {"turn_reward": turns}, columns | {"turn_reward": beyond}) == (1, 4)
    assert changed("token_reward", columns, columns | {"token_reward": token_paid}) == (1, 5)
    before = columns | {"advantage": tokens, "loss_share": mask.float()}
    left_out = before | {"loss_share": mask * torch.tensor([1.0, 1.0, 0.5, 0.0])}
    assert changed("advantage", before, before) == (0, 5)
    assert changed("advantage", before, left_out) == (3, 5)
    nobody = columns | {"scored": torch.zeros(3, dtype=torch.bool), "reward": torch.zeros(3)}
    assert changed("reward", nobody, nobody) == (0, 0)


def counted(limit, shares):
    """(step, field) of each event over the shares of a part, step by step."""
    events = []
    effects = Effects(limit, lambda text, **about: events.append((about["step"], about["monitor"])))
    part = bind("rlvr.shaping", {"kind": "clip_delta", "threshold": 0.3})
    for step, share in enumerate(shares):
        effects.add("rlvr.shaping.0", part, share, step)
    return events


def test_a_part_is_reported_once_when_the_steps_are_in_a_row():
    assert counted(3, [0, 0, 0, 0, 0]) == [(3, "no_effect rlvr.shaping.0")]
    assert counted(3, [0, 0, 0.01, 0, 0]) == []
    assert counted(3, [0, 0, 0.01, 0, 0, 0, 1, 0, 0, 0]) == [(6, "no_effect rlvr.shaping.0")]
    assert counted(None, [0] * 100) == []


def test_two_parts_of_one_name_are_counted_apart():
    events = []
    effects = Effects(2, lambda text, **about: events.append((about["step"], about["monitor"])))
    part = bind("rlvr.shaping", "soft_overlong")
    for step, shares in enumerate([(0, 0.5), (0, 0), (0, 0)]):
        for number, share in enumerate(shares):
            effects.add(f"rlvr.shaping.{number}", part, share, step)
    assert events == [(2, "no_effect rlvr.shaping.0"), (3, "no_effect rlvr.shaping.1")]


def run(folder, start, *overrides):
    folder.mkdir(exist_ok=True)
    return toys.trainer(folder, start, toys.recipe(folder), "rlvr.steps=6", "rlvr.no_effect_steps=3", *overrides)


def alarms(folder):
    return [(a["step"], a["monitor"], a["action"]) for a in alarms_of(folder / "work/spool.jsonl")]


def shares(folder, name):
    return [values[f"method/{name}/changed_share"] for _, values in toys.history(folder / "work")]


def graded(folder, start, shaping):
    """PPO with steps that a judge grades, and a part that may charge them."""
    steps = {"kind": "exprl", "model": "judge", "separator": "l", "most": 4, "weight": 0.0}
    reward = f"rlvr.reward={json.dumps(['verifier', steps])}"
    with judge_server.running(lambda body: "Grade: 2") as judge, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHETSTONE_HOME", str(folder / "home"))
        patch.setenv("OPENAI_BASE_URL", judge.url)
        run(folder, start, "presets=[clip_delta]", reward, f"rlvr.shaping={shaping}").run()


@pytest.mark.slow
def test_a_threshold_that_no_score_is_below_is_reported_once(tmp_path, start):
    """As it happened: the part has nothing to charge, and the run is plain PPO to the byte."""
    graded(tmp_path / "idle", start, "[{kind: clip_delta, threshold: 0.0, delta: false}]")
    graded(tmp_path / "plain", start, "[]")
    assert shares(tmp_path / "idle", "clip_delta") == [0.0] * 6
    assert alarms(tmp_path / "idle") == [(3, "no_effect rlvr.shaping.0", "warn")]
    weights = [(tmp_path / name / "work/out/model/model.safetensors").read_bytes() for name in ("idle", "plain")]
    assert weights[0] == weights[1]
    assert alarms(tmp_path / "plain") == []
    assert not any("changed_share" in name for _, values in toys.history(tmp_path / "plain/work") for name in values)
    (alarm,) = alarms_of(tmp_path / "idle/work/spool.jsonl")
    assert "rlvr.shaping.0: clip_delta has changed nothing for 3 steps in a row" in alarm["text"]
    assert "threshold: 0.0" in alarm["text"] and "step_potential" in alarm["text"]
    assert tag(alarm)[0] == "whetstone.alarm.000003.no_effect_rlvr.shaping.0"


@pytest.mark.slow
def test_a_part_that_pays_is_not_reported(tmp_path, start):
    graded(tmp_path / "pays", start, "[{kind: clip_delta, threshold: 1.0, delta: false}]")
    assert all(0 < share <= 1 for share in shares(tmp_path / "pays", "clip_delta"))
    assert alarms(tmp_path / "pays") == []
    assert metric("rlvr", "method/clip_delta/changed_share") is not None


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4])
def test_a_restart_continues_the_count_and_repeats_no_event(tmp_path, start, step):
    """Stopped before the event and after it."""
    run(tmp_path / "straight", start, NEVER_PAYS).run()
    toys.run_stopped(functools.partial(run, tmp_path / "stopped", start, NEVER_PAYS), step)
    assert alarms(tmp_path / "straight") == alarms(tmp_path / "stopped") == [(3, "no_effect rlvr.shaping.0", "warn")]
    assert toys.result(tmp_path / "straight/work") == toys.result(tmp_path / "stopped/work")


def test_a_restart_between_commits_repeats_the_event_of_a_forgotten_step_alone(tmp_path, start):
    toys.run_stopped(functools.partial(run, tmp_path, start, NEVER_PAYS, "rlvr.commit.every=2"), 3)
    assert alarms(tmp_path) == [(3, "no_effect rlvr.shaping.0", "warn")]


def test_a_rollback_repeats_no_event(tmp_path, start):
    """The event comes at step 3, which a monitor undoes."""
    rule = "rlvr.monitors=[{kind: metric, metric: optimizer/learning_rate, above: 0.00009, after: 2, action: rollback}]"
    run(tmp_path, start, NEVER_PAYS, rule).run()
    steps = [line["step"] for line in toys.spool(tmp_path / "work") if line["kind"] == "metrics"]
    assert steps == [1, 2, 3, 3, 4, 5, 6]
    assert [step for step, monitor, _ in alarms(tmp_path) if monitor.startswith("no_effect")] == [3]


def test_monitors_do_not_switch_it_off_and_null_does(tmp_path, start):
    run(tmp_path / "on", start, NEVER_PAYS, "rlvr.monitors=[]").run()
    run(tmp_path / "off", start, NEVER_PAYS, "rlvr.no_effect_steps=null").run()
    assert len(alarms(tmp_path / "on")) == 1 and alarms(tmp_path / "off") == []
    assert shares(tmp_path / "off", "soft_overlong") == [0.0] * 6
