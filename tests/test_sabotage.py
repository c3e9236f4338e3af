"""Planted bugs: each is put into a copy of the tree, and the tests named beside it must fail there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import toys

LAWS = ["tests/pipelines/rlvr/test_laws.py", "tests/pipelines/rlvr/test_algorithm.py", "pipelines/rlvr"]
ENGINE = [f"tests/pipelines/engine/test_{name}.py" for name in ("checkpoint", "sampler", "layout")]
ENGINES = "tests/pipelines/engine"
RECIPES = "tests/hostile/test_recipes.py"
HOOKS = "tests/pipelines/rlvr/test_hooks.py"
OUTBOX = "tests/tasks/test_outbox.py"
TURNS = ["tests/pipelines/rlvr/test_turn_methods.py"]
PLANTED = {
    "sign of the policy gradient": ("pipelines/rlvr/objective/reinforce.py", "-logp * advantage", "logp * advantage", LAWS),
    "clip bounds swapped": ("pipelines/rlvr/objective/clip.py", "rho.clamp(1 - low, 1 + high)", "rho.clamp(1 - high, 1 + low)", LAWS),
    "importance weight with gradient": (
        "pipelines/rlvr/objective/cispo.py", "ratio(logp, logp_old).detach()", "ratio(logp, logp_old)", LAWS,
    ),
    "ddof forgotten": ("pipelines/rlvr/ops.py", "(n - ddof).clamp(min=1)).sqrt()", "n.clamp(min=1)).sqrt()", LAWS),
    "unscored rows in the mean": ("pipelines/rlvr/ops.py", "group_sum(x.double() * scored, group) / group", "group_sum(x.double(), group) / group", LAWS),
    "leave-one-out factor": ("pipelines/rlvr/advantage/rloo.py", "* scored * n / (n - 1)", "* scored * (n - 1) / (n - 1)", LAWS),
    "whitening over padding": ("pipelines/rlvr/ops.py", "values = x.double() * mask", "values = x.double() * mask + 0.1", LAWS),
    "denominator per row instead of per step": (
        "pipelines/rlvr/loss_aggregation/token_mean.py", "used.sum().clamp(min=1)", "used.sum(1, keepdim=True).clamp(min=1)", LAWS,
    ),
    "penalty scored twice": (
        "pipelines/rlvr/algorithm.py", "columns[\"reward\"] - penalty.weight *", "columns[\"reward\"] - 2 * penalty.weight *", LAWS,
    ),
    "mask off by one": ("pipelines/engine/policy.py", "source=scored[:, 0] * width + scored[:, 1],", "source=scored[:, 0] * width + scored[:, 1] + 1,", ENGINE),
    "temperature left out in the trainer": (
        "pipelines/engine/distribution.py",
        "warped = logits[part].float() / temperature\n",
        "warped = logits[part].float() * 1.0\n",
        ENGINE,
    ),
    "branches see each other": ("pipelines/engine/layout.py", "attends[:, self.path[:shared]] = True", "attends[:, :start] = True", ENGINE),
    "left padding attended to": ("pipelines/engine/sampler.py", "gaps.attention_mask(width).long() if gaps.any() else None", "None", ENGINE),
    "cache rows mixed up": ("pipelines/engine/cache.py", "torch.index_select(old[:, :, : self.filled], 0, rows", "torch.index_select(old[:, :, : self.filled], 0, rows.flip(0)", ENGINE),
    "a branch copies another row": ("pipelines/engine/cache.py", "torch.index_select(old, 0, parents,", "torch.index_select(old, 0, parents.flip(0),", ENGINE),
    "a commit of weights that have moved on": ("pipelines/engine/checkpoint.py", 'tensor.detach().to("cpu", copy=True)', 'tensor.detach().to("cpu")', ENGINE),
    "environment tokens in the loss": ("pipelines/rlvr/pack.py", "chosen, given = role == Role.POLICY,", "chosen, given = role >= Role.POLICY,", ["tests/pipelines/rlvr/test_rollouts.py"]),
    "statistics forgotten at a restart": ("pipelines/rlvr/shaping/laser_d.py", 'self.targets, self.seen, self.steps = list(state["targets"]),', "self.targets, self.seen, self.steps = list(self.targets),", LAWS),
    "the baseline holds the row itself": ("pipelines/rlvr/advantage/trloo.py", "n / (n - 1).clamp(min=1) * (returns", "1.0 * (returns", TURNS),
    "the reward paid a token early": ("pipelines/rlvr/advantage/_estimate.py", "last = place.amax(1, keepdim=True)", "last = (place.amax(1, keepdim=True) - 1).clamp(min=0)", TURNS),
    "processes average instead of adding up": ("pipelines/rlvr/learner.py", "(loss * self.world.size).backward()", "loss.backward()", ["tests/pipelines/engine/test_parallel.py"]),
    "the temperature forgotten in the gradient": ("pipelines/engine/distribution.py", "scale = gradient / ctx.temperature", "scale = gradient", [f"{ENGINES}/test_distribution.py"]),
    "a shared prompt's padding is read": ("pipelines/engine/layout.py", "known = torch.arange(length) < start[:, None]", "known = torch.arange(length) < length + 0 * start[:, None]", [f"{ENGINES}/test_layout.py"]),
    "a hint is blamed for the answer behind it": ("pipelines/rlvr/algorithm.py", 'columns["advantage"] = columns["advantage"] * ~hints', 'columns["advantage"] = columns["advantage"] * 1', [f"{HOOKS}::test_hints_start_from_nothing_and_learn_what_credit_says"]),
    "a coupled loss without its entropies": ("pipelines/rlvr/learner.py", 'loss = (mine["slopes"] * torch.stack([logp, entropy, *top], -1)).sum()', 'loss = (mine["slopes"][..., 0] * logp).sum()', [f"{HOOKS}::test_a_loss_that_couples_rows_has_one_gradient"]),
    "a demonstration's ratio starts from nothing": ("pipelines/rlvr/learner.py", "if batch.teacher_forced.any():", "if False:", [f"{HOOKS}::test_demonstrations_are_rows_with_the_trainer_s_own_numbers"]),
    "an update of its own is part of the step's": ("pipelines/rlvr/learner.py", 'else columns["update"] == 0', 'else columns["update"] >= 0', [f"{HOOKS}::test_the_step_before_trains_once_more"]),
    "a term's weight taken from a method": ("pipelines/contract/catalogue.py", '_weight(slot, chosen.pop("weight", 1.0)) if slot in TERMS else 1.0', '_weight(slot, chosen.pop("weight", 1.0))', [LAWS[0]]),
    "positions start over after a shared prefix": ("pipelines/engine/sampler.py", "torch.arange(gaps.start, width, device=ids.device)", "torch.arange(width - gaps.start, device=ids.device)", ENGINE),
    "rounded weights go stale": ("pipelines/engine/rounded.py", "copy.data.copy_(weight.detach())", "key in self.copies or copy.data.copy_(weight.detach())", [f"{ENGINES}/test_fixed.py::test_sampler_is_trainer"]),
    "a token does not see itself": ("pipelines/engine/fixed.py", "(position <= self.write_position)", "(position < self.write_position)", [f"{ENGINES}/test_fixed.py::test_greedy_tokens_are_those_of_generate"]),
    "rows read another prompt's padding": ("pipelines/engine/attention.py", 'table_scores.masked_fill(self.padding, float("-inf"))', "table_scores + 0", [f"{ENGINES}/test_attention.py"]),
    "half a checkpoint accepted": ("pipelines/engine/checkpoint.py", 'or file_sha256(path / STATE) != _meta(path).get("sha256"):', "or False:", ENGINE),
    "a key written twice is read": ("pipelines/recipe/yaml_text.py", "if key.value in first:", "if False:", [f"{RECIPES}::test_files"]),
    "aliases nest without end": ("pipelines/recipe/yaml_text.py", "if levels > DEEPEST + 1:", "if False:", [f"{RECIPES}::test_files"]),
    "infinity is a number": ("pipelines/recipe/yaml_text.py", "not math.isfinite(value)", "value != value", [f"{RECIPES}::test_files"]),
    "true is one": ("pipelines/contract/fields.py", "any(isinstance(v, bool) for v in inner)", "False", [f"{RECIPES}::test_values"]),
    "a split's name is a path": ("pipelines/contract/fields.py", 'r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}"', 'r"[A-Za-z0-9./][A-Za-z0-9./_+-]{0,119}"', [f"{RECIPES}::test_values"]),
    "a weight that is no number": ("pipelines/contract/catalogue.py", "if not abs(weight) <= LARGEST:", "if abs(weight) > LARGEST:", [f"{RECIPES}::test_values"]),
    "an override makes a section of a value": ("pipelines/recipe/read.py", "elif not isinstance(child, dict | list):", "elif not isinstance(child, dict | list | str | int | float):", [f"{RECIPES}::test_overrides"]),
    "the preset beats the recipe": ("pipelines/recipe/read.py", '{**merged, **(body.get("rlvr") or {})}', '{**(body.get("rlvr") or {}), **merged}', ["tests/pipelines/recipe/test_read.py"]),
    "a pipe is a data file": ("tasks/preflight.py", "elif not stat.S_ISREG(about.st_mode):", "elif False:", ["tests/tasks/test_preflight.py::test_files"]),
    "training without gradients": ("tasks/estimate.py", "else WEIGHTS + GRADIENTS + MOMENTS", "else WEIGHTS + MOMENTS", ["tests/tasks/test_preflight.py::test_room"]),
    "stages that are reused are checked": ("tasks/preflight.py", 'if recipe.rlvr is not None and "rlvr" in stages:', "if recipe.rlvr is not None:", ["tests/tasks/test_preflight.py::test_stages_that_do_not_run_are_not_looked_at"]),
    "a half line is forwarded": ("pipelines/stage/report.py", "        cut_half_line(folder / SPOOL)\n", "", ["tests/pipelines/stage/test_report.py"]),
    "rewinding fills up with zeros": ("pipelines/stage/report.py", "self._file.truncate(min(cursor, self.cursor()))", "self._file.truncate(cursor)", ["tests/pipelines/stage/test_report.py"]),
    "a refusal for good is tried for ever": ("tasks/tracking_client.py", "    if status in FOR_GOOD:\n", "    if status in ():\n", [f"{OUTBOX}::test_a_refusal_is_recorded_once_and_set_aside"]),
    "a stage waits for a silent server": ("tasks/patience.py", "                self.spend(now - last)\n", "                self.spend(0.0)\n", [f"{OUTBOX}::test_patience_is_one_budget_for_all"]),
    "a call left behind goes on writing": ("tasks/tracking_stage.py", "            if self._abandoned:\n                raise", "            if False:\n                raise", [f"{OUTBOX}::test_a_call_left_behind_writes_nothing_any_more"]),
    "another stage's artifact is taken": ("tasks/artifacts.py", '!= (stage, key):', '!= (body.get("stage"), body.get("key")):', [f"{OUTBOX}::test_a_fetched_artifact_must_be_the_one_that_was_wanted"]),
    "a manifest leads out of its folder": ("pipelines/stage/files.py", "        if not is_inside(name):\n", "        if False:\n", ["tests/pipelines/stage/test_files.py"]),
    "a password stays in the address": ("tasks/environment.py", '        os.environ["MLFLOW_TRACKING_URI"] = uri\n', "", [f"{OUTBOX}::test_passwords_leave_the_address_and_reach_the_client"]),
    "an entry is sent again and again": ("tasks/outbox.py", "        shutil.rmtree(entry, ignore_errors=True)\n        return True", "        return True", [f"{OUTBOX}::test_an_entry_is_sent_once_and_then_gone"]),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_the_line_to_sabotage_is_still_there(bug):
    path, right, wrong, tests = PLANTED[bug]
    assert (toys.ROOT / path).read_text().count(right) == 1 and right != wrong
    assert all((toys.ROOT / test.split("::")[0]).exists() for test in tests)


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug, tmp_path):
    plant_and_test(bug, *PLANTED[bug], tmp_path)


def plant_and_test(bug, path, correct, planted, tests, tmp_path):
    """Run the tests in a copy of the tree with the bug in it; they must fail."""
    tree = tmp_path / "tree"
    for name in ("pipelines", "evaluation", "tasks", "flows", "tests", "recipes"):
        shutil.copytree(toys.ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(toys.ROOT / "pyproject.toml", tree)
    text = (tree / path).read_text()
    (tree / path).write_text(text.replace(correct, planted))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, f"{bug} was not noticed:\n{done.stdout[-1500:]}"
    assert "failed" in done.stdout or "error" in done.stdout
