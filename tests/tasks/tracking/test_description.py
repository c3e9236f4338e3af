"""Descriptions of runs and versions: what failed first, then scores, then links."""

from __future__ import annotations

from tasks.tracking import description

CELL = {"value": 0.25, "low": 0.2, "high": 0.3, "n": 8}
RUN = "a" * 32
SUMMARY = {
    "stages": {"sft": {"seconds": 2.0, "status": "ran", "run_id": RUN, "key": "k"}},
    "evaluation": {
        "base": {"t": {"mean_length": CELL, "pass@1": CELL}},
        "rlvr": {"t": {"mean_length": CELL, "pass@1": {"value": 0.123456789, "low": 0.1, "high": 0.2, "n": 8}}},
    },
    "differences": {"t": {"base → rlvr": {"value": -0.126, "low": -0.2, "high": -0.01, "n": 8}}},
}
NONE = {"stages": {}, "evaluation": {}, "differences": {}}


def link(run):
    return f"#/runs/{run}"


def test_the_note_holds_the_scores_and_links_to_the_stages():
    text = description.note(SUMMARY, link, {"base → rlvr": "#/x"})
    assert text.startswith("| checkpoint | t pass@1 |")
    assert f"[sft](#/runs/{RUN}) ran" in text and "[base → rlvr](#/x)" in text and "**-0.126**" in text
    assert "Started by" not in text, "a run that no server has a page of"


def test_a_failure_comes_first_with_its_log():
    failed = {"stage": "rlvr", "error": "the stage ended\nwith exit code 3.", "run_id": RUN, "log": ["one ```", "two"]}
    text = description.note(SUMMARY | {"failed": failed}, link, {}, file_link=lambda run, file: f"#/{run}/{file}")
    head, table = text.split("| checkpoint", 1)
    assert head.startswith("**rlvr failed**: the stage ended with exit code 3.\n")
    assert f"[The run of rlvr](#/runs/{RUN}), [its log](#/{RUN}/artifact/report/stage.log)" in head
    assert head.count("```") == 2 and "two" in head and table
    text = description.note(NONE | {"failed": {"error": "no space"}}, link, {})
    assert text == "**The run failed**: no space"


def test_the_way_to_prefect_is_there_where_it_has_a_page():
    origin = {
        "whetstone.trigger": "schedule", "whetstone.prefect.deployment": "post-training/nightly",
        "whetstone.prefect.url": "http://h:4200/runs/flow-run/1",
    }  # fmt: skip
    text = description.note(SUMMARY, link, {}, origin)
    assert text.endswith("Started by schedule: [post-training/nightly in Prefect](http://h:4200/runs/flow-run/1)")
    assert description.opened({"whetstone.trigger": "hand"}) == ""


def test_a_version_says_its_score_and_its_data():
    data = [
        {"name": "toy", "digest": "0123456789abcdef", "context": "training"},
        {"name": "t", "digest": "ff", "context": "evaluation"},
    ]
    text, tags = description.version(SUMMARY, "toy seed=1", data, "#/runs/p")
    assert text.startswith("The model of rlvr of [toy seed=1](#/runs/p).") and "| rlvr | 0.123 [0.100, 0.200] |" in text
    assert text.endswith("Data: toy (0123456789ab)")
    assert tags == {"whetstone.score/t/pass_at_1": "0.123 [0.100, 0.200]", "whetstone.data": "toy (0123456789ab)"}
    assert description.version(NONE, "toy", [], "#/")[1] == {}
