"""The table of a run says of each checkpoint what was measured of it."""

from __future__ import annotations

import pytest

from flows import table


def cell(value):
    return {"value": value, "low": value - 0.1, "high": value + 0.2, "n": 10}


BODY = {
    "recipe": "toy",
    "seed": 0,
    "stages": {"sft": {"seconds": 12.4, "status": "ran"}, "rlvr": {"seconds": 0.1, "status": "reused"}},
    "evaluation": {
        name: {
            "t": {
                "avg@32": cell(0.9),
                "pass@1": cell(value),
                "pass@2": cell(0.7),
                "pass@16": cell(0.8),
                "mean_length": cell(9.0),
            }
        }
        for name, value in (("base", 0.1), ("sft", 0.3), ("rlvr", 0.5))
    },
    "differences": {"t": {"base → sft": cell(0.2)}},
}


def test_rows_are_checkpoints_and_columns_the_ends_of_pass_at_k():
    header, lines = table.rows(BODY)
    assert header == ["checkpoint", "pass@1", "pass@16", "tokens an answer", "stage time"]
    assert [line[0] for line in lines] == ["base", "SFT", "RLVR"]
    assert [line[1] for line in lines] == ["10.0 % [0.0, 30.0]", "30.0 % [20.0, 50.0]", "50.0 % [40.0, 70.0]"]
    assert [line[3] for line in lines] == ["9.0 [8.9, 9.2]"] * 3
    assert [line[-1] for line in lines] == ["–", "12 s", "reused"]


def test_a_missing_cell_and_several_tasks():
    body = {**BODY, "evaluation": {"sft": {"t": {"acc": cell(0.5)}}, "rlvr": {"u": {"acc": cell(0.25)}}}}
    header, lines = table.rows(body)
    assert header == ["checkpoint", "t acc", "u acc", "stage time"]
    assert lines[0][1:3] == ["50.0 % [40.0, 70.0]", "–"] and lines[1][1:3] == ["–", "25.0 % [15.0, 45.0]"]


def test_cut_answers_stand_beside_every_score():
    from tasks.tracking.description import note

    tasks = {
        "t": {"pass@1": cell(0.5), "truncated_share": cell(0.25)},
        "u": {"acc": cell(0.5), "truncated_share": cell(0.9)},
    }
    body = {**BODY, "evaluation": {"sft": tasks}, "differences": {}}
    header, lines = table.rows(body)
    assert header[1:-1] == ["t pass@1", "t answers cut", "u acc", "u answers cut"]
    assert lines[0][2] == "25.0 % [15.0, 45.0]" and lines[0][4] == "90.0 % [80.0, 110.0]"
    assert "25.0 % [15.0, 45.0]" in table.markdown(body), "as Prefect shows it"
    assert "25.0 % cut" in note(body, str, {}) and "90.0 % cut" in note(body, str, {}), "as MLflow describes the run"


def test_what_a_stage_achieved_stands_before_its_alarms():
    alarm = {"step": 3, "monitor": "truncation", "action": "warn", "text": "monitor truncation: so it is"}
    stage = {"achieved": "reward 0.1 → 0.2", "alarms": [alarm]}
    assert table.outcomes(stage) == ["reward 0.1 → 0.2", "alarm at step 3, warn: monitor truncation: so it is"]
    assert "- rlvr: reward 0.1 → 0.2" in table.markdown({**BODY, "stages": {"rlvr": stage}, "evaluation": {}})


def test_differences_keep_their_sign():
    assert table.differences(BODY) == [
        "t: base → sft +20.0 points, 95 % interval [+10.0, +40.0], paired over 10 questions"
    ]
    assert table.markdown(BODY).endswith("- " + table.differences(BODY)[0])


@pytest.mark.parametrize("width", [140, 60, 40])
def test_no_value_is_cut_off_however_narrow_the_terminal(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    table.show({**BODY, "differences": {}})
    said = capsys.readouterr().out
    assert "…" not in said and said.count("90.0 %") == 0 and said.count("70.0 % [60.0, 90.0]") == 0
    for value in ("10.0 % [0.0, 30.0]", "80.0 % [70.0, 100.0]", "9.0 [8.9, 9.2]"):
        assert value in said
    assert ("┃" in said) == (width == 140)
