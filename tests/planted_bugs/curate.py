"""Planted bugs of curation."""

from __future__ import annotations

PLANTED = {
    'n-gram decontamination is off': ('pipelines/curate/similar.py', 'for g in self._grams(text_words) if g in self.grams), None)', 'for g in [] if g in self.grams), None)', ['tests/pipelines/curate/test_similar.py::test_a_run_of_benchmark_words_inside_another_text_is_a_leak[8-True]']),
    'whole questions of a benchmark pass': ('pipelines/curate/similar.py', '        if task is not None:\n            return task\n', '', ['tests/pipelines/curate/test_curate.py::test_every_row_is_accounted_for']),
    "a benchmark's wording counts as its content": ('pipelines/curate/similar.py', 'if questions[task] >= 20 else questions[task]', 'if questions[task] >= 20_000 else questions[task]', ['tests/pipelines/curate/test_curate.py::test_template_wording_is_not_contamination']),
    'near repeats are not verified': ('pipelines/curate/similar.py', 'if both / (len(a) + len(b) - both) >= threshold:', 'if True:', ['tests/pipelines/curate/test_similar.py::test_candidates_are_verified_by_their_shingles']),
    'near repeats regardless of the answer': ('pipelines/curate/similar.py', 'key = answers.astype(np.uint64).copy()', 'key = np.zeros(len(answers), np.uint64)', ['tests/pipelines/curate/test_similar.py::test_rows_with_other_answers_are_no_repeats']),
    'bands that catch nothing': ('pipelines/curate/similar.py', 'cost = 0.1 * caught[x < threshold]', 'cost = 1e9 * caught[x < threshold]', ['tests/pipelines/curate/test_similar.py::test_nearly_all_pairs_over_the_threshold_are_candidates']),
    'splits by place in the file': ('pipelines/curate/run.py', 'writers[split_of(origin_uid, shares', 'writers[split_of(str(number), shares', ['tests/pipelines/curate/test_curate.py::test_splits_depend_on_uid_only']),
    "a problem's completions go to several splits": ('pipelines/curate/run.py', 'origin_uid = str(problem.info.get(selected.ORIGIN, problem.uid))', 'origin_uid = problem.uid', ['tests/pipelines/curate/test_selected.py::test_several_completions_of_a_problem_are_no_repeats_and_share_a_split']),
    "a problem's completions are repeats of each other": ('pipelines/curate/run.py', 'exact_key(text + selected.text_key(problem))', 'exact_key(text)', ['tests/pipelines/curate/test_selected.py::test_several_completions_of_a_problem_are_no_repeats_and_share_a_split']),
    'equal completions are several records': ('pipelines/curate/selected.py', 'first.setdefault(row["text"], row)', 'first[str(len(first))] = row', ['tests/pipelines/curate/test_selected.py::test_best_correct_and_shortest']),
    'a pair of equal scores': ('pipelines/curate/selected.py', 'if better["score"] - worse["score"] > select.margin', 'if better["score"] - worse["score"] >= select.margin', ['tests/pipelines/curate/test_selected.py::test_pairs']),
    'the vote knows the verdict': ('pipelines/curate/selected.py', 'yield from _majority(problem, rows, select)', 'yield from _majority(problem, [r for r in rows if r["correct"]] or rows[:1], select)', ['tests/pipelines/curate/test_selected.py::test_the_majority_s_answer_is_the_label']),
    'a fresh model gets another tokenizer than its samples': ('pipelines/curate/run.py', 'start = model.path or next(', 'start = model.path or None and next(', ['tests/pipelines/curate/test_selected.py::test_a_fresh_model_keeps_the_tokenizer_that_the_samples_were_drawn_with']),
    "a stage's name is in the key of what reads it": ('pipelines/curate/kind.py', 'reads.in_key["curate", "sources", number, "path"] = None', 'pass', ['tests/pipelines/curate/test_selected.py::test_the_graph_links_the_stage_and_its_name_is_no_part_of_the_key']),
    'exact repeats stay': ('pipelines/curate/run.py', 'if key in self.prompts:', 'if False:', ['tests/pipelines/curate/test_curate.py::test_every_row_is_accounted_for']),
    'repeated uids stay': ('pipelines/curate/run.py', 'if key in self.uids:', 'if False:', ['tests/hostile/test_data.py::test_uids_of_the_file_are_used_and_repeats_quarantined']),
    'quarantined rows are not counted': ('pipelines/curate/card.py', '        self.quarantined += 1\n', '', ['tests/pipelines/curate/test_curate.py::test_every_row_is_accounted_for']),
    'reasons are not counted': ('pipelines/curate/card.py', 'len(self.reasons) < REASONS else "other"] += 1', 'len(self.reasons) < REASONS else "other"] += 0', ['tests/hostile/test_data.py::test_one_curate_over_all_hostile_lines']),
    'the line number is off by one': ('pipelines/curate/formats.py', 'yield Row(name, number, None, error, sample(line))', 'yield Row(name, number - 1, None, error, sample(line))', ['tests/hostile/test_data.py::test_a_json_line_and_its_neighbours']),
    'invalid UTF-8 is replaced': ('pipelines/curate/values.py', '        return raw.decode()\n', '        return raw.decode(errors="replace")\n', ['tests/hostile/test_data.py::test_a_json_line_and_its_neighbours']),
    'lone surrogates pass': ('pipelines/curate/values.py', '    if _SURROGATE_ESCAPE.search(text):\n', '    if False:\n', ['tests/hostile/test_data.py::test_a_json_line_and_its_neighbours']),
    'the last of repeated keys wins': ('pipelines/curate/values.py', 'if len(members) < len(pairs):', 'if False:', ['tests/hostile/test_data.py::test_a_json_line_and_its_neighbours']),
    'nesting is not bounded': ('pipelines/curate/values.py', '> MAX_DEPTH and (levels := depth(text)) > MAX_DEPTH:', '> 10**9 and (levels := depth(text)) > MAX_DEPTH:', ['tests/hostile/test_data.py::test_a_json_line_and_its_neighbours']),
    'content: null is text': ('pipelines/curate/mapping.py', '    if content is None:\n        raise RowError', '    if content is None:\n        return "None"\n        raise RowError', ['tests/hostile/test_data.py::test_a_row_of_python_values']),
    'gold answers are not checked': ('pipelines/curate/mapping.py', '        if not verdict.correct if example', '        if False if example', ['tests/pipelines/curate/test_curate.py::test_gold_answers_must_verify_themselves']),
    'a growing file is followed': ('pipelines/data/files.py', '        snapshot.check_unchanged()\n', '', ['tests/hostile/test_data.py::test_a_file_that_changes_while_it_is_read']),
    'bombs unpack': ('pipelines/data/files.py', 'if self.count > self.limit:', 'if False:', ['tests/hostile/test_data.py::test_a_gzip_bomb_is_refused_early_whatever_its_lines']),
    'long rows are read whole': ('pipelines/data/files.py', 'handle.readline(limit + 2):\n        number', 'handle.readline():\n        number', ['tests/pipelines/curate/test_formats.py::test_a_long_line_is_never_held_whole']),
}  # fmt: skip
