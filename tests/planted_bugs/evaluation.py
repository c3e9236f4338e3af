"""Planted bugs of evaluation."""

from __future__ import annotations

STAT, RUN, HARNESS = "evaluation/statistics.py", "evaluation/run.py", "evaluation/harness.py"
NUMBERS = "tests/evaluation/test_statistics.py"
INTERVALS, OF_MEANS = "pipelines/base/intervals.py", "tests/pipelines/base/test_intervals.py"
STAGE = "tests/evaluation/test_run.py"
WHOLE = "tests/evaluation/test_evaluation.py"
MODES = f"{WHOLE}::test_a_benchmark_is_asked_once_per_mode"
WILSON = f"{OF_MEANS}::test_wilson_is_scipy_s_and_shares_of_one_answer_have_it"
PAIRED = f"{NUMBERS}::test_a_difference_pairs_by_place"
PASS = f"{WHOLE}::test_pass_at_k_is_the_mean_over_all_draws"
CHOSEN = f"{STAGE}::test_checkpoints_come_from_their_own_stages_in_the_order_that_is_asked_for"
FILED = f"{STAGE}::test_every_number_is_of_the_checkpoint_it_is_filed_under"
LIKELIHOODS, LIKELY = "evaluation/likelihoods.py", "tests/evaluation/test_likelihoods.py"
AS_HFLM = f"{LIKELY}::test_the_numbers_of_hflm"
KNOWN = f"{WHOLE}::test_summary_of_known_answers"
PICKED = "tests/evaluation/test_risk_return.py"
PLANTED = {
    "the normal interval instead of Wilson's": (INTERVALS, "return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))", "half = z * (p * (1 - p) / n) ** 0.5\n    return max(0.0, p - half), min(1.0, p + half)", [WILSON]),
    "Wilson's interval is one-sided": (INTERVALS, "special.ndtri(0.5 + confidence / 2)", "special.ndtri(confidence)", [WILSON]),
    "no interval where all problems agree": (INTERVALS, "(float(((x - mean) ** 2).sum()) + 1) / (full + 1)", "(float(((x - mean) ** 2).sum()) + 1e-9) / (full + 1)", [f"{INTERVALS}::pipelines.base.intervals.share_interval", f"{OF_MEANS}::test_the_interval_of_shares_holds_the_truth"]),
    "several answers count as one": (INTERVALS, "return wilson(mean * n / effect, n / effect, confidence)", "return wilson(mean * n, n, confidence)", [f"{INTERVALS}::pipelines.base.intervals.share_interval"]),
    "no pseudo-problems": (INTERVALS, "PSEUDO = 3.0", "PSEUDO = 0.0", [f"{OF_MEANS}::test_few_discordant_pairs_are_judged_as_the_exact_test_does"]),
    "the interval is another test's": (INTERVALS, "half = z * np.sqrt(variance / (count - z * z))", "half = z * np.sqrt(variance / count)", [f"{OF_MEANS}::test_p_and_interval_never_contradict_each_other"]),
    "pairs are broken by order": (STAT, "difference = np.asarray(second, dtype=np.float64) - np.asarray(first", "difference = np.sort(np.asarray(second, dtype=np.float64)) - np.asarray(first", [PAIRED]),
    "two models on other questions are compared": (STAT, "if len(first) != len(second) or not len(first):", "if False:", [f"{WHOLE}::test_paired_difference_is_narrower_than_two_intervals"]),
    "SharpeRatio@k over the deviation of all k": ("evaluation/risk_return.py", "statistics.stdev(chosen)", "statistics.pstdev(chosen)", [f"{PICKED}::test_worked_by_hand"]),
    "the worst checkpoints are picked": ("evaluation/risk_return.py", "key=lambda pair: -pair[0]", "key=lambda pair: pair[0]", [f"{PICKED}::test_worked_by_hand"]),
    "a loss is a score": ("evaluation/risk_return.py", "else -value", "else value", [f"{PICKED}::test_only_metrics_that_rank_models_are_cheap_scores"]),
    "a difference the other way round": (STAT, "np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)", "np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)", [PAIRED]),
    "pass@k is off by one": (STAT, "1.0 - math.comb(n - correct, k) / math.comb(n, k)", "1.0 - math.comb(n - correct, k - 1) / math.comb(n, k - 1)", [PASS]),
    "the biased pass@k": (STAT, "1.0 - math.comb(n - correct, k) / math.comb(n, k)", "1.0 - (1 - correct / n) ** k", [PASS]),
    "a partial score is a correct answer": (STAT, "[[float(v >= 1) for v in s] for s in scores]", "[[float(v > 0) for v in s] for s in scores]", [f"{NUMBERS}::test_a_partial_score_is_not_a_correct_answer"]),
    "a tied majority is its first": (STAT, "tied = [value[a] for a, n in counts.items() if n == most]", "tied = [value[a] for a, n in counts.items() if n == most][:1]", [f"{STAT}::evaluation.statistics.majority"]),
    "the RLVR checkpoint is evaluated as SFT's": (RUN, "path = str(Path(inputs[label]) / \"model\") if label in inputs else None", "path = str(Path(inputs[\"rlvr\"]) / \"model\") if label in inputs else None", [CHOSEN]),
    "the SFT model is evaluated as the base": (RUN, '(str(Path(inputs[keeper]) / "base")', '(str(Path(inputs[keeper]) / "model")', [CHOSEN]),
    "a checkpoint nobody wanted": (RUN, "for label in job[\"checkpoints\"]:", "for label in [\"base\", *inputs]:", [CHOSEN]),
    "every difference is from the base": (RUN, "for before, after in pairs:", "for before, after in ((pairs[0][0], b) for _, b in pairs):", [f"{STAGE}::test_differences_are_of_neighbours_later_minus_earlier"]),
    "the first checkpoint is asked for all": (RUN, "lm = _load(column, model_settings", "lm = _load(next(iter(columns.values())), model_settings", [FILED]),
    "samples of one checkpoint in another's file": (RUN, 'out / "samples" / name / f"{task}.jsonl"', 'out / "samples" / "base" / f"{task}.jsonl"', [FILED]),
    "only the first answer is kept": ("evaluation/scoring.py", "return [list(r) for r in responses]", "return [list(r)[:1] for r in responses]", [f"{STAGE}::test_an_answer_s_score_is_its_verifier_s"]),
    "any answer at all counts": ("evaluation/scoring.py", '"exact_match": sum(s >= 1 for s in scores) / len(scores)', '"exact_match": sum(s >= 0 for s in scores) / len(scores)', [f"{STAGE}::test_an_answer_s_score_is_its_verifier_s"]),
    "repeats are one answer": ("evaluation/model.py", "sampling = sampling_of(kwargs)\n", "sampling = sampling_of(kwargs | {\"do_sample\": False})\n", [f"{WHOLE}::test_repeats_are_independent_and_reproducible"]),
    "answers come back in the order of decoding": ("evaluation/model.py", "[contexts[i] for i in places], [requests", "[contexts[i] for i in sorted(places)], [requests", [f"{WHOLE}::test_same_numbers_as_hflm"]),
    "stop words are ignored": ("evaluation/model.py", "postprocess_generated_text(text, stop=until,", "postprocess_generated_text(text, stop=[],", [f"{WHOLE}::test_same_numbers_as_hflm"]),
    "what is shared is as long as a whole choice": (LIKELIHOODS, "min(_common(rows[0], rows[-1]), min(starts) - 1)", "min(_common(rows[0], rows[-1]), min(starts))", [f"{LIKELY}::test_choices_that_begin_alike"]),
    "positions begin again after what is shared": ("pipelines/engine/layout.py", "positions=layout.positions + len(prefix),", "positions=layout.positions,", [AS_HFLM]),
    "what is shared is not attended to": ("pipelines/engine/layout.py", "known = torch.ones(rows, 1, width, len(prefix)", "known = torch.zeros(rows, 1, width, len(prefix)", [AS_HFLM]),
    "nothing is computed once": (LIKELIHOODS, "or shared < SHARED:\n            shared = 0", "or shared > 0:\n            shared = 0", [f"{LIKELY}::test_what_all_requests_share_is_computed_once"]),
    "one probable token makes a choice greedy": (LIKELIHOODS, "bool(greedy.all())", "bool(greedy.any())", [f"{LIKELY}::test_every_request_as_if_it_were_alone"]),
    "answers in the order of the tokens": ("evaluation/model.py", "for group, values in zip(members, results", "for group, values in zip(map(sorted, members), results", [AS_HFLM]),
    "answers of one rank after those of another": ("pipelines/engine/ranks.py", "return self.world.joined(own)", "return self.world.gather_all(own)", ["tests/pipelines/engine/test_ranks.py::test_results_come_in_order_and_each_process_does_its_share"]),
    "the mean instead of the sum": (LIKELIHOODS, "float(log_probs.sum())", "float(log_probs.mean())", [AS_HFLM]),
    "a long question is cut on the right": ("evaluation/model.py", "(self._shortened([*context, *choice], room), len(choice))", "([*context[: room - len(choice)], *choice], len(choice))", [f"{LIKELY}::test_long_questions_are_cut_on_the_left_and_long_choices_refused"]),
    "a standard error is the interval": (HARNESS, "half = intervals.quantile(confidence) * error if", "half = error if", [f"{STAGE}::test_a_foreign_metric_s_interval_is_z_standard_errors"]),
    "lengths in words": (HARNESS, 'float(len(tokenizer(a, add_special_tokens=False)["input_ids"]))', "float(len(a.split()))", [f"{STAGE}::test_lengths_are_tokens"]),
    "an unknown task is passed over": (HARNESS, "if task.asks not in task_manager.all_tasks:", "if False:", [f"{WHOLE}::test_unknown_task_is_named"]),
    "a mode's system message is left out": ("pipelines/recipe/settings.py", "for text in (own, self.system) if text", "for text in (own,) if text", [MODES]),
    "a mode's start of the answer is left out": ("evaluation/model.py", 'return text + (self.prefill or "") if', 'return text + "" if', [MODES]),
    "thoughts are no tokens": ("evaluation/model.py", ".append(len(tokens))", ".append(0)", [f"{WHOLE}::test_thoughts_are_tokens_of_an_answer_though_lm_eval_drops_them"]),
    "a checkpoint forgets its dtype": ("evaluation/model.py", "dtype=settings.dtype, **options", "**options", [f"{WHOLE}::test_a_checkpoint_computes_in_the_dtype_of_the_recipe[SamplerLM]"]),
    "choices are scored in float32": ("evaluation/model.py", "Policy(self.model, Sampling(), dtype=self.sampler.dtype)", "Policy(self.model, Sampling())", ["tests/evaluation/test_likelihoods.py::test_bfloat16_is_that_of_hflm_in_mixed_precision[llama]"]),
}  # fmt: skip
