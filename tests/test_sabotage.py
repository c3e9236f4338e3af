"""Planted bugs: each is put into a copy of the tree, and the tests named beside it must fail there."""

from __future__ import annotations

import pytest
from planted import check_clean, check_line, plant_and_test

PLANTED = {
    'sign of the policy gradient': ('pipelines/rlvr/objective/reinforce.py', '-logp * advantage', 'logp * advantage', ['tests/pipelines/rlvr/test_laws.py::test_on_policy_gradient_is_reinforce[reinforce]']),
    'clip bounds swapped': ('pipelines/rlvr/ops.py', 'torch.maximum(ratio, torch.as_tensor(1 - low)), torch.as_tensor(1 + high)', 'torch.maximum(ratio, torch.as_tensor(1 - high)), torch.as_tensor(1 + low)', ['tests/pipelines/rlvr/test_golden.py::test_agrees_with_the_source[objective/clip__dapo]']),
    'importance weight with gradient': ('pipelines/rlvr/objective/cispo.py', 'ratio(logp, logp_old).detach()', 'ratio(logp, logp_old)', ['tests/pipelines/rlvr/test_laws.py::test_on_policy_gradient_is_reinforce[cispo]']),
    'ddof forgotten': ('pipelines/rlvr/ops.py', '(n - ddof).clamp(min=1)).sqrt()', 'n.clamp(min=1)).sqrt()', ['pipelines/rlvr/advantage/a_grae.py::pipelines.rlvr.advantage.a_grae.a_grae']),
    'unscored rows in the mean': ('pipelines/rlvr/ops.py', 'group_sum(x.double() * scored, group) / group', 'group_sum(x.double(), group) / group', ['tests/pipelines/rlvr/test_laws.py::test_unscored_rows_stay_out[a_grae]']),
    'leave-one-out factor': ('pipelines/rlvr/advantage/rloo.py', '* scored * n / (n - 1)', '* scored * (n - 1) / (n - 1)', ['tests/pipelines/rlvr/test_laws.py::test_identities']),
    'whitening over padding': ('pipelines/rlvr/ops.py', 'mean = (x.double() * counts).sum() / n', 'mean = (x.double() * counts + 0.1).sum() / n', ['tests/pipelines/rlvr/test_golden.py::test_agrees_with_the_source[advantage/reinforce_pp]']),
    'denominator per row instead of per step': ('pipelines/rlvr/loss_aggregation/token_mean.py', 'tokens = used.sum()', 'tokens = used.sum(1, keepdim=True)', ['tests/pipelines/rlvr/test_golden.py::test_agrees_with_the_source[loss_aggregation/token_mean]']),
    'penalty scored twice': ('pipelines/rlvr/algorithm.py', 'columns["reward"] - per_token.sum(1)', 'columns["reward"] - 2 * per_token.sum(1)', ['tests/pipelines/rlvr/test_algorithm.py']),
    'mask off by one': ('pipelines/engine/policy.py', 'source=scored[:, 0] * width + scored[:, 1],', 'source=scored[:, 0] * width + scored[:, 1] + 1,', ['tests/pipelines/engine/test_sampler.py::test_sampler_is_trainer[plain-llama]']),
    'temperature left out in the trainer': ('pipelines/engine/distribution.py', 'warped = logits[part].float() / temperature\n', 'warped = logits[part].float() * 1.0\n', ['tests/pipelines/engine/test_sampler.py::test_sampler_is_trainer[cold-llama]']),
    'branches see each other': ('pipelines/engine/layout.py', 'attends[:, self.path[:shared]] = True', 'attends[:, :start] = True', ['tests/pipelines/engine/test_layout.py::test_same_values_and_gradients[False-llama]']),
    'left padding attended to': ('pipelines/engine/sampler.py', 'gaps.attention_mask(width).long() if gaps.any() else None', 'None', ['tests/pipelines/engine/test_sampler.py::test_greedy_tokens_are_those_of_generate[llama]']),
    'cache rows mixed up': ('pipelines/engine/cache.py', 'torch.index_select(old[:, :, : self.filled], 0, rows', 'torch.index_select(old[:, :, : self.filled], 0, rows.flip(0)', ['tests/pipelines/engine/test_sampler.py::test_greedy_tokens_are_those_of_generate[llama]']),
    'a branch copies another row': ('pipelines/engine/cache.py', 'torch.index_select(old, 0, parents,', 'torch.index_select(old, 0, parents.flip(0),', ['tests/pipelines/engine/test_sampler.py::test_sampler_is_trainer[plain-gemma2]']),
    'a commit of weights that have moved on': ('pipelines/engine/checkpoint.py', 'tensor.detach().to("cpu", copy=True)', 'tensor.detach().to("cpu")', ['tests/pipelines/engine/test_checkpoint.py::test_the_state_is_copied_before_training_goes_on']),
    'environment tokens in the loss': ('pipelines/rlvr/pack.py', 'by_policy, demonstrated = role == Role.POLICY,', 'by_policy, demonstrated = (role == Role.POLICY) | (role == Role.ENVIRONMENT),', ['tests/pipelines/rlvr/test_rollouts.py']),
    'statistics forgotten at a restart': ('pipelines/rlvr/shaping/laser_d.py', '            list(state["targets"]),\n', '            list(self.targets),\n', ['tests/pipelines/rlvr/test_laws.py::test_state_survives_json[shaping-laser_d]']),
    'the baseline holds the row itself': ('pipelines/rlvr/advantage/trloo.py', 'n / (n - 1).clamp(min=1) * (returns', '1.0 * (returns', ['tests/pipelines/rlvr/test_advantage.py::test_trloo_against_a_loop']),
    'the reward paid a token early': ('pipelines/rlvr/advantage/_estimate.py', 'last = mask & (next_place(mask) == mask.shape[1])', 'last = (mask & (next_place(mask) == mask.shape[1])).roll(-1, 1)', ['tests/pipelines/rlvr/test_advantage.py::test_gae_skips_what_the_policy_did_not_say']),
    'processes average instead of adding up': ('pipelines/rlvr/learner.py', '(loss * self.world.size).backward()', 'loss.backward()', ['tests/pipelines/engine/test_parallel.py::test_two_processes_give_the_gradient_of_one[full]']),
    'the temperature forgotten in the gradient': ('pipelines/engine/distribution.py', 'scale = gradient / ctx.temperature', 'scale = gradient', ['tests/pipelines/engine/test_distribution.py::test_one_pass_says_the_same']),
    "a shared prompt's padding is read": ('pipelines/engine/layout.py', 'known = torch.arange(length) < start[:, None]', 'known = torch.arange(length) < length + 0 * start[:, None]', ['tests/pipelines/engine/test_layout.py::test_same_values_and_gradients[False-llama]']),
    'a hint is blamed for the answer behind it': ('pipelines/rlvr/algorithm.py', 'columns["advantage"] = columns["advantage"] * ~hints', 'columns["advantage"] = columns["advantage"] * 1', ['tests/pipelines/rlvr/test_hooks.py::test_hints_start_from_nothing_and_learn_what_credit_says']),
    'a coupled loss without its entropies': ('pipelines/rlvr/learner.py', 'loss = (taken["cached_gradients"] * torch.stack([logp, entropy, *top], -1)).sum()', 'loss = (taken["cached_gradients"][..., 0] * logp).sum()', ['tests/pipelines/rlvr/test_hooks.py::test_a_loss_that_couples_rows_has_one_gradient[siren]']),
    "a demonstration's ratio starts from nothing": ('pipelines/rlvr/learner.py', 'if columns["teacher_forced"].any():', 'if False:', ['tests/pipelines/rlvr/test_hooks.py::test_demonstrations_are_rows_with_the_trainer_s_own_numbers']),
    'the retrospective update comes last': ('pipelines/rlvr/replay/pipo.py', 'updates.insert(0, PolicyUpdate(', 'updates.insert(1, PolicyUpdate(', ['tests/pipelines/rlvr/test_hooks.py::test_the_step_before_trains_once_more_and_first']),
    'the mismatch of weights that did not sample': ('pipelines/rlvr/learner.py', '        replay_first = updates[0] is not own\n', '        replay_first = False\n', ['tests/pipelines/rlvr/test_hooks.py::test_mismatch_is_that_of_the_weights_that_sampled']),
    'rehearsed rows have no share in the loss': ('pipelines/rlvr/replay/_rows.py', 'return row["mask"].float()', 'return 0 * row["mask"].float()', ['tests/pipelines/rlvr/test_hooks.py::test_rehearsed_rows_have_a_gradient']),
    "a term's weight taken from a method": ('pipelines/contract/catalogue.py', '_weight(slot, fields.pop("weight", 1.0)) if slot in TERMS else 1.0', '_weight(slot, fields.pop("weight", 1.0))', ['tests/pipelines/rlvr/test_laws.py::test_weight_is_a_factor_of_terms_and_a_setting_elsewhere']),
    'positions start over after a shared prefix': ('pipelines/engine/sampler.py', 'torch.arange(gaps.start, width, device=ids.device)', 'torch.arange(width - gaps.start, device=ids.device)', ['tests/pipelines/engine/test_sampler.py::test_a_common_beginning_is_read_once[llama-alone-False]']),
    'rounded weights go stale': ('pipelines/engine/rounded.py', 'copy.data.copy_(weight.detach())', 'key in self.copies or copy.data.copy_(weight.detach())', ['tests/pipelines/engine/test_fixed.py::test_sampler_is_trainer[greedy-bfloat16]']),
    'a token does not see itself': ('pipelines/engine/fixed.py', '(position <= self.write_position)', '(position < self.write_position)', ['tests/pipelines/engine/test_fixed.py::test_greedy_tokens_are_those_of_generate[llama]']),
    "rows read another prompt's padding": ('pipelines/engine/attention.py', 'table_scores.masked_fill(self.padding, float("-inf"))', 'table_scores + 0', ['tests/pipelines/engine/test_attention.py::test_greedy_tokens_are_those_of_generate[llama]']),
    'half a checkpoint accepted': ('pipelines/engine/checkpoint.py', 'or file_sha256(path / STATE) != _meta(path).get("sha256"):', 'or False:', ['tests/pipelines/engine/test_checkpoint.py::test_newest_whole_commit_wins']),
    'a key written twice is read': ('pipelines/recipe/yaml_text.py', 'if key.value in first:', 'if False:', ['tests/hostile/test_recipes.py::test_files']),
    'aliases nest without end': ('pipelines/recipe/yaml_text.py', 'if levels > DEEPEST + 1:', 'if False:', ['tests/hostile/test_recipes.py::test_files']),
    'infinity is a number': ('pipelines/recipe/yaml_text.py', 'not math.isfinite(value)', 'value != value', ['tests/hostile/test_recipes.py::test_files[infinity]']),
    'true is one': ('pipelines/contract/fields.py', 'any(isinstance(v, bool) for v in values)', 'False', ['tests/hostile/test_recipes.py::test_values']),
    "a split's name is a path": ('pipelines/contract/fields.py', 'r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}"', 'r"[A-Za-z0-9./][A-Za-z0-9./_+-]{0,119}"', ['tests/hostile/test_recipes.py::test_values']),
    'a weight that is no number': ('pipelines/contract/catalogue.py', 'if not abs(weight) <= LARGEST:', 'if abs(weight) > LARGEST:', ['tests/hostile/test_recipes.py::test_values']),
    'an override makes a section of a value': ('pipelines/recipe/read.py', 'elif not isinstance(child, dict | list):', 'elif not isinstance(child, dict | list | str | int | float):', ['tests/hostile/test_recipes.py::test_overrides']),
    'the preset beats the recipe': ('pipelines/recipe/read.py', '{**merged, **(body.get("rlvr") or {})}', '{**(body.get("rlvr") or {}), **merged}', ['tests/pipelines/recipe/test_read.py::test_the_recipe_beats_its_presets']),
    'a pipe is a data file': ('tasks/preflight.py', 'elif not stat.S_ISREG(about.st_mode):', 'elif False:', ['tests/tasks/test_preflight.py::test_files']),
    'training without gradients': ('tasks/estimate.py', 'else WEIGHTS + GRADIENTS + MOMENTS', 'else WEIGHTS + MOMENTS', ['tests/tasks/test_preflight.py::test_room']),
    'stages that are reused are checked': ('tasks/preflight.py', 'if recipe.rlvr is not None and "rlvr" in stages:', 'if recipe.rlvr is not None:', ['tests/tasks/test_preflight.py::test_stages_that_do_not_run_are_not_looked_at']),
    'a half line is forwarded': ('pipelines/stage/report.py', '        cut_half_line(folder / SPOOL)\n', '', ['tests/pipelines/stage/test_report.py::test_half_a_line_is_cut_off_when_the_stage_starts_again']),
    'rewinding fills up with zeros': ('pipelines/stage/report.py', 'self._file.truncate(min(cursor, self.cursor()))', 'self._file.truncate(cursor)', ['tests/pipelines/stage/test_report.py::test_rewind_past_the_end_adds_no_bytes']),
    'a refusal for good is tried for ever': ('tasks/tracking_client.py', '    if status in FOR_GOOD:\n', '    if status in ():\n', ['tests/tasks/test_outbox.py::test_a_refusal_is_recorded_once_and_set_aside[400]']),
    'a stage waits for a silent server': ('tasks/patience.py', '                self.spend(now - last)\n', '                self.spend(0.0)\n', ['tests/tasks/test_outbox.py::test_patience_is_one_budget_for_all']),
    'a call left behind goes on writing': ('tasks/tracking_stage.py', '            if self._abandoned:\n                raise', '            if False:\n                raise', ['tests/tasks/test_outbox.py::test_a_call_left_behind_writes_nothing_any_more']),
    "another stage's artifact is taken": ('tasks/artifacts.py', '!= (stage, key):', '!= (body.get("stage"), body.get("key")):', ['tests/tasks/test_outbox.py::test_a_fetched_artifact_must_be_the_one_that_was_wanted']),
    'a manifest leads out of its folder': ('pipelines/stage/files.py', '        if not is_inside(name):\n', '        if False:\n', ['tests/pipelines/stage/test_files.py::test_a_manifest_that_leaves_its_folder_is_refused[../a.json]']),
    'a password stays in the address': ('tasks/environment.py', '        os.environ["MLFLOW_TRACKING_URI"] = uri\n', '', ['tests/tasks/test_outbox.py::test_passwords_leave_the_address_and_reach_the_client']),
    'an entry is sent again and again': ('tasks/outbox.py', '        shutil.rmtree(entry, ignore_errors=True)\n        return True', '        return True', ['tests/tasks/test_outbox.py::test_an_entry_is_sent_once_and_then_gone']),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_the_line_to_sabotage_is_still_there(bug):
    check_line(PLANTED[bug])


@pytest.mark.slow
def test_without_a_bug_the_tests_pass():
    check_clean([PLANTED])


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug):
    plant_and_test(bug, *PLANTED[bug])
