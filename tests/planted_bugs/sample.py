"""Planted bugs of the sample stage."""

from __future__ import annotations

STAGE = "tests/pipelines/sample/test_run.py"
PLANTED = {
    "what a kill left half written stays": ("pipelines/sample/run.py", "        path.unlink()\n", "        pass\n", [f"{STAGE}::test_a_kill_changes_no_byte"]),
    "random numbers by place in the batch": ("pipelines/sample/run.py", "stream_id(self.seed, p.uid, index)", "stream_id(self.seed, str(problems.index(p)), index)", [f"{STAGE}::test_a_row_depends_on_its_problem_and_place_only"]),
    "what could not be sampled is incorrect": ("pipelines/sample/run.py", 'if row["stop"] != Stop.ERROR.name.lower()]', "]", [f"{STAGE}::test_a_prompt_without_room_is_unscored"]),
    "the template is not compared": ("pipelines/sample/run.py", '    models.check_template(dataset.about(data).get("template"), tokenizer, "sample")\n', "", [f"{STAGE}::test_data_of_another_template_is_refused"]),
}  # fmt: skip
