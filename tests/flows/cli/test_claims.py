"""`whetstone claims`: what is listed, what is missing, runs that go on where they stopped, and verdicts that fit what is stored."""

from __future__ import annotations

import json

import pytest
import toys
import yaml

from flows.cli import claim_file, claim_results, claims
from flows.cli import main as cli
from pipelines.base.errors import UserError
from tasks.sweep import arms

WITH_EXPERIMENT = [claim for claim in claim_file.claims().values() if claim.experiment]
STORED = [claim for claim in WITH_EXPERIMENT if claim_results.load(claim.system)]


def claim(path, **more):
    body = {
        "recipe": str(path),
        "arms": {"start": {"stage": "sft"}, "grpo": {"presets": ["grpo"]}, "rloo": {"presets": ["rloo"]}},
        "baseline": "grpo",
        "set": ["rlvr.steps=2"],
        "seeds": 2,
        "metric": "pass@2",
    }
    experiment = body | more
    return claim_file.Claim(
        system="Toy", claim="RLOO gains.", run="recipe:toy", size="toys", verdict="too small", why="toys",
        results="results.md#toys", experiment=experiment,
    )  # fmt: skip


@pytest.mark.parametrize("tried", WITH_EXPERIMENT, ids=lambda tried: tried.system)
def test_an_experiment_can_be_read(tried):
    """Its recipe has the stages and the benchmark, and no two runs are the same."""
    read = claims.state(tried, claim_results.FOLDER, 1)
    sweep = claims._sweep(read)
    assert len({cell.overrides for cell in sweep.cells()}) == len(sweep.variants) and sweep.own(read.experiment.arm)


@pytest.mark.parametrize("tried", STORED, ids=lambda tried: tried.system)
def test_a_stored_result_is_of_the_experiment_and_fits_the_verdict(tried):
    each = claims.state(tried, claim_results.FOLDER)
    assert each.stored and not each.outdated, "the experiment has changed: run the claim again"
    assert claim_results.contradiction(tried, each.stored) is None
    assert tried.outcome is None, "the stored result has the figures"


def test_a_claim_has_its_figures_in_one_place():
    assert all(entry.outcome or claim_results.load(entry.system) for entry in claim_file.claims().values())
    with pytest.raises(ValueError, match="without an experiment has its outcome"):
        claim_file.Claim(**claim("x").model_dump() | {"experiment": None})


@pytest.mark.parametrize(
    "verdict,ends,expects,fits",
    [
        ("seen", (0.01, 0.2), "gain", True),
        ("seen", (-0.01, 0.2), "gain", False),
        ("not seen", (-0.01, 0.2), "gain", True),
        ("not seen", (0.01, 0.2), "gain", False),
        ("contradicted", (-0.2, -0.01), "gain", True),
        ("contradicted", (-0.2, 0.01), "gain", False),
        ("too small", (-0.2, 0.01), "gain", True),
        ("too small", (-0.2, -0.01), "gain", False),
        ("seen in part", (-0.2, -0.01), "gain", True),
        ("seen", (-0.2, 0.01), "as_good", True),
        ("seen", (-0.2, -0.01), "as_good", False),
        ("not seen", (-0.2, -0.01), "as_good", True),
    ],
)
def test_a_verdict_that_the_interval_contradicts_is_refused(verdict, ends, expects, fits):
    low, high = ends
    tried = claim_file.Claim(
        **claim("x").model_dump() | {"verdict": verdict, "why": None if verdict == "seen" else "w"}
    )
    new = {"name": "new", "difference": {"value": (low + high) / 2, "low": low, "high": high}}
    told = claim_results.contradiction(tried, {"arms": [new], "about": "new", "baseline": "plain", "expects": expects})
    assert (told is None) == fits and (fits or f"verdict {verdict!r} contradicts new" in told)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"baseline": "gpro"}, r"toy.baseline: there is no arm 'gpro'. Did you mean 'grpo'"),
        ({"about": "grpo"}, "toy.about: this is the baseline"),
        ({"metric": "accuracy"}, "toy.metric: string should match"),
        ({"sets": []}, "toy.sets: extra inputs are not permitted. Fields of an experiment: recipe"),
        ({"benchmark": "palindrome"}, "toy.benchmark: .* Did you mean 'palindromes'"),
        ({"arms": {"grpo": {}, "rloo": {"stage": "rlv"}}}, "toy.arms.rloo.stage: .* Did you mean 'rlvr'"),
        ({"arms": {"grpo": {}, "rloo": {}}}, "toy.arms.rloo: is the same as grpo"),
        ({"baseline": "start", "tune": {"field": "optimizer.learning_rate", "values": ["1", "2"]}}, "toy.tune"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, message):
    path = toys.recipe(tmp_path)
    with pytest.raises(UserError, match=message):
        arms.read(str(path), claim(path, **change).experiment, "toy", 1)


def file_of(folder, **more):
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump([claim(toys.recipe(folder), **more).model_dump(mode="json")], sort_keys=False))
    return ["--file", str(path), "--results", str(folder / "results")]


def whetstone(capsys, *arguments):
    """Exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["claims", *arguments])
    printed = capsys.readouterr()
    return ended.value.code, printed.out + printed.err


def test_what_was_run_and_what_is_missing(tmp_path, home, capsys):
    options = file_of(tmp_path)
    code, text = whetstone(capsys, *options)
    assert code == 0 and "2 of 2 seeds" in text and "1 claims, 1 with an experiment, 0" in text
    code, text = whetstone(capsys, "toy", "--seeds", "3", "--json", *options)
    (told,) = json.loads(text)
    assert code == 0 and told["seeds_missing"] == 3 and told["result"] is None and told["verdict"] == "too small"
    code, text = whetstone(capsys, "run", "--budget-minutes", "0", *options)
    assert code == 0 and "the budget of 0 minutes is spent" in text and "0 claims have new results" in text


@pytest.mark.parametrize(
    "options,message",
    [
        (["Toi"], "no claim of 'Toi'. Did you mean 'Toy'"),
        (["--seeds", "0"], "--seeds 0: at least 1"),
        (["--budget-minutes", "-1"], "--budget-minutes -1.0: at least 0"),
        (["--file", "nowhere.yaml"], "nowhere.yaml: [Errno 2]"),
    ],
)
def test_a_wrong_option_is_named(tmp_path, home, capsys, options, message):
    code, text = whetstone(capsys, *file_of(tmp_path), *options)
    assert code == 2 and message in text


def test_a_wrong_claim_is_named(tmp_path, home, capsys):
    path = tmp_path / "mine.yaml"
    for body, message in (("{}", "is no list of claims"), ("- {system: X}", "X.claim: Field required")):
        path.write_text(body)
        code, text = whetstone(capsys, "--file", str(path))
        assert code == 2 and f"{path}: " in text and message in text


@pytest.mark.slow
@pytest.mark.long
def test_runs_go_on_where_they_stopped(tmp_path, home):
    """The baseline is tuned, arms share stages, and a second start runs the second seed alone."""
    grid = {"field": "optimizer.learning_rate", "values": ["1e-5", "1e-3"]}
    options = file_of(tmp_path, arms={"start": {"stage": "sft"}, "grpo": {}}, about="start", tune=grid)
    done = toys.whetstone("claims", "run", "--seeds", "1", *options, home=home, timeout=600)
    assert "claim 1/1 Toy: seed 1 of 1" in done.stderr and "1 claims have new results" in done.stdout
    path = tmp_path / "results" / "toy.json"
    first = json.loads(path.read_text())
    assert [arm["name"] for arm in first["arms"]] == ["start", "grpo"] and first["seeds"] == [0]
    assert first["tuned"].keys() == {"grpo"} and first["baseline"] == "grpo" and first["about"] == "start"
    ends = claim_results.difference(first)
    assert ends["low"] <= ends["value"] <= ends["high"] and ends["problems"] == 6 and first["metric"] == "pass@2"
    assert first["arms"][1]["cost"]["steps"] == 2 and first["arms"][1]["cost"]["tokens"] > 0
    stages = sorted(path.name.partition("-")[0] for path in (home / "runs").glob("*-*"))
    assert stages == ["curate", *["evaluate"] * 2, *["rlvr"] * 3, "sft"], "two trials, an arm, and what it starts from"
    again = toys.whetstone("claims", "run", "--json", *options, home=home, timeout=600)
    assert json.loads(again.stdout) == {"stored": ["Toy"], "failed": {}} and "seed 2 of 2" in again.stderr
    both = json.loads(path.read_text())
    assert both["seeds"] == [0, 1] and both["arms"][0]["seeds"] == [None] and both["tuned"] == first["tuned"]
    assert [arm["by_seed"][0] for arm in both["arms"]] == [arm["by_seed"][0] for arm in first["arms"]]
    assert len(list((home / "runs").glob("*-*"))) == len(stages) + 2, "only the second seed was run"
    last = toys.whetstone("claims", "--json", *options, home=home)
    assert json.loads(last.stdout)[0]["seeds_missing"] == 0
