"""Planted bugs of the command line and its tables."""

from __future__ import annotations

FLOW, STAGES, TABLE, CLI = "flows/post_training.py", "flows/stages.py", "flows/table.py", "flows/cli/selection.py"
AHEAD = "tests/tasks/test_prestart.py::test_what_an_ordinary_start_would_not_give_is_not_used"
FORKS = "tests/pipelines/stage/test_fork_server.py"
RUNS = "tests/flows/test_post_training.py"
ORDER = f"{RUNS}::test_stages_run_in_order_each_on_what_came_before"
FROM = f"{RUNS}::test_from_a_stage_on_the_earlier_artifacts_are_read"
ROWS = "tests/flows/test_table.py::test_rows_are_checkpoints_and_columns_the_ends_of_pass_at_k"
SELECT = "tests/tasks/test_pipeline.py::test_a_selection_keeps_the_order_and_both_ends"
OUTPUT, PROGRESS = "tests/flows/cli/test_output.py", "tests/flows/test_progress.py"
PLANTED = {
    "a parent run's scores are in any order": ("tasks/tracking/record.py", "    names.sort(", "    names[:0].sort(", ["tests/tasks/tracking/test_record.py::test_the_headline_score_of_the_last_checkpoint_comes_first_and_intervals_follow"]),
    "an interval's ends are one": ("tasks/tracking/record.py", '{f"_{end}": cell[end]', '{f"_{end}": cell["low"]', ["tests/tasks/tracking/test_record.py::test_the_headline_score_of_the_last_checkpoint_comes_first_and_intervals_follow"]),
    "params hold every default": ("tasks/tracking/record.py", 'mode="json", exclude_defaults=True', 'mode="json"', ["tests/tasks/tracking/test_record.py::test_params_hold_what_somebody_set_and_what_runs_are_sorted_by"]),
    "a dirty checkout is clean": ("tasks/tracking/record.py", "str(bool(status)).lower()", "str(status is None).lower()", ["tests/tasks/tracking/test_record.py::test_a_dirty_checkout_says_so"]),
    "what was lost counts as gained": ("flows/report_data.py", "(False, True): \"gained\", (True, False): \"lost\"", "(False, True): \"lost\", (True, False): \"gained\"", ["tests/flows/cli/test_report.py::test_the_page_is_whole_and_says_it_all"]),
    "--from ignores the earlier stages": (FLOW, "done = needed_before(read, chosen, plan(read), prepared.of_run) if chosen != read.stage_names() else {}", "done = {}", [FROM]),
    "--from starts a stage late": ("tasks/pipeline.py", "order.index(first) <= order.index(stage) <= order", "order.index(first) + bool(self.start) <= order.index(stage) <= order", [SELECT]),
    "--until stops a stage early": ("tasks/pipeline.py", "<= order.index(stage) <= order.index(last)", "<= order.index(stage) <= order.index(last) - bool(self.until)", [SELECT]),
    "--from never reaches the flow": (FLOW, "Selection(from_stage, until,", "Selection(None, until,", [FROM]),
    "--until never reaches the flow": (FLOW, "Selection(from_stage, until,", "Selection(from_stage, None,", [f"{RUNS}::test_until_and_only"]),
    "--fresh is forgotten": (FLOW, "done, pipeline.parent, fresh, show, later, pipeline.name)", "done, pipeline.parent, False, show, later, pipeline.name)", [FROM]),
    "a process with old code is used": ("tasks/prestart.py", "if keys.code_now(node.recipe, node.name) != waiting.code:", "if not waiting.code:", [AHEAD]),
    "a process with another environment is used": ("tasks/prestart.py", "    if changed:\n", "    if len(changed) > 99:\n", [AHEAD]),
    "a fork runs the code that its server had read": ("pipelines/stage/fork_server.py", 'if name.partition(".")[0] in PACKAGES]', 'if name.partition(".")[0] in PACKAGES[:1]]', [f"{FORKS}::test_a_fork_is_a_module_run_from_the_beginning"]),
    "the user's modules are imported once for all forks": ("pipelines/stage/fork_server.py", "if spec and spec.origin and any(", "if spec and spec.origin or any(", [f"{FORKS}::test_only_installed_libraries_are_imported_for_forks"]),
    "a stage does not see the one before it": (FLOW, "    done[result.stage] = result.artifact\n", "", [ORDER]),
    "the summary lacks the stages": (FLOW, "    pipeline.results[result.stage] = result\n", "", [ORDER]),
    "a failed run counts as killed": (FLOW, '"FAILED" if isinstance(error, Exception) else "KILLED"', '"KILLED"', [f"{RUNS}::test_a_failure_closes_the_run_as_failed"]),
    "a failed run stays open": (FLOW, 'body = pipeline.close("FAILED" if isinstance(error, Exception) else "KILLED", error)', "body = {}", [f"{RUNS}::test_a_failure_closes_the_run_as_failed"]),
    "the SFT flow runs RLVR": (STAGES, 'only=["sft"]', 'only=["rlvr"]', [f"{RUNS}::test_a_stage_s_flow_runs_that_stage"]),
    "another stage's model is handed to evaluation": ("pipelines/recipe/stage_kind.py", 'return {label: name for label, name in self.labels.items() if name != BASE}', 'return {label: next(iter(self.labels.values())) for label, name in self.labels.items() if name != BASE}', ["tests/tasks/test_pipeline.py::test_every_stage_reads_its_predecessors"]),
    "a stage that was never made is passed over": ("tasks/pipeline.py", "            if artifact is None:\n                from tasks import repeated", "            if artifact is None:\n                continue\n                from tasks import repeated", ["tests/tasks/test_pipeline.py::test_artifacts_of_earlier_stages_are_handed_on"]),
    "the SFT model is the result": ("tasks/pipeline.py", 'return models[-1] if models', 'return models[0] if models', ["tests/tasks/test_pipeline.py::test_the_newest_checkpoint_is_the_result"]),
    "pass@2 is read as the largest": (TABLE, 'key=lambda m: int(m.split("@")[1])', "key=str", [ROWS]),
    "avg@k in the column of pass@1": (TABLE, 'if m.startswith("pass@")', 'if "@" in m', [ROWS]),
    "an interval's ends swapped": (TABLE, "[{100 * value['low']:.1f}, {100 * value['high']:.1f}]", "[{100 * value['high']:.1f}, {100 * value['low']:.1f}]", [ROWS]),
    "a reused stage shows its time": (TABLE, 'if stage["status"] == "ran" else "reused"', 'if stage["status"] else "reused"', [ROWS]),
    "differences lose their sign": (TABLE, "{100 * d['value']:+.1f} points", "{100 * abs(d['value']):.1f} points", ["tests/flows/test_table.py::test_differences_keep_their_sign"]),
    "remaining time counts what is done": ("flows/progress.py", '(body["total"] - body["done"]) / body["rate"]', 'body["done"] / body["rate"]', [f"{PROGRESS}::test_a_line_a_minute"]),
    "a line a second": ("flows/progress.py", "EVERY_S = 60.0", "EVERY_S = 1.0", [f"{PROGRESS}::test_a_line_a_minute"]),
    "errors exit with 0": ("flows/cli/output.py", 'return int(getattr(error, "exit_code", CHANGE))', "return DONE", [f"{OUTPUT}::test_json_errors_leave_two_and_nothing_else"]),
    "--set keeps the last only": (CLI, '"--set", action="append", default=[], metavar', '"--set", nargs=1, default=[], metavar', [f"{RUNS}::test_the_command_line_reaches_the_flow"]),
}  # fmt: skip
