"""Episodes of a sample stage as rollouts: the very tokens, turns and scores, and an offline stage that plays nothing."""

from __future__ import annotations

import json

import pytest
import torch
import toys
import yaml

from pipelines.base.errors import RecipeError
from pipelines.data import dataset, samples
from pipelines.data.dataset import Writer
from pipelines.data.records import Role
from pipelines.papers.common.step_values import Reading
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


def trainer(tmp_path, lake, played, overrides=OFFLINE):
    recipe = read_recipe(toys.lake(tmp_path), list(overrides))
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


def test_values_over_the_turns_of_stored_episodes_are_fitted_to_what_happened(tmp_path, lake, played):
    """What the critics store is what was played: boards, messages, pay and who ended; the policy is trained on Q - V of these turns."""
    values = "{kind: iql, epochs: 2, batch: 8, warm_up: 1, state_tokens: 13}"
    made = trainer(tmp_path, lake, played, ["presets=[iql]", *OFFLINE[1:5], f"rlvr.providers=[{values}]"])
    critics, seen = made.learner.providers["iql"], []
    update = critics.update

    def watched(tokens, columns):
        seen.append(columns)
        return update(tokens, columns)

    critics.update = watched
    made.run()
    history = [measured for _, measured in toys.history(tmp_path / "work")]
    assert [measured["step_values/episodes"] for measured in history] == [12, 24, 36]
    assert "optimizer/grad_norm" not in history[0] and history[-1]["optimizer/grad_norm"] > 0
    stored = [(row, json.loads(row["episode"])["turns"]) for row in samples.read(played / "drafts")]
    problems = {problem.uid: problem for problem in dataset.read_split(played / "few", "train")}
    ends = set()
    for episode in critics.store:
        tokens = episode["token"].tolist()
        row, turns = next(
            each for each in stored if [*each[0]["prompt_ids"], *each[0]["completion_ids"]][: len(tokens)] == tokens
        )
        assert episode["paid"][: len(turns)].tolist() == [turn["reward"] for turn in turns]
        assert bool(episode["over"]) == (row["stop"] == "environment")
        ends.add(row["stop"])
        reading = Reading.of(episode["token"][None], episode["turn"][None], episode["mask"][None], 13)
        shown = [problems[row["uid"]].prompt[-1]["content"], *(turn["reply"] for turn in turns)]
        assert len(reading.state) == len(turns) == len(reading.token)
        for n, (text, turn) in enumerate(zip(reading.token, turns, strict=True)):
            place, end = int(reading.state[n]) % len(text), int(reading.action[n]) % len(text)
            assert made.tokenizer.decode(text[:place], skip_special_tokens=True) == shown[n], "the board that was shown"
            begin, stop = turn["span"]
            assert text[place:end].tolist() == list(row["completion_ids"])[begin:stop], "V in front of it, Q behind it"
    assert ends == {"environment", "turns"}
    for columns in seen:
        gap = (columns["turn_action_value"] - columns["turn_value"]).gather(1, columns["turn"].clamp(min=0))
        wanted = (3 * gap).exp().clamp(max=100) * columns["mask"]
        torch.testing.assert_close(columns["advantage"], wanted)


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
