"""Monitors in a real run: what their actions do, that kills change no alarm, and that a planted exploit is flagged."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
from dataclasses import replace

import forks
import pytest
import torch
import toys

from pipelines.base.errors import Interrupted, RecipeError
from pipelines.contract.metrics import metric
from pipelines.engine import checkpoint
from pipelines.recipe.monitors import DEFAULT_MONITORS

LEARNING_RATE = 0.0001  # of the toy recipe
FAST = f"{{kind: metric, metric: optimizer/learning_rate, above: {0.9 * LEARNING_RATE}, after: 2, action: ACTION}}"
"""Wrong from step 3 on, until a rollback has halved the learning rate."""


def trainer(tmp_path, start, action="warn", *overrides):
    rules = f"rlvr.monitors=[{FAST.replace('ACTION', action)}]"
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), "rlvr.steps=6", rules, *overrides)


def metrics(work):
    return [line for line in toys.spool(work) if line["kind"] == "metrics"]


def events(work):
    """What monitors did, without clock times."""
    return [
        {k: v for k, v in line.items() if k != "time"}
        for line in toys.spool(work)
        if line["kind"] == "event" and "monitor" in line
    ]


def test_a_warning_changes_nothing_else(tmp_path, start):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    trainer(tmp_path / "a", start).run()
    trainer(tmp_path / "b", start, "warn", "rlvr.monitors=[]").run()
    weights = [(tmp_path / name / "work/out/model/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    alarm = events(tmp_path / "a/work")
    assert [(e["step"], e["monitor"], e["action"]) for e in alarm] == [(3, "metric optimizer/learning_rate", "warn")]
    assert alarm[0]["text"].startswith(
        "monitor metric optimizer/learning_rate: optimizer/learning_rate is 0.0001, above"
    )
    assert [line["values"]["monitor/alarms"] for line in metrics(tmp_path / "a/work")] == [0, 0, 1, 1, 1, 1]
    assert not events(tmp_path / "b/work") and "monitor/alarms" not in metrics(tmp_path / "b/work")[-1]["values"]


def test_everything_that_is_measured_is_in_the_table(tmp_path, start):
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "rlvr.steps=2", "rlvr.monitors=[{kind: kl_budget, nats: 9}]",
                        "rlvr.providers=[{kind: critic, learning_rate: 0.001}]", "rlvr.advantage=gae")  # fmt: skip
    made.run()
    names = {name for line in metrics(tmp_path / "work") for name in line["values"]}
    assert {"policy/kl_to_reference", "critic/loss", "reward/group_std"} <= names
    assert [name for name in sorted(names) if metric("rlvr", name) is None] == []


def test_a_rollback_returns_to_the_committed_weights(tmp_path, start):
    made = trainer(tmp_path, start, "rollback")
    committed, compared = {}, []
    commit, back = made._commit, made._go_back

    def remember(step, score=None):
        commit(step, score)
        committed.setdefault(step, checkpoint.each_tensor(made.state(step), torch.clone))

    def compare(alarm):
        step = back(alarm)
        after, before = made.state(step), committed[step]
        assert after["model"].keys() == before["model"].keys()
        assert all(torch.equal(value, before["model"][name]) for name, value in after["model"].items())
        moments = [entry["exp_avg"] for entry in after["optimizer"]["state"].values()]
        expected = [entry["exp_avg"] for entry in before["optimizer"]["state"].values()]
        assert all(torch.equal(a, b) for a, b in zip(moments, expected, strict=True)) and moments
        compared.append(step)
        return step

    made._commit, made._go_back = remember, compare
    assert made.run()["steps"] == 6
    work = tmp_path / "work"
    assert compared == [2]
    assert [e["action"] if "action" in e else e["to"] for e in events(work)] == ["rollback", 2]
    lines = metrics(work)
    assert [line["step"] for line in lines] == [1, 2, 3, 3, 4, 5, 6]
    rates = [line["values"]["optimizer/learning_rate"] for line in lines]
    assert rates == pytest.approx([LEARNING_RATE] * 3 + [LEARNING_RATE / 2] * 4)
    first, again = (line["values"] for line in lines if line["step"] == 3)
    assert first["policy/entropy"] != again["policy/entropy"], "the same prompts, other samples"
    drawn = [json.loads(line) for line in (work / "out/report/draws.jsonl").read_text().splitlines()]
    assert [d["step"] for d in drawn] == [1, 2, 3, 4, 5, 6], "what was forgotten was not trained on"
    assert lines[-1]["values"]["tokens/sampled_so_far"] > lines[-2]["values"]["tokens/sampled_so_far"]
    assert not (work / "checkpoints/step-00000003").exists(), "nothing of the forgotten branch is left"


def test_one_rollback_too_many_stops_the_run(tmp_path, start):
    rules = "rlvr.monitors=[{kind: metric, metric: rollout/rows, above: 1, after: 2, action: rollback}]"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), "rlvr.steps=9", rules, "rlvr.rollback.limit=2")
    with pytest.raises(
        Interrupted, match=r"stopped at step 3 .* has gone back 2 times already \(rlvr.rollback.limit\)"
    ):
        made.run()
    assert [line["step"] for line in metrics(tmp_path / "work")] == [1, 2, 3, 3, 3]
    entropies = [line["values"]["policy/entropy"] for line in metrics(tmp_path / "work")][2:]
    assert len(set(entropies)) == 3, "no branch repeats another"


def test_stop_ends_the_run_for_good(tmp_path, start):
    with pytest.raises(
        Interrupted,
        match=r"stopped at step 3 by rlvr.monitors: metric optimizer/learning_rate: .* Look at the rollouts",
    ):
        trainer(tmp_path, start, "stop").run()
    before = toys.spool(tmp_path / "work")
    with pytest.raises(Interrupted, match="stopped at step 3"):
        trainer(tmp_path, start, "stop").run()
    assert toys.spool(tmp_path / "work") == before, "a restart trains nothing and says nothing twice"
    assert checkpoint.last_good(tmp_path / "work/checkpoints")["step"] == 2


def test_finish_hands_on_the_last_good_weights(tmp_path, start):
    made = trainer(tmp_path, start, "finish")
    assert made.run()["steps"] == 3
    state = checkpoint.last_good(tmp_path / "work/checkpoints")
    assert state["step"] == 2
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "work/out/model/model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in state["model"].items() if name in saved)
    texts = [line["text"] for line in toys.spool(tmp_path / "work") if line["kind"] == "event"]
    assert texts[-1] == "the last good weights are handed on"
    again = trainer(tmp_path, start, "finish")
    assert again.run()["steps"] == 3, "a restart ends where it ended"


def test_an_alarm_before_the_first_commit_goes_back_to_the_start(tmp_path, start):
    made = trainer(tmp_path, start, "rollback", "rlvr.commit.every=50", "rlvr.curriculum=vade")
    made.run()
    assert [line["step"] for line in metrics(tmp_path / "work")] == [1, 2, 3, 1, 2, 3, 4, 5, 6]


def test_a_hidden_judge_that_fails_is_named(tmp_path, start, monkeypatch):
    (tmp_path / "failing_judges.py").write_text("def broken(completions, **columns):\n    raise KeyError('away')\n")
    monkeypatch.syspath_prepend(tmp_path)
    rule = "rlvr.monitors=[{kind: reward_hacking, function: 'failing_judges:broken'}]"
    with pytest.raises(RecipeError, match=r"rlvr\.monitors: failing_judges:broken raised KeyError"):
        toys.trainer(tmp_path, start, toys.recipe(tmp_path), rule).step(0)
    with pytest.raises(RecipeError, match=r"rlvr\.monitors: failing_judges has no nothing"):
        toys.trainer(tmp_path, start, toys.recipe(tmp_path), rule.replace("broken", "nothing"))


KILL = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from pipelines.rlvr import __main__ as stage, train
place, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
reached = 0
def here(name):
    global reached
    reached += name == place
    if name == place and reached == count:
        os.kill(os.getpid(), signal.SIGKILL)
def wrapped(name, function):
    def call(self, *args, **kwargs):
        here("before " + name)
        result = function(self, *args, **kwargs)
        here("after " + name)
        return result
    return call
for name in ("_watch", "_go_back", "_restore", "_commit"):
    setattr(train.Trainer, name, wrapped(name, getattr(train.Trainer, name)))
stage.work(json.loads((folder / "job.json").read_text()), folder)
"""


@pytest.mark.slow
@pytest.mark.long
def test_kills_change_no_alarm_and_no_byte(tmp_path, start):
    """SIGKILL around an alarm, inside its rollback and after it: the same alarms at the same steps, the same weights."""
    warning = "{kind: metric, metric: policy/entropy, above: 0, patience: 2}"
    rules = f"rlvr.monitors=[{FAST.replace('ACTION', 'rollback')}, {warning}, repetition]"
    jobs = {name: toys.job(tmp_path / name, start, "rlvr.steps=7", rules) for name in ("whole", "killed")}

    def launch(work, *kill):
        command = [sys.executable, "-c", KILL, *(kill or ("nowhere", "1")), str(work)]
        return forks.run(command, cwd=toys.ROOT, capture_output=True, text=True, check=False)

    done = launch(jobs["whole"])
    assert done.returncode == 0, done.stderr[-2000:]
    places = [
        ("after _watch", "2"),
        ("before _go_back", "1"),
        ("after _restore", "2"),
        ("after _go_back", "1"),
        ("after _commit", "2"),
    ]
    for kill in places:
        done = launch(jobs["killed"], *kill)
        assert done.returncode == -signal.SIGKILL, (kill, done.returncode, done.stderr[-2000:])
    assert launch(jobs["killed"]).returncode == 0

    def result(work):
        weights = hashlib.sha256((work / "out/model/model.safetensors").read_bytes()).hexdigest()
        values = [
            (b["step"], {k: v for k, v in b["values"].items() if "time/" not in k and "per_s" not in k})
            for b in metrics(work)
        ]
        return weights, values, (work / "out/report/draws.jsonl").read_text(), events(work)

    whole = result(jobs["whole"])
    assert result(jobs["killed"]) == whole
    assert [e["step"] for e in whole[3]] == [2, 3, 3], "a warning, the alarm, the way back"


STRICT = '''
def palindrome(prompts, completions, **columns):
    """The letters of the question, all of them, in an order that reads the same backwards."""
    out = []
    for prompt, completion in zip(prompts, completions):
        text, letters = completion[0]["content"], prompt[-1]["content"].split()[-1]
        out.append(float(text == text[::-1] and sorted(text) == sorted(letters)))
    return out
'''


def exploitable(made):
    """The run with a careless verifier: an answer that begins as it ends is a palindrome, whatever its letters."""
    pattern = {"pattern": r"(.)(.*\1)?", "mode": "fullmatch"}
    made.problems = [replace(p, verifier="regex", answer=pattern["pattern"], info=pattern) for p in made.problems]
    made.by_uid = {p.uid: p for p in made.problems}
    made.collector.problems, made.collector.by_uid = made.problems, made.by_uid


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_planted_exploit_is_flagged_within_30_steps(tmp_path, start, monkeypatch, seed):
    (tmp_path / "strict_judge.py").write_text(STRICT)
    monkeypatch.syspath_prepend(tmp_path)
    more = [
        "rlvr.steps=30",
        "rlvr.prompts=16",
        "rlvr.group_size=8",
        "rlvr.optimizer.learning_rate=0.001",
        "rlvr.commit.every=30",
    ]
    rule = "{kind: reward_hacking, function: 'strict_judge:palindrome', action: finish}"
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more, f"rlvr.monitors=[{rule}]")
    made.seed = made.collector.seed = seed
    exploitable(made)
    made.run()
    alarms = [e for e in events(tmp_path / "work") if "action" in e]
    values = [line["values"] for line in metrics(tmp_path / "work")]
    shown = [(round(v["hidden/palindrome_reward"], 2), round(v["hidden/palindrome"], 2)) for v in values]
    assert alarms and alarms[0]["step"] <= 30, shown
    assert re.search(r"reward_hacking \(palindrome\): in \d+ steps the reward has gone by \+0\.\d+", alarms[0]["text"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_a_healthy_run_raises_no_alarm(tmp_path, start, monkeypatch, seed):
    """Every rule at once, the defaults as they are, on a run that learns what it should."""
    (tmp_path / "strict_judge.py").write_text(STRICT)
    monkeypatch.syspath_prepend(tmp_path)
    hidden = "function: 'strict_judge:palindrome'"
    rules = [rule["kind"] for rule in DEFAULT_MONITORS]
    rules += [f"{{kind: reward_hacking, {hidden}}}", f"{{kind: goodhart, {hidden}}}", "{kind: kl_budget, nats: 0.5}"]
    more = ["presets=[dr_grpo]", "rlvr.mini_batches=1", "rlvr.steps=80", "rlvr.prompts=32", "rlvr.group_size=8"]
    more += ["rlvr.optimizer.learning_rate=0.0005", "rlvr.commit.every=80"]
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *more, f"rlvr.monitors=[{', '.join(rules)}]")
    made.seed = made.collector.seed = seed
    made.run()
    assert [e["text"] for e in events(tmp_path / "work")] == []
    values = [line["values"] for line in metrics(tmp_path / "work")]
    rewards = [v["reward/mean"] for v in values]
    assert sum(rewards[-24:]) > sum(rewards[:24]), "it learns"
    assert any("hidden/palindrome" in v for v in values)
