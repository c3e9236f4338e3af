"""Episodes of a sample stage as rollouts: the very tokens, turns and scores, and an offline stage that plays nothing."""

from __future__ import annotations

import json

import pytest
import toys
import yaml

from pipelines.base.errors import RecipeError
from pipelines.data import dataset, samples
from pipelines.data.dataset import Writer
from pipelines.data.records import Role
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr.train import Trainer
from pipelines.sample.run import run as sample
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

OFFLINE = (
    "presets=[digirl]", "rlvr.rollout=stored_episodes", "rlvr.group_size=3", "rlvr.sampling.max_tokens=6", "rlvr.monitors=[]",
    "rlvr.providers=[{kind: digirl, epochs: 2, batch: 8, warm_up: 1}]", "rlvr.replay={kind: digirl, share: 0.5}",
    "rlvr.advantage.threshold=-0.3",
)  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory, lake):
    """Four episodes of each of twelve problems."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "few").mkdir()
    for path in (lake / "data").iterdir():
        if path.is_dir() or path.suffix != ".parquet":
            (folder / "few" / path.name).symlink_to(path)
    writer = Writer(folder / "few/train.parquet", 100)
    for problem in dataset.read_split(lake / "data", "train")[:12]:
        writer.add(problem)
    writer.close()
    settings = Sample.model_validate(
        {"split": "train", "k": 4, "episodes": {"max_turns": 3}, "sampling": {"max_tokens": 6}}
    )
    sample(
        settings, read_recipe(toys.lake(folder)).model, start=str(lake / "sft/out/model"), data=folder / "few", out=folder / "drafts",
        report=Report(folder / "w"), seed=0,
    )  # fmt: skip
    return folder


def trainer(tmp_path, lake, played, *more):
    recipe = read_recipe(toys.lake(tmp_path), [*OFFLINE, *more])
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    return Trainer(
        recipe.rlvr, recipe.model, start=str(lake / "sft/out/model"), data=played / "few", out=work / "out", work=work,
        report=Report(work, committed=True), seed=0, inputs={"samples": played / "drafts"},
    )  # fmt: skip


def test_an_offline_stage_trains_on_the_very_episodes(tmp_path, lake, played, monkeypatch):
    made = trainer(tmp_path, lake, played)
    monkeypatch.setattr(made.sampler, "extend", None)
    rows, _ = made.collect(0)
    drawn = {(row["uid"], tuple(row["completion_ids"])): row for row in samples.read(played / "drafts")}
    assert len(rows) == 4 * 3 and max(len(row.turn_reward) for row in rows) > 1
    for row in rows:
        start = row.role.count(int(Role.PROMPT))
        stored = drawn[row.uid, tuple(row.tokens[start:])]
        turns = json.loads(stored["episode"])["turns"]
        assert (row.score, row.correct, row.turn_reward) == (
            stored["score"],
            stored["correct"],
            [t["reward"] for t in turns],
        )
        for number, turn in enumerate(turns):
            own = [i for i, t in enumerate(row.turn) if t == number]
            assert own == list(range(own[0], own[-1] + 1)) and {row.role[i] for i in own} == {int(Role.POLICY)}
            assert made.tokenizer.decode([row.tokens[i] for i in own], skip_special_tokens=True) == turn["message"]
        assert len(row.turn_observation) == len(turns) and row.turn_observation[:-1] == [t["reply"] for t in turns[:-1]]
        assert row.max_tokens == 3 * 6, "episodes of a turn too could have had three of six tokens"
        assert ("G" in row.turn_observation[-1]) != bool(row.correct), "what the last turn led to is there too"
        between = [i for i, t in enumerate(row.turn) if t < 0 and i >= start]
        assert {row.role[i] for i in between} <= {int(Role.ENVIRONMENT)} and not any(row.logp_old[i] for i in between)
        assert [p for i, p in enumerate(row.logp_old) if i >= start] == pytest.approx(stored["logp"])
    made.run()
    history = [values for _, values in toys.history(tmp_path / "work")]
    assert len(history) == 3 and history[-1]["digirl/episodes"] == 36
    assert any(values.get("optimizer/grad_norm", 0) > 0 for values in history)


@pytest.mark.parametrize(
    ("made", "drafts", "rl", "words"),
    [
        (
            toys.recipe,
            {},
            {"rollout": "stored_episodes"},
            r"rl\.samples: drafts samples single answers, .*stored_episodes reads episodes",
        ),
        (
            toys.lake,
            {"episodes": {}},
            {"rollout": "stored"},
            r"rl\.samples: drafts holds episodes.*rollout: stored_episodes",
        ),
        (
            toys.tools,
            {"episodes": {}},
            {"rollout": "stored", "samples": "compared"},
            r"rl\.samples: compared holds episodes.*rollout: stored_episodes",
        ),
        (toys.lake, {"episodes": {}}, {"rollout": "stored_episodes", "samples": None}, "reads stored completions"),
    ],
)
def test_episodes_and_answers_are_told_apart(tmp_path, made, drafts, rl, words):
    body = yaml.safe_load(made(tmp_path).read_text())
    sections = {name: body.pop(name) for name in ("curate", "sft", "rlvr", "evaluate")}
    rl = {"kind": "rlvr", "model": "cold", "data": "data", **sections["rlvr"], "samples": "drafts", **rl}
    body["stages"] = {
        "data": {"kind": "curate", **sections["curate"]},
        "cold": {"kind": "sft", "data": "data", **sections["sft"]},
        "drafts": {"kind": "sample", "model": "cold", "data": "data", "split": "train", "k": 2, **drafts},
        "compared": {"kind": "sample", "model": "cold", "data": "drafts", "comparisons": {"by": "score"}},
        "rl": {name: value for name, value in rl.items() if value is not None},
    }
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(path))
