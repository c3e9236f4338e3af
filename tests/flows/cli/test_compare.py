"""`whetstone compare` on a real run: text, JSON, a page that a real browser opens, errors that help."""

from __future__ import annotations

import json
import shutil
import time

import homes
import pytest
import toys
from html_pages import check


@pytest.mark.slow
@pytest.mark.long
def test_two_checkpoints_of_a_real_run(ran, tmp_path):
    folder, _, summary, _ = ran
    run = summary["parent_run_id"]
    page = tmp_path / "page.html"
    names = [f"{run[:8]}:sft", f"{run}:rlvr"]
    done = toys.whetstone("compare", *names, "--weights", "--html", str(page), home=folder / "home")
    for words in (
        "What differs",
        "palindromes, 6 shared problems",
        "pass@1",
        "this is about these checkpoints",
        "never solved any more",
        "completions 64",
        "parameters, 100.0 % changed",
        "spectral shift",
        "principal subspaces turned by",
    ):
        assert words in done.stdout
    body = json.loads(toys.whetstone("compare", *names, "--json", home=folder / "home").stdout)
    assert [arm["runs"][0]["checkpoint"] for arm in body["arms"]] == ["sft", "rlvr"]
    shares = [s["pass@1"] for s in body["benchmarks"]["palindromes"]["scores"]]
    stored = [summary["evaluation"][c]["palindromes"]["pass@1"]["value"] for c in ("sft", "rlvr")]
    assert shares == pytest.approx(stored), "the same scores as the evaluation's own"
    assert body["curves"]["rlvr: reward/mean"][1]["steps"] == [1, 2, 3, 4]
    assert "Weights: " in page.read_text()
    stages = toys.whetstone("compare", f"{run}:base", *names, "--weights", "--json", home=folder / "home").stdout
    pairs = json.loads(stages)["weights"]
    assert [pair["summary"]["relative_change"] > 0 for pair in pairs] == [True, True], "base to SFT, base to RLVR"
    assert "svg" in {tag for tag, _ in check(page.read_text()).tags}


@pytest.mark.slow
def test_an_evaluation_that_is_only_in_mlflow_is_fetched(ran):
    folder, _, summary, _ = ran
    run = summary["parent_run_id"]
    shutil.rmtree(summary["stages"]["evaluate"]["artifact"])
    done = toys.whetstone("compare", f"{run}:sft", f"{run}:rlvr", home=folder / "home")
    assert "palindromes, 6 shared problems" in done.stdout


@pytest.mark.slow
def test_errors_name_the_fix(ran, tmp_path):
    home = ran[0] / "home"
    run = ran[2]["parent_run_id"]
    one = toys.whetstone("compare", run, home=home, check=False)
    assert one.returncode == 2 and "needs two different runs" in one.stderr
    bad = toys.whetstone("compare", run, "toi", home=home, check=False)
    assert bad.returncode == 2 and "Did you mean" in bad.stderr
    level = toys.whetstone("compare", run, run, "--confidence", "95", home=home, check=False)
    assert level.returncode == 2 and "--confidence" in level.stderr
    empty = toys.whetstone("compare", run, "other", "--json", home=tmp_path / "none", check=False)
    assert json.loads(empty.stdout)["error"]["kind"] == "not_found" and not (tmp_path / "none" / "mlflow.db").exists()


@pytest.mark.slow
def test_terminal_shows_no_control_characters_and_large_runs_are_quick(home):
    draws = [[float((i * j) % 7 < 3) for j in range(64)] for i in range(500)]
    for number in range(4):
        homes.run(f"{number}" * 32, {"base": {"sums": draws}, "rlvr": {"sums": draws}}, advantage=f"x\x1b[2J{number}")
    began = time.monotonic()
    done = toys.whetstone("compare", "experiment:drawn", home=home)
    assert "\x1b" not in done.stdout and "x�[2J1" in done.stdout
    assert time.monotonic() - began < 20
