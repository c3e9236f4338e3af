"""Stored episodes compared two at a time: by a judge behind a server, by a model, by their scores; restarts; the pairs that come of it."""

from __future__ import annotations

import json

import judge_server
import numpy as np
import pytest
import toys
import yaml

from pipelines.base import intervals
from pipelines.base.errors import DataError, RecipeError
from pipelines.base.files import contents
from pipelines.contract.model_settings import Model
from pipelines.curate import selected
from pipelines.data import dataset, samples
from pipelines.data.pair_records import pair_of
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.sample.comparisons import compare
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

WAYS = [("right", "right"), ("left", "up", "right"), ("right",), ("right", "right"), ("down",)]
"""Messages of each episode of a problem; those that go right twice are paid."""


def episode(messages):
    turns = [
        {"state": f"s{i}", "message": m, "reply": "" if i + 1 == len(messages) else f"saw {m}", "role": "user",
         "reward": float(messages == ("right", "right") and i == 1), "cut": False, "span": [i, i + 1]}
        for i, m in enumerate(messages)
    ]  # fmt: skip
    return {"turns": turns, "end": None}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Five episodes of each of two problems, two of which read alike, and one that failed."""
    folder = tmp_path_factory.mktemp("compared") / "drafts"
    rows = []
    for uid in "ab":
        problem = Problem(
            uid=uid * 32, prompt=[{"role": "user", "content": f"way {uid}"}], answer="x", verifier="exact", source="s",
            licence="l", info={"environment": "frozen_lake", "map": ["SG"]},
        )  # fmt: skip
        for number, way in enumerate(WAYS):
            told = episode(way)
            score = sum(t["reward"] for t in told["turns"])
            failed = uid == "b" and number == 4
            rows.append({
                **dataset.to_row(problem), "sample": number, "text": " | ".join(way), "score": None if failed else score,
                "status": "x", "stop": "error" if failed else "environment", "correct": None if failed else score == 1,
                "prompt_ids": [1], "components": "{}", "completion_ids": [1] * len(way), "logp": [0.0] * len(way),
                "entropy": [0.0] * len(way), samples.EPISODE: json.dumps(told),
            })  # fmt: skip
    (folder / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(0), rows[:5])
    toys.write_samples(folder / samples.FOLDER / samples.shard_name(1), rows[5:])
    tokenizer = models.train_tokenizer("char", 128, ["way ab right left up down saw"])
    tokenizer.save_pretrained(folder / "tokenizer")
    about = {"k": 5, "problems": 2, "rows": 10, "split": "train", "template": models.template_identity(tokenizer)}
    (folder / samples.ABOUT).write_text(json.dumps(about))
    return folder


def run(stored, folder, start="x", rows_per_shard=1, **comparisons):
    settings = Sample.model_validate({"rows_per_shard": rows_per_shard, "comparisons": comparisons})
    out = folder / "out"
    metrics = compare(settings, Model(path=start), start=start, data=stored, out=out, report=Report(folder), seed=3)
    return metrics, [(row, json.loads(row[samples.COMPARISONS] or "[]")) for row in samples.read(out)]


def decided(rows):
    """Texts of (the one that was first, the other one, whether the first is better)."""
    texts = {(row["uid"], row["sample"]): row["text"] for row, _ in rows}
    return [(row["text"], texts[row["uid"], c["other"]], c["better"]) for row, told in rows for c in told]


def test_scores_decide_and_equal_ones_are_unsure(stored, tmp_path):
    metrics, rows = run(stored, tmp_path, by="score", per_problem=99)
    compared = decided(rows)
    assert len(compared) == 6 + 3, "each pair of episodes that read differently, of those that were played"
    for first, second, better in compared:
        paid = [text == "right | right" for text in (first, second)]
        assert better == (None if paid[0] == paid[1] else paid[0])
    assert metrics["comparisons/per_problem"] == 4.5 and metrics["comparisons/unsure"] == pytest.approx(4 / 9)
    assert metrics["comparisons/agreement"] == 1 and metrics["rows"] == 10
    assert {first == "right | right" for first, _, better in compared if better is not None} == {True, False}
    assert run(stored, tmp_path / "wide", by="score", margin=1.0)[0]["comparisons/unsure"] == 1
    assert run(stored, tmp_path / "few", by="score", per_problem=2)[0]["comparisons/per_problem"] == 2


def test_a_judge_reads_transcripts_without_rewards(stored, tmp_path):
    """It likes what is longer; on what it is asked first it only remarks how many said what."""

    def rule(body):
        text = body["messages"][1]["content"]
        if "first answer" not in text:
            return f"Better: {text.split('remark ')[1].split()[0]}"
        lengths = [part.count("[agent]") for part in judge_server.pair(body)]
        return f"remark {'unsure' if lengths[0] == lengths[1] else ('first' if lengths[0] > lengths[1] else 'second')}"

    with judge_server.running(rule) as server:
        metrics, rows = run(
            stored, tmp_path, by="endpoint", model="m", url=server.url, cache=False, goal="to be long", per_problem=99
        )
        asked = [body["messages"] for body in server.bodies if "first answer" in body["messages"][1]["content"]]
    assert len(asked) == 9 and all("to be long" in system["content"] for system, _ in asked)
    assert any("[agent] left\n[user] saw left\n[agent] up" in user["content"] for _, user in asked)
    assert not any("reward" in user["content"] or "1.0" in user["content"] for _, user in asked)
    for first, second, better in decided(rows):
        lengths = [len(text.split(" | ")) for text in (first, second)]
        assert better == (None if lengths[0] == lengths[1] else lengths[0] > lengths[1])
    assert metrics["comparisons/agreement"] == pytest.approx(3 / 5), "the longest is no way"


def spooled(folder):
    return [json.loads(line) for line in (folder / "spool.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("rule", "both", "warned"),
    [
        (lambda texts: "first", False, "first"),
        (lambda texts: "second", False, "second"),
        (lambda texts: "first" if texts[0] < texts[1] else "second", False, None),
        (lambda texts: "first" if texts[0] < texts[1] else "second", True, None),
    ],
)
def test_a_judge_that_prefers_a_place_is_reported(tmp_path, rule, both, warned):
    """Of thirty problems with three answers each; a judge that goes by what it reads is none of them, in whatever order."""
    rows = [
        {
            **dataset.to_row(Problem(uid=f"{number:032}", prompt=[{"role": "user", "content": "q"}], answer="x", verifier="exact",
                                     source="s", licence="l")),
            "sample": k, "text": text, "score": 0.0, "status": "x", "stop": "end", "correct": False, "prompt_ids": [1],
            "components": "{}", "completion_ids": [1], "logp": [0.0], "entropy": [0.0],
        }
        for number in range(30)
        for k, text in enumerate("bca")
    ]  # fmt: skip
    drafts = tmp_path / "drafts"
    (drafts / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(drafts / samples.FOLDER / samples.shard_name(0), rows)
    models.train_tokenizer("char", 128, ["abcq"]).save_pretrained(drafts / "tokenizer")
    about = {"k": 3, "problems": 30, "rows": 90, "split": "train"}
    (drafts / samples.ABOUT).write_text(json.dumps(about))

    def judge(body):
        return f"Better: {rule([part.strip() for part in judge_server.pair(body)])}"

    with judge_server.running(judge) as server:
        metrics, _ = run(
            drafts, tmp_path, by="endpoint", model="m", url=server.url, cache=False, analyse=False, both_orders=both, per_problem=3,
        )  # fmt: skip
    events = [line for line in spooled(tmp_path) if line.get("code") == "position_bias"]
    assert [event["text"].split(";")[0] for event in events] == (
        [f"the judge prefers what it is shown {warned}"] if warned else []
    )
    share = metrics["comparisons/first_share"]
    assert share == (pytest.approx(0.5, abs=0.2) if warned is None else float(warned == "first"))
    if warned:
        assert "both_orders: true" in events[0]["text"] and (events[0]["low"] > 0.5 or events[0]["high"] < 0.5)


@pytest.mark.parametrize(("problems", "per_problem"), [(10, 1), (30, 4), (100, 4), (300, 1)])
def test_the_warning_is_seldom_wrong_and_sees_a_bias_of_ten_points(problems, per_problem):
    draw = np.random.default_rng(0)

    def warned(chance):
        shares = draw.binomial(per_problem, chance, size=(400, problems)) / per_problem
        ends = [intervals.share_interval(row) for row in shares]
        return sum(not low <= 0.5 <= high for low, high in ends) / len(ends)

    assert warned(0.5) <= 0.08
    if problems >= 100:
        assert warned(0.6) >= (0.95 if per_problem > 1 else 0.85)


def test_the_stage_s_own_model_may_judge(start, stored, tmp_path):
    """A model that has never learned to judge is unsure of everything."""
    metrics, rows = run(
        stored, tmp_path, start=str(start / "sft/out/model"), analyse=False, max_tokens=4, per_problem=2
    )
    assert metrics["comparisons/unsure"] == 1 and "comparisons/agreement" not in metrics and len(decided(rows)) == 4


def test_finished_shards_stay_over_a_restart(stored, tmp_path):
    run(stored, tmp_path, by="score")
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / samples.FOLDER / samples.shard_name(1)).unlink()
    run(stored, tmp_path, by="score")
    assert contents(tmp_path / "out") == whole
    together = run(stored, tmp_path / "one", by="score", rows_per_shard=99)
    assert decided(together[1]) == decided(run(stored, tmp_path, by="score")[1])


def test_what_the_judge_decided_becomes_pairs_of_whole_episodes(stored, tmp_path):
    _, rows = run(stored, tmp_path, by="score", per_problem=99)
    select = Selection.model_validate({"kind": "preferred", "per_problem": 99})
    records = list(selected.problems(tmp_path / "out", select, 0))
    wanted = {(a, b) if better else (b, a) for a, b, better in decided(rows) if better is not None}
    spoken = set()
    for record in records:
        pair = pair_of(record)
        said = [" | ".join(text for _, text in side.spoken()) for side in pair.sides]
        spoken.add(tuple(said))
        assert pair.prompt == [{"role": "user", "content": f"way {record.info['sampled_from'][0]}"}]
        assert pair.rejected_prompt is None and pair.score_margin is None, "the scores are not told"
        assert "environment" not in record.info
    assert spoken == wanted and len(records) == 5 and len({r.uid for r in records}) == 5
    few = Selection.model_validate({"kind": "preferred", "per_problem": 1})
    assert len(list(selected.problems(tmp_path / "out", few, 0))) == 2


def test_pairs_of_single_answers(stored, tmp_path):
    listed = [{k: v for k, v in row.items() if k != samples.EPISODE} for row in samples.read(stored)]
    listed[2]["stop"] = "length"
    drafts = tmp_path / "answers"
    (drafts / samples.FOLDER).mkdir(parents=True)
    toys.write_samples(drafts / samples.FOLDER / samples.shard_name(0), listed)
    for name in ("tokenizer", samples.ABOUT):
        (drafts / name).symlink_to(stored / name)
    select = Selection.model_validate({"kind": "preferred", "per_problem": 99})
    with pytest.raises(DataError, match="preferred reads comparisons, and the stage made none"):
        list(selected.problems(drafts, select, 0))
    run(drafts, tmp_path, by="score", per_problem=99)
    records = list(selected.problems(tmp_path / "out", select, 0))
    assert {r.info["chosen"] for r in records} == {"right | right"} and len(records) == 5
    cut = [r.info for r in records if r.info["rejected"] == "right" and r.info["sampled_from"][0] == "a"]
    assert [info.get("rejected_cut") for info in cut] == [True] and records[0].info["environment"] == "frozen_lake"


EPISODES = {"episodes": {}}


def graph(folder, *, pairs=None, scorer=None, made=toys.lake, drafts=EPISODES, **compared):
    body = yaml.safe_load(made(folder).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4} | drafts,
        "compared": {"kind": "sample", "data": "drafts", "model": "cold", "comparisons": {}, **compared},
        "pairs": {"kind": "curate", "sources": [{"kind": "stage", "path": "compared", "select": "preferred"} | (pairs or {})],
                  "splits": {"train": 1.0}},
        "scorer": {"kind": "reward_model", "data": "pairs", "model": "cold", "heldout": None, "steps": 1} | (scorer or {}),
    }  # fmt: skip
    path = folder / "compared.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_the_plan_knows_what_is_compared(tmp_path):
    check(graph(tmp_path))
    check(graph(tmp_path, pairs={"select": "segments"}))
    recipe = graph(tmp_path, scorer={"loss": "hindsight_prior"})
    check(recipe)
    scorer = recipe.node("scorer")
    assert [p.text for p in scorer.kind.provenance(scorer)] == [
        "loss: hindsight_prior: preferences (preferred of compared by judge)"
    ]


@pytest.mark.parametrize(("fields", "words"), [
    ({"comparisons": None}, r"compared\.data: drafts makes completions, which only `step_labels` and `comparisons` read"),
    ({"data": "data"}, r"compared\.data: comparisons reads completions"),
    ({"comparisons": {"by": "endpoint"}}, "by: endpoint needs it"),
    ({"comparisons": {"model": "m"}}, "by: endpoint needs it"),
    ({"comparisons": {"by": "score", "url": "http://x/v1"}}, "url and api_key_env are those of an endpoint"),
    ({"comparisons": {"margin": 0.5}}, "margin is read by: score"),
    ({"comparisons": {"by": "score", "both_orders": True}}, "both_orders is about a judge, and by: score asks none"),
    ({"comparisons": {"template": "{first}"}}, "without {second}"),
    ({"step_labels": {}}, "`step_labels` is about new ones"),
    ({"split": "heldout"}, "the stage that drew the completions chose the split"),
    ({"pairs": {"path": "drafts"}}, r"pairs\.sources\.0\.select: drafts compares nothing"),
    ({"pairs": {"select": "pairs"}}, "plays episodes, and pairs is about single answers"),
    ({"scorer": {"kind": "preference", "loss": "dpo"}}, r"pairs of parts of episodes \(sources\.0\.select: preferred\)"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(tmp_path, fields, words):
    with pytest.raises(RecipeError, match=words):
        check(graph(tmp_path, **fields))


def test_what_is_about_turns_is_refused_of_answers(tmp_path):
    answers = {"made": toys.recipe, "drafts": {}}
    check(graph(tmp_path, **answers))
    for fields, words in (
        (
            {"pairs": {"select": {"kind": "preferred", "importance": "changes"}}},
            r"select\.importance: it is of the turns",
        ),
        (
            {"scorer": {"loss": "hindsight_prior"}},
            "hindsight_prior is about the turns of episodes, and pairs makes pairs of single",
        ),
    ):
        with pytest.raises(RecipeError, match=words):
            check(graph(tmp_path, **answers, **fields))
    shown = graph(tmp_path, **answers, pairs={"path": "drafts", "select": {"kind": "pairs", "pair": "demonstration"}})
    scorer = shown.node("scorer")
    assert [p.text for p in scorer.kind.provenance(scorer)] == [
        "loss: bradley_terry: preferences (pairs of drafts by demonstration)"
    ]
