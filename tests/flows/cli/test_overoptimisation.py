"""`whetstone overoptimisation`: what it reads of stages, its text, JSON and page."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest
import toys
from html_pages import check

from evaluation.overoptimisation import law
from flows.cli import main as cli
from flows.cli import overoptimisation
from pipelines.base.errors import UserError
from tasks.tracking import lookup


def rl(folder, alpha=0.4, beta=0.3, reach=4.0):
    """An artifact of 30 steps whose gold follows the law, with the KL told a token and completions of 8 tokens."""
    (folder / "report").mkdir(parents=True)
    distance = np.linspace(0, reach, 30)
    gold = 0.5 + law("rl", distance) @ [alpha, -beta]
    with open(folder / "report" / "spool.jsonl", "w") as spool:
        for step, (d, g) in enumerate(zip(distance.tolist(), gold.tolist(), strict=True), 1):
            values = {
                "policy/kl_to_reference": d * d / 8,
                "rollout/length_mean": 8.0,
                "reward/mean": d,
                "reward/correct": g,
            }
            spool.write(json.dumps({"kind": "metrics", "step": step, "time": 0, "values": values}) + "\n")
    return {"artifact": str(folder)}


def sampled(folder, kl, score):
    folder.mkdir(parents=True)
    (folder / "samples.json").write_text(json.dumps({"metrics": {"kl/mean": kl, "score/mean": score}}))
    return {"artifact": str(folder)}


@pytest.fixture
def stages(tmp_path, monkeypatch):
    aligned = {f"at-{n}": sampled(tmp_path / f"s{n}", n * n / 4.0, 0.6 + 0.01 * n) for n in range(6)}
    told = {"rl": rl(tmp_path / "rl"), **aligned, "cold": {"artifact": str(tmp_path)}, "cut": {}}
    monkeypatch.setattr(
        lookup,
        "find_run",
        lambda prefix, ask_mlflow: {"run_id": prefix, "summary": {"stages": told if prefix == "a" else {}}},
    )
    return told


def asked(*words):
    return cli.parser().parse_args(["overoptimisation", *words])


def test_known_laws_are_told_in_text_json_and_a_page(stages, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert overoptimisation.command(asked("a", "--html", str(page))) == 0
    text = capsys.readouterr().out
    assert "rl: 30 points up to d = 4.00" in text and "alpha 0.400 [0.400, 0.400], beta 0.300" in text
    assert "peak at d = 1.4" in text and "direct" not in text
    tree = check(page.read_text())
    assert "svg" in {tag for tag, _ in tree.tags}
    assert overoptimisation.command(asked("a", "--aligned", *[f"at-{n}" for n in range(6)], "--json")) == 0
    curves = {curve["name"]: curve for curve in json.loads(capsys.readouterr().out)}
    assert curves["direct alignment"]["distance"] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert curves["direct alignment"]["proxy"] == [None] * 6
    assert curves["rl"]["fit"]["beta"][0] == pytest.approx(0.3)


def test_the_ends_of_penalised_runs_are_points_of_one_curve(tmp_path, monkeypatch, capsys):
    """Runs that go less far the more they pay for the KL: each end is the mean of the last three of 30 steps."""
    told = {f"kl_{n}": rl(tmp_path / str(n), reach=4 / n) for n in (1, 2, 3, 4)}
    monkeypatch.setattr(lookup, "find_run", lambda prefix, ask_mlflow: {"run_id": prefix, "summary": {"stages": told}})
    assert overoptimisation.command(asked("a", "--penalised", *told, "--json")) == 0
    curves = {curve["name"]: curve for curve in json.loads(capsys.readouterr().out)}
    assert set(curves) == {*told, "ends of KL-penalised RL"}
    ends = curves["ends of KL-penalised RL"]
    wanted = sorted(float(np.linspace(0, 4 / n, 30)[-3:].mean()) for n in (1, 2, 3, 4))
    assert ends["distance"] == pytest.approx(wanted) and ends["proxy"] == pytest.approx(wanted)
    assert ends["gold"][0] == pytest.approx(np.mean(curves["kl_4"]["gold"][-3:])) and ends["fit"] is not None
    assert overoptimisation.command(asked("a", "--penalised", "kl_2", "--json")) == 0
    curves = {curve["name"]: curve for curve in json.loads(capsys.readouterr().out)}
    assert len(curves["ends of KL-penalised RL"]["distance"]) == 1


def test_two_runs_are_points_of_one_curve(stages, capsys):
    assert overoptimisation.command(asked("a", "a", "--json")) == 0
    (curve,) = json.loads(capsys.readouterr().out)
    assert len(curve["distance"]) == 60 and curve["fit"]["alpha"][0] == pytest.approx(0.4)


def test_best_of_n_is_read_from_completions(tmp_path):
    from pipelines.data import samples

    draw, problems = np.random.default_rng(0), {}
    for number in range(12):
        problems[f"{number:032x}"] = [(float(p), bool(draw.random() < 0.5)) for p in draw.standard_normal(8)]
    folder = tmp_path / "drafts"
    (folder / samples.FOLDER).mkdir(parents=True)
    rows = [
        {"uid": uid, "sample": place, "correct": correct, "components": json.dumps({"reward_model": proxy})}
        for uid, pairs in problems.items()
        for place, (proxy, correct) in enumerate(pairs)
    ]
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(0), rows)
    (folder / samples.ABOUT).write_text(json.dumps({"metrics": {"reward_model/mean": 0.0}}))
    ((key, points),) = overoptimisation.curves_of({"drafts": {"artifact": str(folder)}}, [])
    assert key == ("drafts", "best_of_n") and points[0][0] == 0
    best = [max(pairs)[1] for pairs in problems.values()]
    assert points[-1][1] == pytest.approx(np.mean(best))


def test_runs_that_measured_nothing_say_what_would(stages):
    with pytest.raises(UserError, match=r"divergence: \{kind: k3, weight: 0\}"):
        overoptimisation.command(argparse.Namespace(runs=["b"], aligned=[], penalised=[], html=None, json=False))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--aligned", "at-0", "at_1"], "--aligned at_1: no stage of these runs is called so. Did you mean 'at-1'"),
        (["--penalised", "rlvr"], "--penalised rlvr: no stage of these runs is called so. Did you mean 'rl'"),
        (["--aligned", "cold"], "--aligned cold: the stage has no kl/mean and score/mean"),
        (["--penalised", "at-1"], "--penalised at-1: the stage measured no KL"),
    ],
)
def test_named_stages_that_are_no_points_are_refused(stages, options, words):
    with pytest.raises(UserError, match=words):
        overoptimisation.command(asked("a", *options))


def test_a_stage_of_one_of_several_runs_may_be_named(stages, capsys):
    assert overoptimisation.command(asked("b", "a", "--penalised", "rl", "--json")) == 0
    assert {curve["name"] for curve in json.loads(capsys.readouterr().out)} == {"rl", "ends of KL-penalised RL"}
