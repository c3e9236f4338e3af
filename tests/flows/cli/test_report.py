"""The HTML report of a run: flips first, the same problem over steps, tokens on the colour of their advantage."""

from __future__ import annotations

import json
from pathlib import Path

import chain
import html_pages
import pytest
import vision_models

from flows import report_data, report_page
from flows.cli import main as cli
from pipelines.data import thumbnails
from pipelines.data.images import IMAGES
from tasks import environment
from tasks.store import index
from tasks.tracking import rollouts
from tasks.tracking.client import client as tracker

ROW = {"uid": "u" * 32, "group": 0, "status": "correct", "score": 1.0, "correct": True, "components": {"verifier": 1.0}}
ALARM = {"step": 2, "monitor": "truncation", "action": "warn", "text": "cut"}


@pytest.fixture
def run(home, tmp_path):
    """A run of the index with an evaluation and logged rollouts."""
    evaluated, trained = tmp_path / "evaluate", tmp_path / "rlvr"
    evaluated.mkdir()
    (trained / "report").mkdir(parents=True)
    chain.evaluation(evaluated)
    lines = [
        {**ROW, "step": 1, "text": "ab", "prompt": [{"role": "user", "content": "<b>go</b>"}], "advantage": -0.5},
        {**ROW, "step": 9, "text": "ba", "tokens": [["b", 1.0], ["o", 1.0], ["a", -1.0], ["!", None]]},
        {**ROW, "step": 9, "text": "ab", "turns": [["policy", "ab"], ["environment", "w"]], "advantage": 0.25,
         "tokens": [["a", 0.25, 0.5], ["b", 0.25, -0.002], ["w", None, None]]},
        {**ROW, "uid": "v" * 32, "step": 9, "text": "x", "turns": [["policy", "le\u202eft"], ["environment", "wall"]]},
    ]  # fmt: skip
    spool = [{"kind": "metrics", "step": step, "time": 1, "values": {"reward/mean": step / 9}} for step in (1, 2, 3)]
    (trained / "report/spool.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spool))
    (trained / "report/rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "half a li")
    home.mkdir(parents=True)
    index.start("a" * 32, "toy seed=3", "toy", {}, "7")
    results = json.loads((evaluated / "results.json").read_text())
    stages = {
        name: {
            "status": "ran",
            "kind": name,
            "artifact": str(path),
            "seconds": 1.0,
            "key": "k",
            "run_id": None,
            "why": "",
            "inputs": inputs,
            **({"rewards": ["reward: judge: judge (<b>)"], "alarms": [ALARM]} if name == "rlvr" else {}),
        }
        for name, path, inputs in (("rlvr", trained, {"model": "base"}), ("evaluate", evaluated, {"rlvr": "rlvr"}))
    }
    index.end("a" * 32, "FINISHED", {"recipe": "toy", "seed": 3, "seconds": 2.0, "stages": stages, **results}, {})
    return tmp_path


def test_the_page_is_whole_and_says_it_all(run, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "aaaa", "--out", str(run / "r.html")])
    assert left.value.code == 0 and capsys.readouterr().out.strip() == str(run / "r.html")
    text = (run / "r.html").read_text()
    html_pages.check(text)
    assert "<li>rlvr, reward: judge: judge (&lt;b&gt;)</li>" in text
    assert "toy seed=3" in text and "gained 1, lost 0, both 1, neither 0" in text
    assert text.index("palindrome 0") < text.index("palindrome 1"), "the flip comes first"
    assert text.count("<rect") == 2 and text.count('class="edge"') == 1 and "ran, 1 s" in text
    assert (
        'data-verdict="gained flipped correct"' in text and "<option>palindromes</option><option>rlvr</option>" in text
    )
    assert 'aria-label="reward"' in text and text.count("stroke: var(--bad)") == 1, "a curve with its alarm"
    assert "The same problem while the policy learned" in text and "step 9" in text
    assert "&lt;b&gt;go&lt;/b&gt;" in text and "<b>go" not in text
    assert (
        'data-tokens="[[2,1.0],[1,-1.0],[1,null]]">boa!<' in text and 'rgba(207,34,46,0.23)" title="-0.5">ab<' in text
    )
    assert (
        'title="+0.25" data-tokens="[[1,0.25,0.5],[1,0.25,-0.002]]">ab<' in text
        and 'data-tokens="[[1,null,null]]">w<' in text
    )
    assert '<option value="mismatch">' in text and "--m:rgba(213,94,0,0.45)" in text
    assert 'class="text environment"' in text and "le\ufffdft" in text and "verifier 1" in text
    assert (
        text.count('<a href="http') == 1
        and f"/#/experiments/7/runs/{'a' * 32}?" in text
        and text.count("<script>") == 1
    )


def test_the_page_of_a_run_that_failed_opens_on_what_failed_and_says_what_started_it(home, tmp_path):
    failed = {"error": "the stage ended with exit code 3.", "stage": "rlvr", "log": ["<b>", "the last line"]}
    tags = {
        "whetstone.trigger": "schedule", "whetstone.prefect.deployment": "post-training/nightly", "whetstone.set": "seed=3",
        "whetstone.prefect.url": "http://h/runs/flow-run/1",
    }  # fmt: skip
    home.mkdir(parents=True)
    index.start("f" * 32, "seed 3", "toy", tags)
    gate = {"verdict": "worse", "against": "champion version 3 of toy", "look": 7, "why": ["sums: 4 points"]}
    index.end("f" * 32, "FAILED", {"recipe": "toy", "seconds": 2.0, "stages": {}, "failed": failed, "gate": gate}, {})
    with pytest.raises(SystemExit, match="0"):
        cli.main(["report", "ffff", "--out", str(tmp_path / "f.html")])
    text = (tmp_path / "f.html").read_text()
    html_pages.check(text)
    assert text.index("rlvr: the stage ended with exit code 3.") < text.index("&lt;b&gt;\nthe last line")
    assert "Started by schedule of post-training/nightly, with seed=3" in text
    assert '<a href="http://h/runs/flow-run/1">in Prefect</a>' in text
    assert "<li>gate: worse against champion version 3 of toy (look 7)</li>" in text
    assert "Dashed vertical lines are alarms" not in text, "it has no curves"


@pytest.mark.slow
def test_the_page_is_stored_in_mlflow_where_asked(run, tmp_path, capsys, monkeypatch):
    """Among the files of a run of a real store; a run that MLflow does not have is one line."""
    environment.prepare()
    client = tracker()
    stored = client.create_run(client.create_experiment("toy"))
    summary = index.runs()[0]["summary"]
    about = {"name": "toy", "experiment": "toy", "experiment_id": stored.info.experiment_id}
    index.add(stored.info.run_id, status="FINISHED", started=1.0, summary=summary, **about)
    with pytest.raises(SystemExit, match="0"):
        cli.main(["report", stored.info.run_id, "--out", str(tmp_path / "s.html"), "--store"])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == str(tmp_path / "s.html") and f"/runs/{stored.info.run_id}/artifacts/report.html?" in said[1]
    again = Path(client.download_artifacts(stored.info.run_id, "report.html", str(tmp_path)))
    assert again.read_text() == (tmp_path / "s.html").read_text()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["report", "aaaa", "--out", str(tmp_path / "n.html"), "--store"])
    assert "--store: MLflow did not take the page" in capsys.readouterr().err


def test_an_unknown_run_is_one_line(home, capsys):
    home.mkdir(parents=True)
    with pytest.raises(SystemExit) as left:
        cli.main(["report", "ffff"])
    assert left.value.code == 2 and "whetstone runs" in capsys.readouterr().err


def test_rows_of_a_problem_may_answer_several_prompts(tmp_path):
    """A variant that the policy has written is a group of its own; the rows after the first of a group have its prompt."""
    lines = [
        {**ROW, "step": 1, "group": group, "prompt": prompt} for group, prompt in ((0, ["a"]), (0, None), (4, ["b"]))
    ]
    lines.append({**ROW, "step": 2, "group": 3})
    (tmp_path / "report").mkdir()
    (tmp_path / "report/rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["prompt"] for row in rollouts.read(tmp_path)] == [["a"], ["a"], ["b"], ["a"]]


def test_problems_met_most_often_are_followed_from_first_to_last_step():
    rows = [
        {"uid": uid, "step": step}
        for uid, steps in {"a": [1, 2, 3, 4, 9], "b": [1, 4], "c": [5]}.items()
        for step in steps
    ]
    assert {uid: [r["step"] for r in rows] for uid, rows in report_data.followed(rows).items()} == {
        "a": [1, 3, 9],
        "b": [1, 4],
    }


def test_advantages_colour_by_the_largest():
    assert report_page.advantages({"tokens": [["a", 0.5], ["b", None]]}) == [0.5]
    assert report_page.mismatches({"tokens": [["a", 0.5, -2.0], ["b", None, None], ["c", 1.0]]}) == [-2.0]
    assert report_page.advantages({"text": "a"}) == [] and report_page.advantages({"advantage": -2}) == [-2]


def test_pictures_stand_beside_answers_and_never_in_what_the_policy_wrote(run, tmp_path):
    """A policy can write what looks like the mark of an image that there is."""
    first, second = (IMAGES.add(vision_models.picture(40, 30, seed)) for seed in (41, 42))
    path = tmp_path / "evaluate/samples/rlvr/palindromes.jsonl"
    for checkpoint in ("base", "sft", "rlvr"):
        path = tmp_path / f"evaluate/samples/{checkpoint}/palindromes.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["doc"]["question"] = f"{first}palindrome 0"
        rows[0]["resps"] = [[f"abba{first}", "xx"]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = [["policy", f"look {first}"], ["environment", f"{second}here"], ["policy", f"no {second}"]]
    line = {
        **ROW, "uid": "w" * 32, "step": 9, "text": f"look {first}", "prompt": [{"role": "user", "content": f"{first}go"}], "turns": turns,
        "tokens": [[turns[0][1], 0.5], [turns[1][1], None], [turns[2][1], -0.5]],
    }  # fmt: skip
    log = tmp_path / "rlvr/report/rollouts.jsonl"
    log.write_text(log.read_text().removesuffix("half a li") + json.dumps(line) + "\n")
    thumbnails.note(tmp_path / "rlvr/report", json.dumps([first, second]))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["report", "aaaa", "--out", str(run / "p.html")])
    text = (run / "p.html").read_text()
    html_pages.check(text)
    assert text.count("<img") == 3, "of a question, of a prompt, and of what the environment showed"
    assert "[image 40x30 " in text and f">look {first}</span>" in text and f"abba{first}</div>" in text
    assert text.index("<img") < text.index(">palindrome 0</div>")
