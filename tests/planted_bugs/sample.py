"""Planted bugs of the sample stage."""

from __future__ import annotations

STAGE = "tests/pipelines/sample/test_run.py"
SUMMARY = "tests/pipelines/sample/test_summary.py::test_it_is_what_a_loop_over_the_rows_finds"
STEPS = "tests/pipelines/sample/test_steps.py"
PROMPTS = "tests/pipelines/curate/test_written.py::test_new_prompts_are_unlike_all_before_them"
PLANTED = {
    "new prompts are compared with the seeds alone": ("pipelines/curate/written.py", "                before.append(own)\n", "", [PROMPTS]),
    "a new prompt is verified": ("pipelines/sample/run.py", "        sampled = []\n", "        pass\n", [f"{STAGE}::test_new_prompts_are_asked_for_by_examples"]),
    "what a kill left half written stays": ("pipelines/data/samples.py", "        path.unlink()\n", "        pass\n", [f"{STAGE}::test_a_kill_changes_no_byte"]),
    "random numbers by place in the batch": ("pipelines/sample/run.py", "stream_ids(self.seed, p.uid, count)", "stream_ids(self.seed, str(problems.index(p)), count)", [f"{STAGE}::test_a_row_depends_on_its_problem_and_place_only"]),
    "what could not be sampled is incorrect": ("pipelines/sample/run.py", ' if stop != Stop.ERROR.name.lower()]', "]", [f"{STAGE}::test_a_prompt_without_room_is_unscored"]),
    "the template is not compared": ("pipelines/sample/run.py", '    models.check_template(dataset.about(data).get("template"), tokenizer, "sample")\n', "", [f"{STAGE}::test_data_of_another_template_is_refused"]),
    "the share of correct rows is over unscored ones too": ("pipelines/sample/summary.py", "(correct_in[asked] / scored_in[asked])", "(correct_in[asked] / np.diff([*starts, table.num_rows])[asked])", [SUMMARY]),
    "a step without verdicts is incorrect": ("pipelines/sample/steps.py", "last = (0, 0) if row[\"correct\"] is None", "last = (0, 1) if row[\"correct\"] is None", [f"{STEPS}::test_labels_are_shares_of_verified_continuations"]),
    "a label is the verdict of the continuation alone": ("pipelines/sample/steps.py", "[[*ids, *each.tokens] for ids, each", "[each.tokens for ids, each", [f"{STEPS}::test_labels_are_shares_of_verified_continuations"]),
    "random numbers of a label by its place": ("pipelines/sample/steps.py", "drawer.seed, uid, ids)", "drawer.seed, uid, list(prefixes).index((uid, ids)))", [f"{STEPS}::test_labels_depend_on_the_prefix_alone"]),
    "a shard's last problem is not summed": ("pipelines/sample/summary.py", "zip(starts, [*starts[1:], len(components)], strict=True)", "zip(starts, starts[1:])", [SUMMARY]),
    "a reward's variance is told over all answers": ("pipelines/sample/summary.py", "mean = np.add.reduceat(values, starts) / np.maximum(count, 1)", "mean = np.full(len(starts), values.mean())", [SUMMARY]),
    "unread grades are noughts": ("pipelines/sample/run.py", "sum(read) / len(read) if read else None", "sum(read) / asked.samples if read else None", [f"{STAGE}::test_of_several_sampled_grades_the_mean_of_those_that_can_be_read_counts"]),
    "an unsure judge still counts in both orders": ("pipelines/judges/closer.py", "first if second is not None and first is (not second) else None", "first", ["tests/pipelines/judges/test_closer.py::test_in_both_orders_only_verdicts_that_agree_count"]),
    "the second question shows the episodes": ("pipelines/judges/closer.py", "questions.summary(str(texts[place]), goal=self.goal)", "asked[place]", ["tests/pipelines/judges/test_closer.py::test_the_verdict_is_of_the_analysis_alone"]),
    "a judge is asked about equal episodes": ("pipelines/sample/comparisons.py", "sorted({each.text: each for", "sorted({each: each for", ["tests/pipelines/sample/test_comparisons.py::test_scores_decide_and_equal_ones_are_unsure"]),
    "the worse episode is chosen": ("pipelines/curate/preferred.py", 'if each["better"] else', 'if not each["better"] else', ["tests/pipelines/sample/test_comparisons.py::test_what_the_judge_decided_becomes_pairs_of_whole_episodes"]),
}  # fmt: skip
