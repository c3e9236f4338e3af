"""The loop: it improves a model, resumes exactly, and treats the odd cases as defined."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import adapted
import forks
import pyarrow.parquet as pq
import pytest
import ranks
import torch
import toys
from preset_toys import ALONE, fitting
from safetensors import safe_open

from pipelines.base.errors import Interrupted, ModelError
from pipelines.contract.method import own_update
from pipelines.contract.rollout import DrawnProblem
from pipelines.contract.sampling import Sampling
from pipelines.curate.run import run as curate
from pipelines.data.dataset import read_split
from pipelines.data.records import by_group
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.diagnostics import Ratios
from pipelines.rlvr.ops import group_mean, homogeneous, row_mean
from pipelines.rlvr.train import PHASES
from pipelines.stage.report import Report
from tasks.tracking.alarms import alarms_of


def trainer(tmp_path, start, *overrides):
    return toys.trainer(tmp_path, start, toys.recipe(tmp_path), *overrides)


@pytest.mark.parametrize("preset", ALONE)
def test_presets_train(tmp_path, start, preset):
    made = trainer(tmp_path, start, f"presets=[{preset}]", *fitting(preset, start))
    before = torch.cat([p.detach().flatten().clone() for p in made.learner.model.parameters()])
    numbers = made.run()
    assert numbers["steps"] == 4
    after = torch.cat([p.detach().flatten() for p in made.learner.model.parameters()])
    assert torch.isfinite(after).all() and not torch.equal(before, after)
    seen = {k: v for _, values in toys.history(tmp_path / "work") for k, v in values.items()}
    assert seen["mismatch/max"] < 1e-4
    assert toys.unlisted_metrics(made.settings, seen) == set(), "monitors could not read them"
    assert {"reward/mean", "rollout/length_mean", "signal/zero_variance_group_share", "optimizer/grad_norm"} <= set(
        seen
    )


@pytest.mark.slow
def test_reward_goes_up(tmp_path, start, monkeypatch):
    """A reward that any policy can learn: half of the letters are good."""
    (tmp_path / "vowels.py").write_text(
        "def early(prompts, completions, **columns):\n"
        "    return [float((c[0]['content'] + 'z')[0] in 'abcdefghijklm') for c in completions]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    more = [
        "rlvr.steps=40",
        "rlvr.prompts=16",
        "rlvr.group_size=8",
        "rlvr.optimizer.learning_rate=0.0005",
        "rlvr.commit.every=40",
    ]
    trainer(tmp_path, start, "rlvr.reward_functions=['vowels:early']", *more).run()
    rewards = [v["reward_component/early"] for _, v in toys.history(tmp_path / "work")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15


@pytest.mark.parametrize(
    "override",
    [
        "rlvr.micro_batch_tokens=32",
        "rlvr.share_prefixes=false",
        "rlvr.skip_zero_advantage_rows=false",
        "rlvr.decode_rows=5",
    ],
)
def test_layout_settings_change_no_gradient(tmp_path, start, override):
    """One step under another layout gives the same weights up to float rounding (AdamW's first step is the sign)."""
    grads = []
    for i, more in enumerate(([], [override])):
        (tmp_path / str(i)).mkdir()
        made = trainer(tmp_path / str(i), start, "rlvr.sampling.temperature=0.9", "rlvr.prompts=8", *more)
        made.learner.stepper.step = lambda number: {}
        if "decode_rows" in override:
            made.sampler.rows = 1024
        made.step(0)
        grads.append(torch.cat([p.grad.flatten() for p in made.learner.model.parameters()]))
    assert grads[0].abs().max() > 0
    torch.testing.assert_close(grads[0], grads[1], atol=1e-5, rtol=1e-3)


def past_the_end(one):
    return replace(one, tokens=[*one.tokens, 0], logp=[*one.logp, 0.0])


def off_by_one(one):
    return replace(one, logp=[0.0, *one.logp[:-1]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bug", [past_the_end, off_by_one, "temperature", "stale weights"])
def test_a_sampler_that_disagrees_stops_the_run(tmp_path, start, bug, dtype):
    """Each bug in a real run: tokens after the end token, log-probs of other tokens, another temperature, old weights."""
    made = trainer(
        tmp_path, start, "rlvr.sampling.temperature=0.7", "rlvr.optimizer.learning_rate=0.01", f"model.dtype={dtype}"
    )
    real = made.sampler.extend
    if callable(bug):
        made.sampler.extend = lambda *args, **more: [bug(one) for one in real(*args, **more)]
    elif bug == "temperature":
        made.sampler.extend = lambda prefixes, _, *rest, **more: real(prefixes, Sampling(max_tokens=8), *rest, **more)
    else:
        made.sampler.model = copy.deepcopy(made.sampler.model)
        made.sampler.weights.model = made.sampler.model
        made.step(0)
    with pytest.raises(Interrupted, match="sampler and trainer disagree"):
        made.step(1)


def test_lora_with_reference_and_several_updates(tmp_path, start):
    made = trainer(
        tmp_path, start, "rlvr.lora={rank: 4}", "presets=[grpo]", "rlvr.epochs=2", "rlvr.mini_batches=2",
        "rlvr.auxiliary_loss=[{kind: entropy, weight: 0.01}]", "rlvr.gradient_checkpointing=true",
    )  # fmt: skip
    made.run()
    seen = toys.history(tmp_path / "work")
    assert seen[0][1]["policy/kl_to_reference"] < seen[-1][1]["policy/kl_to_reference"] + 1e-3
    assert made.learner.updates_done == 16
    adapted.check(tmp_path / "work/out", start / "sft/out/model", "out", atol=1e-5)


def test_offloaded_activations_change_no_weight(tmp_path, start, monkeypatch):
    """Decoding by the same module is without a gradient, and keeps nothing."""
    from pipelines.engine import offload

    ended, calls = {}, []
    real = offload.offload_activations
    monkeypatch.setattr(offload, "offload_activations", lambda *args: calls.append(args) or real(*args))
    for offloaded in ("false", "true"):
        (tmp_path / offloaded).mkdir()
        made = trainer(tmp_path / offloaded, start, "rlvr.steps=2", f"rlvr.activation_offload={offloaded}")
        made.run()
        ended[offloaded] = {name: weight.clone() for name, weight in made.learner.model.state_dict().items()}
    assert len(calls) == 1
    assert all(torch.equal(weight, ended["true"][name]) for name, weight in ended["false"].items())


def train_adapters(tmp_path, start, lora, dtype):
    """They are sampled and trained by the same numbers, and they change the policy."""
    rate = "rlvr.optimizer.learning_rate=0.01"
    trainer(tmp_path, start, f"rlvr.lora={lora}", "presets=[grpo]", rate, f"model.dtype={dtype}").run()
    seen = [values for _, values in toys.history(tmp_path / "work")]
    assert max(values["mismatch/max"] for values in seen) < (1e-4 if dtype == "float32" else 0.2)
    assert seen[0]["policy/kl_to_reference"] < 1e-4 < seen[-1]["policy/kl_to_reference"], (
        "the reference has no adapters"
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dora_samples_and_trains_by_the_same_numbers(tmp_path, start, dtype):
    train_adapters(tmp_path, start, "{rank: 4, use_dora: true}", dtype)
    adapted.check(tmp_path / "work/out", start / "sft/out/model", "out")


def test_bfloat16(tmp_path, start):
    made = trainer(tmp_path, start, "model.dtype=bfloat16")
    made.run()
    assert all(p.dtype == torch.float32 for p in made.learner.model.parameters())


STORED_IN_BFLOAT16 = ("model.dtype=bfloat16", "model.weights_dtype=bfloat16")


@pytest.mark.slow
def test_weights_stored_in_bfloat16(tmp_path, start):
    """They are trained, sampled from and handed on as they are stored, with a reference policy and a model that learns beside."""
    made = trainer(
        tmp_path, start, *STORED_IN_BFLOAT16, "presets=[prime]", "rlvr.divergence={kind: k3, weight: 0.1}",
    )  # fmt: skip
    policy = list(made.learner.model.parameters())
    before = [p.detach().clone() for p in policy]
    made.run()
    assert {p.dtype for p in policy} == {torch.bfloat16}
    assert any(not torch.equal(a, b) for a, b in zip(before, policy, strict=True))
    with safe_open(tmp_path / "work/out/model/model.safetensors", "pt") as saved:
        assert {saved.get_tensor(name).dtype for name in saved.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_weights_stored_in_bfloat16_survive_a_kill(tmp_path, start):
    def build(name):
        (tmp_path / name).mkdir(exist_ok=True)
        return trainer(tmp_path / name, start, *STORED_IN_BFLOAT16, "presets=[grpo]")

    build("whole").run()
    toys.run_stopped(lambda: build("killed"))
    model, moments = (
        [
            torch.load(commit, weights_only=True)[part]
            for name in ("whole", "killed")
            for commit in commits_of(tmp_path / name)[-1:]
        ]
        for part in ("model", "optimizer")
    )
    assert all(torch.equal(model[0][name], model[1][name]) for name in model[0])
    for number, entry in moments[0]["state"].items():
        assert entry["exp_avg"].dtype == torch.float32
        assert torch.equal(entry["exp_avg"], moments[1]["state"][number]["exp_avg"])


def commits_of(folder):
    return sorted((folder / "work").rglob("step-*/state.pt"))


def test_adapters_over_weights_stored_in_bfloat16_are_float32(tmp_path, start):
    made = trainer(tmp_path, start, *STORED_IN_BFLOAT16, "rlvr.lora={rank: 4}")
    dtypes = {p.requires_grad: p.dtype for p in made.learner.model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    assert type(made.learner.optimizer) is torch.optim.AdamW
    made.run()


def test_dynamic_sampling_fills_the_step(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.filter=mixed", "rlvr.sampling_schedule={kind: dynamic, max_draws: 4}")
    sampled, kept = made.collect(0)
    groups = {t.group for t in kept}
    assert len(groups) <= 4 and len(sampled) >= len(kept)
    for group in groups:
        assert len({bool(t.correct) for t in kept if t.group == group}) == 2


def columns_learned(made, step=0):
    """The columns of the step's own update."""
    learned, learn = [], made.learner.learn
    made.learner.learn = lambda updates: learned.append(own_update(updates).columns) or learn(updates)
    made.step(step)
    made.learner.learn = learn
    return learned[0]


@pytest.mark.parametrize(("kind", "sign"), [("correct", 1), ("incorrect", -1)])
def test_rows_out_of_the_loss_stay_in_the_statistics(tmp_path, start, kind, sign):
    """Compared among themselves, correct rows differ in nothing: `filter: correct` with grpo learned nothing."""
    made = trainer(tmp_path, start, f"rlvr.filter={kind}", "rlvr.prompts=8", "rlvr.sampling.temperature=1.3")
    columns = columns_learned(made)
    assert torch.equal(columns["in_loss"], (columns["correct"] > 0) == (kind == "correct")) and columns["scored"].all()
    advantage = row_mean(columns["advantage"], columns["mask"]).double()
    assert group_mean(advantage, columns["group"], columns["scored"]).abs().max() < 1e-5, (
        "compared with every scored row"
    )
    differ = ~homogeneous(columns["correct"], columns["group"], columns["scored"]) & columns["in_loss"]
    own = group_mean(advantage, columns["group"], columns["in_loss"])[differ]
    assert len(own) and (sign * own > 0).all()


def test_surplus_groups_train_in_the_next_step_as_they_were_sampled(tmp_path, start):
    made = trainer(
        tmp_path,
        start,
        "presets=[dapo_carry]",
        "rlvr.sampling_schedule.max_draws=8",
        "rlvr.group_size=8",
        "rlvr.optimizer.learning_rate=0.0005",
    )
    schedule = made.update.sampling_schedule.fn
    for step in range(12):
        carried = {tuple(row.tokens): row for _, problem in schedule.carried for row in problem.rows}
        columns = columns_learned(made, step)
        older = ~columns["on_policy"]
        for tokens, row in carried.items():
            places = (columns["token"][:, : len(tokens)] == torch.tensor(tokens)).all(1) & older
            assert places.any(), "every carried row trains"
            assert columns["logp_old"][places][0, : len(tokens)].tolist() == torch.tensor(row.logp_old).tolist()
            assert (columns["group"][places] < 0).all()
        if carried:
            break
    assert carried, "twelve steps without surplus"


def test_a_step_that_carried_problems_fill_draws_and_spends_nothing(tmp_path, start):
    """Their tokens were counted, and listed as draws, in the step that drew them."""
    made = trainer(tmp_path, start, "rlvr.sampling_schedule=dynamic_carry")
    made.step(0)
    spent = made.spent["tokens"]
    _, rows = made.collect(1)
    problems = [DrawnProblem(own, trains=True) for own in by_group(rows).values()]
    made.update.sampling_schedule.fn.carried = [(0, problem) for problem in problems]
    metrics = made.step(2)
    made._spend(metrics)
    assert metrics["rollout/tokens_per_s"] == 0 and metrics["tokens/sampled_so_far"] == spent > 0
    first, last = map(json.loads, (tmp_path / "work/out/report/draws.jsonl").read_text().splitlines())
    assert first["rewards"] and last == {"step": 3, "rewards": {}}


def test_a_rollout_part_gets_its_state_back(tmp_path, start):
    """It remembers every rank's rows, so one state serves any number of ranks."""
    made = trainer(tmp_path, start, "presets=[seele]", "rlvr.steps=1")
    made.step(0)
    made._commit(1)
    made.committer.wait()
    again = trainer(tmp_path, start, "presets=[seele]", "rlvr.steps=1")
    again._resume()
    assert again.update.rollout.fn.shares == made.update.rollout.fn.shares != {}


def test_a_budget_of_tokens_ends_the_run_and_a_restart_knows_it(tmp_path, start):
    whole = trainer(tmp_path, start, "rlvr.steps=6", "rlvr.commit.every=4")
    whole.run()
    spent = [values["tokens/sampled_so_far"] for _, values in toys.history(tmp_path / "work")]
    assert spent == sorted(spent) and len(set(spent)) == 6
    other = tmp_path / "other"
    other.mkdir()
    limit = ["rlvr.steps=6", "rlvr.commit.every=4", f"rlvr.budget.tokens={int(spent[2])}"]
    assert trainer(other, start, *limit).run()["steps"] == 3
    assert [values["tokens/sampled_so_far"] for _, values in toys.history(other / "work")] == spent[:3]
    again = trainer(other, start, *limit)
    again.run()
    assert again.start_step == 3 and len(toys.history(other / "work")) == 3, "nothing more is sampled"


def test_a_budget_of_seconds_ends_the_run(tmp_path, start):
    made = trainer(tmp_path, start, "rlvr.steps=50", "rlvr.budget.seconds=0.001")
    assert made.run()["steps"] == 1 and made.spent["seconds"] > 0.001


def test_reward_functions_plug_in(tmp_path, start, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(
        "def shorter(prompts, completions, completion_ids, log_extra, log_metric, trainer_state, **columns):\n"
        "    log_extra('place', range(len(prompts)))\n"
        "    log_metric('steps', trainer_state.global_step + trainer_state.max_steps)\n"
        "    return [None if i % 2 else -len(ids) for i, ids in enumerate(completion_ids)]\n"
    )
    monkeypatch.chdir(tmp_path)
    made = trainer(tmp_path, start, "rlvr.reward_functions=[./my_rewards.py:shorter]")
    rows, _ = made.collect(0)
    for i, row in enumerate(rows):
        n = sum(r == 3 for r in row.role)
        assert row.components.get("shorter") == (None if i % 2 else -n) and row.logged == {"place": i}
    batch = made.collector.collect(1)
    assert batch.metrics["logged/steps"] == 1 + made.settings.steps
    from pipelines.base.errors import RecipeError

    with pytest.raises(RecipeError, match=r"functions\.0: there is no module 'nope'"):
        trainer(tmp_path, start, "rlvr.reward_functions=['nope:x']")


def test_a_verifier_that_fails_leaves_rows_unscored(tmp_path, start, monkeypatch):
    from pipelines import verifiers
    from pipelines.verifiers import in_process

    made = trainer(tmp_path, start)

    def broken(completion, answer, info):
        raise RuntimeError("judge is away")

    for module in (verifiers, in_process):
        monkeypatch.setattr(module, "load", lambda name: SimpleNamespace(verify=broken))
    monkeypatch.setattr(verifiers, "POOLED", {})  # in this process, where the patch is
    numbers = made.step(0)
    assert numbers["reward/unscored_share"] == 1.0
    assert "loss/policy" not in numbers


def test_a_split_smaller_than_a_step_is_told_of_once(tmp_path, start):
    few = tmp_path / "few"
    shutil.copytree(start, few, ignore=shutil.ignore_patterns("sft"))
    (few / "sft").symlink_to(start / "sft")
    table = pq.read_table(start / "data/train.parquet")
    pq.write_table(table.slice(0, 3), few / "data/train.parquet")
    toys.run_stopped(lambda: trainer(tmp_path, few, "rlvr.prompts=4"))
    told = alarms_of(tmp_path / "work/spool.jsonl")
    assert [(a["step"], a["monitor"], a["action"]) for a in told] == [(0, "problems", "warn")]
    assert "the split train has 3 problems and a step draws 4 (rlvr.prompts)" in told[0]["text"]


def test_changed_chat_template_is_refused(tmp_path, start):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0]['content'] }}<|assistant|>")
    with pytest.raises(ModelError, match="rlvr: the chat template or vocabulary differs"):
        trainer(tmp_path, start, f"model.chat_template={template}")


def test_difficulty_band_keeps_what_is_solved_sometimes(tmp_path, start):
    band = {"model": str(start / "sft/out/model"), "samples": 6, "max_tokens": 8}
    recipe = read_recipe(toys.recipe(tmp_path), [f"curate.difficulty={band}", "curate.sources.0.size=120"])
    out = tmp_path / "out"
    out.mkdir()
    curate(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0)
    card = json.loads((out / "report/card.json").read_text())
    assert card["rows"]["difficulty"] > 0 and sum(card["splits"].values()) > 0 and card["unexplained"] == 0
    rates = [p.info["pass_rate"] for p in read_split(out, "train")]
    assert all(0 < r < 1 for r in rates)


def kill_often(work, start, kills, seed):
    """SIGKILL at random instants of the steps until `kills` have hit, then let it finish."""
    draw = random.Random(seed)
    hit = 0
    while hit < kills:
        child = ranks.start_alone(work)
        seen = (work / "spool.jsonl").stat().st_size if (work / "spool.jsonl").exists() else 0
        until = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < until:
            if (work / "spool.jsonl").exists() and (work / "spool.jsonl").stat().st_size > seen:
                break
            time.sleep(0.01)
        time.sleep(draw.random() * 0.6)
        if child.poll() is not None:
            break
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        hit += 1
    assert ranks.start_alone(work).wait() == 0, (work / "log").read_text()[-3000:]
    return hit


PHASE_KILL = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from pipelines.base import files
from pipelines.engine import checkpoint
from pipelines.rlvr import __main__ as stage, train
phase, wanted, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
made = train.Trainer.__init__
def watched(self, *args, **kwargs):
    made(self, *args, **kwargs)
    self.phase = lambda name, step: die() if (name, step) == (phase, wanted) else None
train.Trainer.__init__ = watched
saved, renamed = checkpoint.save, files.publish
def save(where, step, *args, **kwargs):
    if step == wanted + 1 and phase == "before the rename":
        checkpoint.write_atomic = lambda *a, **k: die()
    if step == wanted + 1 and phase == "after the rename":
        files_write = checkpoint.write_atomic
        checkpoint.write_atomic = lambda path, *a, **k: die() if path.name == "LATEST.json" else files_write(path, *a, **k)
    saved(where, step, *args, **kwargs)
    if step == wanted + 1 and phase == "before it shows":
        die()
checkpoint.save = save
stage.work(json.loads((folder / "job.json").read_text()), folder)
"""


@pytest.mark.slow
def test_a_kill_at_each_boundary_of_a_step_changes_nothing(tmp_path, start):
    """In every part of the step, and inside the commit: before its rename, after it, and before the metrics show."""
    more = ("rlvr.steps=12", "presets=[grpo]", "rlvr.mini_batches=2")
    whole = toys.job(tmp_path / "whole", start, *more)
    assert ranks.start_alone(whole).wait() == 0
    killed = toys.job(tmp_path / "killed", start, *more)
    for step, phase in enumerate((*PHASES, "before the rename", "after the rename", "before it shows"), 2):
        command = [sys.executable, "-c", PHASE_KILL, phase, str(step), str(killed)]
        done = forks.run(command, cwd=toys.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, (phase, done.stderr[-3000:])
    assert ranks.start_alone(killed).wait() == 0
    assert toys.result(whole) == toys.result(killed)


def test_out_of_memory_makes_smaller_passes_of_the_same_sum(tmp_path, start, monkeypatch):
    grads = []
    for i, fits in enumerate((100_000, 40)):
        (tmp_path / str(i)).mkdir()
        made = trainer(tmp_path / str(i), start, "rlvr.prompts=8", "rlvr.sampling.temperature=1.3")
        made.learner.stepper.step = lambda number: {}
        score = made.learner.policy.score

        def limited(layout, *args, fits=fits, score=score, **kwargs):
            values = score(layout, *args, **kwargs)
            if layout.size > fits:
                values[0].sum().backward()  # memory runs out when a part of the gradients is there
                raise torch.OutOfMemoryError("CUDA out of memory")
            return values

        made.learner.policy.score = limited
        made.step(0)
        grads.append(torch.cat([p.grad.flatten() for p in made.learner.model.parameters()]))
    assert made.learner.passes.budget < 16_384
    assert "out of memory" in next(e["text"] for e in toys.spool(tmp_path / "1/work") if e["kind"] == "event")
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-3)
    made.learner.policy.score = lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(Interrupted, match="gradient_checkpointing"):
        made.step(1)


def test_memory_is_given_back_when_no_error_holds_the_pass(tmp_path, start):
    made, handled, tries = trainer(tmp_path, start, "rlvr.prompts=8"), [], []
    passes, halve = made.learner._passes, made.learner._halve

    def short(*args):
        tries.append(args)
        if len(tries) == 1:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
        return passes(*args)

    made.learner._passes = short
    made.learner._halve = lambda widest: handled.append(sys.exc_info()[0]) or halve(widest)
    made.step(0)
    assert handled == [None] and len(tries) == 2


def test_passes_that_failed_are_not_counted(tmp_path, start, monkeypatch):
    made = trainer(tmp_path, start, "rlvr.prompts=8", "rlvr.skip_zero_advantage_rows=false")
    passes, attempts, seen = made.learner._passes, [], []

    def late(*args):
        total = passes(*args)
        attempts.append(total)
        if len(attempts) == 1:  # memory runs out when all numbers are taken
            raise torch.OutOfMemoryError("CUDA out of memory")
        return total

    made.learner._passes = late
    monkeypatch.setattr(Ratios, "summary", lambda self, world: seen.append(sum(len(x) for x in self.log_ratio)) or {})
    numbers = made.step(0)
    assert len(attempts) == 2 and seen == [numbers["tokens/trained"]]


def test_odd_rows_are_defined(tmp_path, start):
    """A group of one, an empty completion, a prompt as long as the context, and a step without any score."""
    made = trainer(tmp_path, start, "rlvr.group_size=1", "rlvr.advantage=reinforce_pp", "rlvr.prompts=4")
    sample = made.sampler.extend

    def odd(prefixes, *args, **kwargs):
        from pipelines.contract.rollout import Completion
        from pipelines.data.records import Stop

        found = sample(prefixes, *args, **kwargs)
        return [Completion([], [], Stop.ERROR, None), *found[1:]]

    made.sampler.extend = odd
    numbers = made.step(0)
    assert numbers["rollout/error_share"] == 0.25 and numbers["reward/unscored_share"] == 0.25
    assert torch.isfinite(torch.tensor(numbers["loss/policy"]))
    made.sampler.extend = sample
    made.sampler.context = 4
    numbers = made.step(1)
    assert numbers["rollout/error_share"] == 1.0 and "loss/policy" not in numbers
    assert any("no row to learn from" in e.get("text", "") for e in toys.spool(tmp_path / "work"))


def test_the_best_weights_are_delivered(tmp_path, start):
    """A learning rate that ruins the model: the best commit is an early one, and it survives on disk."""
    more = ["rlvr.steps=24", "rlvr.prompts=8", "rlvr.optimizer.learning_rate=0.02", "rlvr.commit.every=30"]
    made = trainer(tmp_path, start, "rlvr.checkpoint_selection=best", *more)
    made.run()
    kept = sorted(p.name for p in (tmp_path / "work/checkpoints").glob("step-*"))
    events = [e for e in toys.spool(tmp_path / "work") if e.get("text") == "the best weights are handed on"]
    assert len(events) == 1 and f"step-{events[0]['step']:08d}" in kept and len(kept) <= 3
    best = torch.load(tmp_path / "work/checkpoints" / f"step-{events[0]['step']:08d}" / "state.pt", weights_only=True)
    from safetensors.torch import load_file

    delivered = load_file(tmp_path / "work/out/model/model.safetensors")
    assert all(torch.equal(v, best["model"][k]) for k, v in delivered.items())


MANY = ("rlvr.steps=40", "rlvr.curriculum=uniform", "rlvr.commit.every=2", "presets=[grpo]")


@pytest.mark.slow
@pytest.mark.long
def test_five_kills_change_nothing(tmp_path, start):
    whole = toys.job(tmp_path / "whole", start, *MANY)
    assert ranks.start_alone(whole).wait() == 0, (whole / "log").read_text()[-3000:]
    killed = toys.job(tmp_path / "killed", start, *MANY)
    assert kill_often(killed, start, 5, seed=1) >= 3
    assert toys.result(whole) == toys.result(killed)
    assert [s for s, _ in toys.history(killed)] == list(range(1, 41))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_twenty_five_kills_change_nothing(tmp_path, start):
    more = (*MANY, "rlvr.steps=150")
    whole = toys.job(tmp_path / "whole", start, *more)
    assert ranks.start_alone(whole).wait() == 0
    killed = toys.job(tmp_path / "killed", start, *more)
    assert kill_often(killed, start, 25, seed=2) >= 20
    assert toys.result(whole) == toys.result(killed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_base_in_four_bits_samples_and_trains_by_the_same_numbers(tmp_path, start, dtype):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed: pip install bitsandbytes")
    train_adapters(tmp_path, start, "{rank: 4, load_in_4bit: true}", dtype)
    assert (tmp_path / "work/out/model/model.safetensors").is_file()
