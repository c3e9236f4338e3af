"""Pairs of parts of episodes that begin in different states: what is read of them, and a run on FrozenLake from episodes to the card."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import forks
import pytest
import reward_pairs
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import DataError
from pipelines.base.files import contents, read_json
from pipelines.contract.model_settings import Model
from pipelines.curate.run import run as curate
from pipelines.data import chat, dataset, samples
from pipelines.data.pair_records import Pair, pair_of, read_pairs
from pipelines.data.step_records import steps_of
from pipelines.engine import models
from pipelines.engine.reward_model import RewardScorer
from pipelines.environments.frozen_lake import World
from pipelines.preference.examples import Reader
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Curate
from pipelines.reward_model.pack import answers, tokens_of
from pipelines.reward_model.settings import RewardModel
from pipelines.reward_model.steps import StepTrainer
from pipelines.sample import run as sample
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report

SETTINGS = reward_pairs.SETTINGS | {"max_length": 160, "micro_batch_tokens": 1024}
EPISODES = {"k": 6, "problems": 72, "rows_per_shard": 72, "episodes": {"max_turns": 5}, "sampling": {"max_tokens": 6}}


@pytest.fixture(scope="module")
def played(tmp_path_factory, lake):
    """Episodes of a little model on FrozenLake in `drafts`, pairs of their parts in `data`, the model in `sft/out/model`."""
    folder = tmp_path_factory.mktemp("played")
    (folder / "problems").symlink_to(lake / "data")
    (folder / "sft").symlink_to(lake / "sft")
    play(folder, folder / "drafts")
    read = read_recipe(toys.lake(folder))
    select = {"kind": "segments", "length": 2, "discount": 0.9, "per_problem": 12}
    section = Curate.model_validate(
        {"sources": [{"kind": "stage", "path": "x", "select": select}], "splits": {"train": 0.8, "heldout": 0.2}}
    )
    (folder / "data").mkdir()
    drafts = {0: folder / "drafts"}
    curate(section, read.model, out=folder / "data", report=Report(folder / "w"), seed=0, samples=drafts)
    return folder


def play(folder, out, **changes):
    model = str(folder / "sft/out/model")
    return sample.run(
        Sample.model_validate(EPISODES | changes), Model(path=model), start=model, data=folder / "problems", out=out,
        report=Report(out / "w"), seed=5,
    )  # fmt: skip


def trainer(played, work, **changes):
    from pipelines.reward_model.run import Trainer

    (work / "out").mkdir(parents=True, exist_ok=True)
    model = str(played / "sft/out/model")
    return Trainer(
        RewardModel.model_validate(SETTINGS | changes), Model(path=model), data=played / "data", out=work / "out",
        work=work, report=Report(work, committed=True), seed=3, start=model,
    )  # fmt: skip


def test_an_episode_is_stored_as_it_was_played(played):
    rows = list(samples.read(played / "drafts"))
    assert len(rows) == 72 * 6
    ends = set()
    for row in rows:
        problem = dataset.from_row(row)
        told, world = json.loads(row["episode"]), World()
        messages = list(problem.prompt)
        world.reset(problem)
        for turn in told["turns"]:
            assert turn["state"] == world.state_key()
            step = world.step(chat.after_thinking(turn["message"]))
            assert turn["reward"] == step.reward
            messages.append({"role": "assistant", "content": turn["message"]})
            assert turn["reply"] == ("" if step.done else step.observation)
        assert told["end"] == (None if world.done else world.state_key())
        assert row["score"] == sum(turn["reward"] for turn in told["turns"]) and row["correct"] == (row["score"] == 1)
        assert row["status"] == ("correct" if row["correct"] else "incorrect")
        assert len(row["completion_ids"]) == len(row["logp"]) == len(row["entropy"]) > 0
        ends.add(row["stop"])
    assert ends >= {"environment", "turns"} and {row["correct"] for row in rows} == {True, False}


def test_pairs_begin_in_different_states(played):
    pairs = read_pairs(played / "data", "train") + read_pairs(played / "data", "heldout")
    assert len(pairs) > 120
    begun = [pair.sides[0].prompt == pair.sides[1].prompt for pair in pairs]
    assert sum(begun) < 0.9 * len(begun) and any(pair.chosen_turns for pair in pairs)
    assert all(pair.chosen_score > pair.rejected_score and pair.chosen_score <= 1e-9 for pair in pairs), (
        "minus their regrets"
    )
    assert all(message["role"] != "system" for pair in pairs for message in pair.sides[1].prompt)


@pytest.mark.slow
def test_the_score_of_a_part_is_the_sum_over_its_turns(played, tmp_path):
    """By the saved checkpoint, turn for turn; and the card's accuracy is that of these sums."""
    metrics = trainer(played, tmp_path, steps=6).run()
    assert {"accuracy", "ece", "std_within_prompt"} <= metrics.keys()
    about = read_json(tmp_path / "out/report/reward_model.json")
    assert about["heldout"]["accuracy"] == metrics["accuracy"]
    folder = tmp_path / "out" / "model"
    scorer = RewardScorer(str(folder), Model(path=str(folder)), budget=1024, field="x")
    won = []
    for pair in read_pairs(played / "data", "heldout"):
        scores = []
        for side in pair.sides:
            spoken = side.spoken()
            ids = [
                chat.render_answer(scorer.tokenizer, before, text, "x", ended=i < len(spoken) or not side.cut)
                for i, (before, text) in enumerate(spoken, 1)
            ]
            scores.append(float(scorer.score([row for row, _ in ids], [start for _, start in ids]).sum()))
        won.append(0.5 * (scores[0] > scores[1]) + 0.5 * (scores[0] >= scores[1]))
    assert metrics["accuracy"] == pytest.approx(sum(won) / len(won), abs=0.02)


def test_a_soft_prior_is_what_a_loop_over_the_turns_says(played, tmp_path):
    """The distance of each turn's reward from its share, where a pair says the shares and where it does not."""
    run = trainer(played, tmp_path, loss="hindsight_prior")
    with torch.no_grad():  # heads begin with next to no weights
        run.model.heads.weight.normal_(generator=torch.Generator().manual_seed(0))
    batch = [
        replace(each, pair=replace(each.pair, chosen_importance=(0.25, 0.75))) if len(each.passages[0]) == 2 else each
        for each in run.heldout
    ]
    with torch.no_grad():
        [columns] = run._all_columns(batch, [-1] * len(batch))
        for number, each in enumerate(batch):
            for side, name in enumerate(("chosen_prior", "rejected_prior")):
                packed, _ = answers([each], run.tokenizer.pad_token_id)
                rewards = reward_pairs.scores(run.model, packed, 1024)[0][:, 0].split([len(p) for p in each.passages])[
                    side
                ]
                shares = torch.full_like(rewards, 1 / len(rewards))
                if side == 0 and len(rewards) == 2:
                    shares = torch.tensor([0.25, 0.75])
                expected = (rewards - shares * rewards.sum()).square().mean()
                assert float(columns[name][number]) == pytest.approx(float(expected), abs=1e-4, rel=1e-4)
        assert float(columns["chosen_prior"].max()) > 0.1
    assert {len(each.passages[0]) for each in batch} == {1, 2}


@pytest.mark.parametrize("values", ["alike", [1], [1, -1], [1, True], [1, float("nan")]])
def test_what_turns_count_is_a_number_for_each(played, values):
    problem = dataset.read_split(played / "data", "train")[0]
    turns = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    info = {"chosen": "a", "rejected": "b", "chosen_turns": turns, "chosen_importance": values}
    with pytest.raises(DataError, match=r"info\.chosen_importance is no list of 2 numbers from 0"):
        pair_of(replace(problem, info=info))
    shared = pair_of(replace(problem, info=info | {"chosen_importance": [1, 3], "rejected_importance": [0]}))
    assert shared.chosen_importance == (0.25, 0.75) and shared.rejected_importance == (1.0,)


@pytest.mark.slow
def test_the_turns_of_episodes_are_labelled_steps(played, tmp_path):
    """AgentPRM's targets, from the same episodes to a trained model: what reached the goal from its state has a label above 0."""
    read = read_recipe(toys.lake(tmp_path))
    select = {"kind": "steps", "discount": 0.9, "per_problem": 40}
    section = Curate.model_validate(
        {
            "sources": [{"kind": "stage", "path": "x", "select": select}],
            "splits": {"train": 0.8, "heldout": 0.2},
            "near_duplicates": None,
        }
    )
    (tmp_path / "data").mkdir()
    curate(
        section,
        read.model,
        out=tmp_path / "data",
        report=Report(tmp_path / "w"),
        seed=0,
        samples={0: played / "drafts"},
    )
    turns = [steps_of(p) for split in ("train", "heldout") for p in dataset.read_split(tmp_path / "data", split)]
    rows = [json.loads(row["episode"])["turns"] for row in samples.read(played / "drafts")]
    spoken = {(row[0]["message"], len(row)) for row in rows}
    assert len(turns) > len(spoken) and {len(turn.prompt) % 2 for turn in turns} == {1}
    labels = [turn.labels[0] for turn in turns]
    won = [turn["message"] for row in rows if sum(t["reward"] for t in row) for turn in row]
    assert all(0 <= label <= 1 for label in labels) and 0 < sum(label > 0 for label in labels) < len(labels)
    assert {turn.steps[0] for turn in turns if turn.labels[0] > 0} <= {message.strip() for message in won}
    (tmp_path / "run" / "out").mkdir(parents=True)
    model = str(played / "sft/out/model")
    settings = RewardModel.model_validate(SETTINGS | {"steps": 20, "loss": "step_bce", "step_labels": {}})
    metrics = StepTrainer(
        settings, Model(path=model), data=tmp_path / "data", out=tmp_path / "run" / "out", work=tmp_path / "run",
        report=Report(tmp_path / "run", committed=True), seed=3, start=model,
    ).run()  # fmt: skip
    assert metrics["brier"] < 0.25 and 0 <= metrics["best_of_n/last"] <= 1


@pytest.mark.slow
def test_it_learns_what_an_earlier_turn_says(tmp_path):
    """From a file: both parts end alike, and what tells them apart was said before."""
    draw = random.Random(0)
    rows = []
    for number in range(240):
        spoken = ["".join(draw.choices(letters, k=draw.randint(2, 6))) for letters in ("abcd", "efgh")]
        turns = [[{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}] for text in spoken]
        rows.append(
            {
                "prompt": f"say {number % 30}", "rejected_prompt": f"say {(number + 7) % 30}", "chosen": "so",
                "rejected": "so", "chosen_turns": turns[0], "rejected_turns": turns[1], "data_source": "turns",
            }
        )  # fmt: skip
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    begun = reward_pairs.begin(tmp_path, {"kind": "file", "path": str(tmp_path / "pairs.jsonl")})
    run = reward_pairs.trainer(begun, tmp_path / "run", steps=60, optimizer={"learning_rate": 0.01})
    metrics = run.run()
    assert metrics["accuracy"] > 0.9 and len(run.pairs) + len(run.heldout) > 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    ["bradley_terry", *(pytest.param(x, marks=pytest.mark.slow) for x in ("grm", "iterative_smoothing", "odin"))],
)
def test_a_stopped_run_ends_in_the_same_bytes(played, tmp_path, loss):
    whole = trainer(played, tmp_path / "whole", steps=4, loss=loss, commit={"every": 1})
    whole.run()
    toys.run_stopped(lambda: trainer(played, tmp_path / "cut", steps=4, loss=loss, commit={"every": 1}), part=None)
    assert contents(tmp_path / "whole" / "out") == contents(tmp_path / "cut" / "out")


def job(folder, kind, body, inputs):
    (folder / "out").mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"seed": 5, "threads": 1, "settings": body, "inputs": inputs}))
    return [sys.executable, "-m", f"pipelines.{kind}", str(folder)]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["reward_model", "sample"])
def test_a_kill_changes_no_byte(played, tmp_path, kind):
    """SIGKILL after the first commit or shard; then to the end."""
    section = SETTINGS | {"steps": 30, "commit": {"every": 5}}
    if kind == "sample":
        section = EPISODES | {"problems": 24, "rows_per_shard": 6}
    model = played / "sft/out/model"
    body = {kind: section, "model": Model(path=str(model)).model_dump()}
    inputs = {"data": str(played / ("data" if kind == "reward_model" else "problems"))}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    forks.run(job(whole, kind, body, inputs), cwd=toys.ROOT, check=True, capture_output=True)
    command = job(killed, kind, body, inputs)
    child = forks.Popen(command, cwd=toys.ROOT, stdout=subprocess.DEVNULL)
    first = killed / ("checkpoints/LATEST.json" if kind == "reward_model" else "out/samples/shard-00001.parquet")
    while not first.exists():
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (killed / "out" / ("model" if kind == "reward_model" else "samples.json")).exists()
    forks.run(command, cwd=toys.ROOT, check=True, capture_output=True)
    assert contents(whole / "out") == contents(killed / "out")


def swapped(pair):
    return replace(
        pair, prompt=pair.sides[1].prompt, chosen=pair.rejected, chosen_turns=pair.rejected_turns,
        chosen_cut=pair.rejected_cut, rejected=pair.chosen, rejected_prompt=pair.prompt,
        rejected_turns=pair.chosen_turns, rejected_cut=pair.chosen_cut,
    )  # fmt: skip


def test_swapped_sides_have_swapped_rewards_and_the_other_label_s_loss(played, tmp_path):
    run = trainer(played, tmp_path)
    pairs = [replace(row.pair, chosen_score=None, rejected_score=None) for row in run.pairs[:16]]
    losses, rewards = [], []
    for some in (pairs, [swapped(pair) for pair in pairs]):
        columns = run._all_columns([tokens_of(pair, run.tokenizer, None) for pair in some], [-1] * len(some))
        losses.append(run._loss(columns))
        rewards.append(torch.stack([columns[0]["chosen_reward"], columns[0]["rejected_reward"]]))
    torch.testing.assert_close(rewards[0], rewards[1].flip(0), atol=1e-5, rtol=1e-5)
    # -log sigmoid(d) and -log sigmoid(-d): the two labels' probabilities make 1.
    torch.testing.assert_close((-losses[0]).exp() + (-losses[1]).exp(), torch.ones(len(pairs)), atol=1e-5, rtol=1e-5)
    assert (losses[0] - losses[1]).abs().max() > 1e-3


def test_one_beginning_and_one_turn_is_what_a_pair_was(played, tmp_path):
    """Written out as a pair of parts or as two answers to one prompt: the same tokens, the same rewards."""
    run = trainer(played, tmp_path)
    prompt = [{"role": "user", "content": "A.\n.G"}]
    plain = Pair("u", prompt, "down", "right")
    written = Pair("u", prompt, "down", "right", rejected_prompt=list(prompt))
    one, two = (tokens_of(pair, run.tokenizer, None) for pair in (plain, written))
    assert (one.chosen, one.rejected, one.starts, one.size, one.lengths) == (
        two.chosen, two.rejected, two.starts, two.size, two.lengths
    )  # fmt: skip
    packed, owner = answers([one, two], run.tokenizer.pad_token_id)
    assert owner.tolist() == [0, 1, 2, 3] and one.starts[0] == one.starts[1]
    rewards = run._all_scores([one, two]).rewards
    assert torch.equal(rewards[0], rewards[1]) and torch.equal(rewards[2], rewards[3])
    direct, _ = reward_pairs.scores(run.model, packed, 1024)
    assert torch.equal(rewards, direct)


def test_an_answer_that_was_cut_before_its_first_character_has_no_tokens(played):
    tokenizer = models.load_tokenizer(played / "sft/out/model")
    prompt = [{"role": "user", "content": "A.\n.G"}]
    ids, start = chat.render_answer(tokenizer, prompt, "", "x", ended=False)
    assert ids == chat.render_prompt(tokenizer, prompt) and start == len(ids)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=2), st.integers(0, 9))
def test_every_turn_of_a_side_is_read_once(lens, number):
    """Passages of a side: as many as its turns, growing, each ends with the message that it is read at."""
    words = ["left", "right", "up", "down"]
    sides = []
    for count in lens:
        turns = []
        for i in range(count):
            turns += [{"role": "assistant", "content": words[(i + number) % 4]}, {"role": "user", "content": f"o{i}"}]
        sides.append(tuple(turns))
    pair = Pair("u", [{"role": "user", "content": "s"}], "left", "up", chosen_turns=sides[0], rejected_turns=sides[1])
    for side, count in zip(pair.sides, lens, strict=True):
        spoken = side.spoken()
        assert len(spoken) == count + 1
        for i, (before, text) in enumerate(spoken):
            assert len(before) == 1 + 2 * i and before[-1]["role"] == "user"
            assert text == ([m["content"] for m in side.turns[::2]] + [side.text])[i]


def test_what_needs_one_prompt_refuses_them_by_their_field(played, tmp_path):
    tokenizer = models.load_tokenizer(played / "sft/out/model")
    reader = Reader(
        tokenizer, 200, labels=False, wanted=(), system=None, loss="dpo", progress=lambda *_: None, event=lambda *_, **__: None
    )  # fmt: skip
    with pytest.raises(
        DataError,
        match=r"preference\.data: record \w+ is a pair of parts of episodes \(info\.(rejected_prompt|chosen_turns)",
    ):
        reader.read(played / "data", "train")
    with pytest.raises(DataError, match=r"reward_model\.critique: record .* pair of parts of episodes .* Leave it out"):
        trainer(played, tmp_path, critique={"source": "own", "sampling": {"max_tokens": 4}})
    with pytest.raises(DataError, match=r"reward_model\.users: record .* pair of parts of episodes .* Leave it out"):
        trainer(played, tmp_path, users={}, loss="vpl")


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"rejected_prompt": "there"}, r"info\.rejected_prompt is no list of messages"),
        ({"rejected_prompt": [{"role": "user"}]}, r"info\.rejected_prompt is no list of messages"),
        ({"chosen_turns": [{"role": "user", "content": "x"}]}, r"info\.chosen_turns does not begin with a message of the assistant"),
        ({"rejected_turns": [{"role": "assistant", "content": "x"}]}, r"info\.rejected_turns does not begin"),
    ],
)  # fmt: skip
def test_a_damaged_record_names_its_field(played, info, words):
    problem = dataset.read_split(played / "data", "train")[0]
    with pytest.raises(DataError, match=words):
        pair_of(replace(problem, info={"chosen": "a", "rejected": "b"} | info))


def test_turns_of_an_episode_need_no_entropy_and_no_verifier(played, tmp_path):
    """The same seed plays the same episodes, whatever was played before in another process."""
    one = play(played, tmp_path / "a", problems=4)
    two = play(played, tmp_path / "b", problems=4)
    assert one == two and contents(tmp_path / "a" / "samples") == contents(tmp_path / "b" / "samples")
    assert one["scored"] == 1 and "entropy/mean" in one and one != play(played, tmp_path / "c", problems=5)
