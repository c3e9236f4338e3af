"""Planted bugs of single RLVR methods and SFT losses."""

from __future__ import annotations

RLVR, TESTS = "pipelines/rlvr", "tests/pipelines/rlvr"
GOLDEN = f"{TESTS}/test_golden.py::test_agrees_with_the_source"
CLIP_DELTA, SEEUPO = f"{TESTS}/shaping/test_clip_delta.py", f"{TESTS}/replay/test_seeupo.py"
CRITIC, STEPS = f"{TESTS}/providers/test_critic.py", f"{TESTS}/reward/test_process_model.py"
WARM_UP, HEADS = f"{TESTS}/providers/test_warm_up.py", f"{TESTS}/test_value_heads.py"
ARCHER = f"{TESTS}/providers/test_archer.py"
LOSS = "tests/pipelines/sft/test_loss.py"
PLANTED = {
    "self-play: the other seat is not paid": ("pipelines/contract/episode.py", "other.rewards[-1] += paid", "other.rewards[-1] += 0.0", [f"{TESTS}/rollout/test_self_play.py::test_a_game_is_a_row_for_each_seat"]),
    "self-play: both seats are one group": ("pipelines/contract/episode.py", "request.group + place * context.prompts", "request.group", [f"{TESTS}/rollout/test_self_play.py::test_seats_of_a_group_lie_together_and_a_repeated_step_is_the_same"]),
    "kuhn_poker: seats are told the first player's card": ("pipelines/environments/kuhn_poker.py", "self.info['cards'][seat]}.", "self.info['cards'][0]}.", ["tests/pipelines/environments/test_players.py::test_a_hand_is_played_as_the_table_says"]),
    "tic_tac_toe: the exact player plays for its opponent": ("pipelines/environments/tic_tac_toe.py", "if -value(placed(board, move)) == value(board)]", "if value(placed(board, move)) == value(board)]", ["tests/pipelines/environments/test_players.py::test_values_of_positions_are_those_of_plain_minimax"]),
    "mars: players are compared with each other": (f"{RLVR}/advantage/mars.py", "own = real_turns & (player == seat)[:, None]", "own = real_turns & (player >= 0)[:, None]", [f"{TESTS}/advantage/test_mars.py::test_the_sheet_s_example"]),
    "mars: a common value counts as often as it is there": (f"{RLVR}/advantage/mars.py", "values = _distinct(returns[own])", "values = returns[own]", [f"{TESTS}/advantage/test_mars.py::test_the_sheet_s_example"]),
    "spiral: players share a baseline": (f"{RLVR}/advantage/spiral.py", 'return f"{task} {player}"', 'return f"{task}"', [f"{TESTS}/advantage/test_spiral.py::test_it_is_the_released_loop_over_steps"]),
    "calibrl: the demonstration is in the mean": (f"{RLVR}/advantage/calibrl.py", "rollouts = scored & ~demonstrations(mask, teacher_forced)", "rollouts = scored", [f"{GOLDEN}[advantage/calibrl]"]),
    "calibrl: correct rows are pushed down": (f"{RLVR}/auxiliary_loss/calibrl.py", "correct[:, None] > 0, -gap, gap", "correct[:, None] > 0, gap, -gap", [f"{TESTS}/auxiliary_loss/test_calibrl.py::test_the_sheet_s_example_as_it_enters_the_loss"]),
    "calibrl: tokens past the demonstration's end count": (f"{RLVR}/auxiliary_loss/calibrl.py", "leaky_relu(away, slope) * known", "leaky_relu(away, slope)", [f"{TESTS}/auxiliary_loss/test_calibrl.py::test_where_it_does_nothing"]),
    "calibrl: the last of several demonstrations": (f"{RLVR}/providers/demonstration.py", ".flatten().flip(0).tolist()", ".flatten().tolist()", [f"{TESTS}/providers/test_demonstration.py::test_of_several_demonstrations_the_first_counts_whole"]),
    "noisy_grpo: more noise is better": (f"{RLVR}/advantage/noisy_grpo.py", "standardised(1 - noise.double()", "standardised(noise.double()", [f"{GOLDEN}[advantage/noisy_grpo]"]),
    "noisy_grpo: the gain of the observation's variance": (f"{RLVR}/advantage/noisy_grpo.py", "gain = uncertainty / (variance + uncertainty)", "gain = variance / (variance + uncertainty)", [f"{TESTS}/advantage/test_noisy_grpo.py::test_against_a_loop"]),
    "noisy: rows train behind the corrupted prompt": (f"{RLVR}/rollout/noisy.py", "clean = teacher_forced(request, request.prompt,", "clean = teacher_forced(request, row.tokens[:start],", [f"{TESTS}/rollout/test_noisy.py::test_levels_go_round_and_every_row_stands_behind_the_clean_prompt"]),
    "noisy: sampled tokens that nobody counts": (f"{RLVR}/rollout/noisy.py", "drawn_elsewhere=True", "drawn_elsewhere=False", [f"{TESTS}/rollout/test_noisy.py::test_every_token_that_was_sampled_counts"]),
    "prdp: pairs of different groups": (f"{RLVR}/objective/prdp.py", "(group[:, None] == group) & in_loss", "(group[:, None] == group[:, None]) & in_loss", [f"{TESTS}/objective/test_prdp.py::test_against_a_loop"]),
    "prdp: tokens nobody chose in the ratio": (f"{RLVR}/objective/prdp.py", "before, moved = (logp_old - logp_ref) * mask,", "before, moved = (logp_old - logp_ref),", [f"{TESTS}/objective/test_prdp.py::test_against_a_loop"]),
    "clip_delta: a row without grades is fined": (f"{RLVR}/shaping/clip_delta.py", "known = step_potential.isfinite().cummax(1).values", "known = step_potential.isfinite() | True", [f"{CLIP_DELTA}::test_a_row_that_nobody_graded_is_fined_nothing"]),
    "clip_delta: the last step pays too": (f"{RLVR}/shaping/clip_delta.py", "own = torch.where(followed, scores[:, s], 0.0)", "own = scores[:, s]", [f"{CLIP_DELTA}::test_the_return_from_a_step_is_its_own_clipped_score"]),
    "shaping pays the tokens of unscored rows": (f"{RLVR}/algorithm.py", '0.0) + result * scored[:, None]}', '0.0) + result}', [f"{CLIP_DELTA}::test_an_unscored_row_keeps_what_its_tokens_are_paid"]),
    "pspo_wrs: a product instead of a mean": (f"{RLVR}/shaping/pspo_wrs.py", "mean = (logs.sum(1) / n).exp()", "mean = logs.sum(1).exp()", [f"{TESTS}/shaping/test_pspo_wrs.py::test_the_sheets_values"]),
    "pspo_wrs: steps without a score are counted": (f"{RLVR}/shaping/pspo_wrs.py", "step_potential.shape[1]) & step_potential.isfinite()", "step_potential.shape[1])", [f"{TESTS}/shaping/test_pspo_wrs.py::test_against_a_loop"]),
    "process_model: the first step's score is the row's": (f"{RLVR}/reward/process_model.py", "row.score = row.potential[-1]", "row.score = row.potential[0]", [f"{STEPS}::test_a_steps_value_is_the_models_score_of_the_prefix"]),
    "process_model: the separator begins the next step": (f"{RLVR}/reward/_steps.py", "sum(end < index for end in ends)", "sum(end <= index for end in ends)", [f"{STEPS}::test_steps_divide_the_row"]),
    "process_model: short steps are steps": (f"{RLVR}/reward/_steps.py", "(ends[-1] if ends else -1) >= shortest", "(ends[-1] if ends else -1) >= 1", [f"{STEPS}::test_short_steps_are_counted_by_content"]),
    "turn_gae: the value of a turn's last token": (f"{RLVR}/turn_values.py", "value.double() * turn_starts(turn, mask))", "value.double() * turn_starts(turn.flip(1), mask.flip(1)).flip(1))", [f"{TESTS}/advantage/test_turn_gae.py::test_the_sheets_values"]),
    "turn_gae: what is beyond the turns is paid to each": (f"{RLVR}/turn_values.py", "rest = torch.where(taken[:, s], 0.0, own)", "rest = torch.where(taken[:, s], rest, own)", [f"{TESTS}/advantage/test_turn_gae.py::test_against_a_loop"]),
    "critic: tokens behind a turn's first have values that nothing was fitted to": (f"{RLVR}/providers/critic.py", '        if self.at == "turns":\n            turn', '        if self.at == "nothing":\n            turn', [f"{CRITIC}::test_at_turns_it_is_fitted_to_the_first_token_of_each_turn"]),
    "critic: returns without the value": (f"{RLVR}/providers/critic.py", "turns_to_tokens(advantages + values, ", "turns_to_tokens(advantages, ", [f"{CRITIC}::test_at_turns_a_target_is_the_advantage_and_the_value"]),
    "critic: the heuristic goes on": (f"{RLVR}/providers/critic.py", 'self.heuristic is not None and columns["step"] < self.warm_up', 'self.heuristic is not None and columns["step"] >= 0', [f"{WARM_UP}::test_a_heuristic_is_what_the_critic_knows_when_the_policy_starts_and_returns_take_it_back"]),
    "the policy moves in the warm-up": (f"{RLVR}/learner.py", "enumerate([] if stands_still else updates)", "enumerate(updates)", [f"{WARM_UP}::test_the_policy_stands_still_and_its_schedule_begins_when_it_moves"]),
    "the schedule runs in the warm-up": (f"{RLVR}/learner.py", "total = (rlvr.steps - self.warm_up) *", "total = rlvr.steps *", [f"{WARM_UP}::test_the_policy_stands_still_and_its_schedule_begins_when_it_moves"]),
    "value heads: the mean of logarithms": (f"{RLVR}/value_heads.py", "moved = values + averaging * (goals - values)", "moved = goals", [f"{HEADS}::test_the_mean_is_taken_of_returns_and_not_of_their_logarithms"]),
    "value heads: what is below 0 is added": (f"{RLVR}/value_heads.py", "torch.tensor([sign or 1 for sign in self.signs])", "torch.tensor([1 for sign in self.signs])", [f"{HEADS}::test_a_prediction_of_zero_is_a_value_of_zero"]),
    "archer: V of the turn before the environment's answer": (f"{RLVR}/providers/archer.py", "predicted[:, :-1, 2:] * starts[..., None]", "predicted[:, :-1, 2:] * ends[..., None]", [f"{ARCHER}::test_v_reads_the_state_and_q_the_turn_too"]),
    "archer: Q without what follows": (f"{RLVR}/providers/archer.py", '"q": episodes["paid"][..., None] + self.discount * behind', '"q": episodes["paid"][..., None] + 0 * behind', [f"{ARCHER}::test_losses_and_targets_against_a_loop"]),
    "archer: V of turns that other policies took": (f"{RLVR}/providers/archer.py", "turn_starts(turn, mask) & ~first[:, None]", "turn_starts(turn, mask) & (first | True)[:, None]", [f"{ARCHER}::test_losses_and_targets_against_a_loop"]),
    "steptool: a failed call is paid": (f"{RLVR}/reward/steptool.py", """self.weight * (sum(call["outcome"] == "ok" for call in calls)""", """self.weight * (sum(bool(call["outcome"]) for call in calls)""", [f"{TESTS}/reward/test_tool_rewards.py::test_steptool_by_a_judge_pays_success_and_a_share_of_the_grade"]),
    "seeupo: the first turn first": (f"{RLVR}/replay/seeupo.py", "turns = turns.flip(0)", "turns = turns.flip(0).flip(0)", [f"{SEEUPO}::test_the_parts_are_the_turns_in_order"]),
    "seeupo: the factor forgets the turns before": (f"{RLVR}/replay/seeupo.py", "self.factor = (self.factor * ratio).clamp(low, high)", "self.factor = ratio.clamp(low, high)", [f"{SEEUPO}::test_the_sheets_values"]),
    "seeupo: parts start from the sampler's log-probs": (f"{RLVR}/learner.py", 'columns["logp_old"] = torch.where(following, present, columns["logp_old"])', 'columns["logp_old"] = columns["logp_old"] + 0', [f"{SEEUPO}::test_each_turn_starts_from_the_weights_that_the_one_behind_it_left"]),
    "seeupo: parts train all turns": (f"{RLVR}/learner.py", 'narrowed = {"mask": mask,', 'narrowed = {"mask": columns["mask"],', [f"{SEEUPO}::test_each_turn_starts_from_the_weights_that_the_one_behind_it_left"]),
    "seeupo: groups of one are compared": (f"{RLVR}/advantage/seeupo.py", "alone = group_size(group, scored) < 2", "alone = group_size(group, scored) < 1", [f"{TESTS}/replay/test_seeupo.py::test_the_advantage_against_a_loop"]),
    "dft: the gradient of p log p": ("pipelines/sft/loss/dft.py", "-logp.detach().exp() * logp", "-logp.exp() * logp", [f"{LOSS}::test_dft_pulls_with_the_probability_times_what_cross_entropy_pulls"]),
    "psft: the larger of both terms": ("pipelines/sft/loss/psft.py", "-torch.minimum(rho,", "-torch.maximum(rho,", [f"{LOSS}::test_psft_stops_where_a_token_has_risen_enough"]),
    "psft: each update compares with the one before it": ("pipelines/sft/run.py", "            self._update(part, logp_old, tally)\n", "            self._update(part, self._log_probs(part) if logp_old else None, tally)\n", [f"{LOSS}::test_a_step_s_updates_see_the_model_before_it"]),
    "mini-batches share the step's denominator": ("pipelines/sft/run.py", "loss = losses.sum() / max(denominator, LEAST)\n", "loss = losses.sum() / max(denominator, LEAST) / self.updates\n", [f"{LOSS}::test_a_step_s_updates_see_the_model_before_it"]),
    "the learning rate's schedule counts steps of several updates": ("pipelines/sft/run.py", "self.stepper.step(step * self.updates + number)", "self.stepper.step(step)", [f"{LOSS}::test_several_updates_of_cross_entropy_are_as_many_smaller_steps"]),
    "ares: easy groups are hard": (f"{RLVR}/ops.py", "accuracy >= 2 / 3 - 1e-9, 0, torch.where(accuracy >= 1 / 3 - 1e-9, 1, 2)", "accuracy >= 2 / 3 - 1e-9, 2, torch.where(accuracy >= 1 / 3 - 1e-9, 1, 0)", [f"{TESTS}/shaping/test_ares.py::test_bands_have_their_lower_bounds"]),
    "ares: the target of this very step": (f"{RLVR}/shaping/ares.py", "        return target\n\n    def state_dict", "        return mean\n\n    def state_dict", [f"{TESTS}/shaping/test_ares.py::test_steps_by_hand"]),
    "ares: a difficulty that drifts is held looser": (f"{RLVR}/divergence/ares.py", "self.log_betas[band] + step))", "self.log_betas[band] - step))", [f"{TESTS}/divergence/test_ares.py::test_a_difficulty_that_drifts_is_held_tighter_by_hand"]),
    "grsp: long segments weigh most": (f"{RLVR}/shaping/grsp.py", "torch.tensor([4.0, 2.0, 1.0] if", "torch.tensor([1.0, 2.0, 4.0] if", [f"{TESTS}/shaping/test_grsp.py::test_one_more_short_segment_costs_more_than_one_more_long_one"]),
    "grsp: no cap": (f"{RLVR}/shaping/grsp.py", "penalty.clamp(-self.cap, self.cap)", "penalty", [f"{TESTS}/shaping/test_grsp.py::test_a_correct_answer_stays_above_an_incorrect_one"]),
    "multirole_r1: repeating words is diversity": (f"{RLVR}/reward/multirole_r1.py", "1 / (1 + yule / 100)", "yule / (1 + yule)", [f"{TESTS}/reward/test_multirole_r1.py::test_the_sheet_s_varied_and_repeated_text"]),
}  # fmt: skip
