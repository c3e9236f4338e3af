"""Planted bugs of reward models."""

from __future__ import annotations

RUN, LOSS, ENGINE = (
    "pipelines/reward_model/run.py",
    "pipelines/reward_model/loss/bradley_terry.py",
    "pipelines/engine/reward_model.py",
)
NETWORK = "pipelines/engine/reward_network.py"
STAGE, LOSSES = "tests/pipelines/reward_model/test_run.py", "tests/pipelines/reward_model/test_loss.py"
REWARD, MODEL = "tests/pipelines/rlvr/reward/test_model.py", "tests/pipelines/engine/test_reward_model.py"
STEPS = "tests/pipelines/reward_model/test_steps.py"
COLUMNS = "tests/pipelines/papers/test_reward_model_columns.py"
TRL = f"{STAGE}::test_loss_and_gradient_are_those_of_trl"
PLANTED = {
    "the margin is added": (LOSS, "rejected_reward - margin_scale * margin)", "rejected_reward + margin_scale * margin)", [TRL]),
    "centering of the difference": (LOSS, "(chosen_reward + rejected_reward).square()", "(chosen_reward - rejected_reward).square()", [TRL]),
    "the reward is read a token early": ("pipelines/engine/answers.py", "ends = [max((i + 1 for i, token in enumerate(row) if token != pad), default=1) for row in sequences]", "ends = [max(1, len(row) - 1) for row in sequences]", [f"{MODEL}::test_a_score_is_what_transformers_reads_at_the_last_token"]),
    "a mean over each part": (RUN, "self._loss(columns).sum() / len(batch)", "self._loss(columns).mean()", [TRL]),
    "each part has a correlation of its own": (RUN, "factors = free.grad[[*micro_batch.items, *(len(batch) + i for i in micro_batch.items)]]", "factors = free.grad[: 2 * len(micro_batch.items)]", [f"{LOSSES}::test_a_step_in_parts_has_the_gradient_of_the_whole_step"]),
    "labels are forgotten at a restart": ("pipelines/reward_model/base.py", '        self.loss.fn.load_state_dict(state["loss"])\n', "", [f"{LOSSES}::test_every_loss_trains_and_resumes_to_the_same_bytes[iterative_smoothing]"]),
    "both heads of ODIN are handed on": (RUN, "only_first=self.two_heads", "only_first=False", [f"{LOSSES}::test_every_loss_trains_and_resumes_to_the_same_bytes[odin]"]),
    "the ensemble's minimum is its mean": ("pipelines/rlvr/common/ensemble.py", '"min": known.min()', '"min": known.mean()', [f"{REWARD}::test_members_are_all_heads_of_all_models_and_normalised_each"]),
    "a reward model's stage is no input": ("pipelines/rlvr/kind.py", "return {each.label: each.value for each in reward_models.named(resolve(settings)) if each.is_stage}", "return {}", [f"{REWARD}::test_a_stage_is_an_input_and_a_path_is_in_the_key"]),
    "values include the token itself": ("pipelines/papers/red.py", "self.model.pass_(layout).mean(1)", "self.model.pass_(layout).mean(1).roll(-1)", [f"{COLUMNS}::test_values_are_scores_of_prefixes_and_the_reward_is_that_of_the_whole"]),
    "a step is read a token early": (NETWORK, "read_before = torch.nn.functional.pad(places, (1, 0))", "read_before = torch.nn.functional.pad(places, (0, 1))", [f"{STEPS}::test_rewards_within_a_row_are_those_of_its_prefixes"]),
    "answers count alike, however many steps they have": ("pipelines/reward_model/steps.py", "self._labels(some)).sum() / count", "self._labels(some)).mean() / len(batch)", [f"{STEPS}::test_a_step_is_one_update_however_it_is_divided"]),
    "the answer's end token is not read": ("pipelines/reward_model/steps.py", "        read[-1] += 1\n", "        pass\n", [f"{STEPS}::test_steps_end_with_their_separator_and_the_answer_with_its_end_token"]),
    "each pass has the whole pull of the heads' cosine": (RUN, " * len(micro_batch.items) / len(batch)\n", "\n", [f"{LOSSES}::test_a_step_in_parts_has_the_gradient_of_the_whole_step"]),
    "any error counts as the first": ("pipelines/reward_model/step_card.py", "append(first == told)", "append((first is None) == (told is None))", [f"{STEPS}::test_the_card_is_what_a_loop_over_the_answers_finds"]),
    "attention of the whole prompt counts": (ENGINE, ".mean(1) * mask[rows, :width]", ".mean(1)", [f"{COLUMNS}::test_attention_is_what_transformers_says"]),
}  # fmt: skip
